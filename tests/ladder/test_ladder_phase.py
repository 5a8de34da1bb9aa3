from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.claims.arms import arm_results
from harness.claims.schema import Claim, load_claim, parse_claim
from harness.claims.simulate import simulated_run
from harness.claims.trend import slope_of
from harness.claims.verdict import judge
from harness.errors import UserError
from harness.ladder.phase import fate, growth, phase_diagram, pictures, regime, slices, tables
from harness.report.build import pictures_of
from harness.report.sections import claim_section
from harness.report.tables import to_text
from harness.reproduce import plan
from harness.spec import parse_run
from harness.stats.speedup import SpeedupResult, Times, aft_t
from harness.train.build import check


@pytest.fixture(scope="module")
def claim() -> Claim:
    return load_claim("credit-ladder")


def times(*values: float | None) -> Times:
    return Times.plain(values, horizon=240)


def noisy(rng, middle: float, count: int = 5, spread: float = 0.05) -> Times:
    return times(*(middle * np.exp(spread * rng.standard_normal(count))))


# --- the claim ----------------------------------------------------------------------------------------------


def test_an_arm_lives_in_every_cell_that_takes_it(claim):
    names = {arm.name for arm in claim.arms_at("tiny")}
    assert "grpo@fraction-32" in names
    assert "dapo@all-16" in names
    assert "dapo@noise-0.3" not in names  # it never reads the local reward
    arm = next(arm for arm in claim.arms_at("tiny") if arm.name == "bot_keep@noise-0.3")
    assert arm.task_options["noise"] == 0.3
    assert arm.options == {"degenerate": "keep"}
    assert all(pair.baseline.startswith("grpo@") for pair in claim.comparisons_at("tiny"))
    assert {arm.name.split("@")[1] for arm in claim.arms_at("smoke")} == set(claim.scale("smoke").cells)


def test_every_registered_algorithm_is_an_arm_and_every_run_can_be_built(claim):
    from harness import registry

    assert {arm.algorithm for arm in claim.arms} >= set(registry.algorithms()) - {
        name for name, a in registry.algorithms().items() if not a.__module__.startswith("algorithms.")
    }
    for job in plan(claim, "tiny", [0], out="unused").jobs:
        check(parse_run(job.spec))


def test_the_factors_of_a_cell_are_those_of_its_task(claim):
    from tasks.ladder import LadderOptions

    for cell in claim.cells:
        options = LadderOptions(**cell.task_options)
        assert cell.factors["steps"] == options.steps
        assert cell.factors["log2_steps"] == pytest.approx(math.log2(options.steps), abs=1e-5)
        assert cell.factors["noise"] == options.noise
        start = options.start_probability**options.steps
        assert cell.factors["start_success"] == pytest.approx(start, rel=0.01)
        assert cell.factors["log10_start"] == pytest.approx(math.log10(start), abs=0.001)


def test_a_wrong_cell_or_treatment_is_named(claim):
    body = claim.model_dump(mode="json")
    body["endpoint"]["slopes"][0]["cells"] = ["fraction-4", "fraction-9"]
    with pytest.raises(UserError, match="unknown cell 'fraction-9'"):
        parse_claim(body, "x")
    body = claim.model_dump(mode="json")
    body["endpoint"]["slopes"][0]["treatment"] = "bot_kept"
    with pytest.raises(UserError, match="did you mean 'bot_keep'"):
        parse_claim(body, "x")


# --- slopes and exponents -------------------------------------------------------------------------------------


def test_the_slope_of_a_speed_up_is_found_with_censored_runs_kept():
    rng = np.random.default_rng(0)
    points = []
    for x in (2.0, 3.0, 4.0, 5.0):
        points.append((x, False, noisy(rng, 20 * 1.5**x)))
        points.append((x, True, noisy(rng, 20 * 1.2**x)))
    found = slope_of(points)
    assert found.low < math.log(1.5 / 1.2) < found.high
    assert found.high - found.low < 0.15
    # the slow end cut at the horizon: the interval must still hold the truth, not the cut
    cut = [
        (x, t, Times(tuple(min(v, 120.0) for v in own.times), tuple(v <= 120 for v in own.times)))
        for x, t, own in points
    ]
    censored = slope_of(cut[:-2])
    assert censored.reason == ""
    assert censored.low < math.log(1.5 / 1.2) < censored.high


def test_a_slope_needs_a_baseline_everywhere_and_a_treatment_that_reaches_twice():
    rng = np.random.default_rng(0)
    never = times(None, None, None, None)
    points = [(x, t, noisy(rng, 30)) for x in (1.0, 2.0) for t in (False, True)]
    found = slope_of([*points, (3.0, False, never), (3.0, True, noisy(rng, 30))])
    assert found.estimate is None
    assert "only a bound" in found.reason
    assert "fewer than two values of the factor" in slope_of(points[:2]).reason
    once = [
        (1.0, True, noisy(rng, 30)),
        (2.0, True, never),
        (1.0, False, noisy(rng, 30)),
        (2.0, False, noisy(rng, 30)),
    ]
    assert "reached at fewer than two" in slope_of(once).reason


def test_a_treatment_that_stops_reaching_pulls_the_slope_down():
    rng = np.random.default_rng(2)
    points = [(x, t, noisy(rng, 30)) for x in (0.0, 1.0) for t in (False, True)]
    flat = slope_of(points)
    fallen = slope_of([*points, (2.0, False, noisy(rng, 30)), (2.0, True, times(None, None, None, None))])
    assert flat.low < 0 < flat.high
    assert fallen.estimate < flat.estimate
    assert fallen.high < 0


def test_slope_intervals_are_calibrated():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(200):
        points = [(x, t, noisy(rng, 30 * 1.3**x, 4, 0.15)) for x in (0.0, 1.0, 2.0) for t in (False, True)]
        found = slope_of(points)
        hits += found.low <= 0 <= found.high
    assert 0.91 <= hits / 200 <= 0.99


def test_a_growth_exponent_by_hand_and_with_an_unreached_end():
    rng = np.random.default_rng(1)
    sizes = (4.0, 8.0, 16.0, 32.0)
    found = growth([(h, noisy(rng, 10 * h**0.6)) for h in sizes])
    assert found.low < 0.6 < found.high
    assert growth([(4.0, times(20.0, 20.0, 21.0)), (8.0, times(40.0, 40.0, 41.0))]).estimate == pytest.approx(
        1.0, abs=0.05
    )
    # nothing reached at the longest: the exponent may only grow by it
    stuck = growth(
        [*((h, noisy(rng, 10 * h**0.6)) for h in sizes[:3]), (32.0, times(None, None, None, None, None))]
    )
    assert stuck.estimate > found.estimate
    assert "fewer than two lengths" in growth([(4.0, noisy(rng, 20)), (8.0, times(None, None))]).reason


# --- regimes and the diagram ------------------------------------------------------------------------------------


def verdict_of(baseline: Times, treatment: Times) -> str:
    return regime(aft_t(baseline, treatment))


def test_regimes_by_hand():
    slow, fast = times(60.0, 62.0, 58.0, 61.0), times(30.0, 31.0, 29.0, 30.0)
    never = times(None, None, None, None)
    assert verdict_of(slow, fast) == "wins"
    assert verdict_of(fast, slow) == "loses"
    assert verdict_of(slow, times(59.0, 63.0, 58.0, 61.0)) == "open"
    assert verdict_of(never, fast) == "only it learns"
    assert regime(aft_t(fast, never), ["too late", "collapses", "collapses", "stuck"]) == "collapses"
    assert regime(aft_t(fast, never), ["too late"] * 3 + ["stuck"]) == "too late"
    assert verdict_of(never, never) == "neither learns"


def test_how_a_run_that_did_not_get_there_ended():
    assert fate([0.0, 0.2, 0.5, 0.7]) == "too late"
    assert fate([0.0, 0.3, 0.1, 0.14]) == "collapses"
    assert fate([0.10, 0.14, 0.02]) == "stuck"


def test_a_regime_needs_no_runs():
    assert regime(SpeedupResult(None, None, None, "x", (0, 0), (0, 0))) == "neither learns"


@pytest.fixture(scope="module")
def sweep(claim):
    """Simulated runs: bot_keep gains with length and loses with noise, pure never learns long answers."""
    rng = np.random.default_rng(0)
    runs = []
    for arm in claim.arms_at("tiny"):
        name = arm.name.split("@")[0]
        size, noise = arm.factors["steps"], arm.factors["noise"]
        middle = 12 * size**0.6
        if name == "bot_keep":
            middle /= (size / 8) ** 0.3 * (1 - noise) ** 0.7
        if name == "pure" and size > 8:
            middle = 1000
        for seed in range(4):
            run = simulated_run(
                arm.name, seed, middle * math.exp(0.05 * rng.standard_normal()), rng, horizon=240, cadence=4
            )
            for row in run.evals:
                row["metrics"]["correct"] = row["metrics"].pop("compile")
                row["metrics"]["flag_hacked"] = float(name == "bot_keep" and arm.name.endswith("@hackable"))
            runs.append(run)
    return runs


def test_the_claim_is_judged_by_its_slopes(claim, sweep):
    found = judge(claim, "tiny", sweep)
    assert found.verdict == "mechanism_passed"
    by_factor = {(p.treatment, p.detail["factor"]): p for p in found.comparisons}
    assert by_factor["bot_keep", "log2_steps"].verdict == "supported_direction"
    slope = by_factor["bot_keep", "log2_steps"].effects["log speed-up per log2_steps"]
    assert slope.low < 0.3 * math.log(2) < slope.high
    assert by_factor["bot_keep", "noise"].effects["log speed-up per noise"].high < 0
    assert not by_factor["bot_grpo", "noise"].primary
    assert "bot_keep minus grpo: log speed-up per log2_steps" in found.sentence
    json.dumps(found.to_json(), allow_nan=False)


def test_a_speed_up_that_falls_with_length_is_reversed(claim, sweep):
    swapped = []
    for run in sweep:
        arm, cell = run.arm.split("@")
        other = {"grpo": "bot_keep", "bot_keep": "grpo"}.get(arm, arm)
        swapped.append(run.__class__(**{**run.__dict__, "arm": f"{other}@{cell}"}))
    assert judge(claim, "tiny", swapped).verdict == "mechanism_failed"


def test_the_diagram_holds_every_point_with_its_interval(claim, sweep, tmp_path):
    arms = arm_results(claim, "tiny", sweep)
    phase = phase_diagram(claim, "tiny", arms)
    assert len(phase.points) == len(claim.comparisons_at("tiny"))
    point = phase.point("bot_keep", "fraction-32")
    assert point.regime == "wins"
    assert point.speedup.low < (32 / 8) ** 0.3 < point.speedup.high
    assert phase.point("pure", "fraction-16").regime == "stuck"
    assert phase.point("bot_keep", "hackable").hacked == 1.0
    assert phase.point("dapo", "noise-0.3") is None
    exponents = phase.exponents["steps (outcome=fraction)"]
    assert exponents["grpo"].low < 0.6 < exponents["grpo"].high
    assert exponents["bot_keep"].high < exponents["grpo"].low
    data = json.loads(json.dumps(phase.to_json(), allow_nan=False))
    assert data["points"][0]["task_options"]["outcome"] == "fraction"
    speed, grown = (to_text(found, 900) for found in tables(phase))
    assert "stuck (0/4" in speed
    assert "steps = a H^exponent" in grown
    files = pictures(phase, tmp_path)
    assert {p.name for p in files} == {
        "phase-map.svg",
        "phase-map.png",
        "phase-slices.svg",
        "phase-slices.png",
    }
    assert "only it learns" in (tmp_path / "phase-slices.svg").read_text()


def test_a_report_on_a_claim_with_cells_has_the_map_in_place_of_curves(claim, sweep, tmp_path):
    section = claim_section(claim, "tiny", sweep)
    drawn = pictures_of(section, tmp_path, "s1", ("png",))
    assert [picture.name for picture in drawn][:2] == ["phase-map", "phase-slices"]
    assert not {"learning", "survival", "forest", "frontier"} & {picture.name for picture in drawn}
    assert all(picture.file("png").stat().st_size > 5_000 for picture in drawn)
    assert section.tables[-1].name == "growth"


def test_slices_move_one_thing_at_a_time(claim):
    found = {piece.name: [cell.name for cell in piece.cells] for piece in slices(claim.cells)}
    assert found == {
        "steps (outcome=fraction)": ["fraction-4", "fraction-8", "fraction-16", "fraction-32"],
        "steps (outcome=all_right)": ["all-4", "all-8", "all-12", "all-16"],
        "noise (outcome=fraction, steps=16)": ["fraction-16", "noise-0.1", "noise-0.3", "noise-0.5"],
        "start_logit (outcome=all_right, steps=8)": ["start-0", "start-0.5", "all-8", "start-2"],
    }


@pytest.mark.parametrize("name", ["what-helps-ladder", "reward-stability-ladder"])
def test_other_claims_run_on_the_ladder_with_ten_seeds(name):
    claim = load_claim(name)
    assert len(claim.seeds(scale="tiny")) == 10
    for job in plan(claim, "tiny", [0], out="unused").jobs:
        check(parse_run(job.spec))
