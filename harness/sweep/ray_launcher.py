"""The ray launcher: runs as ray tasks on any node; records and checkpoints stream home as they are written.

Nodes share no folder. Each attempt at a run registers at home, takes what is there, works in a folder of its
own, and sends what it writes. Home accepts only the newest attempt of a run: when a node dies, ray starts the
task elsewhere, which continues from the last checkpoint that came home; an attempt that was thought dead and
is not is turned away and stops.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness.errors import EnvironmentProblem
from harness.spec import parse_value
from harness.store.writer import owner_of, read_status, run_lock
from harness.sweep import mirror
from harness.sweep.jobs import FINISHED, Job
from harness.sweep.launcher import OnPoll, settle, to_do
from harness.sweep.resources import estimate_bytes, wants_gpu

POLL_SECONDS = 0.5
SEND_SECONDS = 0.5
STOP_SECONDS = 120.0
RETRIES = 5
"""How often ray starts a run again whose node or process died; a run continues, so that each gains ground."""
OPTIONS = ("address", "retries")


class Home:
    """The actor beside the launcher that owns the run folders; see the module."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._locks: dict[str, FileLock] = {}
        self._everyone: tuple[str, str] = ("", "")
        self._begun: list[tuple[str, str]] = []

    def register(self, job: Job, node: str) -> tuple[int, dict[str, bytes], str]:
        """A new attempt's number, the files to continue from, and why not to run ("" to run)."""
        folder = Path(job.folder)
        if job.status() in FINISHED and job.run_id in self._attempts:
            return 0, {}, "finished"
        if self._everyone[0] == "stop":
            return 0, {}, "stopping"
        if job.run_id not in self._locks:
            folder.mkdir(parents=True, exist_ok=True)
            lock = run_lock(folder)
            try:
                lock.acquire()
            except Timeout:
                return 0, {}, f"being written by {owner_of(folder)}"
            self._locks[job.run_id] = lock
        self._attempts[job.run_id] = self._attempts.get(job.run_id, 0) + 1
        self._begun.append((job.run_id, node))
        return self._attempts[job.run_id], mirror.contents(folder), ""

    def receive(self, job: Job, attempt: int, delta: mirror.Delta) -> tuple[str, str]:
        """Takes a delta; answers with a wish (`stop` or `pause`, reason), `stop` to an attempt that is out of date."""
        if attempt != self._attempts.get(job.run_id):
            return "stop", "another attempt has taken over"
        mirror.apply(Path(job.folder), delta)
        return self._everyone

    def release(self, job: Job) -> None:
        """Gives a run's lock back."""
        lock = self._locks.pop(job.run_id, None)
        if lock is not None:
            lock.release()

    def wish(self, kind: str, reason: str) -> None:
        """What every run is asked from now on: `stop` or `pause`."""
        self._everyone = (kind, reason)

    def begun(self) -> list[tuple[str, str]]:
        """Run id and node of every attempt so far, in order."""
        return list(self._begun)


class Sender(threading.Thread):
    """Sends what a run writes, twice a second, and carries home's wishes back."""

    def __init__(self, home: Any, job: Job, local: Job, attempt: int) -> None:
        super().__init__(daemon=True, name="sender")
        self.home, self.job, self.local, self.attempt = home, job, local, attempt
        self.source = mirror.Source(Path(local.folder))
        self.stop_asked = threading.Event()
        self._done = threading.Event()

    def run(self) -> None:
        """The thread."""
        while not self._done.wait(SEND_SECONDS):
            self.send()

    def send(self) -> None:
        """Sends once; the wish that comes back reaches the run as the launchers' request does."""
        import ray

        try:
            kind, reason = ray.get(self.home.receive.remote(self.job, self.attempt, self.source.collect()))
        except ray.exceptions.RayActorError:
            kind, reason = "stop", "the launcher is gone"
        if kind == "stop":
            self.stop_asked.set()
        elif kind == "pause" and not self.local.asked("pause"):
            self.local.ask("pause", reason)

    def finish(self) -> None:
        """Sends the rest; after that home has everything."""
        self._done.set()
        self.join()
        self.send()


def attempt_run(home: Any, job: Job, where: str) -> str:
    """The body of a ray task: one attempt at a run; its status, or why it was not begun.

    Relative paths of a specification mean the launcher's folder `where`, on nodes that have it.
    """
    import ray

    if os.path.isdir(where):
        os.chdir(where)

    attempt, files, refusal = ray.get(home.register.remote(job, ray.get_runtime_context().get_node_id()))
    if refusal:
        return refusal
    from harness.sweep.worker import run_job

    folder = Path(tempfile.mkdtemp(prefix=f"creditbench-{job.run_id}-"))
    local = Job(job.spec, str(folder), job.claim, job.arm)
    try:
        mirror.unpack(folder, files)
        sender = Sender(home, job, local, attempt)
        sender.start()
        status = run_job(local, sender.stop_asked.is_set)
        sender.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _connect(options: Mapping[str, str]) -> Any:
    """Ray, connected to the cluster that is named, that runs here, or a new one on this machine."""
    try:
        import ray
    except ImportError:
        raise EnvironmentProblem("--launcher ray needs ray: pip install 'creditbench[ray]'") from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    address = options.get("address") or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address:
            raise EnvironmentProblem(f"ray: no cluster at {address!r} ({error})") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(include_dashboard=False, **quiet)
    return ray


def _submit(ray: Any, home: Any, job: Job, retries: int) -> Any:
    """The task of one job: its threads, its memory, and one GPU where the cluster has some."""
    gpu = 1 if wants_gpu(job.spec) and ray.cluster_resources().get("GPU", 0) else 0
    largest = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    own_process = ray.remote(max_calls=1)(attempt_run)
    task = own_process.options(
        name=job.name,
        num_cpus=job.spec["train"]["threads"],
        num_gpus=gpu,
        memory=min(estimate_bytes(job.spec), largest),  # ray would wait for ever for more
        max_retries=retries,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}},
    )
    return task.remote(home, job, os.getcwd())


class Tasks:
    """The tasks of a sweep: at most `parallel` submitted at a time (0: all, ray queues them)."""

    def __init__(self, ray: Any, home: Any, waiting: Sequence[Job], parallel: int, retries: int) -> None:
        self.ray, self.home, self.retries = ray, home, retries
        self.waiting = list(waiting)[::-1]
        self.parallel = parallel or len(waiting)
        self.open: dict[Any, Job] = {}

    def fill(self) -> None:
        """Submits what there is room for."""
        while self.waiting and len(self.open) < self.parallel:
            job = self.waiting.pop()
            self.open[_submit(self.ray, self.home, job, self.retries)] = job

    def wait(self, seconds: float) -> None:
        """Waits until a task ends, at most so long, and settles all that have."""
        if not self.open:
            return
        done, _ = self.ray.wait(list(self.open), num_returns=1, timeout=seconds)
        for task in done:
            job = self.open.pop(task)
            reason = "its ray task ended"
            try:
                self.ray.get(task)
            except self.ray.exceptions.TaskCancelledError:
                reason = "it was not begun"
            except self.ray.exceptions.RayError as error:
                reason = f"ray gave it up ({type(error).__name__})"
            self.ray.get(self.home.release.remote(job))
            settle(job, reason)

    def stop(self) -> None:
        """Asks all runs to stop with a checkpoint; those that do not are killed."""
        self.waiting.clear()
        self.ray.get(self.home.wish.remote("stop", "interrupted"))
        rounds = int(STOP_SECONDS / POLL_SECONDS)
        while self.open and rounds:
            self.wait(POLL_SECONDS)
            rounds -= 1
        for task in self.open:
            self.ray.cancel(task, force=True)
        while self.open:
            self.wait(STOP_SECONDS)


def run_ray(
    jobs: Sequence[Job],
    *,
    parallel: int,
    retry_failed: bool = False,
    on_poll: OnPoll = lambda running: None,
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The ray launcher; see `Launcher`. `options`: `address` of a cluster, `retries` after a death (default 5)."""
    options = dict(options or {})
    for name in options:
        if name not in OPTIONS:
            raise EnvironmentProblem(f"--launcher-option {name}: ray takes {', '.join(OPTIONS)}")
    jobs = [dataclasses.replace(job, folder=str(Path(job.folder).absolute())) for job in jobs]
    waiting = to_do(jobs, retry_failed=retry_failed)
    if not waiting:
        on_poll([])
        return {job.run_id: job.status() for job in jobs}
    ray = _connect(options)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    home = ray.remote(Home).options(num_cpus=0, scheduling_strategy=here, max_concurrency=1).remote()
    retries = int(parse_value(options.get("retries", str(RETRIES))))
    tasks = Tasks(ray, home, waiting, parallel, retries)
    try:
        _drive(ray, tasks, on_poll)
    except KeyboardInterrupt:
        tasks.stop()
        raise
    finally:
        ray.kill(home)
    return {job.run_id: job.status() for job in jobs}


def _drive(ray: Any, tasks: Tasks, on_poll: OnPoll) -> None:
    """Runs the tasks to their end, or winds them down when `on_poll` says so."""
    reason: str | None = None
    while tasks.waiting or tasks.open:
        if not reason:
            tasks.fill()
        running = [job for job in tasks.open.values() if read_status(Path(job.folder))["status"] == "running"]
        said = on_poll(running)
        if said and not reason:
            reason = said
            tasks.waiting.clear()
            ray.get(tasks.home.wish.remote("pause", reason))
            for task, job in tasks.open.items():
                if job not in running:
                    ray.cancel(task)
        tasks.wait(POLL_SECONDS)
    on_poll([])
