"""Where token-level credit pays: speed-ups over a claim's cells, growth with length, who collapses; no torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.claims.measure import Measured, arm_times
from harness.claims.results import ArmResult
from harness.claims.rules import finite, number, span
from harness.claims.schema import Cell, Claim
from harness.report.tables import Table, table
from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.compare import Difference
from harness.stats.inversion import exact_inversion
from harness.stats.speedup import SpeedupResult, Times, aft_t, log_bounds

__all__ = ["REGIMES", "Phase", "Slice", "growth", "phase_diagram", "slices"]

AXES: Mapping[str, tuple[str, str]] = {
    "steps": ("steps", "steps H of an answer"),
    "noise": ("noise", "share of local rewards with a flipped sign"),
    "start_logit": ("start_success", "success probability at the start"),
}
"""Task options along which cells may form a slice: the factor that gives the axis, and its words."""
CAPTIONS = {
    "phase-map": "Speed-up of every arm in every setting",
    "phase-slices": "Speed-up along length, noise and start",
}
"""What each picture of a phase diagram shows, by its name."""
REGIMES = {
    "wins": "faster than the baseline, interval above 1",
    "loses": "slower than the baseline, interval below 1",
    "open": "the interval holds 1",
    "only it learns": "no baseline run reached the threshold, most of its own did",
    "too late": "the baseline reached the threshold, most of its own runs had not yet",
    "stuck": "the baseline reached the threshold, most of its own runs hardly left their start",
    "collapses": "the baseline reached the threshold, most of its own runs fell to under half of their best",
    "neither learns": "most runs of both did not reach the threshold",
}
NO_RATIO = ("only it learns", "too late", "stuck", "collapses", "neither learns")
"""Regimes in which a share of runs that reached says more than a ratio of times."""
STUCK_BELOW = 0.05
"""A run whose success never rose by more than this from its start is stuck."""


@dataclass(frozen=True)
class Point:
    """One arm in one cell against the baseline there."""

    arm: str
    cell: str
    factors: Mapping[str, float]
    task_options: Mapping[str, Any]
    speedup: SpeedupResult
    exact: SpeedupResult
    regime: str
    hacked: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; open or absent limits are null."""
        main = self.speedup
        return {
            "arm": self.arm, "cell": self.cell, "factors": dict(self.factors),
            "task_options": dict(self.task_options), "regime": self.regime,
            "estimate": main.estimate, "low": main.low, "high": main.high, "exact_low": self.exact.low,
            "exact_high": self.exact.high, "runs": list(main.n), "reached": list(main.events),
            "hacked": self.hacked, "reason": main.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """Cells that differ in one task option only, in order of the factor that it moves."""

    option: str
    factor: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The option and what the cells share."""
        shared = {k: v for k, v in self.cells[0].task_options.items() if k != self.option}
        return f"{self.option} ({', '.join(f'{k}={v}' for k, v in shared.items())})"

    def x(self) -> list[float]:
        """Values of the factor."""
        return [cell.factors[self.factor] for cell in self.cells]


def slices(cells: Sequence[Cell], least: int = 3) -> list[Slice]:
    """Every set of at least `least` cells that differ in the length, the noise or the start alone."""
    found = []
    for option, (factor, label) in AXES.items():
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            rest = {k: v for k, v in cell.task_options.items() if k != option}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append(cell)
        for own in groups.values():
            ordered = tuple(sorted(own, key=lambda cell: cell.factors[factor]))
            if len(ordered) >= least:
                found.append(Slice(option, factor, label, ordered))
    return found


def growth(points: Sequence[tuple[float, Times]], *, level: float = 0.95) -> Difference:
    """Exponent b in steps-to-threshold = a H^b, by a censored log-normal fit with a t interval.

    Lengths at which no run reached the threshold only bound the time from below and stay in the fit as
    censored runs; at least two lengths need an event.
    """
    from scipy.stats import t as student

    runs = sum(len(times) for _, times in points)
    events = sum(times.n_events for _, times in points)
    found = Difference(None, None, None, "aft_exponent", (runs, events), level)
    if sum(times.n_events > 0 for _, times in points) < 2:
        return replace(found, reason="fewer than two lengths with a run that reached the threshold")
    bounds = [log_bounds(times) for _, times in points]
    x = np.concatenate([np.full(len(times), math.log(size)) for size, times in points])
    design = np.column_stack([np.ones_like(x), x - x.mean()])
    low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
    try:
        fit = fit_lognormal(low, high, design)
    except DegenerateFit as error:
        return replace(found, reason=str(error))
    slope = float(fit.coefficients[1])
    df = max(1, events - 2)
    half = (
        float(student.ppf(0.5 + level / 2, df)) * float(fit.standard_errors[1]) * math.sqrt(runs / (runs - 2))
    )
    return replace(found, estimate=slope, low=slope - half, high=slope + half, df=df)


@dataclass(frozen=True)
class Phase:
    """The points of a sweep, its slices, and the growth exponents by slice and arm."""

    baseline: str
    horizon: float
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    exponents: Mapping[str, Mapping[str, Difference]]

    @property
    def arms(self) -> list[str]:
        """Arms but the baseline, in the order of the claim."""
        return list(dict.fromkeys(point.arm for point in self.points))

    def point(self, arm: str, cell: str) -> Point | None:
        """An arm's point in a cell, if it was run there."""
        return next((p for p in self.points if p.arm == arm and p.cell == cell), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        exponents = {
            name: {
                arm: {
                    "estimate": d.estimate, "low": d.low, "high": d.high, "runs": d.n[0],
                    "reached": d.n[1], "reason": d.reason,
                }
                for arm, d in own.items()
            }
            for name, own in self.exponents.items()
        }  # fmt: skip
        return finite(
            {
                "baseline": self.baseline,
                "horizon": self.horizon,
                "points": [point.to_json() for point in self.points],
                "exponents": exponents,
            }
        )


def phase_diagram(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> Phase:
    """Speed-ups of every arm over the baseline in every cell, and how steps grow with length."""
    cells = claim.cells_at(scale)
    known = {name: times for name, arm in arms.items() if (times := arm_times(arm.measured)) is not None}
    points = []
    for arm in dict.fromkeys(name.split("@")[0] for name in arms):
        for cell in cells:
            pair = known.get(f"{claim.baseline}@{cell.name}"), known.get(f"{arm}@{cell.name}")
            if arm == claim.baseline or pair[0] is None or pair[1] is None:
                continue
            main, exact = aft_t(pair[0], pair[1]), exact_inversion(pair[0], pair[1])
            hacked = arms[f"{arm}@{cell.name}"].measured
            flags = [m.run.evals[-1]["metrics"].get("flag_hacked") for m in hacked if m.run.evals]
            share = [f for f in flags if f is not None]
            points.append(
                Point(
                    arm, cell.name, cell.factors, cell.task_options, main, exact,
                    regime(main, fates(hacked, claim.endpoint.metric)),
                    sum(share) / len(share) if share else None,
                )
            )  # fmt: skip
    exponents = {}
    for piece in slices(cells):
        if piece.option == "steps":
            sized = list(zip(piece.x(), piece.cells, strict=True))
            exponents[piece.name] = {
                arm: growth([(x, known[f"{arm}@{c.name}"]) for x, c in sized if f"{arm}@{c.name}" in known])
                for arm in dict.fromkeys(name.split("@")[0] for name in known)
            }
    return Phase(claim.baseline, claim.scale(scale).horizon, cells, tuple(points), exponents)


def fate(curve: Sequence[float]) -> str:
    """How a run that did not reach the threshold ended, from its evaluations: collapses, stuck or too late."""
    best = max(curve)
    if best - curve[0] <= STUCK_BELOW:
        return "stuck"
    return "collapses" if curve[-1] < best / 2 else "too late"


def fates(runs: Sequence[Measured], metric: str) -> list[str]:
    """Fates of the runs that did not reach the threshold."""
    return [
        fate([row["metrics"][metric] for row in m.run.evals])
        for m in runs
        if m.run.evals and not m.crossings["optimizer_steps"].event
    ]


def regime(found: SpeedupResult, ends: Sequence[str] = ()) -> str:
    """One word for a comparison: a name of REGIMES; `ends` are the fates of the treatment's runs."""
    baseline, treatment = (e / max(1, n) for e, n in zip(found.events, found.n, strict=True))
    if treatment <= 0.5:
        if baseline <= 0.5 or not ends:
            return "neither learns"
        return max(("collapses", "stuck", "too late"), key=ends.count)
    if baseline == 0:
        return "only it learns"
    if found.low is not None and found.low > 1:
        return "wins"
    if found.high is not None and found.high < 1:
        return "loses"
    return "open"


def speedup_cell(point: Point | None) -> str:
    """A point in words, for a table."""
    if point is None:
        return "–"
    main = point.speedup
    if point.regime in NO_RATIO:
        return f"{point.regime} ({main.events[1]}/{main.n[1]}, baseline {main.events[0]}/{main.n[0]})"
    if main.estimate is None or not main.has_interval:
        return f"{point.regime}: {main.reason}"
    return f"{number(main.estimate)} ({span(main.low, main.high)}) {point.regime}"


def tables(phase: Phase) -> list[Table]:
    """Speed-ups by cell and arm, then growth exponents."""
    rows = [
        (cell.name, *(speedup_cell(phase.point(arm, cell.name)) for arm in phase.arms))
        for cell in phase.cells
    ]
    words = [f"{name}: {text}" for name, text in REGIMES.items()]
    speed = table(
        ("cell", *phase.arms), rows, name="phase", notes=words,
        caption=f"Speed-up over {phase.baseline} (optimizer steps; 95% AFT-t), and who learns within {phase.horizon:g} steps",
    )  # fmt: skip
    grown = []
    for name, own in phase.exponents.items():
        for arm, d in own.items():
            interval = span(d.low, d.high) if d.has_interval else f"none: {d.reason}"
            grown.append((name, arm, d.estimate, interval, f"{d.n[1]}/{d.n[0]}"))
    exponents = table(
        ("lengths of", "arm", "exponent", "95%", "runs that reached"), grown, name="growth",
        caption="Growth of steps to the threshold with the length H: steps = a H^exponent",
    )  # fmt: skip
    return [speed, exponents]


def pictures(
    phase: Phase, folder: Path, *, prefix: str = "", formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """The map of regimes over all cells, and the slices with their intervals; the files written."""
    makers = {"phase-map": _map, "phase-slices": _slices}
    return [
        path for name, make in makers.items() for path in make(phase, folder / f"{prefix}{name}", formats)
    ]


def _map(phase: Phase, path: Path, formats: Sequence[str]) -> list[Path]:
    """Arms by cells: colour is the speed-up (blue faster, orange slower), words where there is no ratio."""
    from harness.report.plots import figure, save

    short = {
        "only it learns": "only it",
        "too late": "late",
        "stuck": "stuck",
        "collapses": "collapse",
        "neither learns": "none",
    }
    fixed = {"only it learns": 2.0, "too late": -1.3, "stuck": -2.0, "collapses": -2.0, "neither learns": 0.0}
    arms, cells = phase.arms, phase.cells
    grid = np.full((len(arms), len(cells)), np.nan)
    with figure(2.6 + 0.62 * len(cells), 1.8 + 0.3 * len(arms)) as (fig, axes):
        for i, arm in enumerate(arms):
            for j, cell in enumerate(cells):
                point = phase.point(arm, cell.name)
                if point is None:
                    continue
                ratio = point.speedup.estimate
                grid[i, j] = fixed.get(point.regime, math.log2(ratio) if ratio else 0.0)
                text = short.get(point.regime, f"{ratio:.2f}" if ratio else "?")
                if point.regime in ("wins", "loses"):
                    text += "*"
                axes.text(j, i, text, ha="center", va="center", fontsize=7)
        image = axes.imshow(np.clip(grid, -2, 2), cmap=_diverging(), vmin=-2, vmax=2, aspect="auto")
        axes.set_xticks(range(len(cells)), [cell.name for cell in cells], rotation=55, ha="right", fontsize=8)
        axes.set_yticks(range(len(arms)), arms, fontsize=8)
        axes.grid(False)
        axes.set_facecolor("#E4E4E4")  # not run
        axes.set_title(f"Speed-up over {phase.baseline}; * interval without 1, grey not run", fontsize=10)
        bar = fig.colorbar(image, ax=axes, ticks=[-2, -1, 0, 1, 2], fraction=0.03)
        bar.ax.set_yticklabels(["1/4, stuck\nor collapse", "1/2", "1", "2", "4 or only it"], fontsize=8)
        return save(fig, path, formats)


def _diverging() -> Any:
    """Orange to white to blue: safe for colour-blind readers, white where nothing differs."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("credit", ["#D55E00", "#FFFFFF", "#0072B2"])


def _slices(phase: Phase, path: Path, formats: Sequence[str]) -> list[Path]:
    """One panel a slice: speed-up with interval against the factor, for arms run at every cell of it."""
    from harness.report.plots import figure, look, save

    pieces = slices(phase.cells)
    everywhere = [a for a in phase.arms if all(phase.point(a, c.name) for s in pieces for c in s.cells)]
    columns = min(2, max(1, len(pieces)))
    rows = max(1, -(-len(pieces) // columns))
    with figure(4.4 * columns, 3.6 * rows, nrows=rows, ncols=columns, squeeze=False, sharey=True) as (
        fig,
        grid,
    ):
        for axes in list(grid.flat)[len(pieces) :]:
            axes.set_axis_off()
        for axes, piece in zip(grid.flat, pieces, strict=False):
            for index, arm in enumerate(everywhere):
                _draw(axes, phase, piece, arm, look(index), index)
            axes.axhline(1.0, color="#444444", linewidth=1)
            axes.set(xlabel=piece.label, title=piece.name, yscale="log")
            axes.title.set_fontsize(9)
            if piece.option == "steps":
                axes.set_xscale("log", base=2)
            elif piece.option == "start_logit":
                axes.set_xscale("log")
            axes.set_ylim(0.2, 5)
            axes.set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
            axes.set_yticks([], minor=True)
        fig.supylabel(
            f"speed-up over {phase.baseline} (95%)\n▲ only it learns   ▼ does not get there", fontsize=9
        )
        grid[0][0].legend(fontsize=8, loc="lower left")
        return save(fig, path, formats)


def _draw(axes: Any, phase: Phase, piece: Slice, arm: str, style: Mapping[str, Any], index: int) -> None:
    xs, ys, lows, highs = [], [], [], []
    for x, cell in zip(piece.x(), piece.cells, strict=True):
        point = phase.point(arm, cell.name)
        assert point is not None, "the arm was run at every cell of the slice"
        found, shift = point.speedup, 1 + 0.03 * (index - 1.5)
        at = x * shift if piece.option != "noise" else x + 0.006 * (index - 1.5)
        if point.regime in ("only it learns", "too late", "stuck", "collapses"):
            up = point.regime == "only it learns"
            axes.plot(at, 4.5 if up else 0.22, "^" if up else "v", color=style["color"], markersize=7)
        elif found.estimate and found.low is not None and found.high is not None:
            xs.append(at)
            ys.append(found.estimate)
            lows.append(found.estimate - found.low)
            highs.append(min(found.high, 100.0) - found.estimate)
    label = {"label": arm, **style}
    if xs:
        axes.errorbar(xs, ys, yerr=[lows, highs], capsize=2, linewidth=1.4, markersize=5, **label)
    else:
        axes.plot([], [], **label)
