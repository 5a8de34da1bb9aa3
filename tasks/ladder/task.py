"""The ladder as a task: prompts that determine the right steps, exact or degraded local rewards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tasks.base import Answer, Example, LocalReward, Recipe, Score, Span, register
from tasks.ladder.generate import problem
from tasks.ladder.options import LadderOptions
from tasks.ladder.rules import encode_texts, read

__all__ = ["LadderOptions", "LadderTask"]


def steps_scored(answer: Answer, score: Score) -> LocalReward:
    """The evidence as it is: +1 on right steps, -1 on wrong ones (and what degradation made of it)."""
    return LocalReward(score.spans)


def errors_only(answer: Answer, score: Score) -> LocalReward:
    """Only the negative evidence."""
    return LocalReward(tuple(span for span in score.spans if span.value < 0))


@register
class LadderTask:
    """Answers of H steps; the true credit of every token is known (harness.credit)."""

    name: ClassVar[str] = "ladder"
    summary: ClassVar[str] = "steps of a known rule, with known credit: when does token-level credit pay?"
    outcome_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    primary_metric: ClassVar[str] = "correct"
    provides: ClassVar[frozenset[str]] = frozenset(
        {"token_rewards", "steps", "rubric", "privileged_prompt", "hints"}
    )
    recipes: ClassVar[Mapping[str, Recipe]] = {"steps_scored": steps_scored, "errors_only": errors_only}
    default_recipe: ClassVar[str] = "steps_scored"
    Options: ClassVar[type] = LadderOptions

    def __init__(self, options: LadderOptions | None = None, **changes: Any) -> None:
        self.options = replace(options or LadderOptions(), **changes)

    @property
    def optimum(self) -> float:
        """The best expected outcome of any policy: the right answer is always within reach."""
        return 1.0

    def example(self, split: str, index: int) -> Example:
        """Problem number `index` modulo their number; both splits hold the same, as nothing generalises here."""
        return problem(self.options, index % self.options.problems)

    def size(self, split: str) -> int | None:
        """Number of problems."""
        return self.options.problems

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        """The outcome of each answer, a span on every token that has evidence, its steps as ranges."""
        if not answers:
            return []
        symbols, lengths = encode_texts([a.text for a in answers], self.options)
        finished = np.array([a.finished for a in answers])
        problems = np.array([int(e.reference["number"]) for e in examples])
        found = read(symbols, lengths, finished, problems, self.options)
        return [
            Score(
                outcome=float(found.outcome[row]),
                correct=bool(found.correct[row]),
                spans=tuple(
                    Span(int(t), int(t) + 1, float(found.local[row, t]), "step")
                    for t in np.flatnonzero(found.local[row])
                ),
                steps=_ranges(found.step_ids[row, : lengths[row]]),
                metrics={"steps_right": float(found.right[row].sum()) / self.options.steps},
            )
            for row in range(len(answers))
        ]

    def close(self) -> None:
        """Nothing to end."""


def _ranges(step_ids: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Code-point ranges of the steps, in order."""
    edges = [*np.flatnonzero(np.diff(step_ids, prepend=-1)).tolist(), len(step_ids)]
    return tuple(itertools.pairwise(edges))
