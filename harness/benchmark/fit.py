"""Power laws: the exponent of a cost against a size, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Exponent:
    """cost = factor x size^value; `low` to `high` is the 95% t interval of the slope of the logs."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """As plain data; an unknown end is None."""
        ends = {"exponent": self.value, "low": self.low, "high": self.high}
        return {name: end if math.isfinite(end) else None for name, end in ends.items()}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent:
    """Least squares on logs; two points have no interval. ValueError for fewer, or a size or cost of 0 or less."""
    from scipy import stats

    if len(sizes) < 2 or len(sizes) != len(costs):
        raise ValueError(f"sizes: {len(sizes)} for {len(costs)} costs; give at least two of each")
    if min(*sizes, *costs) <= 0:
        raise ValueError("sizes and costs must be above 0: a power law has no other points")
    found = stats.linregress([math.log(s) for s in sizes], [math.log(c) for c in costs])
    if len(sizes) == 2:
        return Exponent(float(found.slope), -math.inf, math.inf)
    half = float(stats.t.ppf(0.975, len(sizes) - 2) * found.stderr)
    return Exponent(float(found.slope), float(found.slope) - half, float(found.slope) + half)
