"""Shows runs as they go, from their records alone: a live table in a terminal, else a line an evaluation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.store.writer import read_status
from harness.sweep.jobs import Job

BARS = "▁▂▃▄▅▆▇█"
MARKS = {"completed": "[green]done[/]", "running": "[cyan]running[/]", "failed": "[red]failed[/]"}


class Tail:
    """Reads what a record file has gained since the last look; a line that is not whole yet is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New records; all of them again after the file was cut back by a resume."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._offset:
            self._offset = 0
        if size == self._offset:
            return []
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class RunView:
    """What is known of one run so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        folder = Path(job.folder)
        self._tails = {name: Tail(folder / f"{name}.jsonl") for name in ("evals", "steps", "timings")}
        self.evals: list[dict[str, Any]] = []
        self.step = 0
        self.seconds = 0.0
        self.metrics: dict[str, float] = {}

    def refresh(self) -> list[dict[str, Any]]:
        """Reads new records; returns the new evaluations."""
        for record in self._tails["steps"].read():
            self.step, self.metrics = record["optimizer_step"], record["metrics"]
        for record in self._tails["timings"].read():
            self.seconds = record["seconds"] + record["evaluation_seconds"]
        new = self._tails["evals"].read()
        if new and self.evals and new[0]["optimizer_step"] <= self.evals[-1]["optimizer_step"]:
            self.evals = []
        self.evals += new
        return new

    @property
    def horizon(self) -> int:
        """Optimizer steps that the run may take."""
        return self.job.spec["train"]["horizon"]

    def eta_seconds(self) -> float | None:
        """Seconds to the horizon at the pace so far; None before the first step."""
        return self.seconds / self.step * (self.horizon - self.step) if self.step and self.seconds else None


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


class Display(AbstractContextManager["Display"]):
    """Call it with the jobs now running; `metric` is the one shown as a rate."""

    def __init__(self, jobs: Sequence[Job], metric: str, *, quiet: bool = False, title: str = "") -> None:
        self.views = [RunView(job) for job in jobs]
        self.metric = metric
        self.quiet = quiet
        self.title = title
        self.console = Console(stderr=True)
        self._live: Live | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Display:
        for view in self.views:
            view.refresh()
        if not self.quiet and sys.stderr.isatty():
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, value, trace)

    def __call__(self, running: Sequence[Job]) -> None:
        for view in self.views:
            for record in view.refresh():
                if not self.quiet and not self._live:
                    self._line(view, record)
        if self._live:
            self._live.update(self.table())

    def _line(self, view: RunView, record: dict[str, Any]) -> None:
        found = record["metrics"]
        rest = [
            f"{name.replace('_', '-')} {found[name]:.2f}"
            for name in ("on_task", "truncated")
            if name in found
        ]
        self.console.print(
            f"{clock(time.monotonic() - self._started):>6}  {view.job.name:<20} "
            f"step {record['optimizer_step']:>3}/{view.horizon}  {self.metric} {found.get(self.metric, 0.0):.3f}  "
            f"tokens {found['mean_tokens']:.0f}  {'  '.join(rest)}",
            highlight=False,
            soft_wrap=True,
        )

    def table(self) -> Table:
        """One row a run."""
        table = Table(title=self.title or None, title_justify="left", expand=False, pad_edge=False)
        for name, style in (("run", ""), ("status", ""), ("step", ""), (self.metric, "bold"), ("", "cyan")):
            table.add_column(name, style=style, no_wrap=True)
        for name in ("tokens", "truncated", "time", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        for view in self.views:
            table.add_row(*self._cells(view))
        return table

    def _cells(self, view: RunView) -> list[str]:
        status = read_status(Path(view.job.folder))["status"]
        rates = [record["metrics"].get(self.metric, 0.0) for record in view.evals]
        last = view.evals[-1]["metrics"] if view.evals else {}
        return [
            view.job.name,
            MARKS.get(status, "[dim]waiting[/]" if status == "absent" else f"[yellow]{status}[/]"),
            f"{view.step}/{view.horizon}",
            f"{rates[-1]:.3f}" if rates else "-",
            sparkline(rates),
            f"{last['mean_tokens']:.0f}" if last else "-",
            f"{last['truncated']:.2f}" if last else "-",
            clock(view.seconds),
            clock(view.eta_seconds()) if status == "running" else "",
        ]


OnPoll = Callable[[Sequence[Job]], None]
