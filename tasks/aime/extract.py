"""Finds the final answer in a response: after the last closed thought, in the last balanced box."""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass

__all__ = ["Found", "canonical", "find_answer"]

CUT_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
"""How the engines say that the token limit ended a response."""
MAX_ANSWER_CHARS = 1000
MAX_BOXES = 64
"""A longer box, or one with more boxes after it, holds no answer: bounds the work on hostile text."""

_NAMES = "think|thinking|thought|thoughts|reasoning"
_THOUGHT = re.compile(
    rf"(?P<open><\s*(?:{_NAMES})\s*>|\[THINK\]|◁think▷|<\|begin_of_thought\|>)"
    rf"|(?P<close><\s*/\s*(?:{_NAMES})\s*>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>)",
    re.IGNORECASE,
)
_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox|bbox)(?![A-Za-z])\s{0,9}(?:\[[^\[\]{}]{0,40}\]\s{0,9}){0,2}(?:\{|(?P<bare>[+-]?\d+))"
)
_BRACES = re.compile(r"\\\\(?!boxed|fbox|framebox|bbox)|\\[{}]|(?P<open>\{)|(?P<close>\})")
_ANSWER_LINE = re.compile(
    r"^[ \t*_#>-]{0,20}(?:final[ \t]{1,4})?answer[ \t*_]{0,9}:[ \t*_]{0,9}(?P<answer>[^\s*_][^\n]{0,200})$",
    re.IGNORECASE | re.MULTILINE,
)
_PHRASE = re.compile(
    r"\banswer\s+(?:is|equals|=)\s*:?\s*(?=(?P<answer>[^\s.,;:!?][^\n]{0,80}))", re.IGNORECASE
)
_NUMBER_AT_START = re.compile(r"[$\\(\s*]*([+-]?\d(?:[\d,]*\d)?(?:\.\d+)?)")


@dataclass(frozen=True)
class Found:
    """What a response gives as its answer.

    `status` is "" when `text` holds an answer, else `no_box`, `unbalanced` or `truncated`; `source` says
    where it was found: `box`, `answer_line` (a line "Answer: ...") or `phrase` ("the answer is ...").
    """

    text: str | None = None
    source: str = ""
    status: str = ""


@functools.lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    """One character in ASCII where it is only another shape of it; superscripts and fractions stay."""
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Cf":
        return ""
    if category == "Zs":
        # the thin and narrow spaces that group digits; every other one is a plain space
        return "\\," if character in "\u2009\u202f\u2006\u2008" else " "
    if character in "\u2212\ufe63\u2010\u2011\u2012\u2013":
        return "-"
    # super- and subscripts, circled and vulgar fractions would change the value: 11\u00b2 is not 112
    if unicodedata.decomposition(character).startswith(("<wide>", "<narrow>", "<font>", "<small>")):
        return unicodedata.normalize("NFKC", character)
    return character


def canonical(text: str) -> str:
    """Full-width, mathematical and other decimal digits, signs, braces and spaces as ASCII."""
    return text if text.isascii() else re.sub(r"[^\x00-\x7f]", lambda m: _plain_character(m[0]), text)


def _after_thoughts(text: str) -> str | None:
    """The text after the last closed thought; None while a thought is still open."""
    lowered = text.lower()
    if not any(name in lowered for name in ("think", "thought", "reasoning")):
        return text
    last = None
    for last in _THOUGHT.finditer(text):  # noqa: B007
        pass
    if last is None:
        return text
    return None if last["open"] else text[last.end() :]


def _content(text: str, start: int) -> str | None:
    """What a box that opens at `start` holds; None when it does not close within MAX_ANSWER_CHARS."""
    depth = 1
    for match in _BRACES.finditer(text, start, start + MAX_ANSWER_CHARS):
        depth += (match["open"] is not None) - (match["close"] is not None)
        if depth == 0:
            return text[start : match.start()]
    return None


def _last_box(text: str) -> tuple[str | None, bool]:
    """Content of the last balanced box that is not empty (innermost where nested); whether one never closes."""
    unbalanced = False
    for box in reversed(list(_BOX.finditer(text))[-MAX_BOXES:]):
        content = box["bare"] if box["bare"] is not None else _content(text, box.end())
        if content is not None and content.strip():
            return content.strip(), unbalanced
        unbalanced |= content is None
    return None, unbalanced


def _from_phrase(text: str) -> str | None:
    """The number after the last "the answer is"."""
    for match in reversed(list(_PHRASE.finditer(text))):
        number = _NUMBER_AT_START.match(match["answer"])
        if number:
            return number[1]
    return None


def find_answer(response: str, *, finish_reason: str | None = None, phrase_fallback: bool = False) -> Found:
    """The final answer of a response, by the rules of the task card.

    Only what follows the last closed thought counts. A thought that is still open, or a response cut by
    the token limit (see CUT_REASONS) without a closed thought, has no final answer: a box in it
    was tentative. Without a box, the last line "Answer: ..." counts; prose counts only on request.
    """
    cut = finish_reason in CUT_REASONS
    text = _after_thoughts(response)
    if text is None or (cut and len(text) == len(response)):
        return Found(status="truncated")
    text = canonical(text)
    content, unbalanced = _last_box(text)
    if content is not None:
        return Found(content, "box")
    if cut:
        return Found(status="truncated")
    if unbalanced:
        return Found(status="unbalanced")
    lines = _ANSWER_LINE.findall(text)
    if lines:
        return Found(lines[-1].strip(" \t*_"), "answer_line")
    if phrase_fallback and (number := _from_phrase(text)) is not None:
        return Found(number, "phrase")
    return Found(status="no_box")
