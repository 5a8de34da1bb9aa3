"""Judges claims on a whole design: two factors at once, and how a cost grows with size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.claims.arms import blockers
from harness.claims.measure import arm_times, total
from harness.claims.results import ArmResult, ComparisonResult
from harness.claims.rules import Limits, agree, decide
from harness.claims.schema import Claim, Factorial, Scaling
from harness.claims.speed import compare_times, seeds_to_settle
from harness.stats.compare import Difference
from harness.stats.factorial import factorial
from harness.stats.speedup import SpeedupResult, Times


def compare_factorial(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """The main effects and the interaction of a 2x2 design, then each declared comparison as a control.

    The first factor's main effect decides; the controls (a shuffled placement, say) are secondary.
    """
    endpoint = claim.endpoint
    assert isinstance(endpoint, Factorial)
    one, two = endpoint.factors
    cells: dict[tuple[int, int], ArmResult] = {}
    for arm in claim.arms_at(scale):
        if one in arm.factors and two in arm.factors:
            cells[int(arm.factors[one]), int(arm.factors[two])] = arms[arm.name]
    controls = [replace(pair, primary=False) for pair in compare_times(claim, scale, arms)]
    blank = ComparisonResult(f"{one} on", f"{one} off", True, "not_testable")
    reason = blockers(claim, list(cells.values()), need_events=True)
    times = {levels: arm_times(arm.measured) for levels, arm in cells.items()}
    known: dict[tuple[int, int], Times] = {levels: t for levels, t in times.items() if t is not None}
    if len(known) < 4:
        return [replace(blank, reason=reason or "a cell of the 2x2 design has no usable run"), *controls]
    found = factorial(known)
    results = [
        _factor(claim, blank, found.first, found.exact_first, reason),
        _factor(claim, replace(blank, treatment=f"{two} on", baseline=f"{two} off", primary=False),
                found.second, found.exact_second, reason),
        replace(blank, treatment=f"{one} with {two}", baseline=f"{one} without {two}", primary=False,
                speedup={"optimizer_steps": found.interaction}, verdict="not_testable",
                reason="the interaction is reported, not judged"),
    ]  # fmt: skip
    return [*results, *controls]


def _factor(
    claim: Claim, blank: ComparisonResult, main: SpeedupResult, exact: SpeedupResult | None, reason: str
) -> ComparisonResult:
    assert exact is not None
    result = replace(
        blank, speedup={"optimizer_steps": main}, exact={"optimizer_steps": exact}, reason=reason
    )
    if reason:
        return result
    votes = [
        decide(
            Limits.of(f),
            published=claim.published.value,
            smallest=claim.smallest_effect,
            width=claim.size_width,
        )
        for f in (main, exact)
    ]
    verdict = agree(*votes) if main.has_interval else votes[1]
    settle = seeds_to_settle(claim, main) if verdict == "inconclusive" else None
    return replace(result, verdict=verdict, seeds_to_settle=settle, reason=main.reason)


def exponent(sizes: Sequence[float], costs: Sequence[float], *, level: float) -> Difference:
    """Slope of log cost on log size by least squares, with a t interval on (points - 2) degrees of freedom."""
    from scipy.stats import linregress, t

    found = Difference(None, None, None, "log_log_slope", (len(sizes), len(costs)), level)
    if len(sizes) < 3 or len(set(sizes)) < 2:
        return replace(found, reason="fewer than 3 runs or one size only: a slope has no interval")
    fit = linregress(np.log(sizes), np.log(costs))
    half = float(t.ppf(0.5 + level / 2, len(sizes) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return replace(found, estimate=slope, low=slope - half, high=slope + half, se=float(fit.stderr))


def growth_points(
    claim: Claim, scale: str, arms: Mapping[str, ArmResult]
) -> dict[str, list[tuple[float, float]]]:
    """(size, cost) of every run that recorded both, for each algorithm of a scaling claim."""
    endpoint = claim.endpoint
    assert isinstance(endpoint, Scaling)
    points: dict[str, list[tuple[float, float]]] = {}
    for arm in claim.arms_at(scale):
        for m in arms[arm.name].measured:
            size, cost = total(m.run, endpoint.size), total(m.run, endpoint.metric)
            if size and cost:
                points.setdefault(arm.algorithm, []).append((size, cost))
    return points


def compare_scaling(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """How cost grows with size for every algorithm; supported when the 90% interval is inside the margin."""
    endpoint = claim.endpoint
    assert isinstance(endpoint, Scaling)
    points = growth_points(claim, scale, arms)
    baseline = claim.arm(claim.baseline).algorithm
    algorithms = sorted(points, key=lambda name: name == baseline)
    out = []
    for name in algorithms:
        found = exponent(*zip(*points[name], strict=True), level=0.90)
        out.append(_scaling_result(claim, endpoint, name, baseline, found, len(points[name])))
    if not out:
        out.append(
            ComparisonResult(
                "cost", "size", True, "not_testable", reason=f"{endpoint.metric} was not recorded"
            )
        )
    return out


def _scaling_result(
    claim: Claim, endpoint: Scaling, name: str, baseline: str, found: Difference, runs: int
) -> ComparisonResult:
    low, high = endpoint.exponent - endpoint.margin, endpoint.exponent + endpoint.margin
    result = ComparisonResult(
        name, f"size^{endpoint.exponent:g}", name != baseline, "not_testable", level=0.90,
        effects={"exponent": found}, detail={"margin": endpoint.margin}, reason=found.reason,
    )  # fmt: skip
    if found.low is None or found.high is None:
        return result
    if runs < claim.minimum_seeds:
        return replace(result, reason=f"n={runs} runs of {name}: needs at least {claim.minimum_seeds}")
    verdict = "inconclusive"
    if low < found.low and found.high < high:
        verdict = "supported_size"
    elif found.high < low or found.low > high:
        verdict = "refuted"
    return replace(result, verdict=verdict)
