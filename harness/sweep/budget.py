"""Budgets of a sweep: hours, tokens and dollars, checked from the records, and what would finish the claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.store.tail import RunView
from harness.sweep.jobs import FINISHED


@dataclass(frozen=True)
class Limits:
    """What a sweep may spend; None means no limit.

    `hours` are wall-clock hours of this command; `tokens` (generated in training) and `usd` (of judges) count
    every run of the sweep, earlier commands included.
    """

    hours: float | None = None
    tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True)
class Spent:
    """What has been spent, in the units of `Limits`."""

    hours: float
    tokens: float
    usd: float


class Budget:
    """Watches what the runs of a sweep spend; `exceeded` says which limit is reached."""

    def __init__(
        self, limits: Limits, views: Sequence[RunView], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.views = views
        self._clock = clock
        self._started = clock()

    def spent(self) -> Spent:
        """What the records say, and the time since this object was made."""
        return Spent(
            hours=(self._clock() - self._started) / 3600,
            tokens=sum(view.costs.get("generated_tokens", 0) for view in self.views),
            usd=sum(view.costs.get("judge_usd", 0.0) for view in self.views),
        )

    def exceeded(self) -> str:
        """The limit that is reached, in words; "" when none is."""
        spent, limits = self.spent(), self.limits
        if limits.hours is not None and spent.hours >= limits.hours:
            return f"the budget of {limits.hours:g} hours is used up"
        if limits.tokens is not None and spent.tokens >= limits.tokens:
            return f"the budget of {limits.tokens:,} tokens is used up ({spent.tokens:,.0f} generated)"
        if limits.usd is not None and spent.usd >= limits.usd:
            return f"the budget of {limits.usd:g} US$ is used up ({spent.usd:.2f} US$ spent)"
        return ""

    def remaining(self, parallel: int) -> str:
        """What would finish the sweep at most, at the pace so far: runs, steps, hours, tokens and dollars."""
        open_views = [view for view in self.views if view.status() not in FINISHED]
        left = sum(max(0, view.horizon - view.step) for view in open_views)
        done = sum(view.step for view in self.views)
        text = f"{len(open_views)} of {len(self.views)} runs and at most {left:,} optimizer steps are left"
        if not done or not left:
            return text
        seconds = sum(view.seconds for view in self.views) / done * left
        spent = self.spent()
        hours = seconds / 3600 / max(1, min(parallel, len(open_views)))
        parts = [
            f"{hours:.2g} hours ({parallel} runs at a time)",
            f"{spent.tokens / done * left:,.0f} tokens",
        ]
        if spent.usd:
            parts.append(f"{spent.usd / done * left:.2f} US$")
        return f"{text}: about {', '.join(parts)} more"
