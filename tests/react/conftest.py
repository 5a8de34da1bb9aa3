"""One checker process for all tests of the React task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.react import ReactTask
from tasks.react.worker import NodeWorker


@pytest.fixture(scope="session")
def react() -> Iterator[ReactTask]:
    task = ReactTask()
    yield task
    task.close()


@pytest.fixture(scope="session")
def cpu_seconds() -> Callable[..., float]:
    """CPU time so far of the processes of some workers and of all that they started: unlike wall time, it
    does not depend on who else is at work."""

    def measure(*workers: NodeWorker) -> float:
        sessions = {worker._process.process.pid for worker in workers if worker._process is not None}
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[3]) in sessions:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    return measure
