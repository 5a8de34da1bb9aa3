"""What a local reward may cost before the saving that it brings is gone."""

from __future__ import annotations

from dataclasses import dataclass

from harness.claims.results import ArmResult


@dataclass(frozen=True)
class Prices:
    """Dollars per GPU hour and per million generated tokens of a paid sampler; 0 leaves an item out."""

    gpu_hour_usd: float = 0.0
    million_tokens_usd: float = 0.0


@dataclass(frozen=True)
class BreakEven:
    """What a judged completion may cost before the saving is gone; negative: there is no saving.

    `tokens` is in generated tokens a judged completion, `usd` in dollars at the given prices.
    """

    tokens: float | None
    usd: float | None
    saved_tokens: float | None
    saved_seconds: float | None
    judged_completions: float | None
    reason: str = ""


def break_even(baseline: ArmResult, treatment: ArmResult, prices: Prices | None = None) -> BreakEven:
    """Break-even price of a local reward: (baseline cost - treatment cost to the threshold) / judged completions.

    Medians to the threshold over seeds; every completion of the treatment is judged once.
    """
    prices = prices or Prices()
    judged = treatment.time.get("completions")

    def saved(axis: str) -> float | None:
        a, b = baseline.time.get(axis), treatment.time.get(axis)
        return None if a is None or b is None else a - b

    tokens, seconds = saved("generated_tokens"), saved("train_seconds")
    if not judged or tokens is None:
        return BreakEven(
            None, None, tokens, seconds, judged, "fewer than half of an arm's runs reached the threshold"
        )
    usd = tokens / 1e6 * prices.million_tokens_usd + (seconds or 0.0) / 3600 * prices.gpu_hour_usd
    priced = prices.million_tokens_usd > 0 or prices.gpu_hour_usd > 0
    return BreakEven(tokens / judged, usd / judged if priced else None, tokens, seconds, judged)
