"""Named recipes: how a scored answer becomes a local reward in [-1, 1] on characters and on the end token.

What a failure is blamed for decides whether a model learns or cheats. The recipes marked *safe* keep four
rules: never ending does not pay (a truncated answer is -1 everywhere), running on does not pay (what comes
after the first error is never above what was there), stopping on a valid prefix does not pay (then the end
token is -1 too), filler does not pay (nothing in a failing answer is above 0). The others are ablations
that are known to break one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tasks.base import Answer, LocalReward, Recipe, Score, Span

DEFAULT_RECIPE = "first_error_to_end"
WINDOW_BEFORE, WINDOW_AFTER = 12, 6
"""Characters blamed around the first error: about four tokens before it and two at it."""

WHOLE_ANSWER_SOURCES = frozenset({"extract", "component", "checker"})
PARSERS = frozenset({"typescript", "esbuild"})
UNCLOSED = frozenset({"TS17008", "TS17014", "TS1160"})
"""Errors that TypeScript reports where a tag, fragment or template begins that is never closed."""
RAN_ON = frozenset({"TS1381", "TS1382"})
"""Errors at a brace or bracket in JSX text: the code went on after a tag that should have been closed."""


def none(answer: Answer, score: Score) -> LocalReward:
    """No local reward: what is left is the outcome."""
    return LocalReward()


def _everywhere(answer: Answer, source: str) -> LocalReward:
    """-1 on every character and on the end token."""
    return LocalReward((Span(0, len(answer.text), -1.0, source),) if answer.text else (), end_token=-1.0)


_LAST_WORD = re.compile(r"\s*\w*\s*")


@dataclass(frozen=True)
class FirstError:
    """Where an answer first goes wrong (code points), and whether it only goes wrong by stopping there."""

    start: int
    at_end: bool


def _first_error(answer: Answer, score: Score) -> FirstError:
    first = min(score.diagnostics, key=lambda d: (d.start, d.end))
    code_end = max((end for _, end in score.steps), default=len(answer.text))
    if any(d.source not in PARSERS for d in score.diagnostics):
        return FirstError(first.start, at_end=False)
    # a valid prefix: what is wrong is at the end, give or take a word cut short, or is not closed by then
    at_end = all(
        d.code in UNCLOSED
        or (d.code not in RAN_ON and _LAST_WORD.fullmatch(answer.text, d.end, max(d.end, code_end)))
        for d in score.diagnostics
    )
    return FirstError(first.start, at_end)


def _blamed(place: Callable[[Answer, Score, FirstError], tuple[Span, ...]]) -> Recipe:
    """A recipe from a rule for failures that have a located first error; its docstring is the rule's."""

    def recipe(answer: Answer, score: Score) -> LocalReward:
        if score.correct:
            return LocalReward()
        if not answer.finished:
            return _everywhere(answer, "truncated")
        if not score.diagnostics or any(d.source in WHOLE_ANSWER_SOURCES for d in score.diagnostics):
            return _everywhere(answer, "no_component")
        error = _first_error(answer, score)
        return LocalReward(place(answer, score, error), end_token=-1.0 if error.at_end else 0.0)

    recipe.__name__ = place.__name__
    recipe.__doc__ = place.__doc__
    return recipe


@_blamed
def first_error_to_end(answer: Answer, score: Score, error: FirstError) -> tuple[Span, ...]:
    """Safe. -1 from the first error to the end of the answer, 0 before it.

    The end token is 0, or -1 where the error is that the code stops too early.
    """
    return (
        Span(0, error.start, 0.0, "before_error"),
        Span(error.start, len(answer.text), -1.0, "after_error"),
    )


@_blamed
def error_window(answer: Answer, score: Score, error: FirstError) -> tuple[Span, ...]:
    """Ablation. -1 on some characters before and at the first error, 0 elsewhere.

    Breaks: the mean over tokens is diluted by running on.
    """
    start = max(0, error.start - WINDOW_BEFORE)
    end = min(len(answer.text), error.start + WINDOW_AFTER)
    return (Span(0, len(answer.text), 0.0, "elsewhere"), Span(start, end, -1.0, "window"))


@_blamed
def error_spans(answer: Answer, score: Score, error: FirstError) -> tuple[Span, ...]:
    """Ablation. Only what the checkers point at, first error -1, later ones -1/2 and -1/4.

    Breaks: the mean over tokens is diluted by running on.
    """
    return (Span(0, len(answer.text), 0.0, "elsewhere"), *score.spans)


def penalise_end(recipe: Recipe) -> Recipe:
    """Ablation of a recipe: the end token of every failure is -1.

    Breaks: most early answers fail, so ending is always in the penalised part and the model never ends.
    """

    def penalised(answer: Answer, score: Score) -> LocalReward:
        local = recipe(answer, score)
        return local if score.correct else replace(local, end_token=-1.0)

    penalised.__doc__ = penalise_end.__doc__
    return penalised


def centre(recipe: Recipe) -> Recipe:
    """Ablation of a recipe: less its mean over the characters, so that only the place of the blame is left.

    Breaks: what comes before an error is above 0, so filler pays.
    """

    def centred(answer: Answer, score: Score) -> LocalReward:
        local = recipe(answer, score)
        length = len(answer.text)
        values = character_values(local, length)
        mean = (sum(values) + local.end_token) / (length + 1)
        if mean == 0.0:
            return local
        spans = tuple(
            Span(start, end, max(-1.0, min(1.0, value - mean)), "centred")
            for start, end, value in _runs(values)
        )
        return LocalReward(spans, end_token=max(-1.0, min(1.0, local.end_token - mean)))

    centred.__doc__ = centre.__doc__
    return centred


def character_values(local: LocalReward, length: int) -> list[float]:
    """The value of each character: of the spans on it the largest in magnitude, the negative at a tie."""
    values = [0.0] * length
    for span in sorted(local.spans, key=lambda s: (abs(s.value), -s.value)):
        start, end = max(0, span.start), min(length, span.end)
        values[start:end] = [span.value] * max(0, end - start)
    return values


def _runs(values: list[float]) -> list[tuple[int, int, float]]:
    """Maximal ranges of equal values."""
    runs: list[tuple[int, int, float]] = []
    for i, value in enumerate(values):
        if runs and runs[-1][2] == value:
            runs[-1] = (runs[-1][0], i + 1, value)
        else:
            runs.append((i, i + 1, value))
    return runs


def well_formed(answer: Answer, score: Score) -> LocalReward:
    """Ablation. `first_error_to_end`, and +1 on every whole line before the first error.

    Breaks: filler lines pay.
    """
    local = first_error_to_end(answer, score)
    if not answer.finished:
        return local
    first = min((s.start for s in local.spans if s.value < 0), default=len(answer.text))
    good = tuple(Span(start, end, 1.0, "well_formed") for start, end in score.steps if end <= first)
    return replace(local, spans=(*local.spans, *good))


def evidence(answer: Answer, score: Score) -> LocalReward:
    """Combines all sources: `first_error_to_end` for what does not compile; else every located finding.

    Findings (types, ESLint, rendering, rubric items, judges' comments) keep the value of their span. Filler
    does not pay: a requested item counts once, at its first place.
    """
    if not score.metrics.get("compile") or not score.spans:
        return first_error_to_end(answer, score)
    return LocalReward((Span(0, len(answer.text), 0.0, "elsewhere"), *score.spans))


RECIPES: Mapping[str, Recipe] = {
    "first_error_to_end": first_error_to_end,
    "error_window": error_window,
    "error_spans": error_spans,
    "first_error_to_end_centred": centre(first_error_to_end),
    "error_window_centred": centre(error_window),
    "first_error_to_end_end_penalised": penalise_end(first_error_to_end),
    "well_formed": well_formed,
    "evidence": evidence,
    "none": none,
}
SAFE_RECIPES = ("first_error_to_end", "none")
