"""The slurm launcher: one array of submitit jobs over a results folder that all nodes share."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentProblem, UserError
from harness.spec import parse_value
from harness.sweep.entry import start_worker
from harness.sweep.jobs import Job
from harness.sweep.launcher import OnPoll, settle, to_do
from harness.sweep.resources import MIB, estimate_bytes, wants_gpu

POLL_SECONDS = 2.0
DEFAULT_MINUTES = 24 * 60
GRACE_SECONDS = 120
EXECUTORS = ("slurm", "local", "debug")


class ArrayTask:
    """What one array task does; slurm's time limit or preemption puts it in the queue again, to continue."""

    def __call__(self, job: Job) -> str:
        """Runs the job in this process; its status."""
        with contextlib.suppress(SystemExit):  # an exit code for a process of its own; the folder says it all
            start_worker(job)
        return job.status()

    def checkpoint(self, job: Job) -> Any:
        """Called by submitit on a signal: the run's last checkpoint is on disk, so that queueing again suffices."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


def array_parameters(jobs: Sequence[Job], parallel: int, options: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of the array: what its largest run needs; `options` add or override (`slurm_partition=gpu`)."""
    train = [job.spec.get("train", {}) for job in jobs]
    found: dict[str, Any] = {
        "name": "creditbench",
        "cpus_per_task": max((t.get("threads", 1) for t in train), default=1),
        "mem_gb": -(-max(estimate_bytes(job.spec) for job in jobs) // (1024 * MIB)),
        "timeout_min": DEFAULT_MINUTES,
        "slurm_array_parallelism": parallel or len(jobs),
        "slurm_signal_delay_s": GRACE_SECONDS,
    }
    if options.get("gpus_per_node") is None and any(wants_gpu(job.spec) for job in jobs):
        found["gpus_per_node"] = 1
    return found | {name: parse_value(text) for name, text in options.items() if name != "executor"}


def make_executor(folder: Path, name: str) -> Any:
    """A submitit executor; EnvironmentProblem when submitit or sbatch is absent."""
    try:
        import submitit
    except ImportError:
        raise EnvironmentProblem(
            "--launcher slurm needs submitit: pip install 'creditbench[slurm]'"
        ) from None
    if name not in EXECUTORS:
        raise UserError(f"--launcher-option executor={name}: use one of {', '.join(EXECUTORS)}")
    if name == "slurm" and shutil.which("sbatch") is None:
        raise EnvironmentProblem("--launcher slurm: no sbatch on this machine; use --launcher local")
    return submitit.AutoExecutor(folder=str(folder), cluster=name)


def run_slurm(
    jobs: Sequence[Job],
    *,
    parallel: int,
    retry_failed: bool = False,
    on_poll: OnPoll = lambda running: None,
    options: Mapping[str, str] | None = None,
    seconds: float = POLL_SECONDS,
) -> dict[str, str]:
    """The slurm launcher; see `Launcher`. `options` are submitit parameters, and `executor` (slurm, local, debug).

    The command waits and shows progress from the shared folder; Ctrl-C stops the runs with a checkpoint.
    """
    options = dict(options or {})
    jobs = [dataclasses.replace(job, folder=str(Path(job.folder).absolute())) for job in jobs]
    waiting = to_do(jobs, retry_failed=retry_failed)
    if waiting:
        logs = Path(waiting[0].folder).parent / "slurm"
        executor = make_executor(logs, options.get("executor", "slurm"))
        executor.update_parameters(**array_parameters(waiting, parallel, options))
        tasks = list(zip(waiting, executor.map_array(ArrayTask(), waiting), strict=True))
        try:
            _follow(tasks, on_poll, seconds)
        except KeyboardInterrupt:
            _stop(tasks, seconds)
            raise
        for job, task in tasks:
            settle(job, f"slurm job {task.job_id} ended as {task.state}")
    on_poll([])
    return {job.run_id: job.status() for job in jobs}


def _follow(tasks: Sequence[tuple[Job, Any]], on_poll: OnPoll, seconds: float) -> None:
    """Waits for all tasks; when `on_poll` winds the sweep down, queued tasks are cancelled and others paused."""
    wound_down = False
    while open_tasks := [(job, task) for job, task in tasks if not task.done()]:
        reason = on_poll([job for job, _ in open_tasks if job.status() == "running"])
        if reason and not wound_down:
            wound_down = True
            for job, task in open_tasks:
                if job.status() == "running":
                    job.ask("pause", reason)
                else:
                    task.cancel()
        time.sleep(seconds)


def _stop(tasks: Sequence[tuple[Job, Any]], seconds: float) -> None:
    open_tasks = [(job, task) for job, task in tasks if not task.done()]
    for job, task in open_tasks:
        if job.status() == "running":
            job.ask("stop", "interrupted")
        else:
            task.cancel()
    deadline = time.monotonic() + GRACE_SECONDS
    while any(not task.done() for _, task in open_tasks) and time.monotonic() < deadline:
        time.sleep(seconds)
    for job, task in open_tasks:
        if not task.done():
            task.cancel()
        settle(job, "interrupted")
