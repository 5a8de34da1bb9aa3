"""Held-out evaluation of the current policy."""

from __future__ import annotations

from typing import Any

from algorithms.base import Request
from harness.spec import EvaluationSpec
from harness.train.rollout import Generator, describe
from tasks.base import Task


def evaluate(
    generator: Generator, task: Task, spec: EvaluationSpec, *, seed: int, step: int
) -> dict[str, Any]:
    """`n`, mean metrics, and (with several samples a prompt) `problems`: [samples, correct] by example id.

    The prompts are the first `spec.prompts` of the test split, the same at every evaluation of every run;
    the random streams differ by step and by the run's evaluation seed.
    """
    size = task.size("test")
    count = spec.prompts if size is None else min(spec.prompts, size)
    examples = [task.example("test", i) for i in range(count)]
    requests = [Request(example=e, count=spec.samples, group=i) for i, e in enumerate(examples)]
    lots = generator.generate(requests, ("evaluation", seed, step), temperature=spec.temperature)
    flat = [completion for lot in lots for completion in lot]
    record: dict[str, Any] = {"n": len(flat), "metrics": describe(flat)}
    if spec.samples > 1:
        record["problems"] = {
            example.id: [len(lot), sum(c.score.correct for c in lot)]
            for example, lot in zip(examples, lots, strict=True)
        }
    return record
