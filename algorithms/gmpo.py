"""GMPO: the geometric mean of token ratios that were clipped in log space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, LossTerm, register
from algorithms.grpo import Grpo, GrpoOptions, sequence_advantages


@dataclass(frozen=True, kw_only=True)
class GmpoOptions(GrpoOptions):
    """GRPO's options with GMPO's clip range, which lives in log space: ratios in [exp(-0.4), exp(0.4)]."""

    epsilon_low: float = 0.4
    epsilon_high: float = 0.4


@register
class Gmpo(Grpo):
    """Geometric-mean policy optimisation.

    x_it = lp - lp_old; c_it = min(x, clamp(x, -e1, e2)) where A > 0, max(x, clamp(x, -e1, e2)) elsewhere;
    l_i = -A_i exp(mean_t c_it), one loss a completion, `[B]` (arXiv 2507.20673; callsys/GMPO).

    Differs from the paper: population deviation as in our GRPO; at A = 0 the loss is 0 whatever the branch.
    Token advantages are refused.
    """

    name = "gmpo"
    source = "arXiv 2507.20673"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = GmpoOptions
    options: GmpoOptions

    def policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> LossTerm:
        """-A_i times the geometric mean of the clipped ratios."""
        o, mask = self.options, batch.completion_mask
        advantages = sequence_advantages(batch, self.name)
        x = F.log_ratio(logprobs, batch.old_logprobs, mask, o.log_ratio_clamp)
        cut = x.clamp(-o.epsilon_low, o.epsilon_high)
        clipped = torch.where((advantages > 0)[:, None], torch.minimum(x, cut), torch.maximum(x, cut))
        return LossTerm(-advantages * F.masked_mean(clipped, mask).exp(), "seq_level")
