"""The rows that both sides report: one an optimizer step, from marks at the start of each."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass
class Clock:
    """Wall and processor time at the start of every optimizer step; a call is a mark and returns False."""

    marks: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self) -> bool:
        self.marks.append((time.perf_counter(), time.process_time()))
        return False


def step_rows(marks: Sequence[tuple[float, float]], tokens: Sequence[int]) -> list[dict[str, Any]]:
    """`optimizer_step`, `tokens` (of completions), `seconds`, `cpu_seconds` of each step that has an end.

    The last mark only ends the step before it: a run makes one step more than it reports.
    """
    return [
        {
            "optimizer_step": i + 1,
            "tokens": int(count),
            "seconds": round(end[0] - start[0], 5),
            "cpu_seconds": round(end[1] - start[1], 5),
        }
        for i, ((start, end), count) in enumerate(zip(pairwise(marks), tokens, strict=False))
    ]


def peak_memory_bytes() -> int:
    """The largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
