"""The ray launcher on a cluster of two nodes on this machine, one of which dies in the middle."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from faults import assert_equal_runs, work

from harness.errors import EnvironmentProblem, RunsFailed
from harness.store.writer import read_status, run_lock
from harness.sweep.entry import start_worker
from harness.sweep.execute import Settings, execute
from harness.sweep.jobs import job_for

if os.environ.get("CREDITBENCH_REQUIRE_RAY"):
    import ray
else:
    ray = pytest.importorskip("ray", reason="ray is not installed: tox -e ray, or the extra ray")
pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture
def cluster(monkeypatch):
    """A head without places for runs (home lives there) and two nodes of one place each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = start(Cluster)
    ray.init(address=found.address, log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()
    found.shutdown()


def start(cluster_class, tries: int = 4):
    """A cluster of three nodes; ray gives each node 30 s to start, which a busy machine may exceed."""
    for left in reversed(range(tries)):
        found = cluster_class()
        try:
            found.add_node(num_cpus=0, include_dashboard=False)
            found.workers = [found.add_node(num_cpus=1) for _ in range(2)]
            return found
        except Exception as error:
            found.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError("unreachable")


def lines(folder: str) -> int:
    path = Path(folder) / "steps.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.fixture
def begun(monkeypatch):
    """Asks home, while a sweep runs and when it has ended, which attempts there were, on which node."""
    from harness.sweep import ray_launcher

    found: list[tuple[str, str]] = []
    original = ray_launcher._drive

    def drive(module, tasks, on_poll):
        def poll(running):
            found[:] = module.get(tasks.home.begun.remote())
            return on_poll(running)

        original(module, tasks, poll)

    monkeypatch.setattr(ray_launcher, "_drive", drive)
    return found


def test_a_node_dies_in_the_middle_and_nothing_is_lost(tiny_spec, tmp_path, cluster, begun):
    horizon = 120
    jobs = [
        job_for(tiny_spec(seed=seed, train={"horizon": horizon, "checkpoint_every": 2}), tmp_path / "ray")
        for seed in range(3)
    ]
    killed: list[str] = []

    def show(running) -> None:
        for job in running:
            if not killed and lines(job.folder) >= 6:  # home has records of it: its node dies without a word
                place = dict(begun)[job.run_id]
                killed.append(job.run_id)
                node = next(node for node in cluster.workers if node.node_id == place)
                cluster.remove_node(node, allow_graceful=False)

    statuses = execute(jobs, Settings(launcher="ray"), show)
    assert set(statuses.values()) == {"completed"}
    attempts = Counter(run_id for run_id, _ in begun)
    assert set(attempts) == {job.run_id for job in jobs}
    assert attempts[killed[0]] == 2  # only the dead node's run was begun again, on the other node
    assert all(count == 1 for run_id, count in attempts.items() if run_id != killed[0])
    places = [node for run_id, node in begun if run_id == killed[0]]
    assert places[0] != places[1]
    for job in jobs:
        rows = [json.loads(line) for line in (Path(job.folder) / "steps.jsonl").open()]
        assert [row["optimizer_step"] for row in rows] == list(range(1, horizon + 1))
        reference = job_for(spec_of(job), tmp_path / "whole")
        assert work(start_worker, reference) == 0
        assert_equal_runs(Path(job.folder), Path(reference.folder))
    # the same command again runs nothing
    before = list(begun)
    assert set(execute(jobs, Settings(launcher="ray")).values()) == {"completed"}
    assert begun == before
    print(f"\nray: 3 runs of {horizon} steps, one of two nodes killed, {len(begun)} attempts, all equal")


def spec_of(job):
    from harness.spec import parse_run

    return parse_run(job.spec)


def test_budget_and_interrupt_reach_the_nodes(tiny_spec, tmp_path, cluster):
    jobs = [job_for(tiny_spec(seed=seed, train={"horizon": 500}), tmp_path) for seed in (0, 1)]
    with pytest.raises(RunsFailed, match=r"the budget of 200 tokens is used up .* 2 of 2 runs"):
        execute(jobs, Settings(launcher="ray", tokens=200))
    paused = [read_status(Path(job.folder)) for job in jobs]
    assert any("paused at optimizer step" in status["reason"] for status in paused)
    assert "completed" not in {status["status"] for status in paused}
    at = lines(jobs[0].folder)

    def interrupt(running) -> None:
        if lines(jobs[0].folder) > at + 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(jobs, Settings(launcher="ray"), interrupt)
    assert "asked to stop" in read_status(Path(jobs[0].folder))["reason"]
    with run_lock(Path(jobs[0].folder)):  # given back
        pass


def test_unknown_option_is_refused(tiny_spec, tmp_path):
    with pytest.raises(EnvironmentProblem, match="ray takes address, retries"):
        execute([job_for(tiny_spec(), tmp_path)], Settings(launcher="ray", launcher_options=["adress=x"]))
