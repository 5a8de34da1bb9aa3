"""A hard limit in US dollars: the most a call can cost is set aside before it is made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.judges.base import JudgeError


class OverBudget(Exception):
    """The next call could exceed the budget; it was not made."""


class Reservation:
    """Money set aside for one call, replaced by what the call did cost."""

    def __init__(self, usd: float) -> None:
        self.reserved = usd
        self.spent = usd


class Budget:
    """What may be spent, and has been; safe to share between threads."""

    def __init__(self, limit_usd: float) -> None:
        if not limit_usd >= 0.0:
            raise JudgeError(f"judge.budget_usd={limit_usd!r}: use 0 or more dollars")
        self.limit_usd = limit_usd
        self.spent_usd = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def reserve(self, worst_usd: float) -> Iterator[Reservation]:
        """Sets aside the most that a call can cost; OverBudget when that is not left.

        A call that fails without setting `spent` is counted at its worst: it may have been billed.
        """
        with self._lock:
            if self.spent_usd + self._reserved + worst_usd > self.limit_usd:
                raise OverBudget(
                    f"the judge's budget of {self.limit_usd:g} US$ is used up ({self.spent_usd:.4f} US$ spent): "
                    "raise judge.budget_usd"
                )
            self._reserved += worst_usd
        reservation = Reservation(worst_usd)
        try:
            yield reservation
        finally:
            with self._lock:
                self._reserved -= worst_usd
                self.spent_usd += reservation.spent
