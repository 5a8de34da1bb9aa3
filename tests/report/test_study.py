"""The study table: every kind of endpoint in words, from files alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.claims import load_claim
from harness.claims.results import ArmResult, ComparisonResult, Verdict
from harness.cli import app
from harness.report.study import evidence_below, is_published, study_row, study_text
from harness.stats.compare import Difference
from harness.stats.speedup import SpeedupResult


def difference(estimate, low, high, level=0.95) -> Difference:
    return Difference(estimate, low, high, "welch", (5, 5), level)


def ratio(estimate, low, high, *, events=(5, 5), open_end=None, level=0.95) -> SpeedupResult:
    return SpeedupResult(estimate, low, high, "aft_t", (5, 5), events, open_end, level=level)


def publish(folder: Path, name: str, verdict: str, pairs, *, scale="tiny", date="2026-01-02") -> Path:
    """Evidence of a claim with these comparisons, as `harness archive` leaves it (tables empty)."""
    claim = load_claim(name)
    place = folder / f"{name}-{scale}" / date
    place.mkdir(parents=True)
    arms = tuple(
        ArmResult(arm.name, arm.algorithm, tuple(range(5)), None, None, None, {}, {}, {})
        for arm in claim.arms_at(scale)
    )
    found = Verdict(name, claim.hash(scale), scale, verdict, "", arms, tuple(pairs), ())
    (place / "verdict.json").write_text(json.dumps(found.to_json(), allow_nan=False))
    definition = json.loads(claim.definition(scale))
    (place / "claim.json").write_text(json.dumps({"name": name, "scale": scale, "definition": definition}))
    for name in ("manifests.json", "evaluations.parquet"):
        (place / name).write_text("[]")
    return place


def row(folder: Path, name: str, verdict: str, *pairs, scale="tiny"):
    publish(folder, name, verdict, pairs, scale=scale)
    (found,) = evidence_below(folder)
    return study_row(found)


def test_time_to_threshold_that_was_not_won_says_so_and_what_would_settle_it(tmp_path):
    pair = ComparisonResult(
        "bot_grpo",
        "grpo",
        True,
        "inconclusive",
        speedup={"optimizer_steps": ratio(0.926, 0.641, 1.34)},
        seeds_to_settle=35,
    )
    found = row(tmp_path, "compile-speedup", "mechanism_inconclusive", pair)
    assert found.result == ("bot_grpo vs grpo: speed-up 0.926 (0.641 to 1.34)",)
    assert (found.won, found.to_settle) == ("not shown", "about 35 seeds an arm")
    assert found.verdict == "mechanism check inconclusive"
    assert (found.seeds, found.scale, found.date) == ("5", "tiny", "2026-01-02")
    assert found.report.endswith("compile-speedup-tiny/2026-01-02/report.md")


@pytest.mark.parametrize(
    ("verdict", "won"),
    [
        ("supported_direction", "yes"),
        ("refuted", "no"),
        ("reversed", "no: it lost"),
        ("not_testable", "not testable"),
    ],
)
def test_who_won(tmp_path, verdict, won):
    pair = ComparisonResult(
        "bot_grpo", "grpo", True, verdict, speedup={"optimizer_steps": ratio(1, 0.9, 1.1)}
    )
    assert row(tmp_path, "compile-speedup", "not_testable", pair).won == won


def test_another_axis_and_open_ends_are_named(tmp_path):
    pair = ComparisonResult(
        "bot_grpo",
        "grpo",
        True,
        "supported_direction",
        speedup={"generated_tokens": ratio(2.0, 1.5, math.inf, open_end="high")},
    )
    found = row(tmp_path, "cost", "mechanism_passed", pair)
    assert found.result == ("bot_grpo vs grpo: speed-up in generated tokens 2.00 (at least 1.50)",)


def test_an_arm_that_never_reached_has_a_bound_only(tmp_path):
    pair = ComparisonResult(
        "bot_grpo",
        "grpo",
        True,
        "supported_direction",
        speedup={"optimizer_steps": ratio(None, None, None, events=(0, 5))},
        exact={"optimizer_steps": ratio(None, 2.95, math.inf, open_end="high")},
    )
    found = row(tmp_path, "compile-speedup", "mechanism_passed", pair)
    assert found.result == ("bot_grpo vs grpo: no ratio: 5/5 against 0/5 reached it; exact at least 2.95",)


def test_several_comparisons_are_counted(tmp_path):
    pairs = [
        ComparisonResult(
            "bot_grpo", other, True, verdict, speedup={"optimizer_steps": ratio(1.2, 0.9, 1.5, level=0.975)}
        )
        for other, verdict in (
            ("gspo", "supported_direction"),
            ("dapo", "reversed"),
            ("pure", "inconclusive"),
        )
    ]
    found = row(tmp_path, "compile-variants", "mechanism_failed", *pairs)
    assert found.result[0] == "bot_grpo vs gspo: speed-up 1.20 (97.5%: 0.900 to 1.50)"
    assert found.won == "1 of 3; else no: it lost, not shown"
    assert "1 reversed here" in found.verdict


def test_pass_at_k_is_told_k_by_k(tmp_path):
    effects = {"pass@1": difference(-0.1, -0.2, -0.05), "pass@8": difference(0.01, -0.02, 0.03)}
    pair = ComparisonResult(
        "bot_grpo",
        "grpo",
        True,
        "inconclusive",
        effects=effects,
        detail={"by_effect": {"pass@1": "reversed", "pass@8": "inconclusive"}},
    )
    found = row(tmp_path, "aime-passk", "mechanism_inconclusive", pair)
    assert found.result == (
        "bot_grpo vs grpo: pass@1 -0.100 (-0.200 to -0.0500), pass@8 +0.0100 (-0.0200 to 0.0300)",
    )
    assert found.won == "no: it lost (pass@1); not shown (pass@8)"
    assert found.to_settle.startswith("another design")


def test_win_rates_are_shares_not_differences_from_a_half(tmp_path):
    pair = ComparisonResult(
        "bot_grpo", "grpo", True, "inconclusive", effects={"win_rate_vs_grpo": difference(-0.1, -0.3, 0.1)}
    )
    found = row(tmp_path, "win-rate", "mechanism_inconclusive", pair)
    assert found.result == ("bot_grpo vs grpo: win rate 0.400 (0.200 to 0.600)",)


def test_the_interval_of_a_win_rate_ends_where_rates_end(tmp_path):
    effects = {"win_rate_vs_grpo": difference(0.1, -0.55, 0.7)}
    pair = ComparisonResult("bot_grpo", "grpo", True, "inconclusive", effects=effects)
    found = row(tmp_path, "win-rate", "mechanism_inconclusive", pair)
    assert found.result == ("bot_grpo vs grpo: win rate 0.600 (0 to 1.00)",)


def test_equivalence_names_its_margin_and_no_winner(tmp_path):
    pair = ComparisonResult(
        "bpco",
        "grpo",
        True,
        "supported_size",
        level=0.9,
        effects={"compile": difference(0.01, -0.02, 0.03, 0.9)},
    )
    found = row(tmp_path, "bpco-parity", "mechanism_passed", pair)
    assert found.result == ("bpco vs grpo: compile +0.0100 (90%: -0.0200 to 0.0300), margin ±0.0500",)
    assert found.won == "–"


def test_scaling_has_exponents_by_algorithm(tmp_path):
    pair = ComparisonResult(
        "bot_grpo", "size^1", True, "supported_size", effects={"exponent": difference(0.98, 0.9, 1.05, 0.9)}
    )
    found = row(tmp_path, "overhead", "mechanism_passed", pair)
    assert found.result == ("bot_grpo: exponent 0.980 (90%: 0.900 to 1.05)",)


def test_factorial_shows_both_factors_and_the_comparison_of_the_whole(tmp_path):
    pairs = [
        ComparisonResult(
            "token_reward on",
            "token_reward off",
            True,
            "refuted",
            speedup={"optimizer_steps": ratio(1.01, 0.99, 1.02)},
        ),
        ComparisonResult(
            "balancing on",
            "balancing off",
            False,
            "refuted",
            speedup={"optimizer_steps": ratio(0.99, 0.98, 1.01)},
        ),
        ComparisonResult(
            "bot_grpo", "grpo", False, "reversed", speedup={"optimizer_steps": ratio(0.9, 0.8, 0.95)}
        ),
    ]
    found = row(tmp_path, "what-helps", "mechanism_failed", *pairs)
    assert [line.split(":")[0] for line in found.result] == [
        "token_reward on vs token_reward off",
        "balancing on vs balancing off",
    ]
    assert found.won == "no: it lost"


def test_trends_are_ratios_and_settings_are_counted(tmp_path):
    slope = difference(math.log(1.2), math.log(1.1), math.log(1.3))
    pair = ComparisonResult(
        "bot_keep",
        "grpo",
        True,
        "supported_direction",
        effects={"log speed-up per log2_steps": slope},
        detail={"factor": "log2_steps"},
    )
    place = publish(tmp_path, "credit-ladder", "mechanism_passed", [pair])
    points = [
        {"arm": "bot_grpo", "regime": r} for r in ("wins", "only it learns", "loses", "collapses", "open")
    ]
    (place / "phase.json").write_text(json.dumps({"points": points}))
    (evidence,) = evidence_below(tmp_path)
    found = study_row(evidence)
    assert found.result == ("bot_keep vs grpo: speed-up times 1.20 (1.10 to 1.30) for 1 more of log2_steps",)
    assert found.won == "faster in 2 of 5 settings, slower or never there in 2"


def test_an_a_a_control_is_shown_and_no_comparison_of_bot(tmp_path):
    pairs = [
        ComparisonResult(
            "bot_grpo", "grpo", True, "supported_direction", speedup={"optimizer_steps": ratio(2, 1.5, 2.5)}
        ),
        ComparisonResult(
            "grpo_control", "grpo", False, "inconclusive", speedup={"optimizer_steps": ratio(1, 0.9, 1.1)}
        ),
    ]
    found = row(tmp_path, "compile-speedup", "mechanism_passed", *pairs)
    assert found.result[1] == "A/A control, grpo_control vs grpo: speed-up 1.00 (0.900 to 1.10): inconclusive"
    assert found.won == "yes"


def test_newest_evidence_counts_and_the_papers_claims_come_first(tmp_path):
    for name, date in (("credit-ladder", "2026-01-01"), ("cost", "2026-01-01"), ("cost", "2026-02-01")):
        publish(tmp_path, name, "not_testable", [], date=date)
    assert [(e.claim.name, e.date) for e in evidence_below(tmp_path)] == [
        ("cost", "2026-02-01"),
        ("credit-ladder", "2026-01-01"),
    ]


def test_report_prints_the_study_table_of_published_evidence(tmp_path):
    publish(tmp_path, "cost", "not_testable", [])
    assert is_published(tmp_path)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "md"])
    assert shown.exit_code == 0
    assert shown.stdout == study_text([tmp_path], "md")
    assert f"[cost]({tmp_path}/cost-tiny/2026-01-02/report.md): the generations" in shown.stdout
    assert not (tmp_path / "report").exists()
    (found,) = json.loads(CliRunner().invoke(app, ["report", str(tmp_path), "--format", "json"]).stdout)
    assert found["claim"] == "cost"
    latex = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "latex"]).stdout
    assert latex.count(r"\\") == 2
    assert "<table" in CliRunner().invoke(app, ["report", str(tmp_path), "--format", "html"]).stdout
    bad = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "markdwn"])
    assert bad.exit_code == 2


def test_a_folder_of_runs_is_no_published_evidence(results):
    assert not is_published(results)
