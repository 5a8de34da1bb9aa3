"""Checks intervals and verdicts against simulated sweeps whose truth is known (evaluation.md 2.4 and 2.8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from harness.claims.rules import SUPPORTED, Limits, agree, decide
from harness.names import lookup
from harness.report.tables import Table, table
from harness.stats.inversion import common_horizon, exact_inversion, exact_p_value
from harness.stats.simulate import simulate_times
from harness.stats.speedup import SpeedupResult, Times, aft_t, log_ratio_t, restricted_mean_ratio

QUICK, FULL = 500, 4000
SIZES = (3, 5, 10)
CENSORED = (0.0, 0.1, 0.3)
SIGMA, RATIO = 0.35, 1.9
Estimator = Callable[[Times, Times], SpeedupResult]


@dataclass(frozen=True)
class Cell:
    """Rates over simulated sweeps: coverage and width among defined intervals, support among all."""

    coverage: float
    defined: float
    support: float
    width: float | None


def _at_horizon(arm: Times) -> Times:
    """The arm with censored runs taken for crossings at the horizon: a known mistake, for the table."""
    return Times(arm.times, (True,) * len(arm), horizon=arm.horizon)


def _z_interval(baseline: Times, treatment: Times) -> SpeedupResult:
    """Normal instead of t quantile, censored taken for the horizon: a known mistake, for the table."""
    found = log_ratio_t(_at_horizon(baseline), _at_horizon(treatment))
    if found.estimate is None or not found.has_interval:
        return found
    a, b = np.log(baseline.times), np.log(treatment.times)
    half = 1.959964 * math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return SpeedupResult(
        found.estimate,
        found.estimate * math.exp(-half),
        found.estimate * math.exp(half),
        "z",
        found.n,
        found.events,
    )


def _percentile(baseline: Times, treatment: Times) -> SpeedupResult:
    """Percentile bootstrap of paired log ratios, censored taken for the horizon: a known mistake."""
    d = np.log(baseline.times) - np.log(treatment.times)
    draws = d[np.random.default_rng(0).integers(len(d), size=(1000, len(d)))].mean(1)
    low, high = np.exp(np.percentile(draws, [2.5, 97.5]))
    n = (len(d), len(d))
    return SpeedupResult(float(np.exp(d.mean())), float(low), float(high), "percentile", n, n)


ESTIMATORS: Mapping[str, Estimator] = {
    "aft_t": aft_t,
    "restricted_mean": restricted_mean_ratio,
    "welch_t_horizon": lambda a, b: log_ratio_t(_at_horizon(a), _at_horizon(b)),
    "paired_t_horizon": lambda a, b: log_ratio_t(_at_horizon(a), _at_horizon(b), paired=True),
    "z_horizon": _z_interval,
    "percentile_horizon": _percentile,
    "exact_unpaired": exact_inversion,
    "exact_paired": lambda a, b: exact_inversion(a, b, paired=True),
}
ESTIMATOR_NAMES = (*ESTIMATORS, "verdict")


def restricted_truth(ratio: float, censored: float, sigma: float = SIGMA) -> float:
    """The true ratio of restricted means, which differs from the speed-up when the horizon cuts."""
    from scipy.stats import norm

    def mean(shift: float, horizon: float) -> float:
        inside = math.exp(shift + sigma**2 / 2) * norm.cdf((horizon - shift) / sigma - sigma)
        return float(inside + math.exp(horizon) * norm.sf((horizon - shift) / sigma))

    if censored == 0:
        return ratio
    horizon = max(0.0, -math.log(ratio)) + sigma * float(norm.isf(censored))
    return mean(0.0, horizon) / mean(-math.log(ratio), horizon)


def _exact_cell(name: str, sweeps: list[tuple[Times, Times]], truth: float) -> Cell:
    """Coverage and support of an exact method from its p-values, which spares the search for the limits."""
    paired = name == "exact_paired"
    usable = [(a, b) for a, b in sweeps if any(a.events + b.events)]
    covered = [exact_p_value(a, b, truth, paired=paired) >= 0.05 for a, b in usable]
    support = []
    for a, b in usable:
        cut = common_horizon(a, b)
        sooner = np.log(np.minimum(a.times, cut)).mean() > np.log(np.minimum(b.times, cut)).mean()
        support.append(bool(sooner) and exact_p_value(a, b, 1.0, paired=paired) < 0.05)
    return Cell(float(np.mean(covered)), len(usable) / len(sweeps), sum(support) / len(sweeps), None)


def coverage(
    name: str,
    n: int,
    ratio: float,
    *,
    censored: float = 0.0,
    reps: int = QUICK,
    rho: float = 0.0,
    sigma: float = SIGMA,
) -> Cell:
    """Rates of one estimator over `reps` simulated sweeps of `n` runs an arm (seeded, so repeatable)."""
    estimator = lookup("estimator", name, ESTIMATORS)
    rng = np.random.default_rng([n, round(100 * ratio), round(100 * censored), round(100 * rho)])
    sweeps = [simulate_times(n, ratio, rng, sigma=sigma, censored=censored, rho=rho) for _ in range(reps)]
    truth = restricted_truth(ratio, censored, sigma) if name == "restricted_mean" else ratio
    if name.startswith("exact"):
        return _exact_cell(name, sweeps, truth)
    found = [estimator(a, b) for a, b in sweeps]
    limits = [(r.low, r.high) for r in found if r.low is not None and r.high is not None]
    inside = [low <= truth <= high for low, high in limits]
    return Cell(
        coverage=float(np.mean(inside)) if inside else math.nan,
        defined=len(limits) / reps,
        support=sum(low > 1 for low, _ in limits) / reps,
        width=float(np.median([high / low for low, high in limits])) if limits else None,
    )


def verdict_rates(
    n: int, ratio: float, *, sigma: float, censored: float = 0.1, reps: int = QUICK
) -> dict[str, float]:
    """Share of each verdict over simulated sweeps, by the AFT-t interval checked by the exact method."""
    rng = np.random.default_rng([n, round(100 * ratio), round(100 * sigma)])
    counts: dict[str, float] = {}
    for _ in range(reps):
        a, b = simulate_times(n, ratio, rng, sigma=sigma, censored=censored)
        verdict = sweep_verdict(a, b)
        counts[verdict] = counts.get(verdict, 0.0) + 1 / reps
    return counts


def sweep_verdict(
    a: Times, b: Times, *, published: float = RATIO, smallest: float = 1.1, width: float = 1.6
) -> str:
    """The verdict on one simulated sweep, before any scale is considered; as claims.verdict gives it.

    The exact limits are searched for only where they can change the outcome; a direction needs p-values.
    """
    main = aft_t(a, b)
    rule = {"published": published, "smallest": smallest, "width": width}
    vote = decide(Limits.of(main), **rule)
    if vote == "inconclusive" and main.has_interval:
        return vote
    if vote == "supported_size" or not main.has_interval:
        exact = decide(Limits.of(exact_inversion(a, b)), **rule)
        return agree(vote, exact) if main.has_interval else exact
    null = 1.0 if vote in SUPPORTED or vote == "reversed" else smallest
    rejected = exact_p_value(a, b, null) < 0.05
    if vote == "reversed" and not rejected and exact_p_value(a, b, smallest) < 0.05:
        return "refuted"
    return vote if rejected else "inconclusive"


def calibrate(estimator: str = "aft_t", quick: bool = True) -> Table:
    """Coverage (nominal 95%) and false support of an estimator, or the rates of the verdicts (`verdict`).

    Log-normal times with log-SD 0.35; `quick` simulates 500 sweeps a cell (Monte-Carlo error 1 point),
    else 4,000 (0.3 points). UserError for an unknown estimator.
    """
    reps = QUICK if quick else FULL
    if estimator == "verdict":
        return _verdict_table(reps if quick else 1000)
    lookup("estimator", estimator, dict.fromkeys(ESTIMATOR_NAMES))
    rho = 0.3 if "paired" in estimator.split("_") or estimator == "percentile_horizon" else 0.0
    rows = []
    for n in SIZES:
        for censored in CENSORED:
            true = coverage(estimator, n, RATIO, censored=censored, reps=reps, rho=rho)
            none = coverage(estimator, n, 1.0, censored=censored, reps=reps, rho=rho)
            rows.append(
                (
                    n, _percent(censored), _percent(true.coverage), _percent(none.coverage),
                    _percent(true.defined), true.width, _percent(true.support), _percent(none.support),
                )
            )  # fmt: skip
    error = 100 * math.sqrt(0.95 * 0.05 / reps)
    return table(
        ("n", "censored", "coverage at 1.9", "coverage at 1.0", "defined", "upper/lower", "support at 1.9",
         "false support"),
        rows,
        caption=f"{estimator}: {reps:,} simulated sweeps a cell, log-SD {SIGMA}, nominal 95%",
        notes=(f"Monte-Carlo error about {error:.1f} points; equal seeds correlated {rho:g}.",),
        name=f"calibration-{estimator}",
    )  # fmt: skip


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}%"


def _verdict_table(reps: int) -> Table:
    rows = []
    for sigma in (0.2, 0.35):
        for ratio in (1.0, 1.3, 1.9):
            for n in (5, 10):
                rates = verdict_rates(n, ratio, sigma=sigma, reps=reps)
                against = rates.get("refuted", 0.0) + rates.get("reversed", 0.0)
                direction = sum(rates.get(name, 0.0) for name in SUPPORTED[1:])
                rows.append(
                    (
                        sigma, ratio, n, _percent(rates.get("supported_size", 0.0)), _percent(direction),
                        _percent(against), _percent(rates.get("inconclusive", 0.0)),
                    )
                )  # fmt: skip
    return table(
        ("log-SD", "true ratio", "n", "supported (size)", "direction only", "refuted", "inconclusive"),
        rows,
        caption=f"Verdicts of {reps:,} simulated sweeps a row, 10% of the slower arm censored, published 1.9",
        name="calibration-verdict",
    )
