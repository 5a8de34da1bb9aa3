from __future__ import annotations

import math

import numpy as np
import pytest

from harness.stats.factorial import factorial
from harness.stats.inversion import exact_inversion, exact_stratified
from harness.stats.speedup import Times, aft_t


def cells(rng, n=5, first=1.5, second=1.2, interaction=1.0, sigma=0.1, horizon=1e9):
    out = {}
    for one in (0, 1):
        for two in (0, 1):
            mean = (
                60 / first ** (one - 0.5) / second ** (two - 0.5) / interaction ** ((one - 0.5) * (two - 0.5))
            )
            times = mean * np.exp(rng.normal(0, sigma, n))
            out[one, two] = Times.plain([t if t <= horizon else None for t in times], horizon)
    return out


def test_uncensored_effects_are_contrasts_of_cell_means():
    found = cells(np.random.default_rng(0))
    logs = {levels: np.log(arm.times) for levels, arm in found.items()}
    result = factorial(found)
    mean = {levels: y.mean() for levels, y in logs.items()}
    first = (mean[0, 0] + mean[0, 1] - mean[1, 0] - mean[1, 1]) / 2
    assert math.log(result.first.estimate) == pytest.approx(first)
    interaction = (mean[1, 0] - mean[1, 1]) - (mean[0, 0] - mean[0, 1])
    assert math.log(result.interaction.estimate) == pytest.approx(interaction)
    pooled = sum(((y - y.mean()) ** 2).sum() for y in logs.values()) / 16
    assert math.log(result.first.high / result.first.low) == pytest.approx(
        2 * 2.119905 * math.sqrt(pooled / 5), rel=1e-4
    )


def test_effects_cover_their_truth_under_censoring():
    rng = np.random.default_rng(1)
    inside = np.zeros(3)
    reps = 200
    for _ in range(reps):
        result = factorial(cells(rng, interaction=1.3, sigma=0.2, horizon=85), exact=False)
        for i, (effect, truth) in enumerate(
            ((result.first, 1.5), (result.second, 1.2), (result.interaction, 1.3))
        ):
            inside[i] += effect.has_interval and effect.low <= truth <= effect.high
    assert np.all(inside / reps >= 0.90)


def test_exact_main_effect_agrees_with_the_fit():
    result = factorial(cells(np.random.default_rng(2), sigma=0.15))
    assert result.exact_first.low == pytest.approx(result.first.low, rel=0.08)
    assert result.exact_first.high == pytest.approx(result.first.high, rel=0.08)
    assert result.exact_first.n == (10, 10)


def test_one_stratum_is_the_plain_inversion():
    a, b = Times.plain([61, 69, 73, 79, None], 80), Times.plain([47, 65, 51, 40, 58], 80)
    one, other = exact_stratified([(a, b)]), exact_inversion(a, b)
    assert (one.low, one.high, one.p_value) == pytest.approx((other.low, other.high, other.p_value))


def test_a_cell_without_events_has_no_fit():
    found = cells(np.random.default_rng(3))
    found[0, 0] = Times.plain([None] * 5, 80)
    result = factorial(found)
    assert not result.first.has_interval
    assert "no event" in result.first.reason
    assert result.exact_first.low > 1


def test_the_design_must_be_complete():
    found = cells(np.random.default_rng(4))
    del found[1, 1]
    with pytest.raises(ValueError, match="2x2"):
        factorial(found)


def test_two_arms_are_a_special_case_of_the_likelihood():
    a, b = Times.plain([61, 69, None, 79], 80), Times.plain([47, 65, 51, 40], 80)
    assert aft_t(a, b).estimate > 1
