"""Commands that show what there is and whether it works: ls, show, validate, doctor, setup, pretrain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.commands.common import command, print_json, say
from harness.errors import UserError

HIDDEN = frozenset({"summary", "recipes", "location"})
"""Columns of `--json` that the printed table leaves out for room."""


CLAIM_DETAILS = frozenset({"source", "published", "scales", "arms"})


@dataclass(frozen=True)
class LsOptions:
    """Options of `harness ls`."""

    kind: Annotated[str, typer.Argument(help="algorithms, tasks, claims or models.")]
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False
    plugin: Annotated[list[str], typer.Option(help="A Python file that registers algorithms or tasks.")] = (
        None  # type: ignore[assignment]
    )


def ls(options: LsOptions) -> None:
    """List algorithms, tasks, claims or models."""
    from harness import catalogue
    from harness.names import lookup
    from harness.registry import load_plugin

    rows = lookup("kind", options.kind, catalogue.KINDS)()
    if options.plugin:
        from harness.registry import algorithms

        before = set(algorithms())
        for path in options.plugin:
            load_plugin(Path(path))
        rows += [
            {
                "name": name,
                "source": algorithm.source,  # type: ignore[attr-defined]
                "requires": sorted(algorithm.requires),  # type: ignore[attr-defined]
                "extra_cost": algorithm.extra_cost,  # type: ignore[attr-defined]
                "summary": (algorithm.__doc__ or "").split("\n")[0],
            }
            for name, algorithm in algorithms().items()
            if name not in before and options.kind == "algorithms"
        ]
    if options.json:
        print_json(rows)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    hidden = HIDDEN | (CLAIM_DETAILS if options.kind == "claims" else frozenset())
    columns = [name for name in rows[0] if name not in hidden] if rows else []
    for name in columns:
        table.add_column(name.replace("_", " "), no_wrap=name == "name", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:,}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


@dataclass(frozen=True)
class ShowOptions:
    """Options of `harness show`."""

    name: Annotated[str, typer.Argument(help="An algorithm, task, claim, model, or a run's folder.")]
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False


def show(options: ShowOptions) -> None:
    """Show one algorithm, task, claim, model or run in full."""
    from harness.show import describe

    found = describe(options.name)
    if options.json:
        print_json(found)
        return
    for key, value in found.items():
        if isinstance(value, str) and "\n" in value:
            print(f"{key}:\n  " + value.replace("\n", "\n  "))
        elif isinstance(value, dict):
            print(f"{key}:")
            for name, item in value.items():
                print(f"  {name} = {item}")
        else:
            print(f"{key}: {_cell(value)}")


@dataclass(frozen=True)
class ValidateOptions:
    """Options of `harness validate`."""

    target: Annotated[str, typer.Argument(help="An algorithm's name, or a .py file that registers some.")]
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False


def validate(options: ValidateOptions) -> int:
    """Run the conformance suite on an algorithm or on every algorithm of a file."""
    from harness.names import lookup
    from harness.registry import algorithms, load_plugin
    from harness.validate import validate as run_suite

    if options.target.endswith(".py"):
        before = set(algorithms())
        load_plugin(Path(options.target))
        names = sorted(set(algorithms()) - before)
        if not names:
            raise UserError(f"{options.target}: registers no new algorithm; decorate a class with @register")
    else:
        names = [options.target]
    findings = [(name, f) for name in names for f in run_suite(lookup("algorithm", name, algorithms()))]
    if options.json:
        print_json(
            [{"algorithm": n, "check": f.check, "ok": f.ok, "message": f.message} for n, f in findings]
        )
    else:
        for name, finding in findings:
            mark = "ok  " if finding.ok else "FAIL"
            print(f"{mark} {name}: {finding.check}" + (f": {finding.message}" if finding.message else ""))
    return 0 if all(f.ok for _, f in findings) else 1


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `harness doctor`."""

    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False


def doctor(options: DoctorOptions) -> int:
    """Say what this machine has, and what each scale needs and lacks."""
    from harness.doctor import examine

    report = examine()
    if options.json:
        print_json(report.to_json())
    else:
        for line in report.lines():
            print(line)
    return 0 if report.default_job_runs else 1


@dataclass(frozen=True)
class SetupOptions:
    """Options of `harness setup`."""


def setup(options: SetupOptions) -> None:
    """Install the React checker's npm packages into the cache, ahead of a run without network."""
    from harness.setup import ensure_react

    say(f"ready: {ensure_react()}")


@dataclass(frozen=True)
class PretrainOptions:
    """Options of `harness pretrain`."""

    model: Annotated[str, typer.Argument(help="A model that ships with the harness.")] = "react-tiny"
    out: Annotated[str, typer.Option(help="Folder for the rebuilt model.")] = ""
    seed: Annotated[int, typer.Option(min=0, help="Seed of corpus and initialisation.")] = 0


def pretrain(options: PretrainOptions) -> None:
    """Rebuild a model that ships with the harness, with its measured model card."""
    from harness.models import PRESETS
    from harness.setup import prepare_task
    from harness.train.pretrain import pretrain as run

    out = Path(options.out or f"results/runs/pretrain-{options.model}")

    def progress(step: int, steps: int, loss: float) -> None:
        if step % 50 == 0:
            say(f"step {step} of {steps}: loss {loss:.3f} nats a token")

    recipe = PRESETS[options.model].recipe if options.model in PRESETS else None
    if recipe is not None:
        prepare_task(recipe.task)
    found = run(out, preset=options.model, seed=options.seed, progress=progress)
    say(f"written: {out}; {found['start_rate']:.1%} of {found['n']:.0f} held-out answers are right")


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "ls", LsOptions)(ls)
    command(app, "show", ShowOptions)(show)
    command(app, "validate", ValidateOptions)(validate)
    command(app, "doctor", DoctorOptions)(doctor)
    command(app, "setup", SetupOptions)(setup)
    command(app, "pretrain", PretrainOptions)(pretrain)
