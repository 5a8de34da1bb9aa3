"""Pictures: deterministic, colour-blind safe, readable in grey; matplotlib is imported on first use."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's palette, ordered so that neighbours differ in lightness; line styles and markers repeat
# the distinction for print in grey
COLOURS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#56B4E9", "#7F7F7F", "#E69F00")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FORMATS = ("svg", "png", "pdf")
LEGEND_INSIDE = 4
"""More arms than these are named above the picture, where their names hide no curve."""
SETTINGS: Any = {
    "svg.hashsalt": "creditbench",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.dpi": 100,
}


@dataclass(frozen=True)
class Curve:
    """One run's curve: x (for example optimizer steps) and values."""

    arm: str
    x: Sequence[float]
    y: Sequence[float]
    seed: int | None = None
    note: str = ""


def look(index: int) -> dict[str, Any]:
    """Colour, line style and marker of the arm number `index`; a colour that returns comes with another style."""
    other = index + 3 * (index // len(COLOURS))
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[other % len(STYLES)],
        "marker": MARKERS[other % len(MARKERS)],
    }


@contextmanager
def figure(width: float = 6.4, height: float = 4.0, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure and its axes, drawn without any display and closed afterwards."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        fig = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(fig)
        yield fig, fig.subplots(**options)


def titled(svg: str, titles: Mapping[str, str]) -> str:
    """The picture with a hover text in each group of the given ids."""
    for gid, text in titles.items():
        svg = svg.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{html.escape(text)}</title>', 1)
    return svg


def save(
    fig: Any, path: Path, formats: Sequence[str] = ("svg", "png"), titles: Mapping[str, str] | None = None
) -> list[Path]:
    """Writes `path` with each suffix, without dates, so that the same data give the same bytes.

    `titles` are hover texts of the SVG by the ids of its groups.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    empty: Mapping[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None},
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    out = []
    for form in formats:
        if form not in FORMATS:
            raise ValueError(f"picture format {form!r}: choose one of {', '.join(FORMATS)}")
        target = path.with_suffix(f".{form}")
        fig.savefig(target, format=form, metadata=empty[form])
        fig.set_layout_engine("none")  # what was laid out once stays for the other formats
        if form == "svg" and titles:
            target.write_text(titled(target.read_text(encoding="utf-8"), titles), encoding="utf-8")
        out.append(target)
    return out


def median_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Median over runs at the union of their x; a run that ended early keeps its last value."""
    grid = np.unique(np.concatenate([np.asarray(c.x, dtype=float) for c in curves]))
    values = [np.interp(grid, c.x, c.y) for c in curves]
    return grid, np.median(values, axis=0)


def learning_curves(
    curves: Sequence[Curve],
    path: Path,
    *,
    threshold: float | None = None,
    metric: str = "compile rate",
    xlabel: str = "optimizer steps",
    title: str = "",
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """All runs thin, the median of each arm bold, the threshold dotted; returns the files written.

    A run that stopped early carries its last value into the median, marked by a dot at its end.
    """
    arms = list(dict.fromkeys(curve.arm for curve in curves))
    titles: dict[str, str] = {}
    with figure(height=4.0 if len(arms) <= LEGEND_INSIDE else 4.6) as (fig, axes):
        for index, arm in enumerate(arms):
            own = [c for c in curves if c.arm == arm and len(c.x)]
            style = look(index)
            for number, c in enumerate(own):
                (line,) = axes.plot(
                    c.x, c.y, color=style["color"], linestyle=style["linestyle"], linewidth=0.8, alpha=0.45
                )
                line.set_gid(f"run-{index}-{number}")
                titles[f"run-{index}-{number}"] = (
                    f"{arm} seed {c.seed}: ends at {c.y[-1]:.3g} {c.note}".strip()
                )
                axes.plot(c.x[-1], c.y[-1], style["marker"], color=style["color"], markersize=3, alpha=0.6)
            if own:
                grid, middle = median_curve(own)
                every = max(1, len(grid) // 8)
                label = arm if len(arms) > LEGEND_INSIDE else f"{arm} (median of {len(own)})"
                axes.plot(grid, middle, linewidth=2.4, label=label, markevery=every, markersize=6, **style)
        if threshold is not None:
            axes.axhline(threshold, color="#444444", linestyle=":", linewidth=1.2)
            axes.annotate(
                f"threshold {threshold:.0%}", (0.99, threshold), xycoords=("axes fraction", "data"),
                va="bottom", ha="right", fontsize=8, color="#444444",
            )  # fmt: skip
        axes.set(xlabel=xlabel, ylabel=metric, title=title)
        values = [v for c in curves for v in c.y]
        if values and min(values) >= 0 and max(values) <= 1:
            axes.set_ylim(0, 1)
        if len(arms) > LEGEND_INSIDE:
            fig.legend(loc="outside upper left", ncols=4, fontsize=9, title="bold: median over seeds")
        elif arms:
            axes.legend(loc="best")
        return save(fig, path, formats, titles)


def survival_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[tuple[float, bool]]]],
    path: Path,
    *,
    xlabel: str = "optimizer steps",
    goal: str = "the threshold",
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Kaplan-Meier curves: share of runs still below the threshold, every run as a dot (open: censored).

    `curves` maps an arm to (times, survival, [(time, reached) for each run]).
    """
    titles: dict[str, str] = {}
    with figure() as (fig, axes):
        for index, (arm, (times, survival, runs)) in enumerate(curves.items()):
            style = look(index)
            axes.step(
                times, survival, where="post", color=style["color"], linestyle=style["linestyle"], label=arm
            )
            for number, (time, reached) in enumerate(sorted(runs)):
                left = float(np.interp(time, times, range(len(times))))
                level = survival[min(int(left), len(survival) - 1)]
                (dot,) = axes.plot(
                    time, level, style["marker"], color=style["color"], markersize=6,
                    markerfacecolor=style["color"] if reached else "white",
                )  # fmt: skip
                dot.set_gid(f"dot-{index}-{number}")
                titles[f"dot-{index}-{number}"] = (
                    f"{arm}: {'reached at' if reached else 'censored at'} {time:.1f}"
                )
        axes.set(xlabel=xlabel, ylabel=f"share of runs below {goal}")
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlim(left=0)
        if curves:
            axes.legend(loc="lower left")
        return save(fig, path, formats, titles)


@dataclass(frozen=True)
class Bar:
    """One row of a forest plot: a label, an estimate (None: bound only), and limits, which may be infinite."""

    label: str
    estimate: float | None
    low: float
    high: float
    hollow: bool = False


def forest(
    bars: Sequence[Bar],
    path: Path,
    *,
    null: float = 1.0,
    xlabel: str = "speed-up",
    logarithmic: bool = True,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Intervals one below the other, an arrow where an end is open, a line where there is no effect."""
    ends = [v for b in bars for v in (b.low, b.high, b.estimate) if v is not None and np.isfinite(v)]
    ends = [v for v in (*ends, null) if not logarithmic or v > 0]
    low, high = min(ends), max(ends)
    pad = 1.25 if logarithmic else 0.15 * max(high - low, 1e-9)
    left, right = (low / pad, high * pad) if logarithmic else (low - pad, high + pad)
    titles: dict[str, str] = {}
    # long labels take their room beside the bars, not from them
    width = max(6.4, 4.0 + 0.08 * max(len(bar.label) for bar in bars))
    with figure(width, 1.2 + 0.34 * max(len(bars), 2)) as (fig, axes):
        for row, bar in enumerate(bars):
            y = len(bars) - row
            start, stop = max(bar.low, left), min(bar.high, right)
            colour = COLOURS[1] if bar.hollow else COLOURS[0]
            (line,) = axes.plot([start, stop], [y, y], color=colour, linewidth=2)
            line.set_gid(f"bar-{row}")
            titles[f"bar-{row}"] = f"{bar.label}: {bar.low:.3g} to {bar.high:.3g}"
            for end, open_, mark in ((start, bar.low < left, "<"), (stop, bar.high > right, ">")):
                axes.plot(end, y, mark if open_ else "|", color=colour, markersize=8, clip_on=False)
            if bar.estimate is not None:
                axes.plot(
                    bar.estimate, y, "o", color=colour, markerfacecolor="white" if bar.hollow else colour
                )
        axes.axvline(null, color="#444444", linestyle=":", linewidth=1.2)
        if logarithmic:
            axes.set_xscale("log")
            ticks = [t for t in (0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10) if left <= t <= right]
            axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
            axes.minorticks_off()
        axes.set_xlim(left, right)
        axes.set_yticks(range(len(bars), 0, -1), [bar.label for bar in bars])
        axes.set_ylim(0.4, len(bars) + 0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(xlabel)
        return save(fig, path, formats, titles)


def frontier(
    points: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Cost against result, a dot for each run and a large mark at each arm's median: up and to the left is better."""
    with figure() as (fig, axes):
        for index, (arm, found) in enumerate(points.items()):
            style = look(index)
            x, y = np.array(found, dtype=float).reshape(-1, 2).T
            axes.plot(x, y, style["marker"], color=style["color"], alpha=0.45, markersize=5)
            axes.plot(
                np.median(x), np.median(y), style["marker"], color=style["color"], markersize=12, label=arm,
                markeredgecolor="black",
            )  # fmt: skip
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1e6:g}M" if value >= 1e6 else f"{value:,.0f}"
        )
        if points:
            axes.legend(loc="best")
        return save(fig, path, formats)


def growth(
    points: Mapping[str, tuple[Sequence[tuple[float, float]], float | None]],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Cost against size on two log scales, a dot for each run, with the power law of each algorithm.

    `points` maps an algorithm to its (size, cost) pairs and its exponent; the law goes through their means.
    """
    from matplotlib.ticker import LogLocator

    with figure() as (fig, axes):
        for index, (name, (found, exponent)) in enumerate(points.items()):
            style = look(index)
            x, y = np.log(np.array(found, dtype=float).reshape(-1, 2)).T
            label = name if exponent is None else f"{name}: size^{exponent:.3g}"
            axes.plot(
                np.exp(x), np.exp(y), style["marker"], color=style["color"], alpha=0.6, markersize=5,
                label=None if exponent is not None else label,
            )  # fmt: skip
            if exponent is not None:
                ends = np.array([x.min(), x.max()])
                law = y.mean() + exponent * (ends - x.mean())
                axes.plot(
                    np.exp(ends), np.exp(law), color=style["color"], linestyle=style["linestyle"], label=label
                )
        axes.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
        axes.minorticks_off()
        axes.legend(loc="best")
        return save(fig, path, formats)


def pass_curves(
    values: Mapping[str, tuple[Sequence[int], Sequence[Sequence[float]]]],
    path: Path,
    *,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Pass@k against k: each run thin, the mean of each arm bold. `values`: arm to (ks, one list a run)."""
    with figure() as (fig, axes):
        for index, (arm, (ks, runs)) in enumerate(values.items()):
            style = look(index)
            for run in runs:
                axes.plot(
                    ks, run, color=style["color"], linestyle=style["linestyle"], linewidth=0.8, alpha=0.45
                )
            axes.plot(ks, np.mean(runs, axis=0), linewidth=2.4, label=arm, markersize=6, **style)
        axes.set_xscale("log", base=2)
        ticks = sorted({k for ks, _ in values.values() for k in ks})
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.set(xlabel="k", ylabel="Pass@k")
        axes.set_ylim(0, 1)
        if values:
            axes.legend(loc="best")
        return save(fig, path, formats)
