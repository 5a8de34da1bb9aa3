"""The grader of answers that need not be integers: exact normal forms first, math-verify where they cannot tell."""

from __future__ import annotations

from collections.abc import Callable

from tasks.aime.extract import find_answer
from tasks.aime.grader import ESCAPE_DAMAGE, Grade
from tasks.aime.normal_form import same_value, text_form

__all__ = ["MATH_GRADER_VERSION", "gold_text", "grade_math"]

MATH_GRADER_VERSION = "aime-math-1"

Opinion = Callable[[str, str], str]
"""Answer and gold to one of second_opinion.OPINIONS, or `unavailable`."""


def gold_text(gold: object) -> str | None:
    """A gold answer as text; None when it is empty, of another type, or shows escape damage."""
    if isinstance(gold, int | float) and not isinstance(gold, bool):
        return str(int(gold)) if float(gold).is_integer() else str(gold)
    if not isinstance(gold, str) or ESCAPE_DAMAGE.search(gold) or not text_form(gold):
        return None
    return gold.strip()


def grade_math(
    response: str,
    gold: object,
    ask: Opinion,
    *,
    finish_reason: str | None = None,
    phrase_fallback: bool = False,
    ask_always: bool = False,
) -> Grade:
    """The verdict on one response: by exact normal forms, by `ask` where these cannot tell.

    With `ask_always` the second opinion is recorded for every extracted answer, so that the rate of
    disagreement can be reported; it never overrules a normal form. An answer that only a second opinion
    could compare, where there is none, counts as wrong and carries `unavailable`.
    """
    truth = gold_text(gold)
    if truth is None:
        return Grade("gold_unparsable", None)
    found = find_answer(response, finish_reason=finish_reason, phrase_fallback=phrase_fallback)
    if found.text is None:
        return Grade(found.status, False)
    same = same_value(found.text, truth)
    opinion = ask(found.text, truth) if same is None or ask_always else None
    if same is None and opinion in ("timeout", "crashed"):
        return Grade("grader_timeout", False, found.text, found.source, opinion)
    correct = opinion == "correct" if same is None else same
    return Grade("correct" if correct else "wrong", correct, found.text, found.source, opinion)
