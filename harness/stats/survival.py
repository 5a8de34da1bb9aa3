"""Kaplan-Meier curves of times to threshold, their median and their area."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.stats.speedup import Times


@dataclass(frozen=True)
class SurvivalCurve:
    """Share of runs that had not reached the threshold after each time; starts at (0, 1)."""

    times: tuple[float, ...]
    survival: tuple[float, ...]
    at_risk: tuple[int, ...]
    events: tuple[int, ...]

    def median(self) -> float | None:
        """First time by which half the runs had reached; None when fewer did."""
        return next((t for t, s in zip(self.times, self.survival, strict=True) if s <= 0.5 + 1e-12), None)


def kaplan_meier(arm: Times) -> SurvivalCurve:
    """The product-limit estimate (Kaplan and Meier 1958), by scipy.stats.ecdf."""
    from scipy.stats import CensoredData, ecdf

    times, events = np.asarray(arm.times, dtype=float), np.asarray(arm.events, dtype=bool)
    if not len(times):
        raise ValueError("no run: a survival curve needs at least one")
    found = ecdf(CensoredData(uncensored=times[events], right=times[~events])).sf
    at = found.quantiles
    return SurvivalCurve(
        times=(0.0, *(float(t) for t in at)),
        survival=(1.0, *(float(p) for p in found.probabilities)),
        at_risk=(len(times), *(int(np.sum(times >= t)) for t in at)),
        events=(0, *(int(np.sum((times == t) & events)) for t in at)),
    )


def restricted_mean(arm: Times, horizon: float) -> tuple[float, float]:
    """Area under the Kaplan-Meier curve up to `horizon`, and its squared standard error (Greenwood).

    Where all censoring is at the horizon this is the mean of min(time, horizon) and the squared error of
    that mean: Greenwood's sum is multiplied by n / (n - 1), and is NaN for one run.
    """
    curve = kaplan_meier(arm)
    edges = np.minimum(np.append(curve.times, horizon), horizon)
    areas = np.append(np.asarray(curve.survival) * np.maximum(np.diff(edges), 0.0), 0.0)
    after = areas[::-1].cumsum()[::-1]  # area to the right of each step
    variance = 0.0
    for i, (time, n, d) in enumerate(zip(curve.times, curve.at_risk, curve.events, strict=True)):
        if d and n > d and time < horizon:
            variance += after[i] ** 2 * d / (n * (n - d))
    count = len(arm)
    return float(after[0]), float(variance * count / (count - 1)) if count > 1 else math.nan
