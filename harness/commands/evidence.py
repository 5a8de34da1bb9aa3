"""Commands on finished work: archive, readme, trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.common import command, say


@dataclass(frozen=True)
class ArchiveOptions:
    """Options of `harness archive`."""

    out: Annotated[str, typer.Argument(help="The results folder of a finished `harness reproduce`.")]
    published: Annotated[str, typer.Option(help="Where evidence is kept.")] = "results/published"


def archive(options: ArchiveOptions) -> None:
    """Copy a finished claim's evidence into results/published."""
    from harness.archive import archive as run

    say(f"archived: {run(Path(options.out), Path(options.published))}")


@dataclass(frozen=True)
class ReadmeOptions:
    """Options of `harness readme`."""

    readme: Annotated[str, typer.Argument(help="A Markdown file with evidence blocks.")] = "README.md"
    published: Annotated[str, typer.Option(help="Where evidence is kept.")] = "results/published"


def readme(options: ReadmeOptions) -> None:
    """Fill the README's evidence blocks from results/published."""
    from harness.archive import update_readme

    changed = update_readme(Path(options.readme), Path(options.published))
    say(f"{options.readme}: {'updated' if changed else 'already up to date'}")


@dataclass(frozen=True)
class TrialsOptions:
    """Options of `harness trials`."""

    folders: Annotated[list[str], typer.Argument(help="Folders that hold tuning runs.")]
    out: Annotated[str, typer.Option(help="The JSON Lines file to write.")]
    metric: Annotated[str, typer.Option(help="The metric that was tuned.")] = "compile"
    threshold: Annotated[float, typer.Option(help="Its threshold.")] = 0.8


def trials(options: TrialsOptions) -> None:
    """Log every tuning run of some folders, none left out."""
    from harness.trials import write_trials

    count = write_trials(
        map(Path, options.folders), Path(options.out), metric=options.metric, threshold=options.threshold
    )
    say(f"{options.out}: {count} trials")


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "archive", ArchiveOptions)(archive)
    command(app, "readme", ReadmeOptions)(readme)
    command(app, "trials", TrialsOptions)(trials)
