from __future__ import annotations

import math

import numpy as np
import pytest

from harness.stats.compare import tost
from harness.stats.power import (
    equivalence_power,
    runs_for_equivalence,
    runs_for_shift,
    runs_for_width,
    two_sample_power,
)


@pytest.mark.parametrize(("shift", "sigma"), [(0.3, 0.2), (0.64, 0.35), (0.2, 0.15)])
def test_power_agrees_with_statsmodels(shift, sigma):
    power = pytest.importorskip("statsmodels.stats.power")
    want = power.TTestIndPower().solve_power(shift / sigma, power=0.8, alpha=0.05)
    assert runs_for_shift(shift, sigma) == max(4, math.ceil(want))
    assert two_sample_power(shift, sigma, 7) == pytest.approx(
        power.TTestIndPower().power(shift / sigma, 7, 0.05), rel=1e-6
    )


def test_no_shift_cannot_be_shown():
    assert runs_for_shift(0.0, 0.2) is None
    assert runs_for_shift(1e-4, 0.5) is None
    assert runs_for_shift(0.5, 0.0) == 4
    with pytest.raises(ValueError, match="sigma"):
        runs_for_shift(0.5, math.nan)


def test_equivalence_power_agrees_with_simulation():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1500):
        a, b = rng.normal(0, 2, (2, 12))
        hits += tost(a, b, 2.5).equivalent
    assert equivalence_power(2.5, 2.0, 12) == pytest.approx(hits / 1500, abs=0.04)
    n = runs_for_equivalence(2.5, 2.0)
    assert equivalence_power(2.5, 2.0, n) >= 0.8 > equivalence_power(2.5, 2.0, n - 1)
    assert runs_for_equivalence(0.001, 5.0) is None


def test_width_needs_more_runs_than_direction():
    """At log-SD 0.2 a size (upper / lower 1.6) takes about ten runs, the direction of 1.9 four."""
    assert runs_for_width(0.2, 1.6) in range(7, 11)
    assert runs_for_shift(math.log(1.9), 0.2) == 4
