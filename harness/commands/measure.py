"""Commands that measure answers and checkpoints: score."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from harness.commands.common import command, say


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `harness score`."""

    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")]
    input: Annotated[str, typer.Option(help="JSON Lines: react {id, answer|source}, aime {id, response(s), gold}.")]
    types: Annotated[bool, typer.Option("--types", help="react: check types too (slower).")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False


def score(options: ScoreOptions) -> None:
    """Score answers from anywhere: one row out for each line in, and a summary."""
    from harness.evaluate.score import score_file
    from harness.names import lookup
    from harness.registry import tasks

    chosen: Any = lookup("task", options.task, tasks())
    if options.task == "react":
        from harness.setup import ensure_react

        ensure_react()
    task = chosen()

    def write(row: dict[str, Any]) -> None:
        if options.json:
            sys.stdout.write(json.dumps(row, allow_nan=False) + "\n")

    try:
        summary = score_file(task, options.input, types=options.types, write=write)
    finally:
        task.close()
    if not options.json:
        _print_summary(summary)
    elif getattr(task, "summary_in_output", False):
        sys.stdout.write(json.dumps({"id": None, "summary": summary}, allow_nan=False) + "\n")
    else:
        for name, value in _flat(summary):
            say(f"{name:<20} {value}")


def _print_summary(summary: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in _flat(summary):
        table.add_row(name, value)
    Console().print(table)


def _flat(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each number of a summary, nested ones under their own names."""
    for name, value in summary.items():
        if isinstance(value, dict):
            yield from _flat(value)
        elif isinstance(value, list):
            yield from ((name, str(item)) for item in value)
        else:
            yield name, f"{value:.3f}" if isinstance(value, float) else str(value)


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "score", ScoreOptions)(score)
