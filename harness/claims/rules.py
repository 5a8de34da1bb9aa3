"""The verdict rules of a comparison, and the words they are told in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.stats.speedup import SpeedupResult

SUPPORTED = ("supported_size", "supported_direction_smaller", "supported_direction")
WORDS = {
    "supported_size": "supported (size)",
    "supported_direction_smaller": "supported (direction), size smaller than published",
    "supported_direction": "supported (direction), size not settled",
    "refuted": "did not reproduce here",
    "reversed": "reversed here",
    "inconclusive": "inconclusive",
    "not_testable": "not testable",
    "mechanism_passed": "mechanism check passed",
    "mechanism_failed": "mechanism check failed",
    "mechanism_inconclusive": "mechanism check inconclusive",
}
CLAIM_SCALES = ("small", "paper")


@dataclass(frozen=True)
class Limits:
    """An estimate with its interval; `ratio` says whether no effect is 1 or 0; open ends are infinite."""

    estimate: float | None
    low: float | None
    high: float | None
    ratio: bool = True

    @classmethod
    def of(cls, result: SpeedupResult) -> Limits:
        """From a speed-up."""
        return cls(result.estimate, result.low, result.high)

    @property
    def null(self) -> float:
        """The value of no effect."""
        return 1.0 if self.ratio else 0.0

    @property
    def width(self) -> float:
        """Upper over lower limit of a ratio, upper minus lower of a difference; infinite when open."""
        if self.low is None or self.high is None:
            return math.inf
        if not self.ratio:
            return self.high - self.low
        return self.high / self.low if self.low > 0 else math.inf


def decide(limits: Limits, *, published: float | None, smallest: float, width: float) -> str:
    """The verdict of one interval by the table of evaluation.md 2.8, before methods are compared."""
    if limits.low is None or limits.high is None:
        return "inconclusive"
    if limits.high < limits.null:
        return "reversed"
    if limits.high < smallest:
        return "refuted"
    if limits.low <= limits.null:
        return "inconclusive"
    if published is not None and limits.high < published:
        return "supported_direction_smaller"
    if published is not None and limits.low <= published <= limits.high and limits.width <= width:
        return "supported_size"
    return "supported_direction"


def _direction(verdict: str) -> str:
    if verdict in SUPPORTED:
        return "supported"
    return "contradicted" if verdict in ("refuted", "reversed") else verdict


def agree(primary: str, exact: str) -> str:
    """The verdict of two methods together: inconclusive where they point to different conclusions.

    The size counts as supported only when the exact interval settles it as well.
    """
    if _direction(primary) != _direction(exact):
        return "inconclusive"
    if primary == "supported_size" != exact:
        return "supported_direction"
    return "refuted" if {primary, exact} == {"refuted", "reversed"} else primary


def as_mechanism(verdict: str) -> str:
    """What a verdict is worth on a surrogate scale: a mechanism check, never support or refutation."""
    if verdict in SUPPORTED:
        return "mechanism_passed"
    if verdict in ("refuted", "reversed"):
        return "mechanism_failed"
    return "mechanism_inconclusive" if verdict == "inconclusive" else verdict


def at_scale(verdict: str, scale: str) -> str:
    """The verdict that a scale may give: none at smoke, a mechanism check at tiny."""
    if scale == "smoke":
        return "not_testable"
    return verdict if scale in CLAIM_SCALES else as_mechanism(verdict)


WORST_FIRST = (
    "reversed",
    "refuted",
    "not_testable",
    "inconclusive",
    "supported_direction",
    "supported_direction_smaller",
    "supported_size",
)


def together(verdicts: list[str]) -> str:
    """The verdict of a claim with several primary comparisons, all of which must hold."""
    return min(verdicts, key=WORST_FIRST.index) if verdicts else "not_testable"


def number(value: float | None, digits: int = 3) -> str:
    """A number for a sentence: significant digits, no exponent, a word where there is none."""
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "open"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def win_rate(effect: float | None) -> float | None:
    """The win rate of a difference from one half, within what rates can be: an interval by t knows no ends."""
    return None if effect is None else min(1.0, max(0.0, 0.5 + effect))


def span(low: float | None, high: float | None) -> str:
    """An interval in words; "at least", "at most" where an end is open."""
    if low is None or high is None or (low <= 0 and math.isinf(high)):
        return "no interval"
    if math.isinf(high):
        return f"at least {number(low)}"
    if low <= 0 < high:
        return f"at most {number(high)}"
    return f"{number(low)} to {number(high)}"


def finite(value: Any) -> Any:
    """The same data with numbers that are not finite replaced by None, for JSON."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
