"""Named recipes: how the scores of steps become a local reward in [-1, 1] on characters and the end token.

`first_error_to_end` keeps the rules that let a model train rather than cheat: never ending, running on,
stopping early and filler do not pay. The others place each step's score as published work does; filler
steps pay under them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tasks.base import Answer, LocalReward, Recipe, Score, Span

__all__ = ["DEFAULT_RECIPE", "RECIPES"]

DEFAULT_RECIPE = "first_error_to_end"


def none(answer: Answer, score: Score) -> LocalReward:
    """No local reward: what is left is the outcome."""
    return LocalReward()


def broadcast(answer: Answer, score: Score) -> LocalReward:
    """The score of a step on every character of it; steps that no judge could score are unscored."""
    return LocalReward(score.spans)


def step_end(answer: Answer, score: Score) -> LocalReward:
    """The score of a step on its last character alone."""
    return LocalReward(tuple(replace(span, start=max(span.start, span.end - 1)) for span in score.spans))


def spread(answer: Answer, score: Score) -> LocalReward:
    """The score of a step divided by its length in code points, on every character of it."""
    return LocalReward(
        tuple(replace(span, value=span.value / max(1, span.end - span.start)) for span in score.spans)
    )


def false_steps(answer: Answer, score: Score) -> LocalReward:
    """-1 on false steps, 0 elsewhere: running on dilutes it."""
    whole = Span(0, len(answer.text), 0.0, "elsewhere")
    return LocalReward((whole, *(span for span in score.spans if span.value < 0)))


def first_error_to_end(answer: Answer, score: Score) -> LocalReward:
    """-1 from the first false step of a failing answer to its end, 0 before; right answers get nothing.

    A truncated answer gets -1 everywhere. Where no step is known to be false, the last step is blamed (it
    holds the wrong result), and the end token too when there is no result: the answer stopped too early.
    """
    if score.correct:
        return LocalReward()
    length = len(answer.text)
    if not answer.finished or not score.steps:
        spans = (Span(0, length, -1.0, "no_answer"),) if length else ()
        return LocalReward(spans, end_token=-1.0)
    false = [span.start for span in score.spans if span.value < 0]
    start = min(false) if false else score.steps[-1][0]
    stopped_early = not false and not score.metrics.get("boxed", 0.0)
    return LocalReward(
        (Span(0, start, 0.0, "before_error"), Span(start, length, -1.0, "after_error")),
        end_token=-1.0 if stopped_early else 0.0,
    )


RECIPES: Mapping[str, Recipe] = {
    "first_error_to_end": first_error_to_end,
    "broadcast": broadcast,
    "step_end": step_end,
    "spread": spread,
    "false_steps": false_steps,
    "none": none,
}
