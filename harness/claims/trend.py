"""Judges how a speed-up changes along a factor: the slope of log time, fitted with censored runs kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.claims.measure import arm_times
from harness.claims.results import ArmResult, ComparisonResult
from harness.claims.schema import Claim, Slope, Trend
from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.compare import Difference
from harness.stats.speedup import Times, log_bounds

LEVEL = 0.95
Point = tuple[float, bool, Times]  # the factor's value, treatment or baseline, the times of that arm


def slope_of(points: Sequence[Point], *, level: float = LEVEL) -> Difference:
    """Change of the log speed-up for one unit of the factor, with a t interval.

    Log times are Normal(a_c + b x treatment + d x treatment x (x - mean x), s) with one a_c for each value c
    of the factor, right-censored; the slope is -d. Its error is that of the observed information times
    sqrt(N / (N - k)), k coefficients, on (events - k) degrees of freedom. A value at which the treatment never
    reached stays in as censored runs; no estimate where the baseline never did, as nothing is left to compare.
    """
    from scipy.stats import t as student

    levels = sorted({x for x, _, _ in points})
    runs = [sum(len(times) for x, treated, times in points if treated is side) for side in (False, True)]
    found = Difference(None, None, None, "aft_slope", (runs[0], runs[1]), level)
    if len(levels) < 2:
        return replace(found, reason="fewer than two values of the factor: no slope")
    silent = [x for x, treated, times in points if times.n_events == 0 and not treated]
    if silent:
        return replace(
            found, reason=f"no baseline run reached at {silent[0]:g}: its speed-up has only a bound"
        )
    if sum(times.n_events > 0 for _, treated, times in points if treated) < 2:
        return replace(found, reason="the treatment reached at fewer than two values of the factor: no slope")
    rows, lows, highs = [], [], []
    middle = sum(levels) / len(levels)
    for x, treated, times in points:
        own = [float(x == c) for c in levels] + [float(treated), float(treated) * (x - middle)]
        low, high = log_bounds(times)
        rows += [own] * len(times)
        lows.append(low)
        highs.append(high)
    design = np.array(rows)
    events = sum(times.n_events for _, _, times in points)
    count, coefficients = design.shape
    if events <= coefficients:
        return replace(found, reason=f"{events} events for {coefficients} coefficients: too few")
    try:
        fit = fit_lognormal(np.concatenate(lows), np.concatenate(highs), design)
    except DegenerateFit as error:
        return replace(found, reason=str(error))
    slope = -float(fit.coefficients[-1])
    spread = float(fit.standard_errors[-1]) * math.sqrt(count / (count - coefficients))
    df = events - coefficients
    half = float(student.ppf(0.5 + level / 2, df)) * spread
    p_value = 2 * float(student.sf(abs(slope) / spread, df))
    return replace(found, estimate=slope, low=slope - half, high=slope + half, se=spread, p_value=p_value)


def compare_trend(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """One result a slope of the endpoint; all primary ones must hold, so their intervals need no adjustment."""
    assert isinstance(claim.endpoint, Trend)
    return [_judge(claim, scale, slope, arms) for slope in claim.endpoint.slopes]


def _judge(claim: Claim, scale: str, slope: Slope, arms: Mapping[str, ArmResult]) -> ComparisonResult:
    result = ComparisonResult(slope.treatment, claim.baseline, slope.primary, "not_testable", level=LEVEL)
    present = {cell.name: cell for cell in claim.cells_at(scale)}
    points: list[Point] = []
    for name in slope.cells:
        for arm, treated in ((claim.baseline, False), (slope.treatment, True)):
            own = arms.get(f"{arm}@{name}")
            times = arm_times(own.measured) if own is not None else None
            if times is None or name not in present:
                return replace(result, reason=f"no usable run of {arm} in cell {name}")
            if len(times) < claim.minimum_seeds:
                reason = f"n={len(times)} usable runs of {arm}@{name}: needs at least {claim.minimum_seeds}"
                return replace(result, reason=reason)
            points.append((present[name].factors[slope.factor], treated, times))
    found = slope_of(points)
    result = replace(
        result, effects={f"log speed-up per {slope.factor}": found}, reason=found.reason,
        detail={"factor": slope.factor, "sign": slope.sign},
    )  # fmt: skip
    if found.low is None or found.high is None:
        return result
    verdict = "inconclusive"
    if slope.sign * found.low > 0 and slope.sign * found.high > 0:
        verdict = "supported_direction"
    elif slope.sign * found.low < 0 and slope.sign * found.high < 0:
        verdict = "reversed"
    return replace(result, verdict=verdict)
