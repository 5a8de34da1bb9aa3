"""How many runs an arm a comparison needs: differences, equivalence, width of an interval."""

from __future__ import annotations

import math
from collections.abc import Callable

LARGEST = 1000
SMALLEST = 4
"""Fewest runs an arm with which an unpaired exact test can reach 5% at all."""


def _fewest(enough: Callable[[int], bool], largest: int) -> int | None:
    """The smallest n from 4 on for which a property that only ever becomes true holds; None beyond `largest`."""
    low, high = SMALLEST - 1, SMALLEST
    while not enough(high):
        low, high = high, high * 2
        if low >= largest:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high <= largest else None


def _checked(sigma: float) -> float:
    if sigma < 0 or not math.isfinite(sigma):
        raise ValueError(f"sigma={sigma}: give an SD between runs that is finite and not negative")
    return sigma


def two_sample_power(shift: float, sigma: float, runs: int, *, alpha: float = 0.05) -> float:
    """Power of the two-sided two-sample t test for a true shift with SD sigma and `runs` an arm."""
    from scipy.special import nctdtr, stdtrit

    df = 2 * runs - 2
    critical = stdtrit(df, 1 - alpha / 2)
    noncentral = abs(shift) / (sigma * math.sqrt(2 / runs))
    if noncentral > 30:  # the noncentral t of scipy is not reliable that far out, and the power is 1
        return 1.0
    return float(1 - nctdtr(df, noncentral, critical) + nctdtr(df, noncentral, -critical))


def runs_for_shift(
    shift: float, sigma: float, *, alpha: float = 0.05, power: float = 0.8, largest: int = LARGEST
) -> int | None:
    """Fewest runs an arm that detect a shift of mean log time (or value) with the power; None beyond `largest`.

    For a speed-up `shift` is the log of (true ratio / ratio to be excluded) and `sigma` the log-SD of an arm.
    """
    if shift == 0:
        return None
    if _checked(sigma) == 0:
        return SMALLEST
    return _fewest(lambda n: two_sample_power(shift, sigma, n, alpha=alpha) >= power, largest)


def equivalence_power(margin: float, sigma: float, runs: int, *, alpha: float = 0.05) -> float:
    """Power of two one-sided two-sample t tests within +-margin at a true difference of 0.

    By the t approximation 2 * P(T < margin / se - critical) - 1, which is slightly low at few runs.
    """
    from scipy.special import stdtr, stdtrit

    df = 2 * runs - 2
    se = sigma * math.sqrt(2 / runs)
    return max(0.0, 2 * float(stdtr(df, margin / se - stdtrit(df, 1 - alpha))) - 1)


def runs_for_equivalence(
    margin: float, sigma: float, *, alpha: float = 0.05, power: float = 0.8, largest: int = LARGEST
) -> int | None:
    """Fewest runs an arm that show equivalence within +-margin when there is no difference."""
    if _checked(sigma) == 0:
        return SMALLEST
    return _fewest(lambda n: equivalence_power(margin, sigma, n, alpha=alpha) >= power, largest)


def runs_for_width(sigma: float, width: float, *, level: float = 0.95, largest: int = LARGEST) -> int | None:
    """Fewest runs an arm whose expected interval of a ratio has upper / lower at most `width`."""
    from scipy.special import stdtrit

    def narrow(n: int) -> bool:
        half = float(stdtrit(2 * n - 2, 0.5 + level / 2)) * sigma * math.sqrt(2 / n)
        return 2 * half <= math.log(width)

    return _fewest(narrow, largest) if _checked(sigma) else SMALLEST
