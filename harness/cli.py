"""The command line `harness`; every command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys

import typer

from harness import __version__
from harness.commands import benchmark as benchmark_commands
from harness.commands import credit as credit_commands
from harness.commands import evidence as evidence_commands
from harness.commands import inspect as inspect_commands
from harness.commands import measure as measure_commands
from harness.commands import run as run_commands
from harness.commands import sweep as sweep_commands

app = typer.Typer(
    name="harness",
    help="Does a credit-assignment method really learn faster, by how much, and at what cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run_commands.add(app)
inspect_commands.add(app)
measure_commands.add(app)
evidence_commands.add(app)
credit_commands.add(app)
sweep_commands.add(app)
benchmark_commands.add(app)


def _version(value: bool) -> None:
    if value:
        print(f"creditbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Does a credit-assignment method really learn faster, by how much, and at what cost?"""


def main() -> None:
    """Entry point of the command."""
    # these libraries speak of things that no user of the harness can act on
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
