"""Faults to inject: the n-th write operation of the store killed or refused, kills by processor time, signals."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from harness.store import writer
from harness.sweep.entry import start_worker
from harness.sweep.jobs import Job
from harness.sweep.server import fork_server

Harm = Callable[[], None]
RECORDS = ("steps.jsonl", "evals.jsonl")


class FaultyFile:
    """A file whose writes are counted; harm comes after half of the data is written."""

    def __init__(self, file: Any, store: FaultyStore) -> None:
        self._file, self._store = file, store

    def write(self, data: Any) -> int:
        if self._store.due():
            self._file.write(bytes(data)[: len(data) // 2])
            self._file.flush()
            self._store.harm()
        return self._file.write(data)

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FaultyStore:
    """Counts every write, fsync, rename and cut of the store; does harm at operation `at` (and after, if `lasting`)."""

    def __init__(self, at: int, harm: Harm, *, lasting: bool = False) -> None:
        self.at, self.harm, self.lasting = at, harm, lasting
        self.count = 0

    def due(self) -> bool:
        self.count += 1
        return self.count == self.at or (self.lasting and self.count > self.at)

    def __enter__(self) -> FaultyStore:
        self._kept = {name: getattr(os, name) for name in ("fsync", "replace", "ftruncate")}
        names = ("fsync", "replace") if self.lasting else tuple(self._kept)  # a full disk can be cut
        for name in names:
            setattr(os, name, self._wrapped(self._kept[name]))
        writer.open = self._open  # type: ignore[attr-defined]
        return self

    def __exit__(self, *error: object) -> None:
        for name, function in self._kept.items():
            setattr(os, name, function)
        del writer.open  # type: ignore[attr-defined]

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            if self.due():
                self.harm()
            return function(*args)

        return counted

    def _open(self, path: Any, mode: str, **options: Any) -> Any:
        file = open(path, mode, **options)  # noqa: SIM115 - the caller closes it
        return FaultyFile(file, self) if "w" in mode or "a" in mode else file


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "steps.jsonl")


def worker_killed_at(job: Job, operation: int) -> None:
    """A worker that dies in the middle of its n-th write operation."""
    with FaultyStore(operation, kill_self):
        start_worker(job)


def worker_signalled(job: Job, phase: str, number: int) -> None:
    """A worker that gets a signal in the middle of a phase (its third call)."""
    from harness.train import checkpoint
    from harness.train.rollout import Generator
    from harness.train.sampler import NativeSampler

    owner, name = {
        "sampling": (NativeSampler, "sample"),
        "scoring": (Generator, "_decode"),
        "backward": (torch.Tensor, "backward"),
        "checkpoint": (checkpoint.torch, "save"),
    }[phase]
    function, calls = getattr(owner, name), []

    def signalled(*args: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return function(*args, **options)

    setattr(owner, name, signalled)
    start_worker(job)


def spawn(function: Callable[..., None], *args: Any) -> BaseProcess:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    process = fork_server().Process(target=function, args=args)
    process.start()
    return process


def work(function: Callable[..., None], *args: Any) -> int | None:
    """Runs a worker to its end; its exit code."""
    process = spawn(function, *args)
    process.join()
    return process.exitcode


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far: kills at such times do not depend on how busy the machine is."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work_until(job: Job, seconds: float) -> int | None:
    """Runs a worker and kills it (-9) after so much processor time; its exit code."""
    process = spawn(start_worker, job)
    while process.is_alive() and processor_seconds(process.pid or 0) < seconds:
        time.sleep(0.002)
    process.kill()
    process.join()
    return process.exitcode


def final_state(folder: Path) -> dict[str, Any]:
    """The last checkpoint without its clock."""
    from harness.train import checkpoint

    state, _ = checkpoint.load_last(folder / "checkpoints")
    assert state is not None
    for name in ("seconds", "evaluation_seconds"):
        del state["progress"][name]
    del state["offsets"]["timings"]
    return state


def same(one: Any, other: Any) -> bool:
    """Equality of nested values, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def assert_equal_runs(folder: Path, whole: Path) -> None:
    """Records, best weights, and the whole final state (weights, optimizer, algorithm, counters) are equal."""
    for name in RECORDS:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    best = "checkpoints/best.pt"
    assert (folder / best).read_bytes() == (whole / best).read_bytes()
    assert same(final_state(folder), final_state(whole))
