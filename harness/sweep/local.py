"""The local launcher: runs jobs in processes of this machine, one thread or one GPU each, as memory allows."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType

from harness.errors import UserError
from harness.sweep.entry import start_worker
from harness.sweep.jobs import Job
from harness.sweep.launcher import OnPoll, settle, to_do
from harness.sweep.resources import (
    available_bytes,
    estimate_bytes,
    resident_bytes,
    visible_gpus,
    wants_gpu,
)
from harness.sweep.server import fork_server

POLL_SECONDS = 0.25
STOP_SECONDS = 60.0
Entry = Callable[[Job, str | None], None]


def default_parallel(jobs: int, threads: int = 1) -> int:
    """Processes that pay on this machine: one a core (two one-thread runs beat one two-thread run)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(jobs, cores // threads))


@dataclass(frozen=True)
class Running:
    """A worker, its run, its GPU, and the memory that it may grow to."""

    process: BaseProcess
    job: Job
    gpu: str | None
    bytes: int


class Pool:
    """Starts jobs as places, memory and GPUs allow, and settles those that end."""

    def __init__(self, waiting: Sequence[Job], parallel: int, entry: Entry) -> None:
        self.context = fork_server()
        self.waiting = list(waiting)[::-1]
        self.parallel = parallel
        self.entry = entry
        self.running: dict[int, Running] = {}
        self.gpus = visible_gpus() if any(wants_gpu(job.spec) for job in waiting) else []

    def fill(self) -> None:
        """Starts what there is room for."""
        while self.waiting and len(self.running) < self.parallel and self._room(self.waiting[-1]):
            job = self.waiting.pop()
            gpu = self._free_gpu() if wants_gpu(job.spec) and self.gpus else None
            process: BaseProcess = self.context.Process(target=self.entry, args=(job, gpu), name=job.name)
            process.start()
            self.running[process.sentinel] = Running(process, job, gpu, estimate_bytes(job.spec))

    def _free_gpu(self) -> str | None:
        taken = {one.gpu for one in self.running.values()}
        return next((gpu for gpu in self.gpus if gpu not in taken), None)

    def _room(self, job: Job) -> bool:
        """Whether a GPU is free where one is wanted, and memory is left after what runs has grown."""
        if not self.running:
            return True  # nothing would ever become free
        if self.gpus and wants_gpu(job.spec) and self._free_gpu() is None:
            return False
        growth = sum(
            max(0, one.bytes - resident_bytes(one.process.pid or 0)) for one in self.running.values()
        )
        return available_bytes() - growth >= estimate_bytes(job.spec)

    def wait(self, seconds: float) -> None:
        """Waits until a worker ends, at most so long, and settles all that have."""
        for sentinel in connection.wait(list(self.running), timeout=seconds):
            one = self.running.pop(sentinel)  # type: ignore[arg-type]  # sentinels went in
            one.process.join()
            settle(one.job, f"its process ended with code {one.process.exitcode}")
            one.process.close()

    def stop(self) -> None:
        """Asks all workers to stop with a checkpoint; those that do not are killed."""
        for one in self.running.values():
            one.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            self.wait(max(0.0, deadline - time.monotonic()))
        for one in self.running.values():
            one.process.kill()
        while self.running:
            self.wait(STOP_SECONDS)


def run_local(
    jobs: Sequence[Job],
    *,
    parallel: int,
    retry_failed: bool = False,
    on_poll: OnPoll = lambda running: None,
    options: Mapping[str, str] | None = None,
    entry: Entry = start_worker,
) -> dict[str, str]:
    """The local launcher; see `Launcher`. Workers come from a fork server that has imported torch once.

    A worker that dies without a word is recorded as stopped, to be continued next time; the others go on.
    SIGTERM is treated as Ctrl-C. `entry` is what a worker runs.
    """
    if options:
        raise UserError(f"--launcher-option {', '.join(options)}: the local launcher has none")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    threads = max((job.spec.get("train", {}).get("threads", 1) for job in jobs), default=1)
    pool = Pool(
        to_do(jobs, retry_failed=retry_failed),
        parallel or default_parallel(len(jobs), threads),
        entry,
    )
    with _terminated_as_interrupted():
        try:
            _drive(pool, on_poll)
        except KeyboardInterrupt:
            pool.stop()
            raise
    return {job.run_id: job.status() for job in jobs}


def _drive(pool: Pool, on_poll: OnPoll) -> None:
    """Runs a pool to its end, or winds it down when `on_poll` says so."""
    reason: str | None = None
    polled = -POLL_SECONDS
    while pool.waiting or pool.running:
        if not reason:
            pool.fill()
        if time.monotonic() - polled >= POLL_SECONDS:
            polled = time.monotonic()
            said = on_poll([one.job for one in pool.running.values()])
            if said and not reason:
                reason = said
                pool.waiting.clear()
                for one in pool.running.values():
                    one.job.ask("pause", reason)
        pool.wait(POLL_SECONDS)
    on_poll([])


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within it, SIGTERM raises KeyboardInterrupt (where signals can be handled: in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
