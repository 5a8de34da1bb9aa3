"""Finds the code in an answer: a line-based scanner of Markdown fences, with offsets in code points."""

from __future__ import annotations

import re
from dataclasses import dataclass

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CODE_LANGUAGES = frozenset({"tsx", "jsx", "ts", "js", "typescript", "javascript", "typescriptreact", "react"})
_OPENING = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>.*)$", re.DOTALL)
_DEFAULT_EXPORT = re.compile(r"\bexport\s+default\b|\bas\s+default\b")


@dataclass(frozen=True)
class Block:
    """One fenced block: its code [start, end) in code points of the answer."""

    start: int
    end: int
    language: str
    closed: bool


@dataclass(frozen=True)
class Extraction:
    """What was found: the code with its place, or none with the reason."""

    code: str | None
    start: int = 0
    end: int = 0
    closed: bool = True
    reason: str = ""


def _after_thinking(answer: str) -> int | None:
    """Where the visible answer begins; None when a think tag is never closed."""
    begin = answer.rfind(THINK_CLOSE)
    begin = 0 if begin < 0 else begin + len(THINK_CLOSE)
    return None if answer.find(THINK_OPEN, begin) >= 0 else begin


def _lines(text: str, start: int) -> list[tuple[int, str]]:
    """Lines with their offsets; only a line feed ends a line, so that offsets stay those of the answer."""
    found = []
    for line in text[start:].split("\n"):
        found.append((start, line.removesuffix("\r")))
        start += len(line) + 1
    return found


def find_blocks(answer: str, start: int = 0) -> list[Block]:
    """All fenced blocks from `start` on; an unclosed one reaches to the end."""
    blocks: list[Block] = []
    fence, language, begin = "", "", 0
    for offset, line in _lines(answer, start):
        match = _OPENING.match(line)
        if fence:
            closing = match and not match["info"].strip() and match["fence"].startswith(fence)
            if closing:
                blocks.append(Block(begin, max(begin, offset - 1), language, closed=True))
                fence = ""
        elif match and not ("`" in match["fence"] and "`" in match["info"]):
            fence = match["fence"]
            language = match["info"].strip()
            ends = offset + len(line)
            begin = min(len(answer), ends + (2 if answer.startswith("\r", ends) else 1))
    if fence:
        blocks.append(Block(begin, len(answer), language, closed=False))
    return blocks


def _language(block: Block) -> str:
    words = block.language.split()
    return words[0].lower().strip("{}.") if words else ""


def _code_on_fence_line(block: Block) -> bool:
    """Whether the info string is code: its first line would be lost."""
    return bool(re.search(r"[;<>()]|\b(import|export|const|function)\b", block.language))


def extract(answer: str) -> Extraction:
    """The code of an answer, or the reason why there is none.

    Text up to the last closing think tag is dropped. Among blocks tagged as TypeScript or JavaScript
    (else untagged ones) the last with a default export counts, else the last.
    """
    begin = _after_thinking(answer)
    if begin is None:
        return Extraction(None, reason="unclosed think tag")
    blocks = find_blocks(answer, begin)
    if not blocks:
        return Extraction(None, reason="no fenced block")
    usable = [b for b in blocks if _language(b) in CODE_LANGUAGES] or [b for b in blocks if not b.language]
    if not usable:
        wrong = any(_code_on_fence_line(b) for b in blocks)
        return Extraction(
            None, reason="code on the fence line" if wrong else "no block of TypeScript or untagged"
        )
    exporting = [b for b in usable if _DEFAULT_EXPORT.search(answer[b.start : b.end])]
    chosen = (exporting or usable)[-1]
    if _code_on_fence_line(chosen):
        return Extraction(None, reason="code on the fence line")
    return Extraction(answer[chosen.start : chosen.end], chosen.start, chosen.end, chosen.closed)
