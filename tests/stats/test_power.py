from __future__ import annotations

import math

import pytest

from harness.stats.power import runs_for_shift, two_sample_power


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
