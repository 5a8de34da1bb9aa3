"""The grader of integer answers: exact, strict, thread-safe, a few microseconds an answer.

The rule, in short (any change of it changes GRADER_VERSION):

- The answer is what the last balanced, non-empty `\\boxed{}` (also `\\fbox`, `\\framebox`) after the last
  closed thought holds; an open thought, or a response cut before its thought closed, has none.
- It must be exactly one integer. Leading zeros, a sign, a zero fraction (`118.0`), thousands grouped
  strictly by three (`12,480`, `12{,}480`, `12\\,480`), other shapes of the digits, redundant braces,
  parentheses and `\\text{}`, a unit, degrees, a percent sign or a leading `n =` do not change the integer.
- A gold that is a decimal asks for that very decimal: neither `35\\%` nor `35` is `0.35`.
- Two numbers, an expression (`236/2`) or words with a meaning of their own (`about`, `or`, `million`) are
  no integer, and wrong. An expression beyond all bounds (`9^{9^{9}}`) is never computed: its status is
  `grader_timeout`, which scores 0 and is counted apart.
- Without a box, the last line `Answer: ...` counts; "the answer is ..." only when asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from tasks.aime.arithmetic import TooLarge, Unknown, evaluate
from tasks.aime.extract import canonical, find_answer

__all__ = ["GRADER_VERSION", "STATUSES", "Grade", "grade", "parse_gold", "parse_integer", "parse_number"]

GRADER_VERSION = "aime-integer-1"
STATUSES = ("correct", "wrong", "no_box", "unbalanced", "truncated", "grader_timeout", "gold_unparsable")
MAX_DIGITS = 60
ESCAPE_DAMAGE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\t]")

_COMMANDS = re.compile(
    r"\\(?:displaystyle|textstyle|left|right|quad|qquad|[bB]igg?[lr]?|large|Large|LARGE|huge|Huge|bf|rm)(?![A-Za-z])"
)
_SPACES = re.compile(r"\\[;:> ]|~")
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textrm|textit|textsf|texttt|textnormal|mathbf|mathrm|mathit|mathsf|mathtt|boldsymbol|bm"
    r"|mbox|hbox|boxed|fbox|ensuremath|underline|emph|num|(?:text)?color\s*\{[A-Za-z!0-9]{1,30}\})\s*\{(.*)\}",
    re.DOTALL,
)
_DELIMITED = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"), ("(", ")"), ("**", "**"))
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\{,\}\d{3})+|(?:\\,\d{3})+|(?:\{\\,\}\d{3})+)")
_NUMBER = r"[+-]?\s*(?:\d[\d,]*(?:(?:\{,\}|\\,|\{\\,\})\d+)*)(?:\.\d*)?"
_UNIT = re.compile(
    rf"(?P<number>{_NUMBER})\s*(?:\\,|\\ )?\s*"
    r"(?:(?:\\(?:text|textrm|mathrm|mbox|textit|textbf|operatorname)\s*\{(?P<words>[^{}\\\d]*)\}(?:\^\{?[23]\}?)?)"
    r"|(?:\^\s*\{?\s*\\circ\s*\}?)|\\degree|°|\\?%|(?:\s(?P<word>[A-Za-z]{2,})))\.?"
)
# possessive, so that hostile names cost no backtracking
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]++)(?:_(?:\w|\{\w{1,8}\}))?'?"
_LABEL = re.compile(rf"(?:{_NAME}\s*+){{1,4}}(?:\+\s*(?:{_NAME}\s*+){{1,4}}){{0,5}}=\s*(?P<rest>[^=]+)")
_TEXT_LABEL = re.compile(r"\\text(?:bf|rm|it)?\s*\{[A-Za-z :=]{1,40}[:=]\s*\}\s*(?P<rest>.+)", re.DOTALL)
# words that change a number or leave it open; a unit does neither
_MEANING = re.compile(
    r"\b(?:or|and|not|about|approximately|approx|around|nearly|almost|roughly|than|least|most|over|under|up|to"
    r"|mod|modulo|if|when|hundred|thousand|million|billion|trillion|dozen|half|third|quarter|(?:ten|hundred"
    r"|thousand)ths?|times|squared|cubed|plus|minus|no|none)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Grade:
    """The verdict on one response; `correct` is None where no verdict was possible (the gold is at fault).

    `extracted` is the integer in plain digits where there is one, else what the box holds; `source` is
    where it was found; `second_opinion` is another grader's word where it was asked.
    """

    status: str
    correct: bool | None
    extracted: str | None = None
    source: str = ""
    second_opinion: str | None = None


def _number(text: str) -> Fraction | None:
    """A run of digits, plain or grouped strictly by three, perhaps with a sign and decimals."""
    sign = -1 if text.startswith("-") else 1
    body = text[1:].lstrip() if text[:1] in ("+", "-") else text
    body, _, decimals = body.partition(".")
    if _GROUPED.fullmatch(body):
        body = re.sub(r"\D", "", body)
    digits = body + decimals
    if not (body.isascii() and body.isdigit() and digits.isdigit()) or len(digits) > MAX_DIGITS:
        return None
    return sign * Fraction(int(digits), 10 ** len(decimals))


def _balanced(text: str) -> bool:
    """Whether the first brace or parenthesis closes only at the end, so that the outer pair is redundant."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if depth <= 0:
            return i == len(text) - 1
    return False


def _unwrap(text: str) -> str:
    """One layer of redundant wrapping less; the same text when there is none."""
    text = text.strip()
    wrapped = _WRAPPER.fullmatch(text)
    if wrapped and _balanced(text[wrapped.start(1) - 1 :]):
        return wrapped[1]
    for left, right in _DELIMITED:
        inner = len(left) + len(right) < len(text) and text.startswith(left) and text.endswith(right)
        if inner and (left not in "{(" or _balanced(text)):
            return text[len(left) : -len(right)]
    return text.removesuffix(".").strip() if not text.endswith("..") else text


def _bare(text: str) -> str:
    """The content without spacing commands and redundant layers."""
    text = _COMMANDS.sub(" ", text.replace("\\!", ""))
    text = re.sub(r"^(?:\s|\\,)+|(?:\s|\\,)+$", "", _SPACES.sub(r"\\,", text))
    for _ in range(12):
        inner = _unwrap(text)
        if inner == text:
            break
        text = inner
    return text.removeprefix("\\$").strip()


def _without_unit(text: str) -> str:
    found = _UNIT.fullmatch(text)
    if not found:
        return text
    words = found["words"] or found["word"] or ""
    return text if _MEANING.search(words) else found["number"].strip()


def parse_number(text: str) -> Fraction | None:
    """The one integer or decimal that an answer holds, by the rule of this module; None for anything else."""
    if len(text) > 200:
        return None
    bare = _bare(canonical(text))
    for pattern in (_TEXT_LABEL, _LABEL):
        label = pattern.fullmatch(bare.replace("\\,", " "))
        if label:
            bare = _bare(label["rest"])
    return _number(_without_unit(bare))


def parse_integer(text: str) -> int | None:
    """The one integer that an answer holds, by the rule of this module; None when it holds no such thing."""
    number = parse_number(text)
    return int(number) if number is not None and number.denominator == 1 else None


def parse_gold(gold: object) -> Fraction | None:
    """A gold answer as an exact number; None when it is no number, or shows escape damage.

    A form feed, backspace or tab means that `\\frac`, `\\boxed` or `\\text` went through a string without
    escaping: such a gold is refused, never compared.
    """
    if isinstance(gold, bool) or not isinstance(gold, Integral | float | str):
        return None
    if isinstance(gold, str):
        return None if ESCAPE_DAMAGE.search(gold) else parse_number(gold)
    if isinstance(gold, Integral):
        return Fraction(int(gold))
    return Fraction(gold) if gold.is_integer() else None


def _beyond_bounds(text: str) -> bool:
    """Whether an answer is arithmetic whose value would take too much to compute."""
    try:
        evaluate(text)
    except TooLarge:
        return True
    except Unknown:
        return False
    return False


def grade(
    response: str, gold: object, *, finish_reason: str | None = None, phrase_fallback: bool = False
) -> Grade:
    """The verdict on one response against a gold integer; needs no process, no signal and no lock."""
    value = parse_gold(gold)
    if value is None:
        return Grade("gold_unparsable", None)
    found = find_answer(response, finish_reason=finish_reason, phrase_fallback=phrase_fallback)
    if found.text is None:
        return Grade(found.status, False)
    answer = parse_number(found.text)
    if answer is None and _beyond_bounds(found.text):
        return Grade("grader_timeout", False, found.text, found.source)
    correct = answer is not None and answer == value
    extracted = str(answer) if answer is not None and answer.denominator == 1 else found.text
    return Grade("correct" if correct else "wrong", correct, extracted, found.source)
