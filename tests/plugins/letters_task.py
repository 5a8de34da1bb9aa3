"""A toy task: begin with a character of even code; scored in Python, with located evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tasks.base import Answer, Example, LocalReward, Recipe, Score, Span, register


def by_letter(answer: Answer, score: Score) -> LocalReward:
    """+1 on characters of even code, -1 on the others."""
    return LocalReward(score.spans, end_token=0.0)


@register
class LettersTask:
    """The outcome is 1 when the code of the answer's first character is even."""

    name: ClassVar[str] = "letters"
    summary: ClassVar[str] = "begin with a character of even code"
    outcome_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    primary_metric: ClassVar[str] = "correct"
    provides: ClassVar[frozenset[str]] = frozenset({"token_rewards", "steps"})
    recipes: ClassVar[Mapping[str, Recipe]] = {"by_letter": by_letter}
    default_recipe: ClassVar[str] = "by_letter"

    def example(self, split: str, index: int) -> Example:
        letter = "abcdefgh"[index % 8]
        return Example(id=f"{split}-{index}", prompt=f"write {letter}:")

    def size(self, split: str) -> int | None:
        return None if split == "train" else 8

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        out = []
        for answer in answers:
            even = [ord(c) % 2 == 0 for c in answer.text]
            spans = tuple(Span(i, i + 1, 1.0 if e else -1.0, "parity") for i, e in enumerate(even))
            right = bool(even) and even[0]
            out.append(
                Score(float(right), right, spans, steps=((0, len(answer.text)),), metrics={"any": 1.0})
            )
        return out

    def close(self) -> None:
        pass
