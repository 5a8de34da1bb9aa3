"""Fills the generated blocks of Markdown pages: the study table, one claim's evidence, a claim's method."""

from __future__ import annotations

import json
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
    r"(<!-- (?P<kind>evidence|study|claim|verdict)(?:: (?P<name>[\w-]+))? -->\n).*?(<!-- end -->)", re.S
)
"""`<!-- study -->`, `<!-- evidence: compile-speedup-tiny -->`, `<!-- verdict: compile-speedup-tiny -->` or
`<!-- claim: cost -->`, up to `<!-- end -->`."""


def latest(published: Path, name: str) -> Path:
    """The newest evidence of a claim at a scale (`compile-speedup-tiny`); UserError when there is none."""
    dates = sorted(path for path in (published / name).glob("*") if (path / "verdict.json").exists())
    if not dates:
        raise UserError(
            f"{published / name}: holds no evidence; run the claim and `harness archive` it first"
        )
    return dates[-1]


def evidence_text(folder: Path) -> str:
    """What the terminal showed, and the picture, in Markdown."""
    summary = (folder / "summary.txt").read_text(encoding="utf-8").rstrip()
    picture = (folder / "learning-curve.png").as_posix()
    return f"```text\n{summary}\n```\n\n![Learning curves, every seed]({picture})\n"


def verdict_text(folder: Path) -> str:
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
    sentence = "\n".join(f"> {line}" for line in textwrap.wrap(found["sentence"], 110))
    shown = re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(kept, indent=1))
    return f"```json\n{shown}\n```\n\n{sentence}\n"


def block_text(kind: str, name: str | None, published: Path) -> str:
    """What a block holds; UserError for one that lacks the name it needs."""
    if kind == "study":
        return study_text([published], "md")
    if not name:
        raise UserError(f"<!-- {kind} -->: name what to show, for example <!-- {kind}: compile-speedup -->")
    if kind == "claim":
        return claim_notes(load_claim(name))
    return {"evidence": evidence_text, "verdict": verdict_text}[kind](latest(published, name))


def fill(text: str, published: Path) -> str:
    """The text with every generated block filled anew."""
    return BLOCK.sub(lambda m: m[1] + block_text(m["kind"], m["name"], published) + m[4], text)


def update_page(page: Path, published: Path) -> bool:
    """Fills a page's generated blocks; whether anything changed."""
    before = page.read_text(encoding="utf-8")
    after = fill(before, published)
    if after != before:
        write_atomic(page, after.encode())
    return after != before


def pages_with_blocks(folder: Path) -> list[Path]:
    """README.md and the pages of docs/ that hold generated blocks."""
    found = [folder / "README.md", *sorted((folder / "docs").glob("*.md"))]
    return [page for page in found if page.is_file() and BLOCK.search(page.read_text(encoding="utf-8"))]
