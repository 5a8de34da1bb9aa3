"""Exact speed-up interval: inverts a permutation test, re-censoring both arms alike at every trial ratio."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from harness.stats.speedup import SpeedupResult, Times, _empty, _too_few

MAX_EXACT = 200_000
MONTE_CARLO = 20_000
GRID = 41


@lru_cache(maxsize=8)
def split_matrix(n: int, m: int) -> tuple[np.ndarray, bool]:
    """Every split of n + m runs into arms of n and m (1 marks the first arm), the observed one first.

    Returns the matrix and whether it is complete. For arms of one size the first run is held in the
    first arm: the other half of the splits mirrors these and has the same absolute statistic. Beyond
    200,000 splits a fixed random sample stands in, which keeps the test valid (the observed split counts
    as one of the sample).
    """
    total = n + m
    if math.comb(total, n) <= MAX_EXACT:
        held = (0,) if n == m else ()
        rest = itertools.combinations(range(len(held), total), n - len(held))
        chosen = np.array([held + pick for pick in rest])
        count = len(chosen)
        matrix = np.zeros((count, total))
        np.put_along_axis(matrix, chosen, 1.0, axis=1)
        return matrix, True
    rng = np.random.default_rng(20_000_101)
    matrix = np.zeros((MONTE_CARLO, total))
    matrix[0, :n] = 1.0
    order = rng.permuted(np.tile(np.arange(total), (MONTE_CARLO - 1, 1)), axis=1)[:, :n]
    np.put_along_axis(matrix[1:], order, 1.0, axis=1)
    return matrix, False


@lru_cache(maxsize=8)
def sign_matrix(n: int) -> tuple[np.ndarray, bool]:
    """Every way to swap the labels within n pairs as signs, the observed one first; sampled when too many."""
    if 2**n <= MAX_EXACT:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n))), True
    rng = np.random.default_rng(20_000_102)
    matrix = rng.choice((1.0, -1.0), size=(MONTE_CARLO, n))
    matrix[0] = 1.0
    return matrix, False


def _two_sided(statistics: np.ndarray) -> np.ndarray:
    """Share of relabelings at least as extreme as the observed one (the first row), for each column."""
    observed = np.abs(statistics[0])
    return np.mean(np.abs(statistics) >= observed - 1e-9 * (1.0 + observed), axis=0)


def unpaired_p(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two-sided permutation p for equal distributions, by the difference of means over all splits.

    `a` is [n] or [n, K], `b` [m] or [m, K]: K tests at once.
    """
    n, m = len(a), len(b)
    matrix, _ = split_matrix(n, m)
    both = np.concatenate([a, b])
    return _two_sided((matrix @ (both - both.mean(0))) * (1 / n + 1 / m))


def paired_p(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two-sided permutation p over all swaps within pairs, by the mean difference; shapes as above."""
    matrix, _ = sign_matrix(len(a))
    return _two_sided(matrix @ (a - b))


def common_horizon(*arms: Times) -> float:
    """The earliest censoring time: cutting all runs there censors all arms alike. Infinite without any."""
    pairs = [pair for arm in arms for pair in zip(arm.times, arm.events, strict=True)]
    return min((time for time, event in pairs if not event), default=math.inf)


def _p_values(baseline: Times, treatment: Times, log_ratios: np.ndarray, paired: bool) -> np.ndarray:
    """Permutation p of each log ratio, both arms cut alike: [K] for [K]."""
    cut = math.log(common_horizon(baseline, treatment))
    end = np.minimum(cut, cut + log_ratios)
    a = np.minimum(np.log(baseline.times)[:, None], end)
    b = np.minimum(np.log(treatment.times)[:, None] + log_ratios, end)
    return paired_p(a, b) if paired else unpaired_p(a, b)


def exact_p_value(baseline: Times, treatment: Times, ratio: float, *, paired: bool = False) -> float:
    """Two-sided permutation p of the hypothesis that the speed-up is `ratio`; see exact_inversion."""
    return float(_p_values(baseline, treatment, np.array([math.log(ratio)]), paired)[0])


def exact_inversion(
    baseline: Times, treatment: Times, *, paired: bool = False, level: float = 0.95
) -> SpeedupResult:
    """All ratios r that a permutation test does not reject, from lowest to highest.

    For a trial r the treatment's times are multiplied by r and both arms are cut at min(C, r C), C the
    common horizon; then labels are exchangeable if r is true. Needs only the scale model. An end that no
    ratio can close (too few runs, censoring) is open: read "at least the lower limit". Runs censored
    before the horizon lower C for all.
    """
    result = _empty(baseline, treatment, "exact_paired" if paired else "exact_unpaired", level)
    if paired and len(baseline) != len(treatment):
        raise ValueError(f"paired arms need equal numbers of runs, got {len(baseline)} and {len(treatment)}")
    reason = _too_few(baseline, treatment)
    if not reason and sum(result.events) == 0:
        reason = "no run of either arm reached the threshold"
    if reason:
        return replace(result, reason=reason)
    a, b = np.log(baseline.times), np.log(treatment.times)
    cut = math.log(common_horizon(baseline, treatment))

    def p_values(log_ratios: np.ndarray) -> np.ndarray:
        return _p_values(baseline, treatment, log_ratios, paired)

    low, high = accepted_range(p_values, _search_range(a, b, cut), 1 - level)
    complete = (sign_matrix(len(a)) if paired else split_matrix(len(a), len(b)))[1]
    return replace(
        result,
        low=math.exp(low),
        high=math.exp(high),
        open_end=_open_end(low, high),
        p_value=exact_p_value(baseline, treatment, 1.0, paired=paired),
        reason="" if complete else f"{MONTE_CARLO} random relabelings stand in for all",
    )


def _open_end(low: float, high: float) -> str | None:
    ends = {(True, True): "both", (True, False): "low", (False, True): "high"}
    return ends.get((low == -math.inf, high == math.inf))


def _search_range(a: np.ndarray, b: np.ndarray, cut: float) -> tuple[float, float]:
    """Log ratios beyond which the test no longer changes: the arms are apart, or one is all censored."""
    low = min(a.min() - b.max(), a.min() - cut if cut < math.inf else math.inf)
    high = max(a.max() - b.min(), cut - b.min() if cut < math.inf else -math.inf)
    return low - 0.05, high + 0.05


def accepted_range(
    p_values: Callable[[np.ndarray], np.ndarray], bounds: tuple[float, float], alpha: float
) -> tuple[float, float]:
    """Lowest and highest log ratio with p >= alpha; infinite where the end of the range is accepted."""
    grid = np.linspace(*bounds, GRID)
    p = p_values(grid)
    if not np.any(p >= alpha):
        # the accepted set is narrower than the grid: look around the best point
        best, width = float(grid[int(np.argmax(p))]), (bounds[1] - bounds[0]) / (GRID - 1)
        grid = np.linspace(best - width, best + width, GRID)
        p = p_values(grid)
        if not np.any(p >= alpha):
            return best, best
    kept = np.flatnonzero(p >= alpha)
    first, last = int(kept[0]), int(kept[-1])
    low, high = -math.inf, math.inf
    if first > 0:
        low = _edge(p_values, grid[first], grid[first - 1], alpha)
    if last < len(grid) - 1:
        high = _edge(p_values, grid[last], grid[last + 1], alpha)
    return low, high


def _edge(p_values: Callable[[np.ndarray], np.ndarray], inside: float, outside: float, alpha: float) -> float:
    """The last accepted log ratio on the way from an accepted to a rejected one."""
    for _ in range(4):
        points = np.linspace(inside, outside, 9)
        accepted = np.flatnonzero(p_values(points[1:-1]) >= alpha)
        reach = int(accepted[-1]) + 1 if len(accepted) else 0
        inside, outside = float(points[reach]), float(points[reach + 1])
    return inside


def _stratum_statistics(matrix: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Difference of means for every split of one stratum, for each column."""
    both = np.concatenate([a, b])
    return (matrix @ (both - both.mean(0))) * (1 / len(a) + 1 / len(b))


def _all_splits(n: int, m: int) -> np.ndarray:
    """Every split of n + m runs, the observed one first, without the mirror saving of split_matrix."""
    half, complete = split_matrix(n, m)
    return np.concatenate([half, 1.0 - half]) if n == m and complete else half


def exact_stratified(
    strata: Sequence[tuple[Times, Times]], *, level: float = 0.95, method: str = "exact_stratified"
) -> SpeedupResult:
    """Ratios that a permutation test within strata does not reject: a main effect next to another factor.

    Each stratum is a (baseline, treatment) pair; labels are exchanged within strata only and the mean of
    the strata's differences of mean log time is the statistic. All arms are cut at one horizon. Beyond
    200,000 joint relabelings a fixed random sample of 20,000 stands in.
    """
    first = _empty(*strata[0], method, level)
    n = (sum(len(a) for a, _ in strata), sum(len(b) for _, b in strata))
    events = (sum(a.n_events for a, _ in strata), sum(b.n_events for _, b in strata))
    result = replace(first, n=n, events=events)
    if min(n) < 2 or sum(events) == 0:
        return replace(result, reason="too few runs or events")
    cut = math.log(common_horizon(*(arm for pair in strata for arm in pair)))
    matrices = [split_matrix(*map(len, strata[0]))[0], *(_all_splits(*map(len, pair)) for pair in strata[1:])]
    total = math.prod(len(matrix) for matrix in matrices)
    rng = np.random.default_rng(20_000_103)
    if total <= MAX_EXACT:
        picks = [index.ravel() for index in np.indices([len(matrix) for matrix in matrices])]
    else:
        picks = [np.append(0, rng.integers(len(matrix), size=MONTE_CARLO - 1)) for matrix in matrices]
    logs = [(np.log(a.times)[:, None], np.log(b.times)[:, None]) for a, b in strata]

    def p_values(log_ratios: np.ndarray) -> np.ndarray:
        end = np.minimum(cut, cut + log_ratios)
        parts = [
            _stratum_statistics(matrix, np.minimum(a, end), np.minimum(b + log_ratios, end))[pick]
            for matrix, (a, b), pick in zip(matrices, logs, picks, strict=True)
        ]
        return _two_sided(np.sum(parts, axis=0))

    a, b = (np.concatenate([pair[i][:, 0] for pair in logs]) for i in (0, 1))
    low, high = accepted_range(p_values, _search_range(a, b, cut), 1 - level)
    return replace(
        result,
        low=math.exp(low),
        high=math.exp(high),
        open_end=_open_end(low, high),
        p_value=float(p_values(np.zeros(1))[0]),
    )
