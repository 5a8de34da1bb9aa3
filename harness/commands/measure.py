"""Commands that measure answers and checkpoints: score, evaluate, probe."""

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

PER_PROBLEM = frozenset({"problems", "problem_counts", "rows"})
"""Parts of a summary that are one entry a problem: in `--json` only."""


def _task(name: str, settings: list[str] | None) -> Any:
    """A task by name with options from `--set`, ready to score."""
    from harness.setup import prepare_task
    from harness.spec import apply_settings, parse_run
    from harness.train.build import build_task

    value = {
        "algorithm": {"name": "grpo"},
        "task": {"name": name, "options": apply_settings({}, settings or [])},
    }
    task = build_task(parse_run(value))
    prepare_task(name)
    return task


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `harness score`."""

    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")]
    input: Annotated[
        str, typer.Option(help="JSON Lines: react {id, answer|source}, aime {id, response(s), gold}.")
    ]
    types: Annotated[bool, typer.Option("--types", help="react: check types too (slower).")] = False
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the task, e.g. answers=math."),
    ] = None  # type: ignore[assignment]
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False


def score(options: ScoreOptions) -> None:
    """Score answers from anywhere: one row out for each line in, and a summary."""
    from harness.evaluate.score import score_file

    task: Any = _task(options.task, options.settings)

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
        if name in PER_PROBLEM:
            continue
        if isinstance(value, dict):
            yield from ((f"{name} {inner}", text) for inner, text in _flat(value))
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
    suite: Annotated[str, typer.Option(help="lm-eval: use lm-evaluation-harness instead (extra eval).")] = ""
    tasks: Annotated[str, typer.Option(help="lm-eval: its tasks, e.g. aime24,gsm8k.")] = ""
    include: Annotated[str, typer.Option(help="lm-eval: a folder of YAML tasks of your own.")] = ""
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

    if options.suite:
        _evaluate_suite(options)
        return
    try:
        ks = tuple(int(part) for part in options.k.split(",") if part)
    except ValueError:
        raise UserError(f"--k {options.k!r}: give numbers, e.g. 1,2,4,8") from None
    task = _task(options.task, options.settings)
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


def _evaluate_suite(options: EvaluateOptions) -> None:
    from harness.evaluate.lm_eval_bridge import evaluate_suite, save_suite
    from harness.evaluate.target import load_target

    if options.suite != "lm-eval":
        raise UserError(f"--suite {options.suite!r}: the one known suite is lm-eval")
    names = [name for name in options.tasks.split(",") if name]
    if not names:
        raise UserError("--tasks: name the tasks of lm-eval, e.g. aime24,gsm8k")
    record = evaluate_suite(
        load_target(options.target),
        names,
        include_path=Path(options.include) if options.include else None,
        limit=options.problems or None,
        seed=options.seed,
    )
    if options.out:
        save_suite(record, Path(options.out))
    if options.json:
        print_json(record)
    else:
        _print_summary(record)


@dataclass(frozen=True)
class ProbeOptions:
    """Options of `harness probe`."""

    target: Annotated[
        str, typer.Argument(help="A run's folder, a model of `harness ls models`, a folder, a Hub id.")
    ]
    source: Annotated[str, typer.Option(help="aime-2024, aime-2025, ... or a JSON Lines file.")] = "aime-2024"
    problems: Annotated[int, typer.Option(min=0, help="How many problems; 0 is all.")] = 0
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def probe(options: ProbeOptions) -> None:
    """Test for contamination: does the model complete problems from part of their text?"""
    from harness.evaluate.probe import probe_target
    from harness.evaluate.target import load_target

    found = probe_target(load_target(options.target), options.source, problems=options.problems or None)
    if options.json:
        print_json(found)
    else:
        _print_summary({key: value for key, value in found.items() if key != "rows"})


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "score", ScoreOptions)(score)
    command(app, "evaluate", EvaluateOptions)(evaluate)
    command(app, "probe", ProbeOptions)(probe)
