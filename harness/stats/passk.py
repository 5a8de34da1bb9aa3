"""Unbiased Pass@k of one problem."""

from __future__ import annotations

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k) as a product that neither overflows nor cancels; ValueError when k > n.

    `n` graded samples, `c` of them right. Source: Chen et al. 2021 (Codex), without its k > n shortcut.
    """
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"n={n}, c={c}, k={k}: need 0 <= c <= n and k >= 1")
    if k > n:
        raise ValueError(f"k={k} > n={n}: Pass@k needs at least k samples a problem")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))
