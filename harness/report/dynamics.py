"""What the runs did on the way: the logged metrics of every step, as a picture, a table and plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.claims.measure import metric_of
from harness.claims.results import Verdict
from harness.claims.rules import number
from harness.claims.schema import Claim, Scaling, Trend
from harness.report.plots import figure, look, save
from harness.report.tables import Cell, Column, Table
from harness.store.reader import RunRecord

LAST = 5
"""Optimizer steps at the end over which a final state is averaged."""


@dataclass(frozen=True)
class Dynamic:
    """One logged metric: its heading, how a run is summed up (end, peak or mean), words for more and for less."""

    metric: str
    heading: str
    summary: str
    more: str
    less: str


DYNAMICS = (
    Dynamic("mean_tokens", "mean length, tokens", "end", "ends with longer answers", "ends with shorter answers"),
    Dynamic(
        "truncated", "share cut by the limit", "peak", "had more answers cut by the limit at its worst",
        "had fewer answers cut by the limit at its worst",
    ),
    Dynamic(
        "unique_share", "share of distinct answers", "end", "ends with more varied answers",
        "ends with less varied answers",
    ),
    Dynamic(
        "on_task", "share on task", "end", "ends with more answers that do the task",
        "ends with fewer answers that do the task",
    ),
    Dynamic(
        "all_fail_groups", "groups where every answer fails", "mean", "had more groups in which every answer failed",
        "had fewer groups in which every answer failed",
    ),
    Dynamic(
        "kappa", "kappa, size of the outcome's step", "mean", "kept more of the outcome's step (kappa)",
        "kept less of the outcome's step (kappa)",
    ),
    Dynamic(
        "frac_sign_flips", "tokens credited against their outcome", "mean",
        "credited more tokens against their outcome", "credited fewer tokens against their outcome",
    ),
    Dynamic(
        "gradient_share_constant_groups", "gradient from all-equal groups", "mean",
        "drew more of its gradient from groups of equal outcomes",
        "drew less of its gradient from groups of equal outcomes",
    ),
)  # fmt: skip
"""kappa is the standard deviation of token rewards between answers over that of all their tokens: it scales the
outcome's part of a step. The last three are logged by algorithms with token rewards only."""
OF_GROUPS = frozenset({"unique_share", "all_fail_groups"})
"""Metrics that follow from how many answers a prompt gets, so that arms of different group sizes don't compare."""
SAME = 0.02
"""A share that moves by no more than this over all steps and runs is told in words, not drawn."""


@lru_cache(maxsize=10_000)
def series(run: RunRecord, metric: str) -> tuple[list[float], list[float]]:
    """Optimizer steps and values of a training metric; of the evaluations, where no steps were kept."""
    rows = run.steps or run.evals
    points = [(float(r["optimizer_step"]), v) for r in rows if (v := metric_of(r, metric)) is not None]
    return [step for step, _ in points], [value for _, value in points]


def known(runs: Sequence[RunRecord], *, varying: bool = True) -> list[Dynamic]:
    """The metrics that some run logged more than once and, if `varying`, that are not the same throughout."""
    out = []
    for dynamic in DYNAMICS:
        values = [series(run, dynamic.metric)[1] for run in runs]
        flat = [v for own in values for v in own]
        if any(len(own) > 1 for own in values) and (not varying or max(flat) - min(flat) > SAME):
            out.append(dynamic)
    return out


def carried_mean(curves: Sequence[tuple[list[float], list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over runs at the union of their steps; a run that ended early keeps its last value."""
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def _panel(axes: Any, runs: Sequence[RunRecord], dynamic: Dynamic, arms: Sequence[str], title: str) -> None:
    """One metric of some runs; an arm's look is its place in `arms`, whether it logs the metric or not."""
    for index, arm in enumerate(arms):
        own = [series(run, dynamic.metric) for run in runs if _arm(run) == arm]
        own = [(x, y) for x, y in own if x]
        if not own:
            continue
        style = look(index)
        for x, y in own:
            axes.plot(x, y, color=style["color"], linewidth=0.5, alpha=0.25)
        mean = carried_mean(own)
        axes.plot(*mean, linewidth=2, markevery=max(1, len(mean[0]) // 6), markersize=4, label=arm, **style)
    axes.set_title(title, fontsize=9, loc="left")


def _arm(run: RunRecord) -> str:
    """The arm's name without its cell."""
    return run.arm.split("@")[0]


def dynamics_picture(
    groups: Mapping[str, Sequence[RunRecord]],
    arms: Sequence[str],
    path: Path,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Small multiples: every metric over optimizer steps, seeds thin, means bold; the files written, if any.

    One group of runs fills two columns of panels; several (the settings of a claim) get a column each.
    """
    every = [run for runs in groups.values() for run in runs]
    shown = [d for d in DYNAMICS if any(d in known(runs) for runs in groups.values())]
    if not shown:
        return []
    panels: list[tuple[Sequence[RunRecord], Dynamic, str]]
    if len(groups) == 1:
        panels = [(every, dynamic, dynamic.heading) for dynamic in shown]
        columns, width = min(2, len(panels)), 8.0
    else:
        panels = [(runs, d, f"{d.heading}\n{name}") for d in shown for name, runs in groups.items()]
        columns, width = len(groups), 2.9 * len(groups)
    rows = math.ceil(len(panels) / columns)
    with figure(
        width, 0.7 + 2.1 * rows, nrows=rows, ncols=columns, squeeze=False, sharex="col",
        sharey="row" if len(groups) > 1 else False,
    ) as (fig, grid):  # fmt: skip
        for axes, (runs, dynamic, title) in zip(grid.flat, panels, strict=False):
            _panel(axes, runs, dynamic, arms, title)
        for axes, (_, dynamic, _) in zip(grid.flat, panels, strict=False):
            if dynamic.metric != "mean_tokens":  # a share; set once all panels that share the axis are drawn
                axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        for index in range(len(panels), rows * columns):
            grid.flat[index].set_axis_off()
        for column in range(columns):  # the lowest panel of a column names the axis
            lowest = grid.flat[max(i for i in range(len(panels)) if i % columns == column)]
            lowest.set_xlabel("optimizer steps")
            lowest.tick_params(labelbottom=True)
        drawn = [axes.get_legend_handles_labels() for axes in grid.flat]
        handles = {label: handle for pair in drawn for handle, label in zip(*pair, strict=True)}
        names = [arm for arm in arms if arm in handles]
        fig.legend(
            [handles[name] for name in names], names, loc="outside upper left", ncols=min(4, len(names)), fontsize=9
        )  # fmt: skip
        return save(fig, path, formats)


def caption(groups: Mapping[str, Sequence[RunRecord]]) -> str:
    """What the picture shows, and what is left out because nothing varies."""
    runs = [run for own in groups.values() for run in own]
    drawn = [d for own in groups.values() for d in known(own)]
    flat = [d for d in known(runs, varying=False) if d not in drawn]
    words = "What the runs did: each seed thin, the mean of each arm bold; a run that ended early keeps its last value."
    if flat:
        ends = ((d, [v for run in runs for v in series(run, d.metric)[1]]) for d in flat)
        same = ", ".join(f"{d.heading} {number(round(float(np.mean(values)), 3))}" for d, values in ends)
        words += f" Hardly moving, not drawn: {same}."
    return words


def common_steps(runs: Sequence[RunRecord]) -> float:
    """The optimizer steps that every finished run has: a mean over more would favour those that ran longer."""
    ends = [(run.status, max(x)) for run in runs if (x := series(run, DYNAMICS[0].metric)[0])]
    return min((end for status, end in ends if status == "completed"), default=math.inf)


def summed_up(run: RunRecord, dynamic: Dynamic, common: float = math.inf) -> float | None:
    """One number for a run: the mean over the common steps, the peak, or the mean of its last steps."""
    steps, values = series(run, dynamic.metric)
    if not values:
        return None
    if dynamic.summary == "end":
        return float(np.mean(values[-LAST:]))
    if dynamic.summary == "peak":
        return float(np.max(values))
    early = [value for step, value in zip(steps, values, strict=True) if step <= common]
    return float(np.mean(early)) if early else None


def _values(runs: Sequence[RunRecord], arm: str, dynamic: Dynamic, common: float) -> list[float]:
    return [v for run in runs if run.arm == arm and (v := summed_up(run, dynamic, common)) is not None]


def dynamics_table(verdict: Verdict, runs: Sequence[RunRecord]) -> Table:
    """One row an arm: when it reached the threshold (median), and its metrics, means over seeds."""
    shown, common = known(runs, varying=False), common_steps(runs)
    timed = any("optimizer_steps" in arm.time for arm in verdict.arms)
    columns = [Column("arm"), *([Column("median steps to threshold", "right")] if timed else [])]
    columns += [Column(f"{d.heading} ({d.summary})", "right") for d in shown]
    rows: list[tuple[Cell, ...]] = []
    for arm in verdict.arms:
        found = [_values(runs, arm.name, d, common) for d in shown]
        if not any(found):
            continue
        time: tuple[Cell, ...] = (arm.time.get("optimizer_steps"),) if timed else ()
        rows.append((arm.name, *time, *(float(np.mean(v)) if v else None for v in found)))
    note = f"end: the last {LAST} steps of a run; mean: the first {common:g} steps, which every finished run has."
    return Table(tuple(columns), tuple(rows), "What the runs did (means over seeds)", (note,), "dynamics")


def _difference(
    arm: str, other: str, runs: Sequence[RunRecord], dynamic: Dynamic, common: float
) -> tuple[float, float, bool] | None:
    """Means of both arms, and whether they differ by more than twice the standard error, and not by a trifle."""
    both = [_values(runs, name, dynamic, common) for name in (arm, other)]
    if min(map(len, both)) < 2:
        return None
    first, second = (float(np.mean(v)) for v in both)
    error = math.sqrt(sum(float(np.var(v, ddof=1)) / len(v) for v in both))
    trifle = SAME * (max(first, second) if dynamic.metric == "mean_tokens" else 1.0)
    return first, second, abs(first - second) > max(2 * error, trifle)


def pairs_of(claim: Claim, verdict: Verdict) -> list[tuple[str, str]]:
    """(treatment, baseline) of the arms that are compared in words; in a scaling claim, arms of one size each."""
    if isinstance(claim.endpoint, Scaling):
        arms, algorithm = claim.arms_at(verdict.scale), claim.arm(claim.baseline).algorithm
        plain = [arm for arm in arms if arm.algorithm == algorithm]
        others = [arm for arm in arms if arm.algorithm != algorithm]
        return [(arm.name, same.name) for arm in others for same in plain if arm.train == same.train]
    pairs = [(pair.treatment, pair.baseline) for pair in verdict.comparisons]
    return pairs + [(pair.treatment, pair.baseline) for pair in claim.comparisons_at(verdict.scale)]


def explain(pairs: Sequence[tuple[str, str]], runs: Sequence[RunRecord]) -> list[str]:
    """A line for each treatment and baseline: by which logged metrics they differ, and what token credit did.

    Only differences of more than twice their standard error are told; which of them made the arm faster or
    slower, no table of means can say.
    """
    out = []
    shown, common = known(runs), common_steps(runs)
    names = {run.arm for run in runs}
    for treatment, baseline in dict.fromkeys(pairs):
        if not {treatment, baseline} <= names:
            continue
        parts = []
        sizes = {
            name: {_group_size(run) for run in runs if run.arm == name} for name in (treatment, baseline)
        }
        alike = sizes[treatment] == sizes[baseline]
        for dynamic in shown:
            if dynamic.metric in OF_GROUPS and not alike:
                continue
            found = _difference(treatment, baseline, runs, dynamic, common)
            if found is not None and found[2]:
                words = dynamic.more if found[0] > found[1] else dynamic.less
                parts.append(f"{words} ({number(found[0])} against {number(found[1])})")
        parts += _credit_words(treatment, baseline, runs, common)
        if not alike:
            parts.append(
                "variety and failing groups don't compare, as a prompt gets other numbers of answers"
            )
        out.append(f"{treatment} against {baseline}: {'; '.join(parts) or 'no logged metric differs'}.")
    return out


def _group_size(run: RunRecord) -> Any:
    return (run.spec.get("train") or {}).get("group_size")


def _credit_words(arm: str, other: str, runs: Sequence[RunRecord], common: float) -> list[str]:
    """What only the treatment logged: its kappa, sign flips and gradient from groups of equal outcomes."""
    out = []
    words = {
        "kappa": "kappa was {}",
        "frac_sign_flips": "{} of its tokens were credited against their outcome",
        "gradient_share_constant_groups": "{} of its gradient came from groups of equal outcomes",
    }
    for dynamic in DYNAMICS:
        mine = _values(runs, arm, dynamic, common)
        if dynamic.metric in words and mine and not _values(runs, other, dynamic, common):
            mean = float(np.mean(mine))
            shown = number(mean) if dynamic.metric == "kappa" else f"{mean:.1%}"
            out.append(words[dynamic.metric].format(shown))
    return out


def telling_groups(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs to draw: all of them, or for a claim with cells those at both ends of its slopes, by cell."""
    if not claim.cells:
        return {"": list(runs)}
    if not isinstance(claim.endpoint, Trend):
        return {}
    arms = {claim.baseline, *(slope.treatment for slope in claim.endpoint.slopes)}
    present = {cell.name for cell in claim.cells_at(scale)}
    ends = [name for slope in claim.endpoint.slopes for name in (slope.cells[0], slope.cells[-1])]
    out = {}
    for name in dict.fromkeys(name for name in ends if name in present):
        out[name] = [run for run in runs if run.arm in {f"{arm}@{name}" for arm in arms}]
    return {name: own for name, own in out.items() if own}


def arms_of(claim: Claim) -> list[str]:
    """The arms in the claim's order, which is also that of their looks in every picture."""
    return [arm.name for arm in claim.arms]
