"""Places of diagnostics: from UTF-16 units of the code to code points of the answer, and their weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from tasks.base import Diagnostic, Span

MAX_SPANS = 3
CASCADE_WEIGHTS = (-1.0, -0.5, -0.25)
"""Later errors are often echoes of the first: half the weight each, and no more than three."""


class Utf16Table:
    """Maps offsets in UTF-16 units, as JavaScript counts, to code points, as Python counts."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self._starts: list[int] | None = None
        if not text.isascii() and any(ord(c) > 0xFFFF for c in text):
            self._starts = list(accumulate((2 if ord(c) > 0xFFFF else 1 for c in text), initial=0))

    def code_point(self, units: int) -> int:
        """The code point that holds the unit; offsets outside the text are moved to its ends."""
        if self._starts is None:
            return min(max(units, 0), self.length)
        return min(max(bisect_right(self._starts, units) - 1, 0), self.length)


def _blame(code: str, start: int, end: int) -> tuple[int, int]:
    """A range of at least one visible character: an error of no length at the end blames the last token."""
    if end > start and code[start:end].strip():
        return start, end
    if code[start:].strip():
        found = start + len(code[start:]) - len(code[start:].lstrip())
        return found, found + 1
    kept = len(code[:start].rstrip())
    if kept == 0:
        return 0, len(code)
    first = kept - 1
    if code[first].isalnum():
        while first > 0 and (code[first - 1].isalnum() or code[first - 1] in "_$"):
            first -= 1
    return first, kept


def locate(code: str, offset: int, reports: Sequence[Mapping[str, Any]]) -> tuple[Diagnostic, ...]:
    """The checker's reports as diagnostics in code points of an answer whose code begins at `offset`."""
    if not reports:
        return ()
    table = Utf16Table(code)
    found = []
    for report in reports:
        start = table.code_point(report["start"])
        end = table.code_point(report["start"] + report["length"])
        start, end = _blame(code, start, end)
        found.append(
            Diagnostic(report["source"], report["code"], report["message"], offset + start, offset + end)
        )
    return tuple(found)


def error_spans(diagnostics: Sequence[Diagnostic]) -> tuple[Span, ...]:
    """Spans of the first errors by place, the first weighted most, the cascade capped."""
    ordered = sorted(diagnostics, key=lambda d: (d.start, d.end))[:MAX_SPANS]
    return tuple(Span(d.start, d.end, w, d.source) for d, w in zip(ordered, CASCADE_WEIGHTS, strict=False))


def line_steps(code: str, offset: int) -> tuple[tuple[int, int], ...]:
    """The non-blank lines of the code, as ranges in code points of the answer."""
    steps, start = [], offset
    # not splitlines(): it also splits at form feeds and other signs that are no line ends of the language
    for line in code.split("\n"):
        if line.strip():
            steps.append((start, start + len(line)))
        start += len(line) + 1
    return tuple(steps)
