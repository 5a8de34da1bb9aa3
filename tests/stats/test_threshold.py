from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.stats.threshold import (
    confirmation_horizon,
    crossing,
    crossing_cost,
    isotonic_fit,
    never_reached,
)

STEPS = list(range(0, 60, 5))
RISING = [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.9, 0.9, 0.95, 0.95, 0.95]


def test_isotonic_interpolates_between_the_last_below_and_the_first_above():
    found = crossing(STEPS, RISING, threshold=0.8)
    assert found.time == pytest.approx(25 + 5 * 0.5)
    assert (found.lower, found.upper, found.event) == (25, 30, True)
    assert found.cadence == 5


def test_rules_stamp_grid_points_in_order():
    values = [0.0, 0.85, 0.2, 0.82, 0.9, 0.7, 0.81, 0.85, 0.9, 0.9, 0.9, 0.9]
    assert crossing(STEPS, values, threshold=0.8, rule="raw").time == 5
    assert crossing(STEPS, values, threshold=0.8, rule="sustained").time == 30
    isotonic = crossing(STEPS, values, threshold=0.8)
    # pooled blocks: .0 | .525 .525 | .8067 (.82 .9 .7) -> mean .80667, reached between steps 10 and 15
    assert isotonic.time == pytest.approx(10 + 5 * (0.8 - 0.525) / (0.82 + 0.9 + 0.7 - 3 * 0.525) * 3)


def test_a_lucky_evaluation_does_not_pass_the_gate():
    values = [0.7, 0.72, 0.85, 0.7, 0.71, 0.84, 0.84, 0.7, 0.7, 0.7, 0.7, 0.7]
    assert crossing(STEPS, values, threshold=0.8, rule="raw").event
    assert not crossing(STEPS, values, threshold=0.8, rule="sustained").event
    assert not crossing(STEPS, values, threshold=0.8).event


def test_unreached_is_censored_where_it_could_last_be_confirmed():
    found = crossing(STEPS, [0.1] * 12, threshold=0.8, horizon=55)
    assert not found.event
    assert found.time == found.horizon == 45
    assert found.upper == math.inf
    assert crossing(STEPS, [0.1] * 12, threshold=0.8, rule="raw", horizon=55).time == 55


def test_a_crossing_too_late_to_confirm_is_not_called_later_than_the_horizon():
    values = [0.1] * 10 + [0.9, 0.9]
    found = crossing(STEPS, values, threshold=0.8, horizon=55)
    assert not found.event
    assert found.time == 45 < 50
    assert "not yet sustained" in found.note


def test_evaluations_beyond_the_horizon_are_ignored():
    values = [0.1] * 8 + [0.9] * 4
    assert crossing(STEPS, values, threshold=0.8, horizon=55).event
    assert not crossing(STEPS, values, threshold=0.8, horizon=45).event


def test_stopping_early_after_the_gate_keeps_the_crossing():
    whole = crossing(STEPS, RISING, threshold=0.8, rule="sustained", horizon=55)
    cut = crossing(STEPS[:9], RISING[:9], threshold=0.8, rule="sustained", horizon=55)
    assert cut == whole
    isotonic = crossing(STEPS[:9], RISING[:9], threshold=0.8, horizon=55)
    assert isotonic.time == crossing(STEPS, RISING, threshold=0.8, horizon=55).time
    assert isotonic.horizon == 45


def test_above_at_the_first_evaluation_is_left_censored():
    found = crossing([5, 10, 15], [0.9, 0.9, 0.9], threshold=0.8)
    assert found.left_censored
    assert (found.lower, found.time, found.upper) == (0, 5, 5)


def test_collapse_after_crossing_is_told_apart():
    values = [0.0, 0.85, 0.85, 0.85] + [0.05] * 8
    assert crossing(STEPS, values, threshold=0.8, rule="sustained").time == 5
    found = crossing(STEPS, values, threshold=0.8)
    assert not found.event
    assert "then fell" in found.note


@pytest.mark.parametrize(
    ("steps", "values", "options", "words"),
    [
        ([0, 5, 5], [0, 0, 0], {}, "strictly increasing"),
        ([0, 5], [0, math.nan], {}, "not finite"),
        ([0, 5], [0], {}, "one length"),
        ([0, 5], [0, 1], {"rule": "ema"}, "choose one of"),
        ([0, 5], [0, 1], {"sustain": 0}, "1 or more"),
        ([0, 5], [0, 1], {"threshold": math.inf}, "finite"),
    ],
)
def test_bad_input_is_refused(steps, values, options, words):
    with pytest.raises(ValueError, match=words):
        crossing(steps, values, **{"threshold": 0.8, **options})


def test_no_evaluation_is_no_event():
    found = crossing([], [], threshold=0.8, horizon=80)
    assert not found.event
    assert found.time == 0


def test_confirmation_horizon_follows_the_grid():
    assert confirmation_horizon([0, 5, 10, 15, 20], 3, 20) == 10
    assert confirmation_horizon([0, 5, 10], 3, 80) == 70
    assert confirmation_horizon([0, 5, 10], 1, 80) == 80


def test_never_reached_is_censored_at_the_horizon():
    found = never_reached(threshold=0.8, horizon=70)
    assert (found.time, found.event, found.upper) == (70, False, math.inf)


def test_cost_is_interpolated_and_extrapolated():
    found = crossing(STEPS, RISING, threshold=0.8)
    cost = crossing_cost(found, [5, 25, 30, 55], [50, 450, 500, 2000])
    assert cost.time == pytest.approx(475)
    assert (cost.lower, cost.upper) == (450, 500)
    assert crossing_cost(never_reached(threshold=0.8, horizon=100), [0, 40], [0, 80]).time == 200
    with pytest.raises(ValueError, match="never fall"):
        crossing_cost(found, [5, 10], [5, 4])


curves = st.lists(st.floats(0, 1), min_size=1, max_size=25)


@given(curves)
def test_isotonic_fit_is_the_minimax_of_means(values):
    """Oracle: f_i = max over a <= i of min over b >= i of the mean of values[a..b]."""
    y = np.array(values)
    want = [
        max(min(y[a : b + 1].mean() for b in range(i, len(y))) for a in range(i + 1)) for i in range(len(y))
    ]
    assert isotonic_fit(values) == pytest.approx(want, abs=1e-9)


@given(curves, st.floats(0.05, 0.95), st.floats(0.5, 20))
def test_time_scales_with_the_step_axis_and_lies_in_its_bracket(values, threshold, factor):
    steps = np.arange(len(values)) + 1.0
    for rule in ("raw", "sustained", "isotonic"):
        one = crossing(steps, values, threshold=threshold, rule=rule)
        other = crossing(steps * factor, values, threshold=threshold, rule=rule)
        assert other.event == one.event
        assert other.time == pytest.approx(one.time * factor)
        assert one.lower <= one.time <= one.upper


@given(curves, st.floats(0.05, 0.95))
def test_stricter_rules_are_never_sooner(values, threshold):
    steps = np.arange(len(values)) + 1.0
    raw = crossing(steps, values, threshold=threshold, rule="raw")
    sustained = crossing(steps, values, threshold=threshold, rule="sustained")
    assert not (sustained.event and not raw.event)
    if sustained.event:
        assert sustained.time >= raw.time


def test_isotonic_has_little_bias_at_coarse_cadence():
    """Logistic curves that cross at 40: at cadence 10 the raw rule is about 5 steps late, isotonic is not."""
    rng = np.random.default_rng(5)
    late = {"raw": [], "isotonic": []}
    for _ in range(300):
        middle = 40 - 6 * math.log(0.8 / 0.15)
        steps = np.arange(0, 121, 10) + rng.uniform(0, 10)
        values = rng.binomial(200, 0.95 / (1 + np.exp(-(steps - middle) / 6))) / 200
        for rule, out in late.items():
            out.append(crossing(steps, values, threshold=0.8, rule=rule).time - 40)
    assert abs(np.mean(late["isotonic"])) < 1.2
    assert 3 < np.mean(late["raw"]) < 7
