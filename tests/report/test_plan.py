from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.claims import claim_names, load_claim
from harness.claims.arms import arm_results
from harness.claims.cost import Prices, break_even
from harness.claims.simulate import simulated_sweep
from harness.errors import UserError
from harness.plan import plan, plan_table, sigma_range
from harness.report.tables import FORMATS, render

CLAIM = load_claim("compile-speedup")


def pilot(sigma, n=5, arms=("grpo",), seed=0):
    rng = np.random.default_rng(seed)
    times = {arm: (60 * np.exp(rng.normal(0, sigma, n))).tolist() for arm in arms}
    return simulated_sweep(CLAIM, "paper", times, rng)


def test_seeds_of_the_published_table():
    """At log-SD 0.2 (0.35): direction of 1.9 with few seeds, size with about ten (never five)."""
    found = plan(CLAIM, "paper", sigma=0.2)
    direction = found.seeds["direction if the ratio is 1.9"][0]
    size = found.seeds["size (upper/lower 1.6)"][0]
    assert direction == 4
    assert 7 <= size <= 10
    assert plan(CLAIM, "paper", sigma=0.35).seeds["direction if the ratio is 1.9"][0] in (6, 7)


def test_pilot_spread_is_close_to_the_truth_and_has_a_range():
    found = plan(CLAIM, "paper", pilot(0.25, n=20))
    assert found.spread.sigma == pytest.approx(0.25, rel=0.4)
    assert found.spread.low < found.spread.sigma < found.spread.high
    assert found.totals["hours"] > 0
    assert found.per_run["generated_tokens"] > 0


def test_pilot_of_five_seeds_ranges_from_0_6_to_2_9():
    low, high = sigma_range(1.0, 4)
    assert (low, high) == pytest.approx((0.599, 2.874), abs=2e-3)


def test_planning_does_not_look_at_the_difference():
    rng = np.random.default_rng(1)
    times = 60 * np.exp(rng.normal(0, 0.2, 5))
    near = simulated_sweep(CLAIM, "paper", {"grpo": times, "bot_grpo": times}, np.random.default_rng(2))
    far = simulated_sweep(CLAIM, "paper", {"grpo": times, "bot_grpo": times / 2}, np.random.default_rng(2))
    one, other = plan(CLAIM, "paper", near).spread.sigma, plan(CLAIM, "paper", far).spread.sigma
    assert one == pytest.approx(other, rel=0.15)


def test_it_says_plainly_what_cannot_be_answered():
    text = " ".join(plan(CLAIM, "paper", sigma=0.35, seeds=3).answers)
    assert "smallest p is 0.1" in text
    assert "are too few" in text
    hopeless = plan(load_claim("bpco-parity"), "paper", sigma=5.0)
    assert "cannot be answered" in " ".join(hopeless.answers)
    assert "no number of seeds shows 'at least 1.9'" in text


def test_families_need_smaller_p():
    text = " ".join(plan(load_claim("bpco-parts"), "tiny", sigma=0.02).answers)
    assert "the exact check" not in text  # 2/252 < 0.05/6
    text = " ".join(plan(load_claim("bpco-parts"), "tiny", sigma=0.02, seeds=4).answers)
    assert "the exact check cannot reject" in text


def test_without_a_pilot_only_completions_are_known():
    found = plan(CLAIM, "tiny")
    assert found.spread is None
    assert "no spread" in found.notes[0]
    assert found.totals["hours"] is None
    assert found.totals["completions"] == CLAIM.completions_a_seed("tiny") * 5


def test_bad_sigma_is_refused():
    with pytest.raises(UserError, match="sigma"):
        plan(CLAIM, "tiny", sigma=math.nan)


@pytest.mark.parametrize("name", claim_names())
def test_every_claim_has_a_plan_at_every_scale(name):
    claim = load_claim(name)
    for scale in claim.scales:
        found = plan(claim, scale, sigma=0.2)
        json.dumps(found.to_json(), allow_nan=False)
        for form in FORMATS:
            assert render(plan_table(found), form)


def test_break_even_price():
    rng = np.random.default_rng(0)
    runs = simulated_sweep(CLAIM, "paper", {"grpo": [80] * 5, "bot_grpo": [40] * 5}, rng)
    arms = arm_results(CLAIM, "paper", runs)
    found = break_even(arms["grpo"], arms["bot_grpo"], Prices(gpu_hour_usd=3.6, million_tokens_usd=10))
    saved = arms["grpo"].time["generated_tokens"] - arms["bot_grpo"].time["generated_tokens"]
    assert found.tokens == pytest.approx(saved / arms["bot_grpo"].time["completions"])
    seconds = arms["grpo"].time["train_seconds"] - arms["bot_grpo"].time["train_seconds"]
    assert found.usd == pytest.approx((saved / 1e5 + seconds / 1000) / arms["bot_grpo"].time["completions"])
    assert break_even(arms["bot_grpo"], arms["grpo"]).tokens < 0
    assert break_even(arms["grpo"], arms["bot_grpo"]).usd is None
    never = arm_results(
        CLAIM, "paper", simulated_sweep(CLAIM, "paper", {"grpo": [900] * 5, "bot_grpo": [40] * 5}, rng)
    )
    assert "fewer than half" in break_even(never["grpo"], never["bot_grpo"]).reason
