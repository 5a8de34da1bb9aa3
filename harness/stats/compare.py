"""Differences between arms: what can be said of these problems, of problems like these, of several arms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.stats.inversion import accepted_range, paired_p, unpaired_p

Numbers = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Difference:
    """Treatment minus baseline with its interval; limits are None where none can be given (`reason`)."""

    estimate: float | None
    low: float | None
    high: float | None
    method: str
    n: tuple[int, int]
    level: float = 0.95
    p_value: float | None = None
    df: float | None = None
    se: float | None = None
    reason: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether both limits exist."""
        return self.low is not None and self.high is not None


def _array(values: Numbers, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} holds a value that is not finite: find out why before comparing")
    return array


def _t_interval(found: Difference, se: float, df: float) -> Difference:
    from scipy.stats import t

    assert found.estimate is not None
    half = float(t.ppf(0.5 + found.level / 2, df)) * se
    p = 2 * float(t.sf(abs(found.estimate) / se, df))
    return replace(
        found, low=found.estimate - half, high=found.estimate + half, p_value=p, df=float(df), se=float(se)
    )


def welch(treatment: Numbers, baseline: Numbers, *, level: float = 0.95) -> Difference:
    """Welch's t interval on per-run values: the rule for "this very set of problems"."""
    a, b = _array(treatment, "treatment"), _array(baseline, "baseline")
    estimate = float(a.mean() - b.mean()) if len(a) and len(b) else None
    found = Difference(estimate, None, None, "welch", (len(b), len(a)), level)
    if min(len(a), len(b)) < 2:
        return replace(found, reason=f"n={min(len(a), len(b))} in an arm: no interval from fewer than 2 runs")
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if sum(parts) == 0:
        return replace(found, reason="no spread between runs: the replicates may be identical")
    df = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    return _t_interval(found, math.sqrt(sum(parts)), df)


def paired(treatment: Numbers, baseline: Numbers, *, level: float = 0.95) -> Difference:
    """Student's t interval on the differences of runs with equal seeds; only if chosen beforehand."""
    a, b = _array(treatment, "treatment"), _array(baseline, "baseline")
    if len(a) != len(b):
        raise ValueError(f"paired arms need equal numbers of runs, got {len(a)} and {len(b)}")
    return replace(one_sample(a - b, level=level), method="paired_t")


def one_sample(values: Numbers, *, level: float = 0.95) -> Difference:
    """Student's t interval of a mean."""
    d = _array(values, "values")
    found = Difference(float(d.mean()) if len(d) else None, None, None, "t", (len(d), len(d)), level)
    if len(d) < 2:
        return replace(found, reason=f"n={len(d)}: no interval from fewer than 2 runs")
    if d.std(ddof=1) == 0:
        return replace(found, reason="no spread between runs: the replicates may be identical")
    return _t_interval(found, float(d.std(ddof=1)) / math.sqrt(len(d)), len(d) - 1)


def clustered(values: Numbers, clusters: Sequence[Any], *, level: float = 0.95) -> Difference:
    """Interval of a mean whose observations come in clusters: t on (clusters - 1), CR1 variance.

    For example wins of pairs clustered by prompt; each observation weighs the same. Source: Liang and
    Zeger 1986, with the factor clusters / (clusters - 1).
    """
    y = _array(values, "values")
    labels, index = np.unique(np.asarray(clusters), return_inverse=True)
    count = len(labels)
    found = Difference(float(y.mean()) if len(y) else None, None, None, "clustered_t", (count, count), level)
    if count < 2:
        return replace(found, reason=f"{count} clusters: no interval from fewer than 2")
    sums = np.bincount(index, weights=y - y.mean(), minlength=count)
    variance = count / (count - 1) * float(np.sum(sums**2)) / len(y) ** 2
    if variance == 0:
        return replace(found, reason="no spread between clusters")
    return _t_interval(found, math.sqrt(variance), count - 1)


def two_way(treatment: np.ndarray, baseline: np.ndarray, *, level: float = 0.95) -> Difference:
    """Interval for "problems like these": runs and problems are both random.

    Arrays [seeds, problems] of per-problem scores on the same problems. The variance of the mean
    difference is that of the run means (Welch) plus that of the problem differences; the interaction is
    in both and is not taken out, which keeps the interval on the safe side. Degrees of freedom: the
    smaller of Welch's for the runs and problems - 1.
    """
    a, b = _array(treatment, "treatment"), _array(baseline, "baseline")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"give [seeds, problems] on the same problems, got {a.shape} and {b.shape}")
    problems = a.shape[1]
    runs = welch(a.mean(1), b.mean(1), level=level)
    found = replace(runs, method="two_way", low=None, high=None, p_value=None)
    if not runs.has_interval or problems < 2:
        return replace(found, reason=runs.reason or f"{problems} problems: at least 2 are needed")
    assert runs.se is not None
    assert runs.df is not None
    by_problem = a.mean(0) - b.mean(0)
    variance = runs.se**2 + float(by_problem.var(ddof=1)) / problems
    return _t_interval(found, math.sqrt(variance), min(runs.df, problems - 1))


def exact_shift(
    treatment: Numbers, baseline: Numbers, *, in_pairs: bool = False, level: float = 0.95
) -> Difference:
    """All shifts that an exact permutation test of the run values does not reject; open with few runs."""
    a, b = _array(treatment, "treatment"), _array(baseline, "baseline")
    found = Difference(None, None, None, "exact_shift", (len(b), len(a)), level)
    if min(len(a), len(b)) < 2:
        return replace(found, reason=f"n={min(len(a), len(b))} in an arm: no interval from fewer than 2 runs")
    test = paired_p if in_pairs else unpaired_p

    def p_values(shifts: np.ndarray) -> np.ndarray:
        return test(a[:, None] - shifts, np.repeat(b[:, None], len(shifts), axis=1))

    low, high = a.min() - b.max(), a.max() - b.min()
    margin = 0.02 * (high - low) + 1e-9
    ends = accepted_range(p_values, (low - margin, high + margin), 1 - level)
    return replace(found, low=ends[0], high=ends[1], p_value=float(p_values(np.zeros(1))[0]))


@dataclass(frozen=True)
class EquivalenceResult:
    """Two one-sided tests: `p_value` is the larger of both; equivalent when the 90% interval is inside."""

    difference: Difference
    margin: float
    p_value: float | None
    equivalent: bool
    non_inferior: bool


def tost(treatment: Numbers, baseline: Numbers, margin: float, *, alpha: float = 0.05) -> EquivalenceResult:
    """Equivalence of two arms within +-margin by Schuirmann's two one-sided Welch tests.

    A missing difference ("p > 0.05") is never equivalence; without an interval nothing is shown.
    """
    from scipy.stats import t

    if not margin > 0:
        raise ValueError(f"margin={margin}: give a positive margin, set before the runs")
    found = welch(treatment, baseline, level=1 - 2 * alpha)
    if found.estimate is None or found.low is None or found.high is None or not found.se:
        return EquivalenceResult(found, margin, None, False, False)
    above = float(t.sf((found.estimate + margin) / found.se, found.df))
    below = float(t.cdf((found.estimate - margin) / found.se, found.df))
    inside = -margin < found.low and found.high < margin
    return EquivalenceResult(found, margin, max(above, below), inside, found.low > -margin)


def holm(p_values: Numbers) -> list[float]:
    """Holm's step-down adjustment; ValueError for a p that is no number, which others count silently."""
    p = np.asarray(p_values, dtype=float)
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"p-values must be numbers from 0 to 1, got {p_values}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty(len(p))
    out[order] = np.minimum(stepped, 1.0)
    return out.tolist()


def max_t(
    arms: Mapping[str, Sequence[float]], baseline: str, *, resamples: int = 9999, seed: int = 0
) -> dict[str, float]:
    """Adjusted p of every arm against one baseline, by permuting whole runs over all arms (Westfall, Young).

    Single step: the share of relabelings whose largest |t| reaches the arm's own; |t| uses the variance
    pooled over arms. Valid for the hypothesis that no arm differs.
    """
    names = [name for name in arms if name != baseline]
    groups = [_array(arms[name], name) for name in (baseline, *names)]
    if min(len(g) for g in groups) < 2:
        raise ValueError("max_t: every arm needs at least two runs")
    sizes = np.array([len(g) for g in groups])
    values = np.concatenate(groups)
    rng = np.random.default_rng(seed)
    draws = rng.permuted(np.tile(values, (resamples, 1)), axis=1)
    draws = np.concatenate([values[None], draws])
    edges = np.cumsum([0, *sizes])
    means = np.stack([draws[:, i:j].mean(1) for i, j in itertools.pairwise(edges)], axis=1)
    within = np.sum(draws**2, axis=1) - means**2 @ sizes
    pooled = np.maximum(within, 1e-300) / (len(values) - len(groups))
    t = np.abs(means[:, 1:] - means[:, :1]) / np.sqrt(pooled[:, None] * (1 / sizes[1:] + 1 / sizes[0]))
    largest = t.max(1)
    return {name: float(np.mean(largest >= t[0, i] - 1e-9)) for i, name in enumerate(names)}


def probability_of_improvement(treatment: Numbers, baseline: Numbers, *, level: float = 0.95) -> Difference:
    """P(a treatment run beats a baseline run), ties half, with Brunner and Munzel's t interval (2000).

    The estimate is the Mann-Whitney U over the number of pairs; 0.5 means no difference.
    """
    from scipy.stats import rankdata

    a, b = _array(treatment, "treatment"), _array(baseline, "baseline")
    n, m = len(a), len(b)
    if not n or not m:
        return Difference(None, None, None, "brunner_munzel", (m, n), level, reason="an arm has no run")
    ranks = rankdata(np.concatenate([a, b]))
    ra, rb = ranks[:n] - rankdata(a), ranks[n:] - rankdata(b)
    estimate = float(ra.mean() / m)
    found = Difference(estimate, None, None, "brunner_munzel", (m, n), level)
    if min(n, m) < 2:
        return replace(found, reason=f"n={min(n, m)} in an arm: no interval from fewer than 2 runs")
    parts = ra.var(ddof=1) / (n * m**2), rb.var(ddof=1) / (m * n**2)
    if sum(parts) == 0:
        return replace(found, reason="the arms do not overlap: no variance to estimate")
    df = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    shifted = _t_interval(replace(found, estimate=estimate - 0.5), math.sqrt(sum(parts)), df)
    assert shifted.low is not None
    assert shifted.high is not None
    return replace(
        shifted, estimate=estimate, low=max(0.0, shifted.low + 0.5), high=min(1.0, shifted.high + 0.5)
    )


def iqm(values: np.ndarray) -> float:
    """Interquartile mean of scores [runs, problems] or [values]: the mean of the middle half."""
    from scipy.stats import trim_mean

    return float(trim_mean(_array(values, "scores").ravel(), 0.25))


def iqm_interval(
    scores: np.ndarray, *, level: float = 0.95, seed: int = 0, resamples: int = 2000
) -> Difference:
    """Percentile interval of the interquartile mean of [runs, problems], resampling whole runs.

    Refused below ten runs. Runs are drawn whole: drawing them anew for each problem breaks what a seed
    does to all problems alike (27% coverage instead of 95).
    """
    from scipy.stats import trim_mean

    from harness.stats.speedup import BOOTSTRAP_MINIMUM

    scores = _array(scores, "scores")
    runs = scores.shape[0]
    if runs < BOOTSTRAP_MINIMUM:
        raise ValueError(
            f"bootstrap with n={runs}: needs {BOOTSTRAP_MINIMUM} runs; use a t interval on run means"
        )
    rng = np.random.default_rng(seed)
    picks = rng.integers(runs, size=(resamples, runs))
    draws = trim_mean(scores[picks].reshape(resamples, -1), 0.25, axis=1)
    low, high = np.percentile(draws, [50 * (1 - level), 50 * (1 + level)])
    return Difference(iqm(scores), float(low), float(high), "iqm_bootstrap", (runs, runs), level)


def exact_logrank_p(baseline: Any, treatment: Any) -> float:
    """Permutation p of the log-rank test of two arms of Times; the asymptotic one is too liberal at n <= 10.

    Each run's score is its event minus its cumulative hazard in the pooled sample, so that the log-rank
    numerator is a sum of scores of one arm and every relabeling needs a sum only.
    """
    times = np.array([*baseline.times, *treatment.times], dtype=float)
    events = np.array([*baseline.events, *treatment.events], dtype=float)
    if not events.any():
        return 1.0
    at = np.unique(times[events > 0])
    hazard = np.array([events[times == t].sum() / np.sum(times >= t) for t in at])
    scores = events - np.array([hazard[at <= t].sum() for t in times])
    n = len(baseline.times)
    return float(unpaired_p(scores[:n], scores[n:]))


def smallest_p(n: int, m: int, *, paired_arms: bool = False) -> float:
    """The smallest two-sided p that an exact test of these sizes can give at all."""
    return 2 / 2**n if paired_arms else 2 / math.comb(n + m, n)


def looks_like_one_run(score: float, problems: int, runs: int, *, digits: int = 4) -> bool:
    """Whether a published mean over `runs` runs of `problems` problems is suspiciously a multiple of 1/problems.

    A mean over several runs is rarely an exact multiple of 1/problems; one run always is.
    """
    if runs < 2:
        return False
    return abs(score * problems - round(score * problems)) <= 0.5 * 10**-digits * problems
