"""Dr. GRPO: GRPO without its two divisions, by the group's deviation and by the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from algorithms.base import register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation


@dataclass(frozen=True, kw_only=True)
class DrGrpoOptions(GrpoOptions):
    """GRPO's options with Dr. GRPO's defaults."""

    scale: Literal["std", "none"] = "none"
    aggregation: Aggregation = "seq_mean_token_sum_norm"


@register
class DrGrpo(Grpo):
    """GRPO done right.

    A_it = R_i - mean_g R, `Float[Tensor, "B T"]`; loss 1/N sum_i 1/C sum_t l_it with the constant
    C = max_completion_tokens and GRPO's clipped l (arXiv 2503.20783; sail-sg/understand-r1-zero).
    A equals RLOO's times (G - 1) / G.

    Differs from the paper: nothing known; C is the token limit of the run (paper scripts: 3000).
    """

    name = "dr_grpo"
    source = "arXiv 2503.20783"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = DrGrpoOptions
