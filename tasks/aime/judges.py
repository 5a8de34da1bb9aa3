"""Judges of steps: exact arithmetic, any judge of tasks.judges, a process-reward model, or a factory by path."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.aime.arithmetic import find_equalities, step_value
from tasks.base import Diagnostic
from tasks.judges.base import Judge, StepJudgement, StepRequest
from tasks.judges.make import JUDGES, make_judge

__all__ = ["ArithmeticJudge", "ModelStepJudge", "StepItem", "StepJudge", "StepVerdict", "load_judge"]

PATHS = {"prm": "harness.evaluate.prm:load"}
"""Judges that live elsewhere, by the import path of a factory."""


@dataclass(frozen=True)
class StepItem:
    """One answer to judge: the problem, the answer, and its steps in code points."""

    problem: str
    answer: str
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StepVerdict:
    """A judge's word on one step: a value in [-1, 1], None where it has none, and located faults."""

    value: float | None
    diagnostics: tuple[Diagnostic, ...] = ()


class StepJudge(Protocol):
    """Judges the steps of answers; values are bounded to [-1, 1] by the task."""

    name: str

    def judge(self, items: Sequence[StepItem]) -> list[list[StepVerdict]]:
        """One verdict for each step of each item, in order."""
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


class ArithmeticJudge:
    """Every equality of a step, exactly: 1 when all hold, -1 when one does not, no word without any."""

    name = "arithmetic"

    def judge(self, items: Sequence[StepItem]) -> list[list[StepVerdict]]:
        """See StepJudge.judge."""
        return [[self._step(item.answer, start, end) for start, end in item.steps] for item in items]

    @staticmethod
    def _step(answer: str, start: int, end: int) -> StepVerdict:
        equalities = find_equalities(answer[start:end])
        faults = tuple(
            Diagnostic(
                "arithmetic",
                "false_equality",
                f"left side is {e.left}, right side is {e.right}",
                start + e.start,
                start + e.end,
            )
            for e in equalities
            if not e.holds
        )
        return StepVerdict(step_value(equalities), faults)

    def close(self) -> None:
        """Nothing to end."""


class ModelStepJudge:
    """Any judge of tasks.judges as a judge of steps; a failed judgement gives no verdicts, never zeros.

    `failed` counts answers without a judgement; `calls` and `usd` what was spent.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge_model = judge
        self.name = judge.name
        self.failed = 0
        self.calls = 0
        self.usd = 0.0

    def judge(self, items: Sequence[StepItem]) -> list[list[StepVerdict]]:
        """See StepJudge.judge."""
        requests = [
            StepRequest(item.problem, tuple(item.answer[start:end] for start, end in item.steps))
            for item in items
        ]
        judgements = self.judge_model.steps(requests)
        return [self._verdicts(item, said) for item, said in zip(items, judgements, strict=True)]

    def _verdicts(self, item: StepItem, said: StepJudgement) -> list[StepVerdict]:
        self.calls += said.usage.calls
        self.usd += said.usage.usd
        if said.scores is None or len(said.scores) != len(item.steps):
            self.failed += 1
            return [StepVerdict(None) for _ in item.steps]
        return [StepVerdict(score) for score in said.scores]

    def close(self) -> None:
        """Ends the judge."""
        self.judge_model.close()


def load_judge(name: str, **options: Any) -> StepJudge | None:
    """A judge of steps by name, with its options; ValueError in one line otherwise.

    `none`, `arithmetic`, `prm` (a process-reward model), a judge of tasks.judges (`openai`, `anthropic`,
    `scripted`), or `package.module:factory`.
    """
    if name in ("none", "arithmetic"):
        if options:
            raise ValueError(f"judge_options={options!r}: the judge {name!r} has none; leave them out")
        return None if name == "none" else ArithmeticJudge()
    if name in JUDGES:
        return ModelStepJudge(make_judge(name, **options))
    module, _, attribute = PATHS.get(name, name).partition(":")
    if not attribute:
        known = ", ".join(("none", "arithmetic", "prm", *JUDGES))
        raise ValueError(f"judge={name!r} is unknown: choose {known}, or package.module:factory")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"judge={name!r} cannot be loaded ({error}); check the import path") from error
    judge: StepJudge = factory(**options)
    return judge
