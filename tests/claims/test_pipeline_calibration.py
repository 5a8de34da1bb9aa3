"""The whole way from noisy evaluation curves to the interval must cover the truth, not the estimator alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.claims.measure import arm_times, measure
from harness.claims.schema import TimeToThreshold
from harness.claims.simulate import simulated_run
from harness.stats.speedup import aft_t

ENDPOINT = TimeToThreshold(metric="compile", threshold=0.8)
SWEEPS = 200


@pytest.mark.parametrize(("ratio", "horizon"), [(1.9, 90), (1.0, 90), (1.9, 300)])
def test_interval_covers_from_curves_on(ratio, horizon):
    """Log-normal crossings at 60 (log-SD 0.25), 200 prompts every 5 steps, early stop, 0 or 12% censored."""
    rng = np.random.default_rng([3, horizon, round(10 * ratio)])
    inside, support, errors = 0, 0, []
    for _ in range(SWEEPS):
        arms = []
        for middle in (60, 60 / ratio):
            crossings = middle * np.exp(rng.normal(0, 0.25, 5))
            runs = [simulated_run("a", i, float(c), rng, horizon=horizon) for i, c in enumerate(crossings)]
            arms.append(arm_times([measure(run, ENDPOINT, horizon) for run in runs]))
        found = aft_t(*arms)
        inside += found.low <= ratio <= found.high
        support += found.low > 1
        errors.append(math.log(found.estimate / ratio))
    assert 0.91 <= inside / SWEEPS <= 0.995
    assert abs(np.mean(errors)) < 0.03
    if ratio == 1.0:
        assert support / SWEEPS <= 0.05
