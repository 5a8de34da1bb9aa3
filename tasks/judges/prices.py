"""Prices of model judges in US dollars a million tokens; a table to be overridden, since prices change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tasks.judges.base import JudgeError


@dataclass(frozen=True)
class Price:
    """US dollars for a million input and output tokens."""

    input_usd: float
    output_usd: float

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """US dollars of one call."""
        return (input_tokens * self.input_usd + output_tokens * self.output_usd) / 1e6


FREE = Price(0.0, 0.0)
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
PRICES: dict[str, Price] = {
    "gpt-4o": Price(2.5, 10.0),
    "gpt-4o-mini": Price(0.15, 0.6),
    "gpt-4.1": Price(2.0, 8.0),
    "gpt-4.1-mini": Price(0.4, 1.6),
    "gpt-4.1-nano": Price(0.1, 0.4),
    "gpt-5": Price(1.25, 10.0),
    "gpt-5-mini": Price(0.25, 2.0),
    "gpt-5-nano": Price(0.05, 0.4),
    "claude-3-5-haiku": Price(0.8, 4.0),
    "claude-opus-4": Price(15.0, 75.0),
    "claude-opus-4-1": Price(15.0, 75.0),
    "claude-opus-4-5": Price(5.0, 25.0),
    "claude-sonnet-4": Price(3.0, 15.0),
    "claude-sonnet-4-5": Price(3.0, 15.0),
    "claude-haiku-4-5": Price(1.0, 5.0),
}
"""List prices of 2025 by model; a date may follow the name."""
_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


def find_price(model: str, base_url: str | None, given: tuple[float, float] | None) -> Price:
    """The price of a model: as given, 0 on this machine, or its entry in the table.

    Raises JudgeError for an unknown model: a budget in dollars needs a price.
    """
    if given is not None:
        return Price(*given)
    if base_url and urlsplit(base_url).hostname in LOCAL_HOSTS:
        return FREE
    name = _DATE.sub("", model)
    if name not in PRICES:
        raise JudgeError(
            f"judge.model={model!r} has no known price: give judge.price_usd, two numbers for a million "
            "input and output tokens (0, 0 if it is free)"
        )
    return PRICES[name]
