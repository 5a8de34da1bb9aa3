"""One run of the ladder with a table policy: the same specification and records as any other run."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from typing import Any

from harness.errors import UserError
from harness.ladder.trainer import TableTrainer
from harness.models.source import TABLE
from harness.spec import RunSpec
from harness.store.writer import RunWriter
from harness.train.build import check
from harness.train.hacks import hack_metrics
from harness.train.streams import seed_of

__all__ = ["run_table", "table_trainer"]

LOG_EVERY = 5
HACK_WINDOW = 10


def table_trainer(spec: RunSpec) -> TableTrainer:
    """The trainer of a specification; UserError when its task is not the ladder."""
    if spec.task.name != "ladder":
        raise UserError(
            f"model.name={TABLE!r}: a table can only be the policy of task 'ladder', not of {spec.task.name!r}; "
            "choose another model"
        )
    algorithm, task = check(spec)
    options: Any = task.options  # type: ignore[attr-defined]
    return TableTrainer(algorithm, options, spec.train, seed_of("ladder", spec.seeds.of("sampling")))


class _TableRun:
    """Trains, evaluates in closed form and records; an interrupted run starts afresh, as it takes seconds."""

    def __init__(self, spec: RunSpec, writer: RunWriter) -> None:
        self.spec, self.writer = spec, writer
        self.trainer = table_trainer(spec)
        self.last: dict[str, float] = {}
        self.in_a_row = 0
        self.met_at = -1
        self.history: dict[str, list[float]] = {"mean_tokens": [], "truncated": [], "unique_share": []}
        self.correct: list[float] = []
        self.started = time.perf_counter()

    def steps(self, should_stop: Callable[[], bool]) -> tuple[str, str]:
        """Trains to the horizon, the stop rule or a request to stop; status and reason."""
        horizon, updates = self.spec.train.horizon, self.spec.train.updates_per_rollout
        self.evaluate(0)
        done = 0
        while done < horizon:
            if should_stop():
                return "stopped", f"asked to stop at optimizer step {done}"
            if self.met_at >= 0 and done >= self.met_at + self.spec.stop.after:
                return "completed", f"stop rule met at optimizer step {done}"
            before, done = done, done + updates
            every = self.spec.evaluation.every
            due = done // every > before // every or done >= horizon
            try:
                record = self.trainer.step(describe=due or done % LOG_EVERY == 0)
            except ArithmeticError as error:
                return "diverged", str(error)
            if "mean_tokens" in record:
                self.observe(done, record)
            if due:
                self.evaluate(done)
        return "completed", f"horizon of {horizon} optimizer steps"

    def observe(self, done: int, record: dict[str, float]) -> None:
        """Logs a rollout and keeps what the hack flags need."""
        self.last = {name: record[name] for name in (*self.history, "outcome")}
        for name, values in self.history.items():
            values.append(record[name])
        self.correct.append(record["correct"])
        finite = {name: value for name, value in record.items() if math.isfinite(value)}
        self.writer.append(
            "steps", {"optimizer_step": done, "metrics": finite, "costs": self.trainer.costs.as_dict()}
        )

    def evaluate(self, done: int) -> None:
        """The success probability in closed form, beside the last rollout's other metrics."""
        spec, success = self.spec, self.trainer.success()
        metrics = {"correct": success, **self.last, **self.flags()}
        costs = {**self.trainer.costs.as_dict(), "optimizer_steps": done}
        self.writer.append(
            "evals",
            {"optimizer_step": done, "n": self.trainer.options.problems, "metrics": metrics, "costs": costs},
        )
        times = {
            "seconds": round(time.perf_counter() - self.started, 4),
            "evaluation_seconds": 0.0,  # the closed form takes none to speak of
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        self.writer.append("timings", {"optimizer_step": done, "phase": "train", **times})
        if spec.stop.rule == "sustained" and spec.stop.metric in ("", "correct"):
            self.in_a_row = self.in_a_row + 1 if success >= spec.stop.threshold else 0
            if self.in_a_row >= spec.stop.sustain and self.met_at < 0:
                self.met_at = done

    def flags(self) -> dict[str, float]:
        """Hack flags, once there is a window of rollouts to compare with the start."""
        if len(self.correct) < HACK_WINDOW:
            return {}
        h = self.history
        return hack_metrics(h["mean_tokens"], h["truncated"], h["unique_share"], correct=self.correct)


def run_table(
    spec: RunSpec, writer: RunWriter, should_stop: Callable[[], bool] = lambda: False
) -> tuple[str, str]:
    """Trains a table policy into a run's folder; returns the status and its reason."""
    run = _TableRun(spec, writer)
    writer.rewind({})
    writer.status("running")
    return run.steps(should_stop)
