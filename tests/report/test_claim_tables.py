from __future__ import annotations

import numpy as np
import pytest

from harness.claims import load_claim
from harness.claims.cost import Prices
from harness.claims.simulate import simulated_sweep
from harness.claims.verdict import judge
from harness.report.claim import amount, arm_table, claim_table, claim_tables, cost_table, speedup_table
from harness.report.tables import FORMATS, render, to_text

CLAIM = load_claim("compile-speedup")


def verdict(grpo, bot, scale="tiny"):
    crossings = {"grpo": grpo, "bot_grpo": bot}
    return judge(CLAIM, scale, simulated_sweep(CLAIM, scale, crossings, np.random.default_rng(4)))


@pytest.fixture(scope="module")
def good():
    return verdict([55, 58, 62, 57, 60], [30, 28, 33, 31, 29])


@pytest.fixture(scope="module")
def never():
    return verdict([900] * 5, [30, 28, 33, 31, 29])


def test_claim_table_shows_every_axis_and_side_metric(good):
    found = claim_table(good)
    quantities = [row[0] for row in found.rows]
    assert quantities == [
        "reached", "censored", "optimizer steps", "completions", "generated tokens",
        "forward + backward tokens", "training seconds", "final compile", "parses", "on task", "mean tokens",
        "truncated", "unique",
    ]  # fmt: skip
    assert "mechanism check passed" in found.caption
    steps = found.rows[2]
    assert steps[3] == pytest.approx(good.speedup["optimizer_steps"].estimate)
    assert " to " in steps[4]
    assert " to " in steps[5]


def test_an_arm_that_never_reached_is_shown_as_such(never):
    found = claim_table(never)
    assert found.rows[0][1:3] == ("0/5", "5/5")
    assert found.rows[2][1].startswith(">")
    assert found.rows[2][3] is None
    assert "no event" in found.rows[2][4]
    assert found.rows[2][5].startswith("at least")


def test_every_table_renders_in_every_format(good, never):
    for found in (good, never):
        for one in (*claim_tables(found), claim_table(found)):
            for form in FORMATS:
                assert one.rows
                assert render(one, form)


def test_three_rules_are_published_with_the_ratio(good):
    note = speedup_table(good).notes[0]
    for rule in ("isotonic", "sustained", "raw", "another estimand"):
        assert rule in note


def test_failed_runs_are_named_in_the_notes(good):
    assert arm_table(good).notes == ()


@pytest.mark.parametrize(
    ("value", "want"),
    [(80.0, "80.0"), (8811, "8,811"), (441_000, "441k"), (2.5e6, "2.50M"), (3e9, "3.00G"), (None, "unknown")],
)
def test_amounts(value, want):
    assert amount(value) == want


def test_sensitivity_checks_stand_beside_the_ratio(good):
    detail = good.comparisons[0].detail
    bracket = detail["interval_censored"]
    main = good.speedup["optimizer_steps"]
    assert bracket["estimate"] == pytest.approx(main.estimate, rel=0.1)
    assert detail["exact_logrank_p"] == pytest.approx(2 / 252)
    note = speedup_table(good).notes[0]
    assert "exact log-rank p 0.00794" in note
    assert "with interval-censored times each arm crosses within one gap" in note


def test_the_cost_claim_shows_its_break_even_price():
    claim = load_claim("cost")
    horizon = claim.scale("tiny").horizon
    crossings = {"grpo": [0.6 * horizon] * 5, "bot_grpo": [0.3 * horizon] * 5}
    found = judge(claim, "tiny", simulated_sweep(claim, "tiny", crossings, np.random.default_rng(0)))
    shown = next(t for t in claim_tables(found) if t.name == "cost")
    row = shown.rows[0]
    assert row[0] == "bot_grpo vs grpo"
    assert row[4] == pytest.approx(row[1] / row[3])
    assert row[5] is None
    priced = cost_table(found, Prices(million_tokens_usd=2.0)).rows[0]
    assert priced[5] == pytest.approx(2e-6 * row[4])


def test_an_axis_that_one_run_lacks_is_named():
    runs = simulated_sweep(CLAIM, "tiny", {"grpo": [50] * 4, "bot_grpo": [30] * 4}, np.random.default_rng(0))
    runs[2].timings.clear()
    found = judge(CLAIM, "tiny", runs)
    assert "train_seconds" not in found.speedup
    assert any("training seconds left out: not recorded in 1 of 8 runs" in note for note in found.notes)


def test_many_arms_stand_in_rows_of_a_table_that_a_terminal_can_show():
    claim = load_claim("reward-stability")
    crossings = {arm.name: [50.0, 52.0, 48.0, 55.0] for arm in claim.arms}
    many = judge(claim, "tiny", simulated_sweep(claim, "tiny", crossings, np.random.default_rng(4)))
    found = claim_table(many)
    assert [row[0] for row in found.rows] == [arm.name for arm in claim.arms]
    assert [c.name for c in found.columns][:4] == ["arm", "reached", "steps", "tokens"]
    assert "…" not in to_text(found, 100)
