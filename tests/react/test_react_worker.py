"""The Node client: batches survive a process that dies, hangs or talks nonsense; forks get their own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import pytest

from tasks.react.install import NodeError
from tasks.react.worker import LineProcess, NodeWorker, WorkerDied, WorkerHung

STUB = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    results = []
    for item in request["items"]:
        if item == "die": sys.stderr.write("Fatal: heap out of memory\\n"); sys.stderr.flush(); os._exit(3)
        if item == "hang": time.sleep(1000)
        if item == "nonsense": print("not JSON", flush=True)
        if item == "list": print("[]", flush=True)
        if item == "short": results = results[:-1]; continue
        results.append({"item": item, "pid": os.getpid()})
    print(json.dumps({"id": request["id"], "results": results}), flush=True)
"""


class StubWorker(NodeWorker):
    """The client with a Python child in place of Node."""

    script: Path

    def _command(self) -> list[str | Path]:
        return [sys.executable, self.script]


@pytest.fixture
def worker(tmp_path: Path):
    stub = StubWorker(batch_seconds=1.0, item_seconds=0.5)
    stub.script = tmp_path / "stub.py"
    stub.script.write_text(STUB)
    yield stub
    stub.close()


@pytest.mark.parametrize(
    ("bad", "failure"),
    [("die", "died"), ("hang", "hung"), ("nonsense", "died"), ("list", "died"), ("short", "died")],
)
def test_only_the_item_at_fault_fails(worker: StubWorker, bad: str, failure: str) -> None:
    results = worker.run(["a", bad, "b"], {})
    assert [r.get("item") for r in results] == ["a", None, "b"]
    assert results[1]["failure"] == failure
    assert worker.run(["c"], {})[0]["item"] == "c"


def test_death_is_explained_by_what_the_process_last_said(worker: StubWorker) -> None:
    assert "heap out of memory" in worker.run(["die"], {})[0]["message"]


def test_all_items_may_be_at_fault(worker: StubWorker) -> None:
    assert [r["failure"] for r in worker.run(["die", "die"], {})] == ["died", "died"]


def test_one_process_serves_many_batches(worker: StubWorker) -> None:
    pids = {r["pid"] for _ in range(3) for r in worker.run(["a", "b"], {})}
    assert len(pids) == 1
    assert worker.restarts == 0


def test_nothing_starts_for_nothing(worker: StubWorker) -> None:
    assert worker.run([], {}) == []
    assert worker._process is None


def test_close_ends_the_process_and_a_later_run_starts_another(worker: StubWorker) -> None:
    first = worker.run(["a"], {})[0]["pid"]
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert worker.run(["a"], {})[0]["pid"] != first


def _pid_in_child(worker: StubWorker, queue: multiprocessing.Queue) -> None:
    queue.put(worker.run(["a"], {})[0]["pid"])
    worker.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_another_process_gets_a_worker_of_its_own(worker: StubWorker, method: str) -> None:
    mine = worker.run(["a"], {})[0]["pid"]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_pid_in_child, args=(worker, queue))
    child.start()
    theirs = queue.get(timeout=60)
    child.join(timeout=60)
    assert theirs != mine
    assert worker.run(["b"], {})[0]["pid"] == mine


def test_a_pickled_worker_carries_no_process(worker: StubWorker) -> None:
    worker.run(["a"], {})
    copy = pickle.loads(pickle.dumps(worker))
    assert copy._process is None
    assert copy.batch_seconds == worker.batch_seconds


def test_a_megabyte_passes_both_ways(worker: StubWorker) -> None:
    text = "x" * 1_000_000
    assert worker.run([text], {})[0]["item"] == text


def test_a_process_that_does_not_read_is_not_waited_for() -> None:
    process = LineProcess([sys.executable, "-c", "import time; time.sleep(1000)"])
    with pytest.raises(WorkerHung):
        process.exchange({"items": ["x" * 1_000_000]}, 0.2)
    process.end()


def test_a_process_that_floods_is_cut_off() -> None:
    process = LineProcess([sys.executable, "-c", "while True: print('x' * 10000, end='')"])
    with pytest.raises(WorkerDied, match="too much"):
        process.exchange(None, 30.0, limit=1_000_000)
    process.end()


def test_a_process_that_cannot_start_is_one_clear_error(worker: StubWorker) -> None:
    worker.script = Path("/nonexistent/stub.py")
    with pytest.raises(NodeError, match="harness setup"):
        worker.run(["a"], {})
