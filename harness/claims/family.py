"""Several comparisons at once: confidence levels by Holm's method, and one verdict for the claim."""

from __future__ import annotations

from collections.abc import Sequence

ALPHA = 0.05


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """Confidence level of each comparison so that its interval agrees with Holm's step-down test.

    The comparison of rank r (from 0, smallest p first) among m gets 1 - alpha / (m - r); from the first
    that is not rejected on, all keep that one's level, as the step-down stops there. An unknown p counts
    as 1.
    """
    known = [1.0 if p is None else p for p in p_values]
    order = sorted(range(len(known)), key=known.__getitem__)
    levels = [0.0] * len(known)
    alpha, stopped = ALPHA, False
    for rank, index in enumerate(order):
        if not stopped:
            alpha = ALPHA / (len(known) - rank)
            stopped = known[index] > alpha
        levels[index] = 1 - alpha
    return levels
