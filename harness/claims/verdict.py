"""From the runs of a claim to its verdict and the sentence that states it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harness.claims.arms import arm_results, check_runs
from harness.claims.designs import compare_factorial, compare_scaling
from harness.claims.differences import compare_differences
from harness.claims.family import holm_levels
from harness.claims.measure import AXES
from harness.claims.results import ArmResult, ComparisonResult, Verdict
from harness.claims.rules import SUPPORTED, at_scale, together
from harness.claims.schema import CONTROL, Claim, Published
from harness.claims.speed import compare_times
from harness.claims.trend import compare_trend
from harness.claims.words import sentence
from harness.store.reader import RunRecord

__all__ = ["ArmResult", "ComparisonResult", "Verdict", "holm_levels", "judge"]

Judge = Callable[[Claim, str, Mapping[str, ArmResult]], list[ComparisonResult]]
JUDGES: Mapping[str, Judge] = {
    "time_to_threshold": compare_times,
    "final_difference": compare_differences,
    "pass_at_k_difference": compare_differences,
    "equivalence": compare_differences,
    "win_rate": compare_differences,
    "factorial": compare_factorial,
    "scaling": compare_scaling,
    "trend": compare_trend,
}


def _secondary(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> list[ComparisonResult]:
    """The comparisons by the claim's secondary endpoints, reported beside the verdict and never deciding it."""
    out: list[ComparisonResult] = []
    for endpoint in claim.secondary:
        other = claim.model_copy(update={"endpoint": endpoint, "published": Published(reading="secondary")})
        arms = arm_results(other, scale, runs)
        found = JUDGES[endpoint.kind](other, scale, arms)
        out += [replace(pair, primary=False) for pair in found]
    return out


def _control_notes(found: Sequence[ComparisonResult]) -> list[str]:
    """A warning when the A/A control differs from the baseline that it repeats."""
    out = []
    for pair in found:
        if pair.treatment.endswith(CONTROL) and pair.verdict in (*SUPPORTED, "reversed"):
            out.append(
                f"the A/A control {pair.treatment} differs from {pair.baseline}: doubt every verdict of this sweep"
            )
    return out


def _axis_notes(arms: Mapping[str, ArmResult]) -> list[str]:
    """Words on cost axes that only some runs recorded: they are left out of every comparison."""
    runs = [m for arm in arms.values() for m in arm.measured if m.crossings]
    out = []
    for axis, name in AXES.items():
        lacking = [m.run.run_id for m in runs if axis not in m.crossings]
        if 0 < len(lacking) < len(runs):
            out.append(
                f"{name} left out: not recorded in {len(lacking)} of {len(runs)} runs ({lacking[0]}, ...)"
            )
    return out


def judge(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> Verdict:
    """The verdict of a claim's runs at a scale, by the rules of evaluation.md 2.8.

    Failed, diverged and unreached runs stay in every count. UserError when the runs cannot belong
    together (another claim version, tuning seeds, two runs of one seed).
    """
    runs = check_runs(claim, scale, runs)
    arms = arm_results(claim, scale, runs)
    found = [*JUDGES[claim.endpoint.kind](claim, scale, arms), *_secondary(claim, scale, runs)]
    verdict = at_scale(together([pair.verdict for pair in found if pair.primary]), scale)
    return Verdict(
        claim=claim.name,
        claim_hash=claim.hash(scale),
        scale=scale,
        verdict=verdict,
        sentence=sentence(claim, scale, verdict, found, arms),
        arms=tuple(arms.values()),
        comparisons=tuple(found),
        run_ids=tuple(run.run_id for run in runs),
        notes=(
            *_control_notes(found),
            *_axis_notes(arms),
            *(note for arm in arms.values() for m in arm.measured for note in m.notes),
        ),
        endpoint=claim.endpoint.model_dump(),
    )
