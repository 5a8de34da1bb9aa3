"""Main effects and interaction of two factors on time to threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.inversion import exact_stratified
from harness.stats.speedup import SpeedupResult, Times, log_bounds

Cells = Mapping[tuple[int, int], Times]


@dataclass(frozen=True)
class FactorialResult:
    """Speed-ups by factor: each main effect averaged over the other factor, and the ratio of ratios."""

    first: SpeedupResult
    second: SpeedupResult
    interaction: SpeedupResult
    exact_first: SpeedupResult | None = None
    exact_second: SpeedupResult | None = None


def _design(cells: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log bounds of every run and its row of the effect-coded design (1, x1, x2, x1 * x2), x = +-1/2."""
    low, high, rows = [], [], []
    for (one, two), arm in sorted(cells.items()):
        bounds = log_bounds(arm)
        low.append(bounds[0])
        high.append(bounds[1])
        x1, x2 = one - 0.5, two - 0.5
        rows += [[1.0, x1, x2, x1 * x2]] * len(arm)
    return np.concatenate(low), np.concatenate(high), np.array(rows)


def _counts(cells: Cells, position: int) -> tuple[tuple[int, int], tuple[int, int]]:
    n, events = [0, 0], [0, 0]
    for levels, arm in cells.items():
        n[levels[position]] += len(arm)
        events[levels[position]] += arm.n_events
    return (n[0], n[1]), (events[0], events[1])


def _effects(cells: Cells, level: float) -> list[SpeedupResult]:
    """AFT-t intervals of both main effects and the interaction, from one fit."""
    from scipy.stats import t as student

    arms = list(cells.values())
    blanks = []
    for position in (0, 1, 0):
        n, events = _counts(cells, position)
        blanks.append(
            SpeedupResult(None, None, None, "aft_t_factorial", n, events, level=level, rule=arms[0].rule,
                          cadence=arms[0].cadence, horizon=max(arm.horizon for arm in arms))
        )  # fmt: skip
    runs, reached = sum(map(len, arms)), sum(arm.n_events for arm in arms)
    reason = ""
    if min(map(len, arms)) < 2:
        reason = "a cell has fewer than 2 runs"
    elif min(arm.n_events for arm in arms) == 0:
        reason = "a cell has no event: its mean cannot be placed"
    low, high, x = _design(cells)
    if not reason:
        try:
            fit = fit_lognormal(low, high, x)
        except DegenerateFit as error:
            reason = str(error)
    if reason:
        return [replace(blank, reason=reason) for blank in blanks]
    df = max(reached - 4, 1)
    quantile = float(student.ppf(0.5 + level / 2, df)) * math.sqrt(runs / (runs - 4))
    out = []
    for blank, i in zip(blanks, (1, 2, 3), strict=True):
        beta, half = float(fit.coefficients[i]), quantile * float(fit.standard_errors[i])
        spread = float(fit.standard_errors[i]) * math.sqrt(runs / (runs - 4))
        out.append(
            replace(blank, estimate=math.exp(-beta), low=math.exp(-beta - half), high=math.exp(-beta + half),
                  sigma=fit.sigma * math.sqrt(runs / (runs - 4)),
                  p_value=2 * float(student.sf(abs(beta) / spread, df)))
        )  # fmt: skip
    return out


def _strata(cells: Cells, position: int) -> Sequence[tuple[Times, Times]]:
    other = 1 - position
    pairs = []
    for level in (0, 1):
        picked = {levels[position]: arm for levels, arm in cells.items() if levels[other] == level}
        pairs.append((picked[0], picked[1]))
    return pairs


def factorial(cells: Cells, *, level: float = 0.95, exact: bool = True) -> FactorialResult:
    """Speed-up of each factor and their interaction from the four cells (level of first, level of second).

    Log times are Normal(mu + b1 x1 + b2 x2 + b12 x1 x2, s) with x = +-1/2, right-censored; exp(-b1) is the
    first factor's speed-up averaged over the second, exp(-b12) how many times larger the first factor's
    speed-up is when the second is on. t correction as in speedup.aft_t with four coefficients. `exact`
    adds permutation intervals of the main effects, within the levels of the other factor.
    """
    if sorted(cells) != [(0, 0), (0, 1), (1, 0), (1, 1)]:
        raise ValueError(f"a 2x2 design needs the cells (0,0) to (1,1), got {sorted(cells)}")
    first, second, interaction = _effects(cells, level)
    checks = [exact_stratified(_strata(cells, i), level=level) for i in (0, 1)] if exact else [None, None]
    return FactorialResult(first, second, interaction, *checks)
