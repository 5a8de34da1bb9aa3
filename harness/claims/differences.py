"""Judges comparisons of final values: differences, Pass@k over a named grid, equivalence, win rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.claims.arms import blockers
from harness.claims.family import ALPHA, holm_levels
from harness.claims.measure import Measured, at_cost, final_value, total
from harness.claims.results import ArmResult, ComparisonResult
from harness.claims.rules import SUPPORTED, WORDS, Limits, agree, decide
from harness.claims.schema import (
    Claim,
    Comparison,
    Equivalence,
    FinalDifference,
    PassAtKDifference,
    WinRate,
)
from harness.stats.compare import Difference, exact_shift, one_sample, paired, tost, two_way, welch
from harness.stats.power import runs_for_equivalence, runs_for_shift
from tasks.passk import pass_at_k

Values = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By effect: baseline and treatment values, [seeds] or [seeds, problems]."""


class Unavailable(ValueError):
    """The records lack what the endpoint needs; the message says what."""


def _budget(arms: Sequence[ArmResult], axis: str) -> float:
    """The largest cost that every run reached."""
    ends = [total(m.run, axis) for arm in arms for m in arm.measured if m.usable]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends) or not known:
        raise Unavailable(f"{axis} was not recorded in every run: arms cannot be compared at equal cost")
    return min(known)


def _final_values(endpoint: FinalDifference | Equivalence, arms: Sequence[ArmResult]) -> Values:
    if endpoint.at_equal is None:
        both = [np.array([m.value for m in arm.measured if m.usable], dtype=float) for arm in arms]
    else:
        budget = _budget(arms, endpoint.at_equal)
        found = [
            [at_cost(m.run, endpoint.metric, endpoint.at_equal, budget) for m in arm.measured if m.usable]
            for arm in arms
        ]
        both = [np.array(values, dtype=float) for values in found]
    return {endpoint.metric: (both[0], both[1])}


def _problems(measured: Measured) -> Mapping[str, Sequence[int]]:
    last = measured.run.evals[-1] if measured.run.evals else {}
    found = last.get("problems")
    if not found:
        raise Unavailable(
            f"run {measured.run.run_id} has no samples by problem: evaluate with several samples"
        )
    return found


def _pass_values(endpoint: PassAtKDifference, arms: Sequence[ArmResult]) -> Values:
    """Pass@k of every run and problem, on the problems that all runs share."""
    tables = [[_problems(m) for m in arm.measured if m.usable] for arm in arms]
    if not all(tables):
        raise Unavailable("an arm has no run with samples by problem")
    shared = sorted(set.intersection(*(set(table) for tables_ in tables for table in tables_)))
    if not shared:
        raise Unavailable("the runs share no problem: they were evaluated on different sets")
    fewest = min(table[name][0] for tables_ in tables for table in tables_ for name in shared)
    if max(endpoint.k) > fewest:
        raise Unavailable(f"k={max(endpoint.k)} > n={fewest} samples a problem: Pass@k is not defined")
    out = {}
    for k in endpoint.k:
        both = [
            np.array([[pass_at_k(table[name][0], table[name][1], k) for name in shared] for table in tables_])
            for tables_ in tables
        ]
        out[f"pass@{k}"] = (both[0], both[1])
    return out


def _win_values(endpoint: WinRate, pair: Comparison, treatment: ArmResult) -> Values:
    metric = endpoint.metric.format(baseline=pair.baseline)
    found = [final_value(m.run, metric) for m in treatment.measured]
    known = np.array([value for value in found if value is not None], dtype=float)
    if not len(known):
        raise Unavailable(f"{metric} was not recorded: judge the pairs of the two arms' answers first")
    return {metric: (np.full(len(known), 0.5), known)}


def values_of(claim: Claim, pair: Comparison, arms: Mapping[str, ArmResult]) -> Values:
    """The values that a comparison is about, by effect; Unavailable when the records lack them."""
    endpoint, both = claim.endpoint, (arms[pair.baseline], arms[pair.treatment])
    if isinstance(endpoint, PassAtKDifference):
        return _pass_values(endpoint, both)
    if isinstance(endpoint, WinRate):
        return _win_values(endpoint, pair, both[1])
    assert isinstance(endpoint, FinalDifference | Equivalence)
    return _final_values(endpoint, both)


def _effect(
    claim: Claim, values: tuple[np.ndarray, np.ndarray], level: float
) -> tuple[Difference, Difference]:
    """The primary interval and its exact check, treatment minus baseline."""
    base, treat = values
    runs = [v.mean(1) if v.ndim == 2 else v for v in values]
    endpoint = claim.endpoint
    if isinstance(endpoint, WinRate):
        main = one_sample(treat - base, level=level)
        return main, exact_shift(treat, base, in_pairs=True, level=level)
    exact = exact_shift(runs[1], runs[0], in_pairs=claim.paired, level=level)
    if isinstance(endpoint, PassAtKDifference) and endpoint.population == "such_problems":
        return two_way(treat, base, level=level), exact
    return (paired if claim.paired else welch)(runs[1], runs[0], level=level), exact


def _spread(values: tuple[np.ndarray, np.ndarray]) -> float:
    runs = [v.mean(1) if v.ndim == 2 else v for v in values]
    return math.sqrt(sum(float(v.var(ddof=1)) for v in runs) / 2) if min(map(len, runs)) > 1 else math.nan


def _verdict(claim: Claim, main: Difference, exact: Difference) -> tuple[str, str]:
    """The verdict of one effect by both methods, and a word where they disagree."""
    votes = [
        decide(
            Limits(found.estimate, found.low, found.high, ratio=False),
            published=claim.published.value, smallest=claim.smallest_effect, width=claim.size_width,
        )
        for found in (main, exact)
    ]  # fmt: skip
    both = agree(*votes)
    if both == "inconclusive" and votes[0] != votes[1]:
        return both, f"the methods disagree: {WORDS[votes[0]]} by t, {WORDS[votes[1]]} by the exact test"
    return both, main.reason


def _any_of(verdicts: Sequence[str]) -> str:
    """The verdict of a grid of effects, any of which would do: supported by the strongest, refuted by all."""
    supported = [name for name in SUPPORTED if name in verdicts]
    if supported:
        return supported[0]
    against = [verdict for verdict in verdicts if verdict in ("refuted", "reversed")]
    if len(against) == len(verdicts):
        return "reversed" if set(against) == {"reversed"} else "refuted"
    return "inconclusive"


def _settle(claim: Claim, effects: Mapping[str, Difference], values: Values) -> int | None:
    """Fewest seeds an arm that would settle the effect with the largest estimate, at its spread."""
    name = max(effects, key=lambda key: effects[key].estimate or -math.inf)
    estimate, sigma = effects[name].estimate, _spread(values[name])
    if estimate is None or not math.isfinite(sigma):
        return None
    if isinstance(claim.endpoint, Equivalence):
        return runs_for_equivalence(claim.endpoint.margin, sigma)
    shift = estimate if estimate > claim.smallest_effect else claim.smallest_effect - estimate
    return runs_for_shift(shift, sigma)


def _equivalence(claim: Claim, result: ComparisonResult, values: Values) -> ComparisonResult:
    endpoint = claim.endpoint
    assert isinstance(endpoint, Equivalence)
    ((name, (base, treat)),) = values.items()
    found = tost(treat, base, endpoint.margin)
    wide, exact = _effect(claim, (base, treat), 1 - ALPHA)
    verdict = "supported_size" if found.equivalent else "inconclusive"
    if (
        wide.low is not None
        and wide.high is not None
        and (wide.low > endpoint.margin or wide.high < -endpoint.margin)
    ):
        verdict = "refuted"
    return replace(
        result, verdict=verdict, level=found.difference.level, reason=found.difference.reason,
        effects={name: found.difference}, exact_effects={name: exact},
        seeds_to_settle=_settle(claim, {name: found.difference}, values) if verdict == "inconclusive" else None,
        detail={"margin": endpoint.margin, "p_value": found.p_value, "non_inferior": found.non_inferior},
    )  # fmt: skip


def compare_differences(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """All comparisons of a claim on final values; primary effects are one family, adjusted by Holm's method."""
    pairs = sorted(claim.comparisons_at(scale), key=lambda pair: not pair.primary)
    results: list[ComparisonResult] = []
    values: list[Values] = []
    for pair in pairs:
        result = ComparisonResult(pair.treatment, pair.baseline, pair.primary, "not_testable")
        try:
            found = values_of(claim, pair, arms)
        except Unavailable as error:
            results.append(replace(result, reason=str(error)))
            values.append({})
            continue
        sides = (
            [arms[pair.treatment]]
            if isinstance(claim.endpoint, WinRate)
            else [arms[pair.baseline], arms[pair.treatment]]
        )
        results.append(replace(result, reason=blockers(claim, sides, need_events=False)))
        values.append(found)
    if isinstance(claim.endpoint, Equivalence):
        return [
            _equivalence(claim, result, found) if found and not result.reason else result
            for result, found in zip(results, values, strict=True)
        ]
    levels = _levels(claim, results, values)
    return [
        _judge_pair(claim, result, found, {name: levels.get((i, name), 1 - ALPHA) for name in found})
        for i, (result, found) in enumerate(zip(results, values, strict=True))
    ]


def _levels(
    claim: Claim, results: Sequence[ComparisonResult], values: Sequence[Values]
) -> dict[tuple[int, str], float]:
    """Confidence level of every primary effect of the family."""
    keys = [(i, name) for i, found in enumerate(values) if results[i].primary for name in found]
    p_values = [_effect(claim, values[i][name], 1 - ALPHA)[0].p_value for i, name in keys]
    return dict(zip(keys, holm_levels(p_values), strict=True))


def _judge_pair(
    claim: Claim, result: ComparisonResult, values: Values, levels: Mapping[str, float]
) -> ComparisonResult:
    if not values:
        return result
    both = {name: _effect(claim, values[name], levels[name]) for name in values}
    effects = {name: main for name, (main, _) in both.items()}
    result = replace(
        result, effects=effects, exact_effects={name: exact for name, (_, exact) in both.items()},
        level=min(levels.values()),
    )  # fmt: skip
    if result.reason:
        return result
    votes = {name: _verdict(claim, main, exact) for name, (main, exact) in both.items()}
    verdict = _any_of([vote for vote, _ in votes.values()])
    reasons = dict.fromkeys(word for _, word in votes.values() if word)
    settle = _settle(claim, effects, values) if verdict == "inconclusive" else None
    return replace(
        result, verdict=verdict, reason="; ".join(reasons) if verdict == "inconclusive" else "", seeds_to_settle=settle,
        detail={"by_effect": {name: vote for name, (vote, _) in votes.items()}},
    )  # fmt: skip
