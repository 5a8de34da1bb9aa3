"""Commands on credit: `harness credit` shows it token by token, `harness advise` says whether it pays on a task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.common import command, print_json, say

if TYPE_CHECKING:
    from harness.spec import RunSpec


@dataclass(frozen=True)
class PolicyOptions:
    """What `credit` and `advise` share: the task, the policy, and how much to spend on true credit."""

    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")] = "react"
    model: Annotated[
        str, typer.Option(help="A model of `harness ls models`, a folder, or `table` for task ladder.")
    ] = "react-tiny"
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. task.options.steps=16."),
    ] = None  # type: ignore[assignment]
    plugin: Annotated[list[str], typer.Option(help="A Python file that registers algorithms or tasks.")] = (
        None  # type: ignore[assignment]
    )
    group_size: Annotated[int, typer.Option(min=2, help="Answers a prompt.")] = 8
    continuations: Annotated[
        int, typer.Option(min=0, help="Continuations of each prefix, for true credit; 0 leaves it out.")
    ] = 8
    segments: Annotated[int, typer.Option(min=1, help="Stretches of an answer told apart, at most.")] = 8
    seed: Annotated[int, typer.Option(min=0, help="Seed of the answers.")] = 0
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False


@dataclass(frozen=True)
class CreditOptions(PolicyOptions):
    """Options of `harness credit`."""

    algorithms: Annotated[
        str,
        typer.Option(
            help="Names split by `;`, with options as bot_grpo:degenerate=keep; `all` for every registered one."
        ),
    ] = "grpo;bot_grpo"
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to answer.")] = 8
    show: Annotated[int, typer.Option(min=0, help="Groups to show on the terminal.")] = 1
    gradients: Annotated[bool, typer.Option(help="Also the signal-to-noise of the gradient.")] = True
    out: Annotated[str, typer.Option(help="Folder for records.jsonl, groups.jsonl and credit.html.")] = ""


@dataclass(frozen=True)
class AdviseOptions(PolicyOptions):
    """Options of `harness advise`."""

    samples: Annotated[int, typer.Option(min=8, help="Answers to sample.")] = 64


def _spec(options: PolicyOptions) -> RunSpec:
    from harness.registry import load_plugin
    from harness.setup import prepare_task
    from harness.spec import apply_settings, parse_run

    plugins = [str(Path(p).resolve()) for p in options.plugin or []]
    for plugin in plugins:
        load_plugin(Path(plugin))
    prepare_task(options.task)
    value: dict[str, Any] = {
        "algorithm": {"name": "grpo"},
        "task": {"name": options.task},
        "model": {"name": options.model},
        "train": {"group_size": options.group_size},
        "plugins": plugins,
    }
    return parse_run(apply_settings(value, options.settings or []))


def credit(options: CreditOptions) -> None:
    """Show every token's advantage under several algorithms on the same answers, beside its true credit."""
    from harness.credit.measure import bench_of, measure
    from harness.credit.report import quality_table
    from harness.report.credit import parse_group, statistics_table, to_html, to_rich

    spec = _spec(options)
    names = [] if options.algorithms == "all" else [n for n in options.algorithms.split(";") if n]
    bench = bench_of(spec)
    try:
        found = measure(
            bench, names, prompts=options.prompts, samples=_exact(options), most=options.segments,
            seed=options.seed, gradients=options.gradients, with_truth=options.continuations > 0,
        )  # fmt: skip
    finally:
        bench.close()
    groups = [parse_group(group) for group in found.groups]
    files = {}
    if options.out:
        from harness.store.writer import write_atomic

        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("records", found.records()), ("groups", found.groups)):
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            write_atomic(folder / f"{name}.jsonl", text.encode())
            files[name] = str(folder / f"{name}.jsonl")
        write_atomic(folder / "credit.html", to_html(groups).encode())
        files["page"] = str(folder / "credit.html")
    if options.json:
        print_json({"records": found.records(), "skipped": found.skipped, "files": files})
        return
    from rich.console import Console

    from harness.report.tables import to_rich as table_to_rich

    console = Console()
    for group in groups[: options.show]:
        console.print(group.prompt, style="bold", markup=False)
        console.print(to_rich(group))
        console.print(table_to_rich(statistics_table(group)))
    if found.qualities:
        console.print(table_to_rich(quality_table(found)))
    for name, reason in found.skipped.items():
        say(f"left out {name}: {reason}")
    for name, path in files.items():
        console.print(f"{name:<10}{path}", highlight=False, soft_wrap=True)


def _exact(options: PolicyOptions) -> int:
    """Continuations to ask for: none for a table policy, whose credit is exact."""
    from harness.models.source import TABLE

    return 0 if options.model == TABLE else options.continuations


def advise(options: AdviseOptions) -> None:
    """Measure a task at its start and say which algorithm the ladder suggests, or that nothing does."""
    from harness.advise import advice_table, findings
    from harness.advise import advise as make
    from harness.credit.measure import bench_of

    spec = _spec(options)
    bench = bench_of(spec)
    try:
        found = make(
            bench, task=options.task, model=options.model, samples=options.samples,
            continuations=_exact(options), most=options.segments, seed=options.seed, ladder=findings(),
        )  # fmt: skip
    finally:
        bench.close()
    if options.json:
        print_json(found.to_json())
        return
    from rich.console import Console

    from harness.report.tables import to_rich

    console = Console()
    console.print(to_rich(advice_table(found)))
    for sentence in found.sentences:
        console.print(f"• {sentence}", highlight=False, markup=False)


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "credit", CreditOptions)(credit)
    command(app, "advise", AdviseOptions)(advise)
