"""Fills the generated blocks of Markdown pages: the study table, a claim's evidence, explanation or method."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from harness.claims.schema import load_claim
from harness.errors import UserError
from harness.report.claim_notes import claim_notes
from harness.report.study import study_text
from harness.store.writer import read_json, write_atomic

BLOCK = re.compile(
    r"(<!-- (?P<kind>evidence|explain|study|claim|verdict)(?:: (?P<name>[\w-]+))? -->\n).*?(<!-- end -->)",
    re.S,
)
"""`<!-- study -->`, `<!-- evidence: compile-speedup-tiny -->`, `<!-- explain: compile-speedup-tiny -->`,
`<!-- verdict: compile-speedup-tiny -->` or `<!-- claim: cost -->`, up to `<!-- end -->`."""
EXPLAINED = re.compile(r"^## What the runs did\n(?P<text>.*?)(?=^\*\*|^## )", re.M | re.S)
"""A report's section on what the runs did, up to its table."""


def latest(published: Path, name: str) -> Path:
    """The newest evidence of a claim at a scale (`compile-speedup-tiny`); UserError when there is none."""
    dates = sorted(path for path in (published / name).glob("*") if (path / "verdict.json").exists())
    if not dates:
        raise UserError(
            f"{published / name}: holds no evidence; run the claim and `harness archive` it first"
        )
    return dates[-1]


def evidence_text(folder: Path, page: Path) -> str:
    """What the terminal showed, and the picture, in Markdown, linked from the page."""
    summary = (folder / "summary.txt").read_text(encoding="utf-8").rstrip()
    picture = Path(os.path.relpath(folder / "learning-curve.png", page.parent)).as_posix()
    return f"```text\n{summary}\n```\n\n![Learning curves, every seed]({picture})\n"


def explain_text(folder: Path, page: Path) -> str:
    """The sentence of a claim's verdict, then what its runs logged on the way, from its report.

    Raises UserError for a report that has no such section.
    """
    found = EXPLAINED.search((folder / "report.md").read_text(encoding="utf-8"))
    if found is None:
        raise UserError(
            f"{folder / 'report.md'}: says nothing of what the runs did; show its evidence instead"
        )
    _, *parts = found["text"].strip().split("\n\n")  # without the introduction
    linked = Path(os.path.relpath(folder, page.parent)).as_posix()
    quoted = "\n".join(f"> {line}" for line in textwrap.wrap(_sentence(folder), 118))
    return f"{quoted}\n\n" + "\n\n".join(parts).replace("](", f"]({linked}/") + "\n"


def _sentence(folder: Path) -> str:
    return str(read_json(folder / "verdict.json")["sentence"])


def verdict_text(folder: Path, page: Path) -> str:
    """The part of a verdict.json that decides, and the sentence that states it, in Markdown."""
    found = read_json(folder / "verdict.json")
    pair = next(pair for pair in found["comparisons"] if pair["primary"])
    kept: dict[str, Any] = {"verdict": found["verdict"]}
    for name in ("treatment", "baseline", "verdict", "reason", "seeds_to_settle"):
        kept.setdefault("comparison", {})[name] = pair[name]
    for name in ("speedup", "exact"):
        main = pair[name].get("optimizer_steps")
        if main:
            fields = ("estimate", "low", "high", "method", "n", "events", "level")
            kept[name] = {"optimizer_steps": {field: main[field] for field in fields}}
    sentence = "\n".join(f"> {line}" for line in textwrap.wrap(_sentence(folder), 110))
    shown = re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(kept, indent=1))
    return f"```json\n{shown}\n```\n\n{sentence}\n"


SHOWN = {"evidence": evidence_text, "explain": explain_text, "verdict": verdict_text}
"""Blocks made of the newest evidence of one claim."""


def block_text(kind: str, name: str | None, published: Path, page: Path) -> str:
    """What a block of a page holds; UserError for one that lacks the name it needs."""
    if kind == "study":
        return study_text([published], "md")
    if not name:
        raise UserError(f"<!-- {kind} -->: name what to show, for example <!-- {kind}: compile-speedup -->")
    if kind == "claim":
        return claim_notes(load_claim(name))
    return SHOWN[kind](latest(published, name), page)


def fill(text: str, published: Path, page: Path) -> str:
    """The text of a page with every generated block filled anew."""
    return BLOCK.sub(lambda m: m[1] + block_text(m["kind"], m["name"], published, page) + m[4], text)


def update_page(page: Path, published: Path) -> bool:
    """Fills a page's generated blocks; whether anything changed."""
    before = page.read_text(encoding="utf-8")
    after = fill(before, published, page)
    if after != before:
        write_atomic(page, after.encode())
    return after != before


def pages_with_blocks(folder: Path) -> list[Path]:
    """README.md and the pages of docs/ that hold generated blocks."""
    found = [folder / "README.md", *sorted((folder / "docs").glob("*.md"))]
    return [page for page in found if page.is_file() and BLOCK.search(page.read_text(encoding="utf-8"))]
