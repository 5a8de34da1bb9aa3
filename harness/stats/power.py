"""How many runs an arm a comparison of mean log times needs."""

from __future__ import annotations

import math

LARGEST = 1000


def two_sample_power(shift: float, sigma: float, runs: int, *, alpha: float = 0.05) -> float:
    """Power of the two-sided two-sample t test for a true shift with SD sigma and `runs` an arm."""
    from scipy.stats import nct, t

    df = 2 * runs - 2
    critical = float(t.ppf(1 - alpha / 2, df))
    noncentral = abs(shift) / (sigma * math.sqrt(2 / runs))
    return float(nct.sf(critical, df, noncentral) + nct.cdf(-critical, df, noncentral))


def runs_for_shift(
    shift: float, sigma: float, *, alpha: float = 0.05, power: float = 0.8, largest: int = LARGEST
) -> int | None:
    """Fewest runs an arm that detect a shift of mean log time with the power; None beyond `largest`.

    `shift` is the log of (true ratio / ratio to be excluded), `sigma` the log-SD of one arm. Four runs
    are the least with which an unpaired exact test can reach 5% at all.
    """
    if sigma < 0 or not math.isfinite(sigma):
        raise ValueError(f"sigma={sigma}: give a log-SD that is finite and not negative")
    if shift == 0:
        return None
    low, high = 4, 4
    if sigma == 0 or two_sample_power(shift, sigma, low, alpha=alpha) >= power:
        return low
    while two_sample_power(shift, sigma, high, alpha=alpha) < power:
        low, high = high, high * 2
        if low >= largest:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = two_sample_power(shift, sigma, middle, alpha=alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high if high <= largest else None


def equivalence_power(margin: float, sigma: float, runs: int, *, alpha: float = 0.05) -> float:
    """Power of two one-sided two-sample t tests within +-margin at a true difference of 0.

    By the t approximation 2 * P(T < margin / se - critical) - 1, which is slightly low at few runs.
    """
    from scipy.stats import t

    df = 2 * runs - 2
    se = sigma * math.sqrt(2 / runs)
    return max(0.0, 2 * float(t.cdf(margin / se - float(t.ppf(1 - alpha, df)), df)) - 1)


def runs_for_equivalence(
    margin: float, sigma: float, *, alpha: float = 0.05, power: float = 0.8, largest: int = LARGEST
) -> int | None:
    """Fewest runs an arm that show equivalence within +-margin when there is no difference."""
    if sigma == 0:
        return 4
    return next(
        (n for n in range(4, largest + 1) if equivalence_power(margin, sigma, n, alpha=alpha) >= power), None
    )


def runs_for_width(sigma: float, width: float, *, level: float = 0.95, largest: int = LARGEST) -> int | None:
    """Fewest runs an arm whose expected interval of a ratio has upper / lower at most `width`."""
    from scipy.stats import t

    for n in range(4, largest + 1):
        half = float(t.ppf(0.5 + level / 2, 2 * n - 2)) * sigma * math.sqrt(2 / n)
        if 2 * half <= math.log(width):
            return n
    return None
