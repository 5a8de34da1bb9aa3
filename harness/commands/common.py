"""Commands from option dataclasses, and one place for exit codes."""

from __future__ import annotations

import errno
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from harness.errors import EnvironmentProblem, UserError

O = TypeVar("O")  # noqa: E741
INTERRUPTED = 130
STORAGE_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})


def command(app: typer.Typer, name: str, options: type[O]) -> Callable[[Callable[[O], int | None]], None]:
    """Registers a function of one options dataclass as a command; its return value is the exit code.

    A field is an option or argument: `Annotated[type, typer.Option(...)]` with its default. A UserError
    becomes one line on stderr and its exit code; Ctrl-C becomes 130.
    """

    def register(function: Callable[[O], int | None]) -> None:
        def run(**values: Any) -> None:
            code = guarded(lambda: function(options(**values)))
            if code:
                raise typer.Exit(code)

        hints = get_type_hints(options, include_extras=True)
        parameters = []
        own = vars(options).get("__annotations__", {})
        # a command's own options come before those it shares with others
        for field in sorted(fields(options), key=lambda f: f.name not in own):  # type: ignore[arg-type]
            default = field.default
            if default is MISSING and field.default_factory is not MISSING:
                default = field.default_factory()
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is MISSING else default,
                    annotation=hints[field.name],
                )
            )
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__doc__ = function.__doc__
        app.command(name)(run)

    return register


def guarded(action: Callable[[], int | None]) -> int:
    """Runs an action; its exit code, with user errors as one line and without a traceback."""
    try:
        return action() or 0
    except UserError as error:
        say(f"error: {error}")
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in STORAGE_FAULTS:
            raise
        say(
            f"error: {error.filename or 'results folder'}: {error.strerror}; choose another folder or make room"
        )
        return EnvironmentProblem.exit_code
    except KeyboardInterrupt:
        say("interrupted: finished work is kept; the same command continues")
        return INTERRUPTED


def say(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """A value as JSON on stdout; non-finite numbers are errors, never written."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


@dataclass(frozen=True)
class RunOptions:
    """Options shared by the commands that train."""

    out: Annotated[str, typer.Option(help="Results folder; the default is under results/runs.")] = ""
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.learning_rate=1e-4."),
    ] = None  # type: ignore[assignment]
    plugin: Annotated[list[str], typer.Option(help="A Python file that registers algorithms or tasks.")] = (
        None  # type: ignore[assignment]
    )
    parallel: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is one a core.")] = 0
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and how long, and stop.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False
    launcher: Annotated[str, typer.Option(help="local, ray or slurm.")] = "local"
    launcher_option: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="An option of the launcher, e.g. slurm_partition=gpu."),
    ] = None  # type: ignore[assignment]
    budget_hours: Annotated[float, typer.Option(min=0.0, help="Stop after so many hours; 0: no limit.")] = 0.0
    budget_tokens: Annotated[
        int, typer.Option(min=0, help="Stop once all runs generated so many training tokens; 0: no limit.")
    ] = 0
    budget_usd: Annotated[
        float, typer.Option(min=0.0, help="Stop once judges cost so many US$; 0: no limit.")
    ] = 0.0
    tracker: Annotated[
        list[str], typer.Option(help="Feed the records to tensorboard, trackio, wandb or mlflow as well.")
    ] = None  # type: ignore[assignment]
