"""Runs a sweep: a launcher, with display, budget and trackers, all fed from the records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentProblem, RunsFailed, UserError
from harness.store.tail import RunView
from harness.sweep.budget import Budget, Limits
from harness.sweep.jobs import FINISHED, Job
from harness.sweep.launcher import find_launcher, reason_of
from harness.sweep.local import default_parallel

Show = Callable[[Sequence[Job]], None]


@dataclass(frozen=True)
class Settings:
    """How to run a sweep; `parallel` 0 is the launcher's choice, None for a limit is no limit."""

    launcher: str = "local"
    launcher_options: Sequence[str] = ()
    parallel: int = 0
    retry_failed: bool = False
    hours: float | None = None
    tokens: int | None = None
    usd: float | None = None
    trackers: Sequence[str] = ()


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """`--launcher-option KEY=VALUE` as a mapping; UserError for one without `=`."""
    found = {}
    for text in texts:
        key, sep, value = text.partition("=")
        if not sep or not key:
            raise UserError(f"--launcher-option {text!r}: write it as key=value, e.g. slurm_partition=gpu")
        found[key] = value
    return found


def check_writable(folder: Path) -> None:
    """EnvironmentProblem when nothing can be written at or below a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"results folder {str(folder)!r} cannot be written ({error.strerror}): choose another --out"
        ) from error


def execute(jobs: Sequence[Job], settings: Settings, show: Show = lambda running: None) -> dict[str, str]:
    """Runs all jobs that are not finished; statuses by run id.

    RunsFailed when some are left unfinished, with the reasons and, after a budget, what would finish them.
    Failed and diverged runs are results of their own and not raised.
    """
    launcher = find_launcher(settings.launcher)
    options = parse_options(settings.launcher_options)
    for root in {Path(job.folder).parent for job in jobs}:
        check_writable(root)
    budget = Budget(
        Limits(settings.hours, settings.tokens, settings.usd),
        [RunView(Path(job.folder), job.name, job.spec["train"]["horizon"]) for job in jobs],
    )
    with _trackers(jobs, settings.trackers) as feed:

        def on_poll(running: Sequence[Job]) -> str:
            show(running)
            feed()
            for view in budget.views:
                view.refresh()
            return budget.exceeded()

        statuses = launcher(
            jobs,
            parallel=settings.parallel,
            retry_failed=settings.retry_failed,
            on_poll=on_poll,
            options=options,
        )
    unfinished = [job for job in jobs if statuses[job.run_id] not in FINISHED]
    if unfinished:
        raise RunsFailed(_unfinished(unfinished, jobs, budget, settings))
    return statuses


def _unfinished(unfinished: Sequence[Job], jobs: Sequence[Job], budget: Budget, settings: Settings) -> str:
    """One line: how many runs are left, why, and what would finish them."""
    if spent := budget.exceeded():
        threads = max(job.spec["train"]["threads"] for job in jobs)
        parallel = settings.parallel or default_parallel(len(jobs), threads)
        return f"{spent}: {budget.remaining(parallel)}; the same command with a larger budget continues"
    reasons = "; ".join(f"{Path(job.folder).name}: {reason_of(job)}" for job in unfinished[:3])
    return f"{len(unfinished)} of {len(jobs)} runs are not finished ({reasons}); the same command continues"


def _trackers(jobs: Sequence[Job], names: Sequence[str]) -> AbstractContextManager[Callable[[], None]]:
    if not names:
        return nullcontext(lambda: None)
    from harness.trackers import Trackers

    return Trackers([Path(job.folder) for job in jobs], names)
