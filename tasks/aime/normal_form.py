"""Exact normal forms of answers that need not be integers: fractions, mixed numbers, percentages, short text.

Decides equality where it can be decided exactly; says so where it cannot.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.aime.arithmetic import Unknown, evaluate
from tasks.aime.extract import canonical

__all__ = ["possible_values", "same_value", "text_form"]

_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mathit|mbox|operatorname|boxed)\s*\{([^{}]*)\}"
)
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad)(?![A-Za-z])|\\[!,;:> ]|[$~\s]|\\[()\[\]]"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)")
_SINGLE = re.compile(r"([_^])\{([A-Za-z0-9])\}")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree|°")
_LABEL = re.compile(r"^[A-Za-z](?:\([A-Za-z]\)|_\{?\w\}?)?=(?=[^=]+$)")
_TRAILING_UNIT = re.compile(
    r"(?<=[\d})])\s*\\(?:text|textrm|mathrm|mbox)\s*"
    r"\{\s*(?:square |cubic )?[A-Za-z]+(?: [A-Za-z]+)?\.?\s*\}(?:\^\{?[23]\}?)?$"
)
_MIXED = re.compile(r"(-?)(\d{1,12})\\frac\{(\d{1,12})\}\{(\d{1,12})\}")


def text_form(answer: str) -> str:
    """An answer as text without spacing, sizes, redundant wrapping and other ways to write the same."""
    text = canonical(answer).strip().removesuffix(".")
    text = _TRAILING_UNIT.sub("", text)
    for _ in range(4):
        text = _WRAPPED.sub(r"\1", text)
    text = text.replace(",\\!", ",").replace("\\$", "").replace("{,}", ",").replace("\\%", "%")
    text = _DROPPED.sub("", _DEGREES.sub("", text))
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _FRACTION.sub(r"\\frac", text))
    text = _LABEL.sub("", _SINGLE.sub(r"\1\2", text))
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def possible_values(answer: str) -> set[Fraction]:
    """The exact values an answer may mean: one, two for a percentage (35% is 35 or 7/20), none if unknown."""
    text = text_form(answer)
    percent = text.endswith("%")
    text = text.removesuffix("%")
    mixed = _MIXED.fullmatch(text)
    if mixed and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        value = -value if mixed[1] else value
    else:
        try:
            value = evaluate(text)
        except Unknown:
            return set()
    return {value, value / 100} if percent else {value}


def same_value(answer: str, gold: str) -> bool | None:
    """Whether an answer equals the gold exactly; None where normal forms cannot tell."""
    if len(answer) > 1000 or len(gold) > 1000:
        return None
    left, right = text_form(answer), text_form(gold)
    if left and left == right:
        return True
    values, golds = possible_values(answer), possible_values(gold)
    return bool(values & golds) if values and golds else None
