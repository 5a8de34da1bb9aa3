"""Balanced Aggregation: tokens of better and of worse completions averaged apart."""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.base import register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation


@dataclass(frozen=True, kw_only=True)
class BalancedAggregationOptions(GrpoOptions):
    """GRPO's options; `aggregation` names the scope and the treatment of advantages of 0."""

    aggregation: Aggregation = "balanced"


@register
class BalancedAggregation(Grpo):
    """GRPO with sign-balanced averaging.

    In each group P = {i: A_i > 0}, N = {i: A_i < 0}: loss |P| / (|P| + |N|) times the token mean over P plus
    |N| / (|P| + |N|) times the token mean over N (arXiv 2605.04077). A is GRPO's, `Float[Tensor, "B T"]`; the
    loop counts tokens per group and sign over the whole optimizer step, so a micro-batch may split a group.

    Differs from the paper: what it does with A = 0 is not stated; such completions are dropped
    (`balanced_count_zero` counts them). `balanced_tokens` signs single tokens, for token advantages.
    """

    name = "balanced_aggregation"
    source = "arXiv 2605.04077"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = BalancedAggregationOptions
