"""The resolved plan of a claim as tables: what runs, by which settings, what it takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.report.tables import Cell, Table, table, to_text

if TYPE_CHECKING:
    from harness.resolved import Resolved

WIDTH = 150
GIB = 2**30


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arms(found: Resolved) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            arm.arm, arm.algorithm, arm.model, arm.optimizer_steps, arm.prompts, arm.completions,
            arm.evaluation_completions, arm.tokens + arm.evaluation_tokens, arm.passes, arm.hours,
            None if arm.memory_bytes is None else arm.memory_bytes / GIB,
            None if arm.fits is None else ("yes" if arm.fits else f"with {arm.change}"),
        )
        for arm in found.arms
    ]  # fmt: skip
    hours = "unknown" if found.hours is None else f"{found.hours:,.0f}"
    return table(
        ("arm", "algorithm", "model", "steps", "prompts", "answers", "tested", "tokens", "passes over tokens",
         "GPU h", "peak GiB", "fits"),
        rows,
        caption=f"One run of each arm of {found.claim} at {found.scale} scale; {len(found.seeds)} seeds an arm, "
        f"{len(found.arms) * len(found.seeds)} runs: at most {found.tokens:,} tokens and {hours} GPU hours",
        notes=found.notes,
        name="arms",
    )  # fmt: skip


def resolved_tables(found: Resolved) -> list[Table]:
    """Models, arms with their amounts, and every setting with its origin."""
    models = table(
        ("model", "from", "revision", "parameters"),
        [(m["name"], m["location"], m["revision"], m["parameters"]) for m in found.models],
        caption="Models",
        notes=(*(f"data: {line}" for line in found.data), *found.judge),
        name="models",
    )
    settings = table(
        ("setting", "value", "origin", "source or reason"),
        [(s.key, _words(s.value), s.origin, s.words) for s in found.settings],
        caption="Settings, each as published or chosen",
        name="settings",
    )
    return [models, _arms(found), settings]


def resolved_text(found: Resolved) -> str:
    """The tables as plain text."""
    return "\n".join(to_text(part, WIDTH) for part in resolved_tables(found))
