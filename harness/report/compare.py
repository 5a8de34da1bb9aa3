"""Compares any two or more groups of runs outside a claim: final metrics, differences, times to a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.claims.measure import AXES, SIDE_METRICS, arm_times, curve, final_value, mean_of, measure, total
from harness.claims.rules import number, span
from harness.claims.schema import TimeToThreshold
from harness.claims.words import signed_span
from harness.errors import UserError
from harness.report.claim import HEADINGS, amount
from harness.report.tables import Cell, Column, Table, table
from harness.stats.compare import probability_of_improvement, welch
from harness.stats.inversion import exact_inversion
from harness.stats.speedup import aft_t
from harness.store.reader import RunRecord, load_runs

Groups = Mapping[str, Sequence[RunRecord]]


@dataclass(frozen=True)
class Goal:
    """The metric compared, and the level whose time is compared."""

    metric: str = "compile"
    threshold: float = 0.8


def default_goal(groups: Groups) -> Goal:
    """The first known headline metric that every group recorded."""
    for metric in ("compile", "correct", "outcome"):
        if all(any(curve(run, metric)[0] for run in runs) for runs in groups.values()):
            return Goal(metric)
    raise UserError("these runs share no known metric (compile, correct, outcome): name one with --metric")


def _horizon(groups: Groups) -> float:
    ends = [run.evals[-1]["optimizer_step"] for runs in groups.values() for run in runs if run.evals]
    return float(max(ends, default=0))


def summary_table(groups: Groups, goal: Goal) -> Table:
    """One row a group: runs and their states, final metrics, costs."""
    side = [
        m
        for m in SIDE_METRICS
        if any(final_value(r, m) is not None for runs in groups.values() for r in runs)
    ]
    costs = ("generated_tokens", "processed_tokens", "train_seconds")
    columns = [
        Column("runs of"),
        Column("n", "right"),
        Column("states"),
        Column(f"final {goal.metric}", "right"),
    ]
    columns += [Column("spread (SD)", "right"), *(Column(HEADINGS.get(m, m), "right") for m in side)]
    columns += [Column(AXES[axis], "right") for axis in costs]
    rows: list[tuple[Cell, ...]] = []
    for name, runs in groups.items():
        final = [v for run in runs if (v := final_value(run, goal.metric)) is not None]
        states = {s: sum(run.status == s for run in runs) for s in dict.fromkeys(run.status for run in runs)}
        rows.append(
            (
                name, len(runs), ", ".join(f"{count} {state}" for state, count in states.items()), mean_of(final),
                float(np.std(final, ddof=1)) if len(final) > 1 else None,
                *(mean_of(final_value(run, m) for run in runs) for m in side),
                *(amount(cost) if (cost := mean_of(total(run, axis) for run in runs)) is not None else None
                  for axis in costs),
            )
        )  # fmt: skip
    return Table(tuple(columns), tuple(rows), "Final metrics and costs (means over runs)", (), "summary")


def difference_rows(groups: Groups, goal: Goal) -> Table:
    """Every other group against the first: difference of the final metric and chance of improvement."""
    first, *others = groups
    finals = {
        name: [v for r in runs if (v := final_value(r, goal.metric)) is not None]
        for name, runs in groups.items()
    }
    rows: list[tuple[Cell, ...]] = []
    for name in others:
        found = welch(finals[name], finals[first])
        better = probability_of_improvement(finals[name], finals[first])
        rows.append(
            (
                f"{name} minus {first}", found.estimate,
                signed_span(found) if found.has_interval else f"none: {found.reason}", better.estimate,
                span(better.low, better.high) if better.has_interval else f"none: {better.reason}",
            )
        )  # fmt: skip
    return table(
        ("comparison", "difference", "95% (Welch t)", "P(improvement)", "95%"), rows,
        caption=f"Final {goal.metric}", name="differences",
        notes=("Exploratory: no definition was fixed before these runs, and no multiplicity is adjusted for.",),
    )  # fmt: skip


def time_rows(groups: Groups, goal: Goal) -> Table:
    """Every other group against the first: speed-up to the threshold on each axis."""
    endpoint = TimeToThreshold(metric=goal.metric, threshold=goal.threshold)
    horizon = _horizon(groups)
    measured = {name: [measure(run, endpoint, horizon) for run in runs] for name, runs in groups.items()}
    first, *others = groups
    rows: list[tuple[Cell, ...]] = []
    for name in others:
        for axis in AXES:
            a, b = arm_times(measured[first], axis), arm_times(measured[name], axis)
            if a is None or b is None:
                continue
            main, exact = aft_t(a, b), exact_inversion(a, b)
            words = span(main.low, main.high) if main.has_interval else f"none: {main.reason}"
            checked = span(exact.low, exact.high) if exact.has_interval else f"none: {exact.reason}"
            reached = f"{b.n_events}/{len(b)} vs {a.n_events}/{len(a)}"
            rows.append((f"{name} vs {first}", AXES[axis], main.estimate, words, checked, reached))
    return table(
        ("comparison", "cost axis", "speed-up", "95% (AFT-t)", "95% (exact)", "reached"), rows,
        caption=f"Speed-up to {goal.metric} {number(goal.threshold)}, up to step {horizon:g}", name="times",
    )  # fmt: skip


def compare_runs(groups: Groups, goal: Goal | None = None) -> list[Table]:
    """Tables that compare groups of runs; the first group is the baseline."""
    chosen = goal or default_goal(groups)
    tables = [summary_table(groups, chosen)]
    if len(groups) > 1:
        tables += [difference_rows(groups, chosen), time_rows(groups, chosen)]
    return [found for found in tables if found.rows]


def group_paths(paths: Sequence[Path | str]) -> dict[str, list[RunRecord]]:
    """Runs by the arms of each folder; the folder's name is added where several are given.

    UserError for a single run folder given twice and for runs of different tasks.
    """
    out: dict[str, list[RunRecord]] = {}
    names = [Path(path).resolve().name for path in paths]
    if len(set(map(str, paths))) != len(paths):
        raise UserError("the same folder was given twice: compare different ones")
    for path, label in zip(paths, names, strict=True):
        for run in load_runs(Path(path), with_steps=False):
            key = run.arm if len(paths) == 1 else f"{run.arm} in {label}"
            out.setdefault(key, []).append(run)
    tasks = {str((run.spec.get("task") or {}).get("name")) for runs in out.values() for run in runs}
    if len(tasks) > 1:
        raise UserError(
            f"runs of different tasks {sorted(tasks)} have no figure in common: compare one task at a time"
        )
    return out


def compare(paths: Sequence[Path | str], *, metric: str | None = None, threshold: float = 0.8) -> list[Table]:
    """`harness compare A B`: tables on two or more run or results folders; the first is the baseline."""
    groups = group_paths(paths)
    if len(groups) < 2:
        raise UserError("only one group of runs was found: give two folders, or one that holds two arms")
    if not math.isfinite(threshold):
        raise UserError(f"threshold={threshold}: give a finite level of the metric")
    goal = Goal(metric, threshold) if metric else Goal(default_goal(groups).metric, threshold)
    if all(final_value(run, goal.metric) is None for runs in groups.values() for run in runs):
        raise UserError(f"metric {goal.metric!r} was not recorded in these runs: name another")
    return compare_runs(groups, goal)
