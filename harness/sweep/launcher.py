"""What launchers share: their protocol and names, what is left to do, and runs that could not record their end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from filelock import Timeout

from harness.names import lookup
from harness.store.writer import owner_of, read_status, run_lock, write_json
from harness.sweep.jobs import FINISHED, Job

OnPoll = Callable[[Sequence[Job]], str | None]
"""Called now and then with the jobs running; a reason (not None or "") winds the sweep down: nothing more
starts, and what runs pauses at its next evaluation."""

NAMES: Mapping[str, str] = {
    "local": "harness.sweep.local:run_local",
    "ray": "harness.sweep.ray_launcher:run_ray",
    "slurm": "harness.sweep.slurm_launcher:run_slurm",
}


class Launcher(Protocol):
    """Runs jobs somewhere until each has ended; one bad run never stops the rest."""

    def __call__(
        self,
        jobs: Sequence[Job],
        *,
        parallel: int,
        retry_failed: bool = False,
        on_poll: OnPoll = lambda running: None,
        options: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Statuses by run id of all jobs; runs that are finished are skipped.

        `parallel` bounds the runs at a time (0: as many as fit), `options` are the launcher's own.
        KeyboardInterrupt asks every run to stop with a checkpoint, waits for that, and is raised again.
        """
        ...


def find_launcher(name: str) -> Launcher:
    """The launcher of a name; UserError with the nearest names when there is none."""
    from importlib import import_module

    module, _, function = lookup("launcher", name, NAMES).partition(":")
    return getattr(import_module(module), function)


def to_do(jobs: Sequence[Job], *, retry_failed: bool) -> list[Job]:
    """The jobs that are not finished, old requests to stop withdrawn."""
    done = FINISHED - {"failed"} if retry_failed else FINISHED
    waiting = [job for job in jobs if job.status() not in done]
    for job in waiting:
        job.withdraw()
    return waiting


def settle(job: Job, reason: str) -> str:
    """Records that a worker ended without a word as `stopped`; the run's status.

    A run that another process is writing is left alone. On a full disk its status stays `running`, which
    the same command continues as well.
    """
    folder = Path(job.folder)
    status = read_status(folder)["status"]
    if status not in {"running", "absent"}:
        return status
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with run_lock(folder):
                text = f"{reason}; run the same command again to continue"
                write_json(folder / "status.json", {"status": "stopped", "reason": text})
        except Timeout:
            return "running"
    return read_status(folder)["status"]


def reason_of(job: Job) -> str:
    """Why a run is not finished, for people."""
    status = read_status(Path(job.folder))
    if status["status"] == "running":
        return f"being written by {owner_of(Path(job.folder))}"
    return status["reason"] or ("never started" if status["status"] == "absent" else "no reason recorded")
