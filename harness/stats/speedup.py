"""Speed-up between two arms from censored times to threshold: how many times sooner the second arm is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.threshold import Crossing

BOOTSTRAP_MINIMUM = 10


@dataclass(frozen=True)
class Times:
    """Times of one arm: `times[i]` is the crossing where `events[i]`, else the last time observed.

    `lower` and `upper` bracket each time (evaluation cadence, censoring); empty means exact times.
    """

    times: tuple[float, ...]
    events: tuple[bool, ...]
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    left_censored: tuple[bool, ...] = ()
    rule: str = ""
    cadence: float = math.nan
    horizon: float = math.inf

    def __post_init__(self) -> None:
        if len(self.times) != len(self.events):
            raise ValueError(f"{len(self.times)} times but {len(self.events)} event flags")
        bad = [t for t in self.times if not (math.isfinite(t) and t > 0)]
        if bad:
            raise ValueError(f"time {bad[0]} must be positive and finite: a run that starts above has none")

    def __len__(self) -> int:
        return len(self.times)

    @property
    def n_events(self) -> int:
        """Runs that reached the threshold."""
        return sum(bool(event) for event in self.events)

    @classmethod
    def of(cls, crossings: Iterable[Crossing]) -> Times:
        """From the crossings of an arm's runs, all by one rule."""
        found = list(crossings)
        rules = {c.rule for c in found}
        if len(rules) > 1:
            raise ValueError(f"crossings by different rules {sorted(rules)} cannot be compared")
        cadences = [c.cadence for c in found if math.isfinite(c.cadence)]
        return cls(
            times=tuple(c.time for c in found),
            events=tuple(c.event for c in found),
            lower=tuple(c.lower for c in found),
            upper=tuple(c.upper for c in found),
            left_censored=tuple(c.left_censored for c in found),
            rule=next(iter(rules), ""),
            cadence=float(np.median(cadences)) if cadences else math.nan,
            horizon=max((c.horizon for c in found), default=math.inf),
        )

    @classmethod
    def plain(cls, times: Sequence[float | None], horizon: float) -> Times:
        """From plain numbers; None is a run that had not reached by `horizon`."""
        return cls(
            times=tuple(horizon if t is None or t > horizon else float(t) for t in times),
            events=tuple(t is not None and t <= horizon for t in times),
            horizon=horizon,
        )


@dataclass(frozen=True)
class SpeedupResult:
    """Baseline time over treatment time with its interval; above 1 the treatment is sooner.

    `low` and `high` are None where no interval can be given (`reason` says why) and infinite or 0 where
    it is open (`open_end` is "low", "high" or "both"). `n` and `events` are (baseline, treatment).
    """

    estimate: float | None
    low: float | None
    high: float | None
    method: str
    n: tuple[int, int]
    events: tuple[int, int]
    open_end: str | None = None
    rule: str = ""
    cadence: float = math.nan
    horizon: float = math.inf
    level: float = 0.95
    sigma: float | None = None
    p_value: float | None = None
    reason: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether both limits exist (an open end counts as existing)."""
        return self.low is not None and self.high is not None


def _empty(baseline: Times, treatment: Times, method: str, level: float) -> SpeedupResult:
    return SpeedupResult(
        estimate=None,
        low=None,
        high=None,
        method=method,
        level=level,
        n=(len(baseline), len(treatment)),
        events=(baseline.n_events, treatment.n_events),
        rule=baseline.rule or treatment.rule,
        cadence=baseline.cadence,
        horizon=max(baseline.horizon, treatment.horizon),
    )


def _too_few(baseline: Times, treatment: Times, least: int = 2) -> str:
    fewest = min(len(baseline), len(treatment))
    if fewest < least:
        return f"n={fewest} in an arm: no interval from fewer than {least} runs"
    return ""


def _mean_log_ratio(baseline: Times, treatment: Times) -> float | None:
    """Geometric-mean ratio where every run reached; None where some are censored."""
    if not len(baseline) or not len(treatment) or not all(baseline.events + treatment.events):
        return None
    return math.exp(float(np.mean(np.log(baseline.times)) - np.mean(np.log(treatment.times))))


def _no_spread(arms: Sequence[Times]) -> bool:
    """Whether no arm holds two runs that differ: then there is no variance to estimate."""
    return all(len(set(zip(arm.times, arm.events, strict=True))) <= 1 for arm in arms)


def log_bounds(arm: Times, *, interval_censored: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper log times of each run: equal when exact, an infinite end where censored."""
    low, high = [], []
    left = arm.left_censored or (False,) * len(arm)
    for i, (time, event) in enumerate(zip(arm.times, arm.events, strict=True)):
        if not event:
            pair = (math.log(time), math.inf)
        elif left[i]:
            pair = (-math.inf, math.log(arm.upper[i]))
        elif interval_censored and arm.lower:
            pair = (math.log(arm.lower[i]) if arm.lower[i] > 0 else -math.inf, math.log(arm.upper[i]))
        else:
            pair = (math.log(time), math.log(time))
        low.append(pair[0])
        high.append(pair[1])
    return np.array(low), np.array(high)


def aft_t(
    baseline: Times, treatment: Times, *, level: float = 0.95, interval_censored: bool = False
) -> SpeedupResult:
    """Primary interval: unpaired log-normal AFT model with a t correction (evaluation.md 2.4).

    Log times are Normal(mu + delta * treatment, s) and right-censored; the log speed-up is -delta, its
    standard error by observed information times sqrt(N / (N - 2)), with t on (events - 2) degrees of
    freedom, at least 1. `interval_censored` uses the bracket of each crossing (sensitivity). No interval
    when an arm has no event, when fewer than three events exist, or when an arm has fewer than two runs.
    """
    from scipy.stats import t as student

    method = "aft_t_interval" if interval_censored else "aft_t"
    result = replace(
        _empty(baseline, treatment, method, level), estimate=_mean_log_ratio(baseline, treatment)
    )
    reason = _too_few(baseline, treatment)
    if not reason and min(result.events) == 0:
        reason = "an arm has no event: only a bound can be given"
    elif not reason and sum(result.events) < 3:
        reason = f"{sum(result.events)} events in all: at least three are needed"
    elif not reason and _no_spread((baseline, treatment)):
        reason = "no spread between runs: the replicates may be identical"
    if reason:
        return replace(result, reason=reason)
    bounds = [log_bounds(arm, interval_censored=interval_censored) for arm in (baseline, treatment)]
    x = np.concatenate([np.zeros(len(baseline)), np.ones(len(treatment))])
    if interval_censored and all(low.max() <= high.min() for low, high in bounds):
        return replace(result, reason="each arm crosses within one gap between evaluations: no spread to fit")
    y_low, y_high = (np.concatenate(pair) for pair in zip(*bounds, strict=True))
    try:
        fit = fit_lognormal(y_low, y_high, np.column_stack([np.ones_like(x), x]))
    except DegenerateFit as error:
        return replace(result, reason=str(error))
    runs = len(x)
    delta = float(fit.coefficients[1])
    spread = float(fit.standard_errors[1]) * math.sqrt(runs / (runs - 2))
    df = max(sum(result.events) - 2, 1)
    half = float(student.ppf(0.5 + level / 2, df)) * spread
    return replace(
        result,
        estimate=math.exp(-delta),
        low=math.exp(-delta - half),
        high=math.exp(-delta + half),
        sigma=fit.sigma * math.sqrt(runs / (runs - 2)),
        p_value=2 * float(student.sf(abs(delta) / spread, df)),
    )


def restricted_mean_ratio(
    baseline: Times, treatment: Times, *, horizon: float | None = None, level: float = 0.95
) -> SpeedupResult:
    """Ratio of mean times cut at a common horizon: no scale model, and another estimand than the speed-up.

    Interval by the delta method on the log ratio with Welch's degrees of freedom.
    """
    from scipy.stats import t as student

    from harness.stats.survival import restricted_mean

    horizon = max(baseline.horizon, treatment.horizon) if horizon is None else horizon
    if not math.isfinite(horizon):
        horizon = max(baseline.times + treatment.times, default=math.nan)
    result = replace(_empty(baseline, treatment, "restricted_mean", level), horizon=horizon)
    if not len(baseline) or not len(treatment):
        return replace(result, reason="an arm has no run")
    (a, var_a), (b, var_b) = restricted_mean(baseline, horizon), restricted_mean(treatment, horizon)
    result = replace(result, estimate=float(a / b))
    reason = _too_few(baseline, treatment)
    parts = (var_a / a**2, var_b / b**2)
    if not reason and not sum(parts) > 0:
        reason = "no spread between runs before the horizon"
    if reason:
        return replace(result, reason=reason)
    df = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, result.n, strict=True))
    half = float(student.ppf(0.5 + level / 2, df)) * math.sqrt(sum(parts))
    return replace(result, low=float(a / b) * math.exp(-half), high=float(a / b) * math.exp(half))


def log_ratio_t(
    baseline: Times, treatment: Times, *, paired: bool = False, level: float = 0.95
) -> SpeedupResult:
    """Student interval on mean log times, Welch's or paired; refused where a run is censored."""
    result = replace(
        _empty(baseline, treatment, "paired_t" if paired else "welch_t", level),
        estimate=_mean_log_ratio(baseline, treatment),
    )
    reason = _too_few(baseline, treatment)
    if not reason and not all(baseline.events + treatment.events):
        reason = "censored runs: dropping them or calling them the horizon is biased; use aft_t"
    if not reason and _no_spread((baseline, treatment)):
        reason = "no spread between runs: the replicates may be identical"
    if reason:
        return replace(result, reason=reason)
    from harness.stats import compare

    a, b = np.log(baseline.times), np.log(treatment.times)
    found = compare.paired(a, b, level=level) if paired else compare.welch(a, b, level=level)
    if found.low is None or found.high is None:
        return replace(result, reason=found.reason)
    sigma = float(np.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2))
    return replace(
        result, low=math.exp(found.low), high=math.exp(found.high), p_value=found.p_value, sigma=sigma
    )


def bootstrap_ratio(
    baseline: Times, treatment: Times, *, level: float = 0.95, seed: int = 0, resamples: int = 9999
) -> SpeedupResult:
    """Percentile bootstrap of the ratio of mean log times; refused below ten runs an arm.

    With three runs it covers about 74% instead of 95%, as it cannot leave the range of the data.
    """
    from scipy import stats

    fewest = min(len(baseline), len(treatment))
    if fewest < BOOTSTRAP_MINIMUM:
        raise ValueError(f"bootstrap with n={fewest}: needs {BOOTSTRAP_MINIMUM} runs an arm; use aft_t")
    if not all(baseline.events + treatment.events):
        raise ValueError("bootstrap with censored runs is biased: use aft_t")
    found = stats.bootstrap(
        (np.log(baseline.times), np.log(treatment.times)),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        method="percentile",
        confidence_level=level,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
    )
    low, high = found.confidence_interval
    return replace(
        _empty(baseline, treatment, "bootstrap_percentile", level),
        estimate=_mean_log_ratio(baseline, treatment),
        low=math.exp(low),
        high=math.exp(high),
    )
