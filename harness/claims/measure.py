"""What each run contributes to a claim: its crossing on every cost axis and its final metrics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.stats.speedup import Times
from harness.stats.threshold import RULES, Crossing, crossing, crossing_cost, never_reached
from harness.store.reader import RunRecord

AXES: Mapping[str, str] = {
    "optimizer_steps": "optimizer steps",
    "completions": "completions",
    "generated_tokens": "generated tokens",
    "processed_tokens": "forward + backward tokens",
    "train_seconds": "training seconds",
    "judge_calls": "judge calls",
    "judge_usd": "judge US dollars",
}
SIDE_METRICS = ("compile_raw", "on_task", "mean_tokens", "truncated", "unique_share")


def _spent(costs: Mapping[str, Any], axis: str) -> float | None:
    if axis == "processed_tokens":
        forward, backward = costs.get("forward_tokens"), costs.get("backward_tokens")
        return None if forward is None or backward is None else float(forward + backward)
    value = costs.get(axis)
    return None if value is None else float(value)


def cumulative(run: RunRecord, axis: str) -> tuple[list[float], list[float]] | None:
    """Optimizer steps and what the run had spent by then on an axis; None where it was not recorded."""
    if axis == "optimizer_steps":
        steps = [float(row["optimizer_step"]) for row in run.evals]
        return (steps, steps) if steps else None
    if axis == "train_seconds":
        spent = {float(row["optimizer_step"]): row.get("seconds") for row in run.timings}
    else:
        rows = [*run.steps, *run.evals]
        spent = {float(row["optimizer_step"]): _spent(row.get("costs") or {}, axis) for row in rows}
    points = [(step, float(value)) for step, value in sorted(spent.items()) if value is not None]
    if not points or (axis.startswith("judge") and points[-1][1] <= 0):
        return None
    return [step for step, _ in points], [value for _, value in points]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def metric_of(row: Mapping[str, Any], metric: str) -> float | None:
    """A metric of one evaluation; `a/b` is a share of another (0 where b is 0); None unless finite numbers."""
    metrics = row.get("metrics") or {}
    if "/" not in metric:
        return _number(metrics.get(metric))
    part, whole = (_number(metrics.get(name)) for name in metric.split("/", 1))
    if part is None or whole is None:
        return None
    return part / whole if whole else 0.0


def shown_metric(metric: str) -> str:
    """The metric to show over optimizer steps: one named by a baseline is measured at the end only, a cost grows anyway."""
    return "compile" if "{" in metric or metric in AXES else metric


def curve(run: RunRecord, metric: str) -> tuple[list[float], list[float]]:
    """Optimizer steps and values of a metric, where it was recorded as a finite number; see metric_of."""
    points = [
        (float(row["optimizer_step"]), value)
        for row in run.evals
        if (value := metric_of(row, metric)) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


@dataclass(frozen=True)
class Measured:
    """One run seen through its endpoint; `crossings` by axis, `by_rule` on optimizer steps."""

    run: RunRecord
    crossings: Mapping[str, Crossing] = field(default_factory=dict)
    by_rule: Mapping[str, Crossing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    value: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the run tells anything about its endpoint: a time to threshold, else a final value."""
        if "optimizer_steps" in self.crossings:
            return self.crossings["optimizer_steps"].time > 0
        return self.value is not None


Points = tuple[list[float], list[float]]


def _run_crossing(run: RunRecord, points: Points, endpoint: Any, rule: str, horizon: float) -> Crossing:
    steps, values = points
    found = crossing(
        steps, values, threshold=endpoint.threshold, rule=rule, sustain=endpoint.sustain, horizon=horizon
    )
    if run.status != "diverged":
        return found
    before = f" (it had crossed at {found.time:g} before)" if found.event else ""
    return never_reached(
        threshold=endpoint.threshold,
        horizon=found.horizon,
        rule=rule,
        cadence=found.cadence,
        note=f"diverged: counted as never reached{before}",
    )


def measure(run: RunRecord, endpoint: Any, horizon: float) -> Measured:
    """What a run says about an endpoint: its crossings where there is a threshold, else its final value.

    A diverged run never reached, censored at the horizon; a run that failed, was stopped or is still
    running is censored at its last evaluation and noted.
    """
    if not hasattr(endpoint, "threshold"):
        return _measure_final(run, endpoint, horizon)
    notes = [f"{run.arm} seed {run.seed}: {problem}" for problem in run.problems]
    points = curve(run, endpoint.metric)
    by_rule = {rule: _run_crossing(run, points, endpoint, rule, horizon) for rule in RULES}
    main = by_rule[endpoint.rule]
    if run.status in ("failed", "stopped", "running") and not main.event:
        reason = f" ({run.reason})" if run.reason else ""
        notes.append(f"{run.arm} seed {run.seed} is {run.status}{reason}: censored at its last evaluation")
    if not points[0] and run.status != "diverged":
        return Measured(run, notes=(*notes, f"{run.arm} seed {run.seed}: no {endpoint.metric} was recorded"))
    if main.note and not main.note.startswith("not reached"):
        notes.append(f"{run.arm} seed {run.seed}: {main.note}")
    crossings = {}
    for axis in AXES:
        spent = cumulative(run, axis)
        if axis == "optimizer_steps":
            crossings[axis] = main
        elif spent is not None and spent[1][-1] > 0:
            crossings[axis] = crossing_cost(main, *spent)
    return Measured(run, crossings, by_rule, tuple(notes))


def _measure_final(run: RunRecord, endpoint: Any, horizon: float) -> Measured:
    """The run's value at the end; a diverged run counts with its lowest evaluation, an unfinished one is noted."""
    notes = [f"{run.arm} seed {run.seed}: {problem}" for problem in run.problems]
    steps, values = curve(run, endpoint.metric)
    value = final_value(run, endpoint.metric, getattr(endpoint, "last", 1))
    prefix, brace, _ = endpoint.metric.partition("{")
    if brace and run.evals:
        found = [name for name in run.evals[-1].get("metrics") or {} if name.startswith(prefix)]
        value = mean_of(final_value(run, name) for name in found)
    if run.status == "diverged" and values:
        value = min(values)
        notes.append(f"{run.arm} seed {run.seed} diverged: counted with its lowest {endpoint.metric}")
    elif run.status != "completed" or (steps and steps[-1] < horizon):
        last = f"{steps[-1]:g}" if steps else "no evaluation"
        notes.append(f"{run.arm} seed {run.seed} is {run.status} at {last} of {horizon:g} optimizer steps")
    return Measured(run, notes=tuple(notes), value=value)


def at_cost(run: RunRecord, metric: str, axis: str, budget: float) -> float | None:
    """The metric when the run had spent `budget` on a cost axis, by linear interpolation."""
    spent, (steps, values) = cumulative(run, axis), curve(run, metric)
    if spent is None or not steps:
        return None
    costs = np.interp(steps, *spent)
    return float(np.interp(budget, costs, values))


def total(run: RunRecord, axis: str) -> float | None:
    """What the run had spent on an axis at its end; None where it was not recorded."""
    spent = cumulative(run, axis)
    return spent[1][-1] if spent else None


def arm_times(
    measured: Iterable[Measured], axis: str = "optimizer_steps", rule: str | None = None
) -> Times | None:
    """The times of an arm's usable runs on an axis (or by another rule, on optimizer steps)."""
    usable = [m for m in measured if m.usable]
    found = [m.by_rule[rule] if rule else m.crossings.get(axis) for m in usable]
    if not found or any(c is None or c.time <= 0 for c in found):
        return None
    return Times.of([c for c in found if c is not None])


def final_value(run: RunRecord, metric: str, last: int = 1) -> float | None:
    """Mean of a metric over the last evaluations that recorded it; None where none did."""
    recorded = (value for row in reversed(run.evals) if (value := metric_of(row, metric)) is not None)
    values = list(itertools.islice(recorded, last))
    return float(np.mean(values)) if values else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the values there are; None when there are none."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def identical_replicates(runs: Sequence[RunRecord]) -> list[str]:
    """Words on runs of one arm whose records are the same although their seeds differ."""
    seen: dict[str, list[RunRecord]] = {}
    found = []
    for run in runs:
        if len(_trained(run)) < 2:
            continue
        likely = seen.setdefault(repr(_trained(run)[-1]), [])
        twin = next((other for other in likely if _trained(other) == _trained(run)), None)
        if twin is not None:
            found.append(
                f"{run.arm}: seeds {twin.seed} and {run.seed} gave identical records: the seed has no effect"
            )
        likely.append(run)
    return found


def _trained(run: RunRecord) -> list[tuple[Any, Any, Any]]:
    """What the evaluations after the first optimizer step recorded."""
    return [
        (row["optimizer_step"], row.get("metrics"), row.get("costs"))
        for row in run.evals
        if row["optimizer_step"] > 0
    ]
