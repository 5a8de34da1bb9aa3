"""Splits an answer into steps: ordered, disjoint code-point ranges that cover everything but white space."""

from __future__ import annotations

import re

__all__ = ["SPLITS", "split_steps"]

SPLITS = ("auto", "line", "paragraph")

_PARAGRAPH_BREAK = re.compile(r"\n[ \t\r]*\n\s*")
_LINE_BREAK = re.compile(r"\s*\n\s*")
_OPENERS = re.compile(r"\\\[|\\\]|\\begin\{[^{}\n]{1,30}\}|\\end\{[^{}\n]{1,30}\}|\$\$|```")
MAX_OPEN_PARTS = 40
"""A display that stays open over more parts than this is taken as never closed."""


def _pieces(text: str, breaks: re.Pattern[str]) -> list[tuple[int, int]]:
    """Ranges between breaks, without the white space around them."""
    ranges, start = [], 0
    for match in [*breaks.finditer(text), None]:
        end = len(text) if match is None else match.start()
        piece = text[start:end]
        if piece.strip():
            left = start + len(piece) - len(piece.lstrip())
            ranges.append((left, left + len(piece.strip())))
        start = len(text) if match is None else match.end()
    return ranges


def _depth_after(text: str, depth: dict[str, int]) -> dict[str, int]:
    """Which displays are open after a piece of text."""
    depth = dict(depth)
    for mark in _OPENERS.findall(text):
        if mark in ("$$", "```"):
            depth[mark] = 1 - depth.get(mark, 0)
        elif mark.startswith(("\\[", "\\begin")):
            depth["display"] = depth.get("display", 0) + 1
        else:
            depth["display"] = max(0, depth.get("display", 0) - 1)
    return depth


def _joined(text: str, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces with those joined that lie inside one display equation or code fence."""
    out: list[tuple[int, int]] = []
    i = 0
    while i < len(pieces):
        start, end = pieces[i]
        depth = _depth_after(text[start:end], {})
        last = i
        while any(depth.values()) and last + 1 < len(pieces) and last - i < MAX_OPEN_PARTS:
            last += 1
            depth = _depth_after(text[pieces[last][0] : pieces[last][1]], depth)
        closed = not any(depth.values())
        out.append((start, pieces[last][1]) if closed else (start, end))
        i = last + 1 if closed else i + 1
    return out


def split_steps(text: str, split: str = "auto") -> tuple[tuple[int, int], ...]:
    """Code-point ranges [start, end) of the steps of an answer, in order.

    `line` cuts at line ends, `paragraph` at blank lines, `auto` at blank lines where the answer has any
    and at line ends otherwise. A display equation or a code fence is never cut. ValueError names an
    unknown way to split.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is unknown: choose one of {', '.join(SPLITS)}")
    if split == "auto":
        split = "paragraph" if _PARAGRAPH_BREAK.search(text.strip()) else "line"
    pieces = _pieces(text, _PARAGRAPH_BREAK if split == "paragraph" else _LINE_BREAK)
    return tuple(_joined(text, pieces))
