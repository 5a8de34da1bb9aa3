"""Simulated times to threshold of two arms, for calibration and for planning."""

from __future__ import annotations

import math

import numpy as np

from harness.stats.speedup import Times

BASELINE_TIME = 60.0


def simulate_times(
    n: int,
    ratio: float,
    rng: np.random.Generator,
    *,
    sigma: float = 0.35,
    censored: float = 0.0,
    rho: float = 0.0,
) -> tuple[Times, Times]:
    """Times of `n` runs of each arm: log-normal with log-SD `sigma`, medians in the given ratio.

    `censored` is the share of the slower arm beyond the common horizon; `rho` correlates the log times of
    equal seeds. Returns (baseline, treatment).
    """
    from scipy.stats import norm

    z = rng.standard_normal((2, n))
    z[1] = rho * z[0] + math.sqrt(1 - rho**2) * z[1]
    slow = BASELINE_TIME * max(1.0, 1.0 / ratio)
    horizon = slow * math.exp(sigma * float(norm.isf(censored))) if censored > 0 else math.inf
    arms = []
    for shift, row in zip((0.0, -math.log(ratio)), z, strict=True):
        times = BASELINE_TIME * np.exp(shift + sigma * row)
        events = times <= horizon
        arms.append(
            Times(tuple(np.minimum(times, horizon).tolist()), tuple(events.tolist()), horizon=horizon)
        )
    return arms[0], arms[1]
