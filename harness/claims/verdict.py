"""From the runs of a claim to its verdict and the sentence that states it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.claims.measure import (
    AXES,
    SIDE_METRICS,
    Measured,
    arm_times,
    final_value,
    identical_replicates,
    mean_of,
    measure,
)
from harness.claims.rules import WORDS, Limits, agree, at_scale, decide, finite, number, span, together
from harness.claims.schema import Claim, Comparison, TimeToThreshold
from harness.errors import UserError
from harness.stats.inversion import exact_inversion
from harness.stats.power import runs_for_shift
from harness.stats.speedup import SpeedupResult, Times, aft_t, restricted_mean_ratio
from harness.stats.survival import kaplan_meier
from harness.stats.threshold import RULES
from harness.store.reader import RunRecord

ALPHA = 0.05


@dataclass(frozen=True)
class ArmResult:
    """One arm: its runs, how many reached the threshold, the means of its final metrics.

    `time` is the Kaplan-Meier median on each recorded axis, None where fewer than half reached.
    """

    name: str
    algorithm: str
    seeds: tuple[int, ...]
    reached: int
    censored: int
    final_compile_rate: float | None
    final: Mapping[str, float | None]
    time: Mapping[str, float | None]
    statuses: Mapping[str, int]
    measured: tuple[Measured, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; `seeds` is the list of seeds."""
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "seeds": list(self.seeds),
            "reached": self.reached,
            "censored": self.censored,
            "final_compile_rate": self.final_compile_rate,
            "final": dict(self.final),
            "time": dict(self.time),
            "statuses": dict(self.statuses),
        }


@dataclass(frozen=True)
class ComparisonResult:
    """Treatment against baseline: intervals by axis and method, the verdict, and what would settle it."""

    treatment: str
    baseline: str
    primary: bool
    verdict: str
    reason: str = ""
    level: float = 0.95
    speedup: Mapping[str, SpeedupResult] = field(default_factory=dict)
    exact: Mapping[str, SpeedupResult] = field(default_factory=dict)
    restricted_mean: Mapping[str, SpeedupResult] = field(default_factory=dict)
    by_rule: Mapping[str, SpeedupResult] = field(default_factory=dict)
    interval_censored: SpeedupResult | None = None
    seeds_to_settle: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "treatment": self.treatment,
            "baseline": self.baseline,
            "primary": self.primary,
            "verdict": self.verdict,
            "reason": self.reason,
            "level": self.level,
            "speedup": {axis: speedup_json(found) for axis, found in self.speedup.items()},
            "exact": {axis: speedup_json(found) for axis, found in self.exact.items()},
            "restricted_mean": {axis: speedup_json(found) for axis, found in self.restricted_mean.items()},
            "by_rule": {rule: speedup_json(found) for rule, found in self.by_rule.items()},
            "seeds_to_settle": self.seeds_to_settle,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim at a scale; `verdict` is one of the names in rules.WORDS."""

    claim: str
    claim_hash: str
    scale: str
    verdict: str
    sentence: str
    arms: tuple[ArmResult, ...]
    comparisons: tuple[ComparisonResult, ...]
    run_ids: tuple[str, ...]
    notes: tuple[str, ...] = ()
    endpoint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def speedup(self) -> Mapping[str, SpeedupResult]:
        """Speed-ups by axis of the first primary comparison."""
        return self.comparisons[0].speedup if self.comparisons else {}

    def to_json(self) -> dict[str, Any]:
        """The object that `harness reproduce --json` prints, less `seconds`; unknown numbers are null."""
        return finite(
            {
                "claim": self.claim,
                "claim_hash": self.claim_hash,
                "scale": self.scale,
                "verdict": self.verdict,
                "sentence": self.sentence,
                "arms": [arm.to_json() for arm in self.arms],
                "speedup": {axis: speedup_json(found) for axis, found in self.speedup.items()},
                "comparisons": [pair.to_json() for pair in self.comparisons],
                "run_ids": list(self.run_ids),
                "notes": list(self.notes),
            }
        )


def speedup_json(found: SpeedupResult) -> dict[str, Any]:
    """A speed-up as plain data; open or absent limits are null, `open_end` tells which are open."""
    return {
        "estimate": found.estimate,
        "low": found.low if found.low else None,
        "high": found.high,
        "method": found.method,
        "n": list(found.n),
        "events": list(found.events),
        "open_end": found.open_end,
        "rule": found.rule,
        "cadence": found.cadence,
        "horizon": found.horizon,
        "level": found.level,
        "reason": found.reason,
    }


def check_runs(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of this claim version and scale; UserError for a mix that cannot be compared."""
    arms = [arm.name for arm in claim.arms_at(scale)]
    expected = claim.hash(scale)
    seen: dict[tuple[str, int], RunRecord] = {}
    for run in runs:
        where = f"run {run.run_id}"
        if run.arm not in arms:
            raise UserError(
                f"{where} is of arm {run.arm!r}, which claim {claim.name!r} lacks: move it elsewhere"
            )
        name, found = run.claim.get("name"), run.claim.get("hash")
        if name is not None and name != claim.name:
            raise UserError(f"{where} belongs to claim {name!r}, not {claim.name!r}: give another folder")
        if run.claim.get("scale") not in (None, scale):
            raise UserError(f"{where} is of scale {run.claim['scale']!r}, not {scale!r}: give another folder")
        if found is not None and found != expected:
            raise UserError(
                f"{where} was made under another definition of claim {claim.name!r} "
                f"({found}, now {expected}): use a fresh folder, or restore the definition"
            )
        if run.seed in claim.tuning_seeds:
            raise UserError(
                f"{where} has seed {run.seed}, a tuning seed of claim {claim.name!r}: leave it out"
            )
        twin = seen.setdefault((run.arm, run.seed), run)
        if twin is not run:
            raise UserError(
                f"runs {twin.run_id} and {run.run_id} are both arm {run.arm!r} seed {run.seed}: keep one"
            )
    return list(runs)


def _arm_result(name: str, algorithm: str, measured: Sequence[Measured], metric: str) -> ArmResult:
    runs = [m.run for m in measured]
    steps = [m.crossings["optimizer_steps"] for m in measured if m.usable]
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    times = {}
    for axis in AXES:
        found = arm_times(measured, axis)
        if found is not None:
            times[axis] = kaplan_meier(found).median()
    final = {name: mean_of(final_value(run, name) for run in runs) for name in (metric, *SIDE_METRICS)}
    return ArmResult(
        name=name,
        algorithm=algorithm,
        seeds=tuple(run.seed for run in runs),
        reached=sum(c.event for c in steps),
        censored=len(runs) - sum(c.event for c in steps),
        final_compile_rate=final[metric]
        if metric == "compile"
        else mean_of(final_value(r, "compile") for r in runs),
        final=final,
        time=times,
        statuses=statuses,
        measured=tuple(measured),
    )


def _blockers(claim: Claim, arms: Sequence[ArmResult], need_events: bool) -> str:
    """Why a comparison cannot be tested at all; empty when it can."""
    for arm in arms:
        twins = identical_replicates([m.run for m in arm.measured])
        if twins:
            return twins[0]
    for arm in arms:
        usable = sum(m.usable for m in arm.measured)
        above = [
            m for m in arm.measured if (c := m.crossings.get("optimizer_steps")) and c.event and c.time <= 0
        ]
        if above:
            return f"{arm.name} starts above the threshold: nothing is left to learn"
        if usable < claim.minimum_seeds:
            return f"n={usable} usable runs of {arm.name}: needs at least {claim.minimum_seeds} seeds an arm"
    if need_events and not any(arm.reached for arm in arms):
        return "no run of either arm reached the threshold by the horizon"
    return ""


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


def _settle(claim: Claim, found: SpeedupResult | None) -> int | None:
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
    reason = _blockers(claim, (baseline, treatment), need_events=True)
    main, exact = result.speedup.get("optimizer_steps"), result.exact.get("optimizer_steps")
    if reason or main is None or exact is None:
        return replace(result, reason=reason or "the metric was not recorded")
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
    settle = _settle(claim, main) if verdict == "inconclusive" else None
    return replace(result, verdict=verdict, reason=reason, seeds_to_settle=settle)


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """Confidence level of each comparison so that intervals and Holm's step-down test agree."""
    known = [1.0 if p is None else p for p in p_values]
    order = sorted(range(len(known)), key=known.__getitem__)
    levels = [0.0] * len(p_values)
    for rank, index in enumerate(order):
        levels[index] = 1 - ALPHA / (len(p_values) - rank)
    return levels


def compare_all(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> list[ComparisonResult]:
    """All comparisons of a time-to-threshold claim, primary ones first and adjusted by Holm's method."""
    pairs = sorted(claim.comparisons_at(scale), key=lambda pair: not pair.primary)
    found = [_compare(claim, pair, arms, 1 - ALPHA) for pair in pairs]
    primary = [i for i, pair in enumerate(pairs) if pair.primary]
    if len(primary) < 2:
        return found
    p_values = [getattr(found[i].speedup.get("optimizer_steps"), "p_value", None) for i in primary]
    for i, level in zip(primary, holm_levels(p_values), strict=True):
        found[i] = _compare(claim, pairs[i], arms, level)
    return found


def judge(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> Verdict:
    """The verdict of a claim's runs at a scale, by the rules of evaluation.md 2.8.

    Failed, diverged and unreached runs stay in every count. UserError when the runs cannot belong
    together (another claim version, tuning seeds, two runs of one seed).
    """
    runs = check_runs(claim, scale, runs)
    horizon = claim.scale(scale).horizon
    arms = {}
    for arm in claim.arms_at(scale):
        measured = [
            measure(run, claim.endpoint, max(1, round(horizon * arm.horizon_fraction)))
            for run in runs
            if run.arm == arm.name
        ]
        arms[arm.name] = _arm_result(arm.name, arm.algorithm, measured, claim.endpoint.metric)
    found = compare_all(claim, scale, arms)
    raw = together([pair.verdict for pair in found if pair.primary])
    notes = [note for arm in arms.values() for m in arm.measured for note in m.notes]
    verdict = at_scale(raw, scale)
    return Verdict(
        claim=claim.name,
        claim_hash=claim.hash(scale),
        scale=scale,
        verdict=verdict,
        sentence=sentence(claim, scale, verdict, found, arms),
        arms=tuple(arms.values()),
        comparisons=tuple(found),
        run_ids=tuple(run.run_id for run in runs),
        notes=tuple(notes),
        endpoint=claim.endpoint.model_dump(),
    )


def setting(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> str:
    """The setting in words: model, evaluation, horizon and seeds."""
    chosen = claim.scale(scale)
    counts = sorted({len(arm.seeds) for arm in arms.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"{chosen.model}, {chosen.eval_prompts} prompts every {chosen.eval_every} optimizer steps, "
        f"horizon {chosen.horizon}, {seeds} seeds an arm"
    )


def _target(claim: Claim) -> str:
    endpoint = claim.endpoint
    return (
        f"{endpoint.metric} {endpoint.threshold:.0%}"
        if isinstance(endpoint, TimeToThreshold)
        else endpoint.kind
    )


def _needed(pair: ComparisonResult) -> str:
    main, exact = pair.speedup["optimizer_steps"], pair.exact["optimizer_steps"]
    level = f"{100 * pair.level:.3g}%"
    check = f"exact {span(exact.low, exact.high)}"
    if main.estimate is None or not main.has_interval:
        reached = f"{main.events[1]} of {main.n[1]} and {main.events[0]} of {main.n[0]} runs reached it"
        return f"{pair.treatment} against {pair.baseline}: {reached}; speed-up {level}: {check}"
    faster = main.estimate >= 1
    times = number(main.estimate if faster else 1 / main.estimate)
    return (
        f"{pair.treatment} needed {times} times {'fewer' if faster else 'more'} optimizer steps than "
        f"{pair.baseline} (speed-up {number(main.estimate)}, {level} {span(main.low, main.high)}; {check})"
    )


def sentence(
    claim: Claim, scale: str, verdict: str, found: Sequence[ComparisonResult], arms: Mapping[str, ArmResult]
) -> str:
    """One paragraph in the wording of evaluation.md 2.8."""
    target = _target(claim)
    where = f"In our setting ({setting(claim, scale, arms)}), to {target}: "
    testable = [pair for pair in found if pair.primary and "optimizer_steps" in pair.speedup]
    body = "; ".join(_needed(pair) for pair in testable) or "no comparison could be made"
    published = claim.published.value
    print_figure = f" The paper's {published:g} was one run." if published is not None else ""
    reasons = "; ".join(dict.fromkeys(pair.reason for pair in found if pair.primary and pair.reason))
    why = f" ({reasons})" if reasons else ""
    if scale == "smoke":
        return f"{where}{body}.{print_figure} Verdict: not testable: smoke is a look, never a verdict{why}."
    settle = [pair for pair in found if pair.primary and pair.verdict == "inconclusive"]
    tail = ""
    if verdict in ("inconclusive", "mechanism_inconclusive"):
        tail = " " + _settle_words(settle)
    scope = (
        ""
        if not verdict.startswith("mechanism")
        else (" This scale can pass or fail a mechanism check; it neither supports nor refutes the claim.")
    )
    return f"{where}{body}.{print_figure} Verdict: {WORDS[verdict]}{why}.{tail}{scope}"


def _settle_words(pairs: Sequence[ComparisonResult]) -> str:
    known = [pair.seeds_to_settle for pair in pairs if pair.seeds_to_settle is not None]
    if pairs and len(known) == len(pairs):
        return f"About {max(known)} seeds an arm would settle it, if this estimate and spread hold."
    return "More than 1000 seeds an arm, or a longer horizon, would be needed to settle it at this estimate."
