"""The interval of one observed rate."""

from __future__ import annotations


def wilson(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score limits of a rate, `n` at least 1 (Wilson, JASA 22, 1927)."""
    from scipy.stats import binomtest

    found = binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    return float(found.low), float(found.high)
