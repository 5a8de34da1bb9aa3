"""A judge without a model: the same answer always gets the same score, by rules that are given to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from tasks.judges.base import (
    Judgement,
    PairRequest,
    Preference,
    RubricRequest,
    StepJudgement,
    StepRequest,
    weighted_score,
)
from tasks.judges.prompts import suspicions

Grade = Callable[[Sequence[RubricRequest]], Sequence[Mapping[str, float]]]
GradeStep = Callable[[str, str], float]
Merit = Callable[[bytes], float]
TIE = 0.02


def words_grade(requests: Sequence[RubricRequest]) -> list[dict[str, float]]:
    """Without better rules: an item is met when its name is seen in what is rendered, else in the answer."""
    return [
        {i.name: float(i.name.lower() in (r.rendered or r.answer).lower()) for i in r.rubric}
        for r in requests
    ]


def no_opinion(problem: str, step: str) -> float:
    """Without better rules: 0 for every step."""
    return 0.0


class ScriptedJudge:
    """Deterministic and local; `grade`, `grade_step` and `merit` hold the rules.

    `merit` rates one screenshot; the higher of two wins, a difference below `tie` is a tie.
    """

    name: ClassVar[str] = "scripted"

    def __init__(
        self,
        grade: Grade = words_grade,
        grade_step: GradeStep = no_opinion,
        merit: Merit | None = None,
        tie: float = TIE,
    ) -> None:
        self._grade = grade
        self._grade_step = grade_step
        self._merit = merit or (lambda image: 0.0)
        self._tie = tie

    def rubric(self, requests: Sequence[RubricRequest]) -> list[Judgement]:
        """See Judge.rubric."""
        found = self._grade(requests)
        return [
            Judgement(weighted_score(r.rubric, dict(items)), dict(items), flags=suspicions(r.answer))
            for r, items in zip(requests, found, strict=True)
        ]

    def steps(self, requests: Sequence[StepRequest]) -> list[StepJudgement]:
        """See Judge.steps."""
        return [
            StepJudgement(tuple(max(-1.0, min(1.0, self._grade_step(r.problem, step))) for step in r.steps))
            for r in requests
        ]

    def compare(self, requests: Sequence[PairRequest]) -> list[Preference]:
        """See Judge.compare."""
        merits: dict[str, float] = {}

        def merit(image: bytes) -> float:
            key = hashlib.sha256(image).hexdigest()
            if key not in merits:
                merits[key] = self._merit(image)
            return merits[key]

        return [self._preference(merit(r.first) - merit(r.second)) for r in requests]

    def _preference(self, difference: float) -> Preference:
        if abs(difference) < self._tie:
            return Preference("tie")
        return Preference("first" if difference > 0 else "second")

    def close(self) -> None:
        """Nothing to end."""
