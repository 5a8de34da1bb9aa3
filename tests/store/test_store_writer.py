"""One writer, many readers: locks, whole lines, odd file systems, folders that cannot be written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from harness.commands.common import guarded
from harness.errors import EnvironmentProblem, UserError
from harness.store import writer as store
from harness.store.reader import load_run
from harness.store.tail import RunView, Tail
from harness.store.writer import RunWriter, read_status, run_lock, write_atomic
from harness.sweep.execute import check_writable

MANIFEST = {"run_id": "r1", "arm": "grpo", "spec": {"seeds": {"seed": 3}, "train": {"horizon": 9}}}


def record(step: int) -> dict:
    return {
        "optimizer_step": step,
        "n": 1,
        "metrics": {"correct": step / 1000},
        "costs": {"generated_tokens": step},
    }


def test_second_writer_is_told_who_owns_the_run(tmp_path):
    first = RunWriter(tmp_path, MANIFEST)
    with pytest.raises(
        EnvironmentProblem, match=rf"being written by process {os.getpid()} on \S+; wait for it or stop"
    ):
        RunWriter(tmp_path, MANIFEST)
    first.close()
    RunWriter(tmp_path, MANIFEST).close()


def test_lock_of_a_dead_process_is_free(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_open_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert (tmp_path / ".owner").exists()
    RunWriter(tmp_path, MANIFEST).close()
    assert not (tmp_path / ".owner").exists()


def _open_and_die(folder: Path) -> None:
    RunWriter(folder, MANIFEST).append("steps", record(1))
    os._exit(9)


def test_folder_of_another_run_is_refused_and_not_kept_locked(tmp_path):
    RunWriter(tmp_path, MANIFEST).close()
    with pytest.raises(EnvironmentProblem, match="holds run r1, not r2"):
        RunWriter(tmp_path, {"run_id": "r2"})
    with run_lock(tmp_path):
        pass


class Full:
    """A file on a disk that has room for a few bytes more: it takes a part, and then nothing."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self.file.write(bytes(data)[: self.room])
        self.room -= done
        return done

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_line_that_does_not_fit_leaves_no_part(tmp_path, room):
    writer = RunWriter(tmp_path, MANIFEST)
    writer.append("steps", record(1))
    whole = writer._files["steps"]
    writer._files["steps"] = Full(whole, room)
    with pytest.raises(OSError, match="No space left"):
        writer.append("steps", record(2))
    writer._files["steps"] = whole
    writer.append("steps", record(3))
    writer.close()
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").open()]
    assert [row["optimizer_step"] for row in rows] == [1, 3]


def test_atomic_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomic(path, b"old")

    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    stale = tmp_path / "checkpoints" / ".step-000001.pt.77.tmp"
    stale.write_bytes(b"half")
    RunWriter(tmp_path, MANIFEST).close()
    assert not stale.exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second file system at /dev/shm")
def test_results_on_another_file_system(tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is the same file system as the temporary folder")
        (tmp_path / "results").symlink_to(other)
        writer = RunWriter(tmp_path / "results" / "run", MANIFEST)
        writer.append("evals", record(0))
        writer.status("completed")
        writer.close()
        assert read_status(Path(other) / "run")["status"] == "completed"
        assert load_run(tmp_path / "results" / "run").evals == [record(0)]


def test_read_only_folder_is_one_line(tmp_path, monkeypatch, capsys):
    """Root may write anywhere, so the refusal is simulated where the system would refuse."""

    def refuse(path, *args, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(store.FileLock, "acquire", lambda self: refuse("x"))
    with pytest.raises(
        EnvironmentProblem, match=r"cannot be written \(Read-only file system\): choose another --out"
    ):
        RunWriter(tmp_path / "run", MANIFEST)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: refuse(dir))
    with pytest.raises(EnvironmentProblem, match="Read-only file system"):
        check_writable(tmp_path)
    assert guarded(lambda: refuse(tmp_path / "claim.json")) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_unknown_storage_errors_are_not_hidden():
    def odd() -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    with pytest.raises(OSError, match="Bad file descriptor"):
        guarded(odd)


def test_status_that_is_not_json_names_its_file(tmp_path):
    (tmp_path / "status.json").write_bytes(b"\xff{")
    with pytest.raises(UserError, match=r"status\.json: not JSON"):
        read_status(tmp_path)


def test_truncated_last_line_is_left_out_and_named(tmp_path):
    writer = RunWriter(tmp_path, MANIFEST)
    for step in (0, 5):
        writer.append("evals", record(step))
    writer.close()
    path = tmp_path / "evals.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    run = load_run(tmp_path)
    assert run.evals == [record(0)]
    assert any("evals.jsonl line 2 is cut off" in problem for problem in run.problems)
    assert Tail(path).read() == [record(0)]


def test_tail_follows_a_file_that_a_resume_cuts_and_refills(tmp_path):
    writer = RunWriter(tmp_path, MANIFEST)
    tail = Tail(tmp_path / "steps.jsonl")
    writer.append("steps", record(1))
    mark = writer.offsets()
    writer.append("steps", record(2))
    assert [row["optimizer_step"] for row in tail.read()] == [1, 2]
    writer.rewind(mark)
    assert [row["optimizer_step"] for row in tail.read()] == [1]
    writer.append("steps", {**record(2), "longer": "x" * 50})
    writer.append("steps", record(3))
    assert [row["optimizer_step"] for row in tail.read()] == [2, 3]
    tail.offset -= 5  # in the middle of a line, as after a cut and a refill between two looks
    writer.append("steps", record(4))
    assert [row["optimizer_step"] for row in tail.read()] == [4]
    writer.close()


def _read_all_the_time(folder: Path, stop, results) -> None:
    view, looks, bad = RunView(folder), 0, []
    while not stop.is_set() or looks == 0:
        run = load_run(folder)
        steps = [row["optimizer_step"] for row in run.steps]
        if steps != list(range(1, len(steps) + 1)):
            bad.append(steps)
        bad += [problem for problem in run.problems if "not JSON" in problem or "status.json" in problem]
        view.refresh()
        looks += 1
    view.refresh()
    results.put((looks, bad, view.step))


def test_hundred_readers_never_see_a_broken_record(tmp_path):
    """Readers in four processes, 25 threads each, while a run writes, rewinds and changes its status."""
    writer = RunWriter(tmp_path, MANIFEST)
    writer.status("running")
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    processes = [context.Process(target=_many, args=(tmp_path, stop, results, 25)) for _ in range(4)]
    for process in processes:
        process.start()
    first = results.get(timeout=120)  # all readers of a process look at once when it has started
    for step in range(1, 301):
        writer.append("steps", record(step))
        if step % 10 == 0:
            writer.sync()
            writer.status("running", f"at {step}")
    stop.set()
    found = [results.get(timeout=120) for _ in range(100 + 3)]
    for process in processes:
        process.join()
    writer.close()
    found = [one for one in [first, *found] if one != "ready"]
    assert len(found) == 100
    assert all(looks >= 1 and not bad and step == 300 for looks, bad, step in found)


def _many(folder: Path, stop, results, count: int) -> None:
    import threading

    threads = [
        threading.Thread(target=_read_all_the_time, args=(folder, stop, results)) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    results.put("ready")
    for thread in threads:
        thread.join()
