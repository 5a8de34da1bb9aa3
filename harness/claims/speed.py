"""Judges time-to-threshold comparisons: intervals on every cost axis, two methods, one verdict each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.claims.arms import blockers
from harness.claims.family import ALPHA, holm_levels
from harness.claims.measure import AXES, arm_times
from harness.claims.results import ArmResult, ComparisonResult, speedup_json
from harness.claims.rules import WORDS, Limits, agree, decide
from harness.claims.schema import Claim, Comparison
from harness.stats.compare import exact_logrank_p
from harness.stats.inversion import exact_inversion
from harness.stats.power import runs_for_shift
from harness.stats.speedup import SpeedupResult, Times, aft_t, restricted_mean_ratio
from harness.stats.threshold import RULES


def _intervals(
    baseline: ArmResult, treatment: ArmResult, level: float, paired: bool
) -> dict[str, dict[str, SpeedupResult]]:
    """Every method on every axis that both arms recorded."""
    out: dict[str, dict[str, SpeedupResult]] = {
        "speedup": {},
        "exact": {},
        "restricted_mean": {},
        "by_rule": {},
    }
    for axis in AXES:
        pair = arm_times(baseline.measured, axis), arm_times(treatment.measured, axis)
        if pair[0] is None or pair[1] is None:
            continue
        both: tuple[Times, Times] = pair  # type: ignore[assignment]
        out["speedup"][axis] = aft_t(*both, level=level)
        out["exact"][axis] = exact_inversion(*both, level=level, paired=paired)
        if axis == "optimizer_steps":
            out["restricted_mean"][axis] = restricted_mean_ratio(*both, level=level)
    for rule in RULES:
        pair = arm_times(baseline.measured, rule=rule), arm_times(treatment.measured, rule=rule)
        if pair[0] is not None and pair[1] is not None:
            out["by_rule"][rule] = aft_t(pair[0], pair[1], level=level)
    return out


def _sensitivity(baseline: ArmResult, treatment: ArmResult, level: float) -> dict[str, Any]:
    """Checks on optimizer steps that are reported and never decide: interval-censored fit, exact log-rank."""
    a, b = arm_times(baseline.measured), arm_times(treatment.measured)
    if a is None or b is None:
        return {}
    found = aft_t(a, b, level=level, interval_censored=True)
    return {"interval_censored": speedup_json(found), "exact_logrank_p": exact_logrank_p(a, b)}


def seeds_to_settle(claim: Claim, found: SpeedupResult | None) -> int | None:
    """Seeds an arm with which an interval at this estimate and spread would leave the undecided zone."""
    if found is None or found.estimate is None or not found.sigma:
        return None
    shift = math.log(found.estimate)
    if found.estimate > claim.smallest_effect:
        return runs_for_shift(shift, found.sigma)
    return runs_for_shift(math.log(claim.smallest_effect) - shift, found.sigma)


def _compare(claim: Claim, pair: Comparison, arms: Mapping[str, ArmResult], level: float) -> ComparisonResult:
    baseline, treatment = arms[pair.baseline], arms[pair.treatment]
    sets = _intervals(baseline, treatment, level, claim.paired)
    result = ComparisonResult(
        pair.treatment,
        pair.baseline,
        pair.primary,
        "not_testable",
        level=level,
        speedup=sets["speedup"],
        exact=sets["exact"],
        restricted_mean=sets["restricted_mean"],
        by_rule=sets["by_rule"],
    )
    result = replace(result, detail=_sensitivity(baseline, treatment, level))
    reason = blockers(claim, (baseline, treatment), need_events=True)
    axis = getattr(claim.endpoint, "axis", "optimizer_steps")
    main, exact = result.speedup.get(axis), result.exact.get(axis)
    if reason or main is None or exact is None:
        return replace(result, reason=reason or f"the metric or {axis} was not recorded in every run")
    rule: dict[str, Any] = {
        "published": claim.published.value,
        "smallest": claim.smallest_effect,
        "width": claim.size_width,
    }
    by_exact = decide(Limits.of(exact), **rule)
    if not main.has_interval:
        # one arm never reached: no model can be fitted, the exact bound alone may still settle the direction
        verdict, reason = by_exact, f"{main.reason}; the exact bound decides"
    else:
        by_main = decide(Limits.of(main), **rule)
        verdict = agree(by_main, by_exact)
        if verdict == "inconclusive" and by_main != by_exact:
            reason = f"the methods disagree: {WORDS[by_main]} by AFT, {WORDS[by_exact]} by the exact test"
    settle = seeds_to_settle(claim, main) if verdict == "inconclusive" else None
    return replace(result, verdict=verdict, reason=reason, seeds_to_settle=settle)


def compare_times(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """All comparisons of a time-to-threshold claim, primary ones first and adjusted by Holm's method."""
    pairs = sorted(claim.comparisons_at(scale), key=lambda pair: not pair.primary)
    found = [_compare(claim, pair, arms, 1 - ALPHA) for pair in pairs]
    primary = [i for i, pair in enumerate(pairs) if pair.primary]
    if len(primary) < 2:
        return found
    axis = getattr(claim.endpoint, "axis", "optimizer_steps")
    p_values = [getattr(found[i].speedup.get(axis), "p_value", None) for i in primary]
    for i, level in zip(primary, holm_levels(p_values), strict=True):
        found[i] = _compare(claim, pairs[i], arms, level)
    return found
