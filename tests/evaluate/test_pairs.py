"""Pairs of a win-rate claim: judged once, kept, resumed, merged into the verdict; and once for real."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from harness.claims.schema import Claim, load_claim, parse_claim
from harness.claims.verdict import judge
from harness.errors import EnvironmentProblem, UserError
from harness.evaluate import pairs as pairs_module
from harness.evaluate.pair_records import (
    PAIRS,
    PairRecord,
    cells,
    read_pairs,
    run_of,
    stored_win_rates,
    write_pairs,
)
from harness.evaluate.pairs import PairSettings, check_ready, judge_pairs
from harness.evaluate.sheet import GAP, HEAD, THUMBNAIL, Shot, fullest_rows, write_sheet
from harness.reproduce import run_spec
from harness.store.reader import RunRecord
from tasks.base import Answer
from tasks.judges import PairRequest, Preference
from tasks.react.browser import BrowserError, Picture

PROMPTS = 4


def png(grey: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), (grey, grey, grey)).save(stream, "PNG")
    return stream.getvalue()


def small_claim(**changes: object) -> Claim:
    """The win-rate claim with two treatments, one baseline and four prompts."""
    body = load_claim("win-rate").model_dump(mode="json")
    body["arms"] = [arm for arm in body["arms"] if arm["name"] in ("bot_grpo", "grpo", "dapo")]
    body["comparisons"] = [
        {"treatment": "bot_grpo", "baseline": "grpo"},
        {"treatment": "bot_grpo", "baseline": "dapo"},
    ]
    body["scales"] = {"smoke": {**body["scales"]["smoke"], "eval_prompts": PROMPTS, "horizon": 6}}
    return parse_claim({**body, **changes}, "test")


def finished_runs(claim: Claim, root: Path, seeds: Sequence[int] = (0, 1)) -> list[RunRecord]:
    """A record of every run, completed, with a file where its last checkpoint would be."""
    out = []
    for arm in claim.arms_at("smoke"):
        for seed in seeds:
            spec = run_spec(claim, "smoke", arm, seed)
            path = root / "runs" / f"{arm.name}-seed{seed}"
            (path / "checkpoints").mkdir(parents=True)
            (path / "checkpoints" / "step-000006.pt").write_bytes(b"")
            out.append(
                RunRecord(
                    run_id=spec.run_id, path=path, arm=arm.name, algorithm=arm.algorithm, seed=spec.seeds.seed,
                    spec=spec.model_dump(mode="json"), status="completed",
                    evals=[{"optimizer_step": s, "metrics": {"compile": 0.1 * s + seed}} for s in (0, 6)],
                )
            )  # fmt: skip
    return out


class Stage:
    """Stands in for models, checkers, browser and judge; answers are texts that name their own grey."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, words: Callable[[str, int, int], str]) -> None:
        self.sampled: list[str] = []
        self.asked = 0
        self.fail_from = 10**9
        self.photographed: list[str] = []
        monkeypatch.setattr(pairs_module, "load_target", lambda path: Path(path).name)
        monkeypatch.setattr(pairs_module, "last_answers", self._answers)
        monkeypatch.setattr(pairs_module, "picture_answers", self._pictures)
        monkeypatch.setattr(pairs_module, "Screenshots", lambda browser, node: self)
        monkeypatch.setattr(pairs_module, "open_judge", lambda settings: self)
        self._words = words

    def _answers(self, target: str, examples: Sequence[object]) -> list[Answer]:
        self.sampled.append(target)
        arm, _, seed = target.rpartition("-seed")
        texts = [self._words(arm, int(seed), i) for i in range(len(examples))]
        return [Answer(text=text, finished=text != "cut") for text in texts]

    def _pictures(self, checks: object, camera: object, answers: Sequence[str]) -> list[Picture]:
        self.photographed += answers
        return [
            Picture(png(int(text)), "ok") if text.isdigit() else Picture(b"", "not_compiled")
            for text in answers
        ]

    def compare(self, requests: Sequence[PairRequest]) -> list[Preference]:
        """The darker picture wins; from `fail_from` on the judge is busy."""
        self.asked += len(requests)
        if self.asked > self.fail_from:
            return [Preference(None, "failed", "busy") for _ in requests]

        def grey(image: bytes) -> int:
            with Image.open(io.BytesIO(image)) as picture:
                return picture.getpixel((0, 0))[0]

        return [Preference("first" if grey(r.first) < grey(r.second) else "second") for r in requests]

    def close(self) -> None:
        pass


def by_arm(arm: str, seed: int, i: int) -> str:
    """bot_grpo beats grpo on prompts 0 to 2 (seed 0) or 0 to 1 (seed 1), ties on the last; dapo never compiles."""
    if arm == "dapo":
        return "no code"
    if i == PROMPTS - 1:
        return "cut"
    return "10" if (arm == "bot_grpo") == (i < 3 - seed) else "200"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch, by_arm)


def test_win_rates_by_hand_reach_the_verdict(stage: Stage, tmp_path: Path) -> None:
    """Against grpo: (3 + 1/2) / 4 and (2 + 1/2) / 4; against dapo, which shows nothing: (3 + 1/2) / 4 twice."""
    claim = small_claim()
    runs, notes = judge_pairs(claim, "smoke", finished_runs(claim, tmp_path), tmp_path, PairSettings())
    rates = {(r.arm, r.seed): r.evals[-1]["metrics"] for r in runs}
    assert [rates["bot_grpo", s]["win_rate_vs_grpo"] for s in (0, 1)] == [3.5 / 4, 2.5 / 4]
    assert [rates["bot_grpo", s]["win_rate_vs_dapo"] for s in (0, 1)] == [3.5 / 4, 3.5 / 4]
    assert rates["grpo", 0] == {"compile": pytest.approx(0.6)}
    verdict = judge(claim, "smoke", runs)
    assert verdict.comparisons[0].effects["win_rate_vs_grpo"].estimate == pytest.approx(0.25)
    assert "bot_grpo against grpo: win rate 0.750 (97.5% 0 to 1.00; exact 0 to 1.00)" in verdict.sentence
    assert verdict.arms[0].final["compile"] == pytest.approx(0.6 + 0.5)
    assert notes[0].startswith("bot_grpo against grpo: win rate 0.750 (95% 0 to 1.00, ")
    assert "clustered by prompt and seed; 8 pairs, 25% ties, 0% decided by the order shown, 0 not" in notes[0]
    assert "pair judge: scripted" in notes[-1]
    assert "not by a model" in notes[-1]


def test_a_pair_is_a_line(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    judge_pairs(claim, "smoke", finished_runs(claim, tmp_path), tmp_path, PairSettings())
    rows = [json.loads(line) for line in (tmp_path / PAIRS).read_text().splitlines()]
    assert len(rows) == 2 * 2 * PROMPTS
    assert {(r["treatment"], r["baseline"], r["seed"]) for r in rows} == {
        ("bot_grpo", b, s) for b in ("grpo", "dapo") for s in (0, 1)
    }
    assert [r["score"] for r in rows[:PROMPTS]] == [1.0, 1.0, 1.0, 0.5]
    assert len({r["prompt_id"] for r in rows}) == PROMPTS
    assert {(r["agreed"], r["status"], r["judge"]) for r in rows} == {(True, "ok", "scripted")}


def test_equal_answers_are_photographed_once_and_cut_ones_never(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    judge_pairs(claim, "smoke", finished_runs(claim, tmp_path, (0,)), tmp_path, PairSettings())
    assert sorted(stage.photographed) == ["10", "200", "no code"]


def test_again_samples_and_judges_nothing_and_says_the_same(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path)
    first = judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    sampled, asked = len(stage.sampled), stage.asked
    assert (sampled, asked) == (6, 2 * 2 * (PROMPTS - 1))
    assert judge_pairs(claim, "smoke", records, tmp_path, PairSettings()) == first
    assert (len(stage.sampled), stage.asked) == (sampled, asked)


def test_a_break_keeps_the_cells_that_were_judged(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path)
    whole = judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    kept = read_pairs(tmp_path / PAIRS)
    write_pairs(tmp_path / PAIRS, kept[:PROMPTS])
    del stage.sampled[:]
    stage.asked = 0
    compare = stage.compare

    def broken(requests: Sequence[PairRequest]) -> list[Preference]:
        if stage.asked:
            raise KeyboardInterrupt
        return compare(requests)

    # seed 0 against dapo needs no judge; seed 1 against grpo is judged; seed 1 against dapo needs none
    monkeypatch.setattr(stage, "compare", lambda requests: broken(requests) if requests else [])
    assert judge_pairs(claim, "smoke", records, tmp_path, PairSettings()) == whole
    assert stage.asked == 2 * (PROMPTS - 1)
    write_pairs(tmp_path / PAIRS, kept[:PROMPTS])
    with pytest.raises(KeyboardInterrupt):
        judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    assert {pair.cell for pair in read_pairs(tmp_path / PAIRS)} == {
        ("bot_grpo", "grpo", 0),
        ("bot_grpo", "dapo", 0),
    }


def test_a_failed_run_is_left_out_with_a_word(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = [
        replace(r, status="failed") if (r.arm, r.seed) == ("dapo", 1) else r
        for r in finished_runs(claim, tmp_path)
    ]
    runs, notes = judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    assert notes[-1] == "bot_grpo against dapo, seed 1: not judged, dapo is failed"
    assert "dapo-seed1" not in stage.sampled
    bot = next(r for r in runs if (r.arm, r.seed) == ("bot_grpo", 1))
    assert "win_rate_vs_grpo" in bot.evals[-1]["metrics"]
    assert "win_rate_vs_dapo" not in bot.evals[-1]["metrics"]


def test_a_run_that_trained_on_is_judged_again(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path, (0,))
    judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    del stage.sampled[:]
    longer = [
        replace(r, evals=[*r.evals, {"optimizer_step": 8, "metrics": {}}]) if r.arm == "grpo" else r
        for r in records
    ]
    judge_pairs(claim, "smoke", longer, tmp_path, PairSettings())
    assert "grpo-seed0" in stage.sampled
    found = {pair.cell: pair.optimizer_steps for pair in read_pairs(tmp_path / PAIRS)}
    assert found == {("bot_grpo", "grpo", 0): (6, 8), ("bot_grpo", "dapo", 0): (6, 6)}
    assert len(read_pairs(tmp_path / PAIRS)) == 2 * PROMPTS


def test_failed_judgements_are_asked_again_only_on_request(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path, (0,))
    stage.fail_from = 0
    _, notes = judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    assert "1 pairs, 100% ties, 0% decided by the order shown, 3 not judged" in notes[0]
    stage.fail_from, before = 10**9, stage.asked
    judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    assert stage.asked == before
    _, notes = judge_pairs(claim, "smoke", records, tmp_path, PairSettings(retry=True))
    assert notes[0].startswith("bot_grpo against grpo: win rate 0.875")
    assert len(read_pairs(tmp_path / PAIRS)) == 2 * PROMPTS


def test_judges_do_not_mix(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path, (0,))
    judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    other = PairSettings("openai", {"model": "m", "budget_usd": 1})
    _, notes = judge_pairs(claim, "smoke", records, tmp_path, other)
    assert notes[-1] == "pair judge: openai/m"
    assert {pair.judge for pair in read_pairs(tmp_path / PAIRS)} == {"scripted", "openai/m"}
    _, stored = stored_win_rates(claim, "smoke", records)
    assert stored == notes


def test_reports_read_the_kept_pairs(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path)
    assert stored_win_rates(claim, "smoke", records) == (records, [])
    judged = judge_pairs(claim, "smoke", records, tmp_path, PairSettings())
    assert stored_win_rates(claim, "smoke", records) == judged


def test_without_a_browser_one_line_names_the_remedy(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: object) -> None:
        raise BrowserError("no Chromium found: install one (apt install chromium)")

    monkeypatch.setattr(pairs_module, "Screenshots", none)
    claim = small_claim()
    with pytest.raises(EnvironmentProblem, match=r"install one .*all runs are kept") as caught:
        judge_pairs(claim, "smoke", finished_runs(claim, tmp_path), tmp_path, PairSettings())
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    assert not (tmp_path / PAIRS).exists()


def test_the_judge_is_checked_before_anything_is_trained(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(UserError, match="did you mean 'openai'"):
        check_ready(PairSettings("opnai"), None, said.append)
    with pytest.raises(UserError, match="budget_usd is not set"):
        check_ready(PairSettings("openai", {"model": "m"}), None, said.append)
    check_ready(PairSettings(), str(tmp_path / "no-browser"), said.append)
    assert len(said) == 1
    assert "give the path of a Chromium" in said[0]


def test_arms_with_other_prompts_are_refused(stage: Stage, tmp_path: Path) -> None:
    claim = small_claim()
    records = finished_runs(claim, tmp_path, (0,))
    odd = {**records[0].spec, "evaluation": {"prompts": 3}}
    with pytest.raises(UserError, match="differ in task or evaluation prompts"):
        judge_pairs(claim, "smoke", [replace(records[0], spec=odd), *records[1:]], tmp_path, PairSettings())


def test_a_task_without_pictures_is_refused(stage: Stage, tmp_path: Path, letters_plugin: Path) -> None:
    claim = small_claim()
    records = [
        replace(r, spec={**r.spec, "task": {"name": "letters"}}) for r in finished_runs(claim, tmp_path, (0,))
    ]
    with pytest.raises(UserError, match="'letters' has no screenshots"):
        judge_pairs(claim, "smoke", records, tmp_path, PairSettings())


def test_a_control_is_paired_by_the_seed_it_stands_for(tmp_path: Path) -> None:
    claim = small_claim().with_control()
    runs = finished_runs(claim, tmp_path, (0, 1))
    assert {seed for _, seed in run_of(claim, "smoke", runs)} == {0, 1}
    assert ("grpo_control", "grpo", 1) in cells(claim, "smoke", runs)
    assert len(cells(claim, "smoke", runs)) == 3 * 2


def test_a_damaged_file_of_pairs_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    pair = PairRecord("a", "b", 0, "p", None, False, "failed", "scripted", (6, 6))
    path = tmp_path / PAIRS
    write_pairs(path, [pair, replace(pair, score=0.5)])
    assert read_pairs(path) == [pair, replace(pair, score=0.5)]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="delete the file"):
        read_pairs(path)
    path.write_text('{"treatment": "a"}\n')
    with pytest.raises(UserError, match="lacks a field"):
        read_pairs(path)


def test_the_sheet_shows_the_prompts_that_most_arms_answered(tmp_path: Path) -> None:
    none, dark, light = Shot(b"", "not_compiled"), Shot(png(10), "ok"), Shot(png(200), "ok")
    shots = {"a": [none, dark, dark, none], "b": [none, none, light, light]}
    assert fullest_rows(shots, 2) == [1, 2]
    write_sheet(tmp_path / "sheet.png", ["p"] * 4, shots, rows=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        width, height = THUMBNAIL
        left, top, gap = GAP, HEAD + GAP, GAP
        middle = [
            sheet.getpixel(
                (left + column * (width + gap) + width // 2, top + row * (height + gap) + height // 2)
            )
            for row in (0, 1)
            for column in (1, 2)
        ]
    assert middle == [(10, 10, 10), (204, 204, 204), (10, 10, 10), (200, 200, 200)]


TOML = """
name = "one-step-wins"
version = 1
statement = "one step of BoT-GRPO looks better than one of GRPO"
source = "a test"
baseline = "grpo"
smallest_effect = 0.05

[published]
reading = "order only"

[[arms]]
name = "bot_grpo"
algorithm = "bot_grpo"

[[arms]]
name = "grpo"
algorithm = "grpo"

[endpoint]
kind = "win_rate"

[scales.smoke]
model = "react-tiny"
task = "react"
recipe = "first_error_to_end"
horizon = 1
eval_every = 1
eval_prompts = 12
seeds = 1
train = { prompts_per_step = 1, group_size = 4 }
"""


@pytest.mark.browser
def test_for_real_with_and_without_a_browser(tmp_path: Path) -> None:
    """Two runs of one step: without a browser exit 1 and nothing lost; with one, pictures, pairs, a verdict."""
    claim, out = tmp_path / "wins.toml", tmp_path / "out"
    claim.write_text(TOML)

    def reproduce(**environment: str) -> subprocess.CompletedProcess[str]:
        words = ["reproduce", "--claim", str(claim), "--scale", "smoke", "--out", str(out)]
        return subprocess.run(
            [sys.executable, "-m", "harness.cli", *words, "--quiet", "--json"],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip

    without = reproduce(CREDITBENCH_CHROMIUM="/nowhere/chromium")
    assert without.returncode == 1, without.stderr
    assert "all runs are kept" in without.stderr.splitlines()[-1]
    assert len(without.stderr.splitlines()) == 2  # the warning before, the error after
    runs = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.jsonl")}
    assert runs
    done = reproduce()
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    found = json.loads(done.stdout)
    assert any("pair judge: scripted" in note for note in found["notes"])
    assert "win_rate_vs_grpo" in found["comparisons"][0]["effects"]
    assert len(read_pairs(out / PAIRS)) == 12
    with Image.open(out / "screenshots-seed-0.png") as sheet:
        assert sheet.width > 3 * THUMBNAIL[0]
    assert "pair judge: scripted" in (out / "report.md").read_text()
