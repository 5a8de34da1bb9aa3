"""Shows runs as they go, from their records alone: a live table in a terminal, else lines of text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.claims.measure import shown_metric
from harness.errors import UserError
from harness.store.reader import run_directories
from harness.store.tail import RunView
from harness.sweep.jobs import FINISHED, Job
from harness.train.hacks import hack_metrics

BARS = "▁▂▃▄▅▆▇█"
MARKS = {"completed": "[green]done[/]", "running": "[cyan]running[/]", "failed": "[red]failed[/]"}
OPEN = frozenset({"running", "absent"})
DISCOVER_SECONDS = 5.0
MANY = 40
"""Above so many runs lines tell of the sweep as a whole, not of each evaluation."""
SUMMARY_SECONDS = 10.0


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Values in [0, 1] as bars, the last `width` of them."""
    return "".join(BARS[min(7, max(0, int(value * 8)))] for value in values[-width:])


def clock(seconds: float | None) -> str:
    """Seconds as m:ss or h:mm:ss."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def warning_signs(view: RunView) -> list[str]:
    """Signs of a reward won without the task, by the evaluations so far: `hacked`, `length_collapse` and so on."""
    series = [
        [r["metrics"].get(name) for r in view.evals] for name in ("mean_tokens", "truncated", "unique_share")
    ]
    if len(view.evals) < 2 or any(value is None for values in series for value in values):
        return []
    correct = [record["metrics"].get("correct", 0.0) for record in view.evals]
    found = hack_metrics(*series, correct=correct, window=1)
    return [name.removeprefix("flag_") for name, value in found.items() if value]


def summary(view: RunView, metric: str) -> dict[str, Any]:
    """One run as plain data; rates and times None before there are any."""
    last = view.evals[-1]["metrics"] if view.evals else {}
    status = view.status()
    return {
        "run": view.name,
        "folder": str(view.folder),
        "status": status,
        "optimizer_step": view.step,
        "horizon": view.horizon,
        metric: last.get(metric),
        "mean_tokens": last.get("mean_tokens"),
        "truncated": last.get("truncated"),
        "seconds": round(view.seconds, 1),
        "eta_seconds": view.eta_seconds() if status == "running" else None,
        "generated_tokens": view.costs.get("generated_tokens", 0),
        "tokens_per_second": view.tokens_per_second(),
        "judge_usd": view.costs.get("judge_usd", 0.0),
        "signs": warning_signs(view),
    }


LEAST_NEEDED = ("tokens/s", "spent", "truncated", "tokens", "curve", "time", "signs")
"""Columns in the order in which a narrow terminal goes without them."""


def table_of(
    views: Sequence[RunView], metric: str, title: str = "", *, wide: bool = False, width: int = 0
) -> Table:
    """One row a run; `wide` adds throughput, cost and warning signs; of a width, only the columns that fit."""
    rows = [_cells(view, metric, wide) for view in views]
    shown = list(rows[0]) if rows else ["run", "status", "step", metric]
    for name in LEAST_NEEDED:
        if width and name in shown and _width(rows, shown) > width:
            shown.remove(name)
    table = Table(title=title or None, title_justify="left", expand=False, pad_edge=False)
    for name in shown:
        style = {metric: "bold", "curve": "cyan"}.get(name, "")
        left = name in ("run", "status", "step", metric, "curve")
        heading = "" if name == "curve" else name
        table.add_column(heading, style=style, no_wrap=True, justify="left" if left else "right")
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _width(rows: Sequence[dict[str, str]], names: Sequence[str]) -> int:
    """Cells that a table of these columns takes on a terminal: their texts, a rule and its margins each."""
    widest = (max([len(name), *(Text.from_markup(row[name]).cell_len for row in rows)]) for name in names)
    return sum(widest) + 3 * len(names) - 1


def _cells(view: RunView, metric: str, wide: bool) -> dict[str, str]:
    """One run's row by column."""
    found = summary(view, metric)
    status = found["status"]
    cells = {
        "run": found["run"],
        "status": MARKS.get(status, "[dim]waiting[/]" if status == "absent" else f"[yellow]{status}[/]"),
        "step": f"{view.step}/{view.horizon or '?'}",
        metric: _number(found[metric], ".3f"),
        "curve": sparkline([record["metrics"].get(metric, 0.0) for record in view.evals]),
        "tokens": _number(found.get("mean_tokens"), ".0f"),
        "truncated": _number(found["truncated"], ".2f"),
        "time": clock(view.seconds),
        "left": clock(found["eta_seconds"]) if status == "running" else "",
    }
    if wide:
        usd = f" ${found['judge_usd']:.2f}" if found["judge_usd"] else ""
        cells["tokens/s"] = _number(found["tokens_per_second"], ".0f")
        cells["spent"] = f"{found['generated_tokens'] / 1000:,.0f}k{usd}"
        cells["signs"] = " ".join(found["signs"])
    return cells


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def fitting(views: Sequence[RunView], rows: int) -> list[RunView]:
    """As many runs as there are rows: those that run first, then failed, waiting and finished ones; in order."""
    if len(views) <= rows:
        return list(views)
    rank = {"running": 0, "failed": 1, "diverged": 1, "absent": 2}
    chosen = sorted(range(len(views)), key=lambda i: rank.get(views[i].status(), 3))[: max(1, rows)]
    return [views[i] for i in sorted(chosen)]


class Display(AbstractContextManager["Display"]):
    """Call it with the jobs now running; `metric` is the one shown as a rate.

    Without a terminal a line is printed for each evaluation; for more than MANY runs one of the sweep as a
    whole, at most every SUMMARY_SECONDS and where something has finished, and one for each run that failed.
    """

    def __init__(self, jobs: Sequence[Job], metric: str, *, quiet: bool = False, title: str = "") -> None:
        self.views = [RunView(Path(job.folder), job.name, job.spec["train"]["horizon"]) for job in jobs]
        self.metric = metric
        self.quiet = quiet
        self.title = title
        self.console = Console(stderr=True)
        self._live: Live | None = None
        self._started = self._told = time.monotonic()
        self._over: dict[Path, str] = {}
        self._before = self._told_of = 0

    def __enter__(self) -> Display:
        for view in self.views:
            view.refresh()
        self._newly_over()
        self._before = self._told_of = len(self._over)
        if not self.quiet and sys.stderr.isatty():
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, value, trace)
        elif not self.quiet and len(self.views) > MANY:
            self._tell_sweep(last=True)

    def __call__(self, running: Sequence[Job]) -> None:
        many = len(self.views) > MANY
        for view in self.views:
            for record in view.refresh():
                if not self.quiet and not self._live and not many:
                    self._line(view, record)
        if self._live:
            self._newly_over()
            rows = self.console.height - 6  # title, head, rules and the line below
            shown = fitting(self.views, rows)
            title = self.title if len(shown) == len(self.views) else f"{self.title}: {self._count()}"
            self._live.update(table_of(shown, self.metric, title, width=self.console.width))
        elif many and not self.quiet:
            self._tell_sweep()

    def _newly_over(self) -> list[RunView]:
        """Runs that have finished since the last look."""
        new = [v for v in self.views if v.folder not in self._over and v.status() in FINISHED]
        self._over |= {view.folder: view.status() for view in new}
        return new

    def _count(self) -> str:
        bad = sum(status != "completed" for status in self._over.values())
        words = f"{len(self._over)} of {len(self.views)} runs done"
        return f"{words}, {bad} failed or diverged" if bad else words

    def _tell_sweep(self, *, last: bool = False) -> None:
        """A line for each run that failed or diverged, and now and then one for all."""
        now = time.monotonic()
        fresh = self._newly_over()
        for view in fresh:
            if self._over[view.folder] != "completed":
                self._print(f"{view.name} {self._over[view.folder]}")
        due = now - self._told >= SUMMARY_SECONDS and len(self._over) > self._told_of
        if not (last or due):
            return
        self._told, self._told_of = now, len(self._over)
        done = len(self._over) - self._before
        left = len(self.views) - len(self._over)
        pace = f", about {clock((now - self._started) / done * left)} left" if done and left else ""
        self._print(self._count() + pace)

    def _print(self, text: str) -> None:
        self.console.print(
            f"{clock(time.monotonic() - self._started):>7}  {text}", highlight=False, soft_wrap=True
        )

    def _line(self, view: RunView, record: dict[str, Any]) -> None:
        found = record["metrics"]
        rest = [
            f"{name.replace('_', '-')} {found[name]:.2f}"
            for name in ("on_task", "truncated")
            if name in found
        ]
        self._print(
            f"{view.name:<20} step {record['optimizer_step']:>3}/{view.horizon}  "
            f"{self.metric} {found.get(self.metric, 0.0):.3f}  "
            f"tokens {_number(found.get('mean_tokens'), '.0f')}  {'  '.join(rest)}"
        )


def metric_of(folder: Path, runs: Sequence[Path]) -> str:
    """The metric that a folder's runs are about: the claim's, else that of their stop rule, else `correct`."""
    claim = folder / "claim.json"
    if claim.exists():
        endpoint = json.loads(claim.read_text())["definition"].get("endpoint", {})
        if endpoint.get("metric"):
            return shown_metric(str(endpoint["metric"]))
    for run in runs:
        if (run / "manifest.json").exists():
            manifest = json.loads((run / "manifest.json").read_text())
            return str((manifest.get("spec", {}).get("stop") or {}).get("metric") or "correct")
    return "correct"


class Watch:
    """All runs at or below a folder, those that appear later included."""

    def __init__(self, folder: Path, metric: str = "") -> None:
        if not folder.is_dir():
            raise UserError(f"results folder {str(folder)!r} does not exist: give a folder that holds runs")
        self.folder = folder
        self.views: dict[Path, RunView] = {}
        self._metric = metric
        self._looked = -DISCOVER_SECONDS
        self.refresh()

    def refresh(self) -> None:
        """Reads what is new."""
        if time.monotonic() - self._looked >= DISCOVER_SECONDS:
            self._looked = time.monotonic()
            for run in run_directories(self.folder):
                self.views.setdefault(run, RunView(run))
        for view in self.views.values():
            view.refresh()

    @property
    def metric(self) -> str:
        """The metric shown as a rate."""
        return self._metric or metric_of(self.folder, list(self.views))

    @property
    def over(self) -> bool:
        """Whether no run is open any more."""
        return not any(view.status() in OPEN for view in self.views.values())

    def table(self, rows: int = 0, width: int = 0) -> Table:
        """The live table; at most so many rows and cells across, 0 for all."""
        views = list(self.views.values())
        done = sum(view.status() == "completed" for view in views)
        tokens = sum(view.costs.get("generated_tokens", 0) for view in views)
        usd = sum(view.costs.get("judge_usd", 0.0) for view in views)
        spent = f", judges {usd:.2f} US$" if usd else ""
        title = f"{self.folder}: {done} of {len(views)} runs done, {tokens:,.0f} tokens generated{spent}"
        shown = fitting(views, rows) if rows else views
        return table_of(shown, self.metric, title, wide=True, width=width)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data, a run each."""
        return [summary(view, self.metric) for view in self.views.values()]


def watch(folder: Path, *, metric: str = "", seconds: float = 2.0, once: bool = False) -> None:
    """Shows a folder's runs until none is open (or once); Ctrl-C ends it and touches nothing."""
    state = Watch(folder, metric)
    console = Console()
    if once or not sys.stdout.isatty():
        console.print(state.table(width=console.width))
        return
    rows, width = console.height - 6, console.width
    with Live(state.table(rows, width), console=console, refresh_per_second=2) as live:
        while not state.over:
            time.sleep(seconds)
            state.refresh()
            live.update(state.table(rows, width))
        live.update(state.table(width=width))
