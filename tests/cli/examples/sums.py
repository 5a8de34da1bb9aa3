"""Sums of two numbers: right answers, and where in the answer the evidence stands."""

import random
import re
from typing import ClassVar

from tasks.base import Answer, Example, LocalReward, Score, Span, register


def on_the_number(answer: Answer, score: Score) -> LocalReward:
    """+1 on a right number, -1 on a wrong one; an answer without a number is left to the outcome."""
    return LocalReward(score.spans)


@register
class Sums:
    """The outcome is 1 when the first number of the answer is the sum."""

    name: ClassVar = "sums"
    summary: ClassVar = "add two numbers below 50"
    outcome_range: ClassVar = (0.0, 1.0)
    primary_metric: ClassVar = "correct"
    provides: ClassVar = frozenset({"token_rewards"})
    recipes: ClassVar = {"on_the_number": on_the_number}
    default_recipe: ClassVar = "on_the_number"

    def example(self, split, index):
        a, b = (random.Random(f"{split} {index} {side}").randrange(50) for side in "ab")
        return Example(id=f"{split}-{index}", prompt=f"{a} + {b} =", reference={"sum": a + b})

    def size(self, split):
        return None if split == "train" else 200

    def score(self, examples, answers):
        return [self._score(e.reference["sum"], a.text) for e, a in zip(examples, answers, strict=True)]

    def _score(self, wanted, text):
        found = re.search(r"\d+", text)
        right = bool(found) and int(found[0]) == wanted
        spans = (Span(*found.span(), 1.0 if right else -1.0, "number"),) if found else ()
        return Score(float(right), right, spans, metrics={"has_number": float(bool(found))})

    def close(self):
        pass
