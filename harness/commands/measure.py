"""Commands that measure answers and checkpoints: score, evaluate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.commands.common import command, print_json, say
from harness.errors import UserError


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `harness score`."""

    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")]
    input: Annotated[
        str, typer.Option(help="JSON Lines: react {id, answer|source}, aime {id, response(s), gold}.")
    ]
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


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `harness evaluate`."""

    target: Annotated[
        str, typer.Argument(help="A run's folder, a model of `harness ls models`, a folder, a Hub id.")
    ]
    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")] = "react"
    k: Annotated[
        str, typer.Option(help="The k of Pass@k, e.g. 1,2,4,8; named before anything is sampled.")
    ] = ""
    samples: Annotated[int, typer.Option(min=1, help="Completions a problem.")] = 1
    problems: Annotated[
        int, typer.Option(min=0, help="Problems of the split; 0 is all (200 where endless).")
    ] = 0
    split: Annotated[str, typer.Option(help="test or train.")] = "test"
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of a completion.")] = 128
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option of the task.")
    ] = None  # type: ignore[assignment]
    out: Annotated[str, typer.Option(help="Folder for evaluation.json and samples.parquet.")] = ""
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def evaluate(options: EvaluateOptions) -> None:
    """Evaluate a run or a model on a task: Pass@k, avg@n and maj@k, with the samples kept."""
    from harness.evaluate.runner import EvaluationOptions, evaluate_named
    from harness.spec import apply_settings, parse_run
    from harness.train.build import build_task

    try:
        ks = tuple(int(part) for part in options.k.split(",") if part)
    except ValueError:
        raise UserError(f"--k {options.k!r}: give numbers, e.g. 1,2,4,8") from None
    if options.task == "react":
        from harness.setup import ensure_react

        ensure_react()
    task_options = apply_settings({}, options.settings or [])
    spec = parse_run({"algorithm": {"name": "grpo"}, "task": {"name": options.task, "options": task_options}})
    task = build_task(spec)
    size = task.size(options.split)
    settings = EvaluationOptions(
        samples=options.samples,
        ks=ks,
        problems=options.problems or (200 if size is None else None),
        split=options.split,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )

    def progress(done: int, total: int) -> None:
        if not options.json:
            say(f"{done} of {total} problems")

    try:
        found = evaluate_named(
            options.target, task, settings, Path(options.out) if options.out else None, progress=progress
        )
    finally:
        task.close()
    record = found.record()
    if options.json:
        print_json(record)
    else:
        _print_summary(record)


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "score", ScoreOptions)(score)
    command(app, "evaluate", EvaluateOptions)(evaluate)
