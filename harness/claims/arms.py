"""Puts the runs of a claim into its arms, refusing mixes, and says what makes a comparison untestable."""

from __future__ import annotations

from collections.abc import Sequence
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
    shown_metric,
)
from harness.claims.results import ArmResult
from harness.claims.schema import Claim
from harness.errors import UserError
from harness.stats.survival import kaplan_meier
from harness.store.reader import RunRecord


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


def _arm_result(name: str, algorithm: str, measured: Sequence[Measured], endpoint: Any) -> ArmResult:
    metric, has_threshold = shown_metric(endpoint.metric), hasattr(endpoint, "threshold")
    runs = [m.run for m in measured]
    steps = [m.crossings["optimizer_steps"] for m in measured if m.usable and m.crossings]
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    times = {}
    for axis in AXES:
        found = arm_times(measured, axis)
        if found is not None:
            times[axis] = kaplan_meier(found).median()
    # the endpoint's own metric over the evaluations that its difference is taken over
    last = {metric: getattr(endpoint, "last", 1)}
    final = {
        name: mean_of(final_value(run, name, last.get(name, 1)) for run in runs)
        for name in (metric, *SIDE_METRICS)
    }
    return ArmResult(
        name=name,
        algorithm=algorithm,
        seeds=tuple(run.seed for run in runs),
        reached=sum(c.event for c in steps) if has_threshold else None,
        censored=len(runs) - sum(c.event for c in steps) if has_threshold else None,
        final_compile_rate=final[metric]
        if metric == "compile"
        else mean_of(final_value(r, "compile") for r in runs),
        final=final,
        time=times,
        statuses=statuses,
        measured=tuple(measured),
    )


def arm_results(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> dict[str, ArmResult]:
    """The arms of a claim at a scale with their runs measured, also arms without a run."""
    horizon = claim.scale(scale).horizon
    arms = {}
    for arm in claim.arms_at(scale):
        limit = max(1, round(horizon * arm.horizon_fraction))
        measured = [measure(run, claim.endpoint, limit) for run in runs if run.arm == arm.name]
        arms[arm.name] = _arm_result(arm.name, arm.algorithm, measured, claim.endpoint)
    return arms


def blockers(claim: Claim, arms: Sequence[ArmResult], *, need_events: bool) -> str:
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
