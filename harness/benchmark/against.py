"""Completion tokens a second of our loop over TRL's, in turn, at like token counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.benchmark.setting import Setting
from harness.benchmark.side import Side, run_side
from harness.sweep.server import TUNABLES

Row = Mapping[str, Any]
REPEATS = 1000


def seconds_at(rows: Sequence[Row], tokens: float, measure: str = "seconds") -> float:
    """Seconds of a step of so many tokens, by least squares over the steps; their mean rate where all are alike.

    A loop pays a fixed part and a part that grows with tokens, so plain rates flatter the longer steps.
    """
    counts = np.array([row["tokens"] for row in rows], float)
    times = np.array([row[measure] for row in rows], float)
    spread = counts - counts.mean()
    if len(rows) < 3 or np.abs(spread).max() < 0.02 * counts.mean():
        return float(times.sum() / counts.sum() * tokens)
    slope = float((spread * times).sum() / (spread**2).sum())
    return float(times.mean()) + slope * (tokens - float(counts.mean()))


def like_tokens(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, bool]:
    """The token count to compare at: the pooled median, within what both sides had; whether that overlaps."""
    low = max(min(row["tokens"] for row in side) for side in (ours, theirs))
    high = min(max(row["tokens"] for row in side) for side in (ours, theirs))
    if low > high:
        return (low + high) / 2, False
    pooled = float(np.median([row["tokens"] for row in (*ours, *theirs)]))
    return min(max(pooled, low), high), True


def ratio_at(ours: Sequence[Row], theirs: Sequence[Row], tokens: float, measure: str = "seconds") -> float:
    """Our tokens a second over theirs at one token count."""
    return seconds_at(theirs, tokens, measure) / seconds_at(ours, tokens, measure)


def interval(
    ours: Sequence[Sequence[Row]], theirs: Sequence[Sequence[Row]], tokens: float, measure: str = "seconds"
) -> tuple[float, float]:
    """95% bootstrap interval of the ratio: runs drawn again first, then steps within each."""
    rng = np.random.default_rng(0)

    def again(runs: Sequence[Sequence[Row]]) -> list[Row]:
        drawn = [runs[i] for i in rng.integers(len(runs), size=len(runs))]
        return [rows[i] for rows in drawn for i in rng.integers(len(rows), size=len(rows))]

    ratios = [ratio_at(again(ours), again(theirs), tokens, measure) for _ in range(REPEATS)]
    low, high = np.percentile([r for r in ratios if r > 0], [2.5, 97.5])
    return float(low), float(high)


def compare(ours: Sequence[Sequence[Row]], theirs: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Both sides' runs (lists of step rows, warm-up dropped) as one ratio with its spread."""
    mine = [row for rows in ours for row in rows]
    other = [row for rows in theirs for row in rows]
    tokens, overlap = like_tokens(mine, other)
    low, high = interval(ours, theirs, tokens)
    cpu_low, cpu_high = interval(ours, theirs, tokens, "cpu_seconds")

    def rate(rows: Sequence[Row]) -> float:
        return sum(row["tokens"] for row in rows) / sum(row["seconds"] for row in rows)

    return {
        "ratio_to_trl": ratio_at(mine, other, tokens),
        "ratio_low": low,
        "ratio_high": high,
        "like_tokens": tokens,
        "tokens_overlap": overlap,
        "seconds_at_like_tokens": {"ours": seconds_at(mine, tokens), "trl": seconds_at(other, tokens)},
        "tokens_per_second": {"ours": rate(mine), "trl": rate(other)},
        "plain_ratio": rate(mine) / rate(other),
        "cpu_ratio": ratio_at(mine, other, tokens, "cpu_seconds"),
        "cpu_ratio_low": cpu_low,
        "cpu_ratio_high": cpu_high,
        "pair_ratios": [ratio_at(a, b, tokens) for a, b in zip(ours, theirs, strict=True)],
    }


def against_trl(
    setting: Setting, python: str, *, rounds: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Runs A B A B ... (ours first), each in a fresh process; the comparison and every step."""
    kept: dict[Side, list[list[dict[str, Any]]]] = {"ours": [], "trl": []}
    steps: list[dict[str, Any]] = []
    memory: dict[Side, int] = {"ours": 0, "trl": 0}
    starts: dict[Side, list[float]] = {"ours": [], "trl": []}
    pythons: dict[Side, str] = {"ours": sys.executable, "trl": python}
    sides: tuple[Side, Side] = ("ours", "trl")
    for number in range(rounds):
        for side in sides:
            say(f"round {number + 1} of {rounds}: {side}")
            found = run_side(side, setting, pythons[side])
            kept[side].append(found["steps"][setting.warm_steps :])
            memory[side] = max(memory[side], found["peak_memory_bytes"])
            starts[side].append(found["start_seconds"])
            steps += [
                {"side": side, "round": number + 1, "warm_up": i < setting.warm_steps, **row}
                for i, row in enumerate(found["steps"])
            ]
    return {
        **compare(kept["ours"], kept["trl"]),
        "rounds": rounds,
        "trl_tunables": os.environ.get(TUNABLES, ""),
        "peak_memory_bytes": memory,
        "start_seconds": starts,
        "steps": steps,
    }
