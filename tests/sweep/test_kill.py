"""kill -9 anywhere, then the same command: records and weights equal the uninterrupted run's, byte for byte."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from faults import (
    FaultyStore,
    assert_equal_runs,
    disk_full,
    final_state,
    same,
    work,
    work_until,
    worker_killed_at,
    worker_signalled,
)

from harness.store.writer import read_status, run_lock
from harness.sweep.entry import start_worker
from harness.sweep.jobs import job_for
from harness.sweep.local import run_local
from harness.sweep.worker import run_job

CHECKPOINT = {"checkpoint_every": 2}


@pytest.fixture
def whole(tiny_spec, tmp_path):
    """A factory: the folder of the uninterrupted run of a specification."""

    def make(spec) -> Path:
        job = job_for(spec, tmp_path / "whole")
        if job.status() == "absent":
            assert work(start_worker, job) == 0
        return Path(job.folder)

    return make


def operations(spec, root: Path) -> int:
    """How many write operations a run has."""
    with FaultyStore(-1, disk_full) as store:
        assert run_job(job_for(spec, root)) == "completed"
    return store.count


def test_killed_at_random_times(tiny_spec, tmp_path, whole):
    # long enough that no machine finishes it within the first few of these lives
    spec = tiny_spec("bot_grpo", train={"horizon": 80, **CHECKPOINT})
    job, rng, kills = job_for(spec, tmp_path), random.Random(0), 0
    while job.status() != "completed":
        kills += work_until(job, rng.uniform(0.05, 0.6)) == -signal.SIGKILL
        assert kills < 60, "no progress between kills"
    assert kills >= 3
    assert_equal_runs(Path(job.folder), whole(spec))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_killed_in_write_operations(tiny_spec, tmp_path, whole, algorithm):
    """Half-written lines and checkpoints, missing renames and fsyncs: a sample of all operations."""
    spec = tiny_spec(algorithm, train=CHECKPOINT)
    total = operations(spec, tmp_path / "count")
    assert total > 30
    job = job_for(spec, tmp_path)
    for operation in random.Random(algorithm).sample(range(1, total // 2), 5):
        assert work(worker_killed_at, job, operation) in (-signal.SIGKILL, 0)
    assert work(start_worker, job) == 0
    assert_equal_runs(Path(job.folder), whole(spec))


@pytest.mark.slow
def test_killed_in_every_write_operation(tiny_spec, tmp_path, whole):
    spec = tiny_spec(train={"horizon": 3, **CHECKPOINT})
    for operation in range(1, operations(spec, tmp_path / "count") + 1):
        job = job_for(spec, tmp_path / str(operation))
        assert work(worker_killed_at, job, operation) == -signal.SIGKILL
        assert work(start_worker, job) == 0
        assert_equal_runs(Path(job.folder), whole(spec))


@pytest.mark.slow
def test_soak_of_many_resumes(tiny_spec, tmp_path, whole):
    """SOAK_RESUMES kills and resumes (default 40) of one run, long enough for them on a fast machine."""
    wanted = int(os.environ.get("SOAK_RESUMES", "40"))
    horizon = 12 * wanted
    spec = tiny_spec("ppo", train={"horizon": horizon, "checkpoint_every": 1}, evaluation={"every": 10})
    job, rng = job_for(spec, tmp_path), random.Random(1)
    reference = whole(spec)
    kills = fruitless = 0
    started = time.monotonic()
    while job.status() != "completed":
        before = last_step(Path(job.folder))
        limit = rng.uniform(0.05, 0.7) if kills < wanted else float("inf")
        kills += work_until(job, limit) == -signal.SIGKILL
        fruitless = fruitless + 1 if last_step(Path(job.folder)) <= before else 0
        assert fruitless < 50, "no progress between kills"
        if kills % 20 == 0:
            print(f"soak: {kills} kills, at step {last_step(Path(job.folder))}", flush=True)
    assert kills >= wanted
    assert_equal_runs(Path(job.folder), reference)
    print(f"soak: {kills} kills, {horizon} steps, {time.monotonic() - started:.0f} s: equal", flush=True)


def last_step(folder: Path) -> int:
    path = folder / "steps.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return len(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("phase", ["sampling", "scoring", "backward", "checkpoint"])
def test_signals_in_every_phase(tiny_spec, tmp_path, whole, phase, number):
    """SIGTERM: a clean stop with a checkpoint. SIGINT: ignored, the launcher turns Ctrl-C into SIGTERM."""
    spec = tiny_spec()
    job = job_for(spec, tmp_path)
    assert work(worker_signalled, job, phase, number) == 0
    status = read_status(Path(job.folder))
    if number == signal.SIGTERM:
        assert status["status"] == "stopped"
        assert "asked to stop at optimizer step" in status["reason"]
        assert work(start_worker, job) == 0
    assert job.status() == "completed"
    assert_equal_runs(Path(job.folder), whole(spec))


def test_disk_full_in_write_operations(tiny_spec, tmp_path, whole):
    """The disk fills up at a write and stays full; freed, the same command ends with the same bytes."""
    spec = tiny_spec(train=CHECKPOINT)
    total = operations(spec, tmp_path / "count")
    for operation in random.Random(3).sample(range(8, total), 4):
        fill_and_continue(spec, tmp_path / str(operation), operation)
        assert_equal_runs(Path(job_for(spec, tmp_path / str(operation)).folder), whole(spec))


@pytest.mark.slow
def test_disk_full_in_every_write_operation(tiny_spec, tmp_path, whole):
    spec = tiny_spec(train={"horizon": 3, **CHECKPOINT})
    for operation in range(1, operations(spec, tmp_path / "count") + 1):
        fill_and_continue(spec, tmp_path / str(operation), operation)
        assert_equal_runs(Path(job_for(spec, tmp_path / str(operation)).folder), whole(spec))


def fill_and_continue(spec, root: Path, operation: int) -> None:
    job = job_for(spec, root)
    with FaultyStore(operation, disk_full, lasting=True):
        try:
            assert run_job(job) in {"stopped", "completed"}
        except OSError as error:  # the manifest itself could not be written
            if error.errno != errno.ENOSPC:
                raise
    for name in ("steps", "evals", "timings"):
        path = Path(job.folder) / f"{name}.jsonl"
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            assert line.endswith(b"\n")
            json.loads(line)
    assert not list(Path(job.folder).rglob(".*.tmp"))
    assert run_job(job) == "completed"


def test_bit_flips_in_the_newest_checkpoint(tiny_spec, tmp_path, whole):
    """Found by its checksum: the one before is used, and the damaged one is gone."""
    spec = tiny_spec(train=CHECKPOINT)
    job = job_for(spec, tmp_path)
    assert run_job(job, should_stop=lambda: last_step(Path(job.folder)) >= 3) == "stopped"
    newest = max((Path(job.folder) / "checkpoints").glob("step-*.pt"))
    data = bytearray(newest.read_bytes())
    data[random.Random(5).randrange(len(data))] ^= 1 << 3
    newest.write_bytes(bytes(data))
    assert run_job(job) == "completed"
    assert read_status(Path(job.folder))["damaged_checkpoints"] == [newest.name]
    assert_equal_runs(Path(job.folder), whole(spec))


def test_records_that_a_checkpoint_counts_on_are_lost(tiny_spec, tmp_path, whole):
    """A power cut may keep a checkpoint and lose a line before it: an older checkpoint, or the start, is used."""
    spec = tiny_spec(train=CHECKPOINT)
    job = job_for(spec, tmp_path)
    assert run_job(job, should_stop=lambda: last_step(Path(job.folder)) >= 3) == "stopped"
    steps = Path(job.folder) / "steps.jsonl"
    steps.write_bytes(b"".join(steps.read_bytes().splitlines(keepends=True)[:1]))
    assert run_job(job) == "completed"
    assert_equal_runs(Path(job.folder), whole(spec))


def test_clock_going_back(tiny_spec, tmp_path, whole, monkeypatch):
    """Wall clock and performance counter run backwards: no time is negative, and nothing else notices."""
    now = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    job = job_for(tiny_spec(), tmp_path)
    assert run_job(job) == "completed"
    monkeypatch.undo()
    timings = [json.loads(line) for line in (Path(job.folder) / "timings.jsonl").open()]
    assert all(row["seconds"] >= 0 and row["evaluation_seconds"] >= 0 for row in timings)
    assert_equal_runs(Path(job.folder), whole(tiny_spec()))


def test_worker_of_a_launcher_killed(tiny_spec, tmp_path, whole):
    """The killed run is stopped, the other is done; the same call again continues it."""
    jobs = [job_for(tiny_spec(seed=seed, train={"horizon": 6}), tmp_path) for seed in (0, 1)]
    victim = Path(jobs[0].folder)
    killed = []

    def on_poll(running) -> None:
        if not killed and jobs[0] in running and last_step(victim) >= 1:
            killed.append(int((victim / ".owner").read_text().split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    run_until_killed(jobs, on_poll, killed)
    assert read_status(victim)["status"] == "stopped"
    assert "ended with code -9; run the same command again" in read_status(victim)["reason"]
    assert jobs[1].status() == "completed"
    assert set(run_local(jobs, parallel=2).values()) == {"completed"}
    for job in jobs:
        assert_equal_runs(Path(job.folder), whole(job_spec(job)))


def run_until_killed(jobs, on_poll, killed) -> None:
    import harness.sweep.local as local

    before, local.POLL_SECONDS = local.POLL_SECONDS, 0.005  # the toy run is over in a moment
    try:
        local.run_local(jobs, parallel=2, on_poll=on_poll)
    finally:
        local.POLL_SECONDS = before
    assert killed


def job_spec(job):
    from harness.spec import parse_run

    return parse_run(job.spec)


def test_terminated_launcher_stops_its_workers_cleanly(tiny_spec, tmp_path, whole):
    job = job_for(tiny_spec(train={"horizon": 40}), tmp_path)
    sent = []

    def on_poll(running) -> None:
        if not sent and last_step(Path(job.folder)) >= 1:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(KeyboardInterrupt):
        run_local([job], parallel=1, on_poll=on_poll)
    assert read_status(Path(job.folder))["status"] == "stopped"
    with run_lock(Path(job.folder)):
        pass
    assert set(run_local([job], parallel=1).values()) == {"completed"}
    assert_equal_runs(Path(job.folder), whole(job_spec(job)))


def launch(job) -> None:
    run_local([job], parallel=1)


@pytest.mark.slow
def test_killed_launcher_leaves_no_orphan(tiny_spec, tmp_path, whole):
    """Its workers notice, stop with a checkpoint and free their runs for the next command."""
    import multiprocessing

    job = job_for(tiny_spec(train={"horizon": 400}), tmp_path)
    launcher = multiprocessing.get_context("spawn").Process(target=launch, args=(job,))
    launcher.start()
    while last_step(Path(job.folder)) < 2:
        time.sleep(0.02)
    launcher.kill()
    launcher.join()
    lock = run_lock(Path(job.folder))
    lock.acquire(timeout=60)
    lock.release()
    assert read_status(Path(job.folder))["status"] == "stopped"


def test_the_comparison_notices_a_difference(tiny_spec, tmp_path, whole):
    """The comparison of all these tests can fail."""
    one, other = whole(tiny_spec()), whole(tiny_spec(seed=1))
    with pytest.raises(AssertionError):
        assert_equal_runs(one, other)
    state = final_state(one)
    assert not same(state, final_state(other))
    name = next(iter(state["model"]))
    changed = {**state, "model": {**state["model"], name: state["model"][name] + 1e-7}}
    assert not same(state, changed)
