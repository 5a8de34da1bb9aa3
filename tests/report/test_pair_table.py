"""What judging pairs took: counted call by call, kept with the pairs, shown in the report with the screenshots."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.claims import load_claim
from harness.claims.simulate import simulated_sweep
from harness.errors import UserError
from harness.evaluate.pair_records import PAIRS, PairRecord, read_pairs, write_pairs
from harness.report.build import report
from harness.report.pair_table import pair_table
from tasks.judges import PairRequest, Preference, Usage
from tasks.react.pairs import Pair, compare_pairs

CLAIM = load_claim("win-rate")


class PaidJudge:
    """Prefers what is shown first, and takes a cent each time; the second request of a call fails."""

    def compare(self, requests: list[PairRequest]) -> list[Preference]:
        return [
            Preference(
                "first" if i != 1 else None, "ok" if i != 1 else "failed", usage=Usage(calls=1, usd=0.01)
            )
            for i in range(len(requests))
        ]


def test_both_orders_are_counted_and_pairs_without_a_judge_cost_nothing():
    pairs = [Pair("a", 0, "p", b"x", b"y"), Pair("b", 0, "p", b"x", b"y"), Pair("c", 0, "p", b"x", b"")]
    found = compare_pairs(PaidJudge(), pairs)
    assert [(r.score, r.calls) for r in found] == [(0.5, 2), (None, 2), (1.0, 0)]
    assert [r.usd for r in found] == [pytest.approx(0.02), pytest.approx(0.02), 0.0]


def record(
    treatment: str, score: float | None, *, agreed: bool = True, seed: int = 0, step: int = 60, calls: int = 2
):
    return PairRecord(
        treatment,
        "grpo",
        seed,
        f"p{score}",
        score,
        agreed,
        "ok",
        "openai/x",
        (step, step),
        calls,
        0.01 * calls,
    )


def test_a_row_sums_its_comparison():
    pairs = [
        record("bot_grpo", 1.0),
        record("bot_grpo", 0.5, agreed=False),
        record("bot_grpo", None),
        record("dapo", 0.5, calls=0),
    ]
    rows = pair_table(pairs).rows
    assert rows[0] == ("bot_grpo vs grpo", "openai/x", 3, 1, 1, 1, 6, pytest.approx(0.06))
    assert rows[1] == ("dapo vs grpo", "openai/x", 1, 1, 0, 0, 0, 0.0)


def test_pairs_kept_before_costs_were_counted_are_read(tmp_path):
    write_pairs(tmp_path / PAIRS, [record("bot_grpo", 1.0)])
    row = json.loads((tmp_path / PAIRS).read_text())
    old = {name: value for name, value in row.items() if not name.startswith("judge_")}
    (tmp_path / PAIRS).write_text(json.dumps(old) + "\n")
    (found,) = read_pairs(tmp_path / PAIRS)
    assert (found.score, found.judge_calls, found.judge_usd) == (1.0, 0, 0.0)
    (tmp_path / PAIRS).write_text(json.dumps({**old, "more": 1}) + "\n")
    with pytest.raises(UserError, match="one too many"):
        read_pairs(tmp_path / PAIRS)


@pytest.fixture(scope="module")
def judged(tmp_path_factory, writer) -> Path:
    """Finished runs of win-rate whose pairs were judged, with a sheet of screenshots."""
    crossings = {arm.name: [30] * 4 for arm in CLAIM.arms}
    runs = simulated_sweep(CLAIM, "tiny", crossings, np.random.default_rng(1))
    folder = writer(tmp_path_factory.mktemp("wins"), runs, CLAIM)
    ends = {(run.arm, run.seed): run.evals[-1]["optimizer_step"] for run in runs}
    pairs = [
        PairRecord(
            pair.treatment, pair.baseline, seed, f"p{i}", float((i + seed) % 2), True, "ok", "openai/x",
            (ends[pair.treatment, seed], ends[pair.baseline, seed]), 2, 0.02,
        )
        for pair in CLAIM.comparisons_at("tiny") for seed in range(4) for i in range(3)
    ]  # fmt: skip
    write_pairs(folder / PAIRS, pairs)
    Image.new("RGB", (60, 40), (200, 10, 10)).save(folder / "screenshots-seed-0.png")
    return folder


def test_the_report_has_the_judges_costs_and_the_screenshots(judged, tmp_path):
    text = report([judged], "md", tmp_path).read_text()
    assert "| bot_grpo vs grpo | openai/x | 12 |" in text
    assert re.search(r"\| 24 \| 0\.240 \|", text)
    (sheet,) = re.findall(r"\((pictures/\S*screenshots\.png)\)", text)
    assert (tmp_path / sheet).read_bytes() == (judged / "screenshots-seed-0.png").read_bytes()
    page = report([judged], "html", tmp_path).read_text()
    assert 'src="data:image/png;base64,' in page
    assert r"screenshots.png}" in report([judged], "latex", tmp_path).read_text()
