"""The local launcher: runs jobs in processes of this machine, one thread each, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.store.writer import read_status, write_json
from harness.sweep.jobs import FINISHED, Job

POLL_SECONDS = 0.25
STOP_SECONDS = 60.0


def default_parallel(jobs: int, threads: int = 1) -> int:
    """Processes that pay on this machine: one a core (two one-thread runs beat one two-thread run)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(jobs, cores // threads))


def run_local(
    jobs: Sequence[Job],
    *,
    parallel: int,
    retry_failed: bool = False,
    on_poll: Callable[[Sequence[Job]], None] = lambda running: None,
) -> dict[str, str]:
    """Runs all jobs that are not finished (and with `retry_failed` the failed ones); statuses by run id.

    On KeyboardInterrupt each worker stops at its next optimizer step with a checkpoint; then it is raised
    again. A worker that dies without a word is recorded as stopped, to be continued next time; the others go on.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.sweep.worker"])
    from harness.sweep.entry import start_worker

    done = FINISHED - {"failed"} if retry_failed else FINISHED
    waiting = [job for job in jobs if job.status() not in done]
    running: dict[str, tuple[BaseProcess, Job]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                job = waiting.pop(0)
                process: BaseProcess = context.Process(target=start_worker, args=(job,), name=job.name)
                process.start()
                running[job.run_id] = (process, job)
            on_poll([job for _, job in running.values()])
            time.sleep(POLL_SECONDS)
            for run_id, (process, job) in list(running.items()):
                if not process.is_alive():
                    process.join()
                    _settle(job, process.exitcode)
                    del running[run_id]
        on_poll([])
    except KeyboardInterrupt:
        _stop([process for process, _ in running.values()])
        for process, job in running.values():
            _settle(job, process.exitcode)
        raise
    return {job.run_id: job.status() for job in jobs}


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _settle(job: Job, exit_code: int | None) -> None:
    """Records the end of a worker that could not do so itself."""
    folder = Path(job.folder)
    if read_status(folder)["status"] in {"running", "absent"}:
        folder.mkdir(parents=True, exist_ok=True)
        reason = f"its process ended with code {exit_code}; run the same command again to continue"
        write_json(folder / "status.json", {"status": "stopped", "reason": reason})
