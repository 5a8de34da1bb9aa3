"""Pass@k, avg@n and maj@k of sampled answers, from per-problem counts; pure Python, exact where it says so."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

__all__ = [
    "average_at_n",
    "completion_hash",
    "default_ks",
    "majority_at_k",
    "mean_pass_at_k",
    "pass_at_k",
]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that k of n samples, drawn without replacement, hold at least one of the c right ones.

    1 - C(n-c, k) / C(n, k), as a product of min(c, k) factors, which neither overflows nor cancels.
    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1. ValueError when k exceeds n: the usual shortcut
    would say 1 there even when nothing was right.
    """
    if not 0 <= c <= n:
        raise ValueError(f"c={c}: right samples must be from 0 to n={n}")
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: Pass@k needs 1 <= k <= n, and n={n}; draw more samples or lower k")
    if n - c < k:
        return 1.0
    # C(n-c,k)/C(n,k) = C(n-k,c)/C(n,c): the shorter of the two products
    few, many = min(c, k), max(c, k)
    missed = 1.0
    for i in range(n - few + 1, n + 1):
        missed *= 1.0 - many / i
    return 1.0 - missed


def mean_pass_at_k(counts: Mapping[str, tuple[int, int]], k: int) -> float:
    """Mean over problems of each one's Pass@k, from `{problem: (n, c)}`; n may differ between problems.

    ValueError names the problem that has fewer than k samples.
    """
    if not counts:
        raise ValueError("counts: no problems; at least one graded problem is needed")
    for problem, (n, _) in counts.items():
        if k > n:
            raise ValueError(f"k={k} exceeds n={n} of problem {problem!r}: draw more samples or lower k")
    return math.fsum(pass_at_k(n, c, k) for n, c in counts.values()) / len(counts)


def average_at_n(counts: Mapping[str, tuple[int, int]]) -> float:
    """avg@n: mean over problems of the share of right samples, which is Pass@1."""
    return mean_pass_at_k(counts, 1)


def default_ks(n: int) -> list[int]:
    """The powers of two up to n."""
    return [2**i for i in range(n.bit_length())] if n >= 1 else []


def _others(counts: Iterable[int], most: int, draws: int) -> dict[tuple[int, int], int]:
    """Ways to draw x votes of the other answers, none more than `most`, t of them exactly `most`: {(x, t): ways}."""
    ways = {(0, 0): 1}
    for count in counts:
        grown: dict[tuple[int, int], int] = {}
        for (x, t), number in ways.items():
            for take in range(min(count, most, draws - x) + 1):
                key = (x + take, t + (take == most))
                grown[key] = grown.get(key, 0) + number * math.comb(count, take)
        ways = grown
    return ways


def majority_at_k(votes: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """maj@k: expected credit of a majority vote among k of the samples, drawn without replacement; exact.

    A sample without an answer (None) abstains. Of t answers that tie for the lead each is chosen with
    probability 1/t; a draw in which all abstain gets 0. All right answers count as one. ValueError when k
    exceeds the number of samples.
    """
    n = len(votes)
    if n != len(correct):
        raise ValueError(f"votes and correct differ in length: {n} and {len(correct)}")
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: maj@k needs 1 <= k <= n, and n={n}; draw more samples or lower k")
    right = sum(1 for vote, good in zip(votes, correct, strict=True) if vote is not None and good)
    wrong = Counter(vote for vote, good in zip(votes, correct, strict=True) if vote is not None and not good)
    abstain = n - right - sum(wrong.values())
    credit = Fraction(0)
    for most in range(1, min(right, k) + 1):
        chosen = math.comb(right, most)
        for (x, ties), ways in _others(wrong.values(), most, k - most).items():
            rest = k - most - x
            if rest <= abstain:
                credit += Fraction(chosen * ways * math.comb(abstain, rest), 1 + ties)
    return float(credit / math.comb(n, k))


def completion_hash(text: str) -> str:
    """Twelve hex digits that tell completions apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
