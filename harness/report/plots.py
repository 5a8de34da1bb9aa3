"""Pictures: deterministic, colour-blind safe, readable in grey; matplotlib is imported on first use."""

from __future__ import annotations

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


def look(index: int) -> dict[str, Any]:
    """Colour, line style and marker of the arm number `index`."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[index % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
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


def save(fig: Any, path: Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Writes `path` with each suffix, without dates, so that the same data give the same bytes."""
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
    with figure() as (fig, axes):
        for index, arm in enumerate(arms):
            own = [c for c in curves if c.arm == arm and len(c.x)]
            style = look(index)
            for c in own:
                axes.plot(
                    c.x, c.y, color=style["color"], linestyle=style["linestyle"], linewidth=0.8, alpha=0.45
                )
                axes.plot(c.x[-1], c.y[-1], style["marker"], color=style["color"], markersize=3, alpha=0.6)
            if own:
                grid, middle = median_curve(own)
                every = max(1, len(grid) // 8)
                label = f"{arm} (median of {len(own)})"
                axes.plot(grid, middle, linewidth=2.4, label=label, markevery=every, markersize=6, **style)
        if threshold is not None:
            axes.axhline(threshold, color="#444444", linestyle=":", linewidth=1.2)
            axes.annotate(
                f"threshold {threshold:.0%}", (0.01, threshold), xycoords=("axes fraction", "data"),
                va="bottom", fontsize=8, color="#444444",
            )  # fmt: skip
        axes.set(xlabel=xlabel, ylabel=metric, title=title)
        values = [v for c in curves for v in c.y]
        if values and min(values) >= 0 and max(values) <= 1:
            axes.set_ylim(0, 1)
        if arms:
            axes.legend(loc="best")
        return save(fig, path, formats)
