"""GRPO with process supervision: step rewards normalised in the group, then summed from each step on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, register
from algorithms.grpo import Grpo, GrpoOptions


@dataclass(frozen=True, kw_only=True)
class GrpoProcessOptions(GrpoOptions):
    """GRPO's options, and how much of the outcome the last step carries."""

    outcome_weight: float = 1.0
    step_weight: float = 1.0


@register
class GrpoProcess(Grpo):
    """GRPO's process supervision, the ancestor of BoT-GRPO.

    r_ij = step_weight p_ij (+ outcome_weight R_i at the last step); all step rewards of the group pooled
    unweighted, rt_ij = (r_ij - mean) / (std + eps); A_it = sum of rt_ij over the steps j that end at t or
    later, `Float[Tensor, "B T"]`; GRPO's loss (arXiv 2402.03300, section 4.1.3). p is the mean local
    reward of a step's tokens. Normalised before summed: every step but the last adds -mean / std, so the sum
    ramps with the number of steps left.

    Differs from the paper: the outcome joins the last step, so that correctness is rewarded where the local
    reward is only a hint; the last step reaches to the end of the completion; a completion without steps is
    one step of score 0. With one step a completion it is GRPO.
    """

    name = "grpo_process"
    source = "arXiv 2402.03300"
    requires = frozenset({"groups", "steps", "token_rewards"})
    extra_cost = "step rewards (a checker or judge)"
    Options = GrpoProcessOptions
    options: GrpoProcessOptions

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Normalised step rewards, summed over the steps that end at the token or later."""
        o, mask = self.options, batch.completion_mask
        rewards, ends = outcome_on_last_step(batch, o.step_weight, o.outcome_weight)
        used = ends & torch.isfinite(batch.rewards)[:, None]
        mean, variance = F.group_moments(rewards, used.double(), batch.group_ids)
        spread = torch.ones_like(variance)
        if o.scale == "std":
            if o.std_ddof != "population":
                variance = F.bessel(variance, used.sum(-1), batch.group_ids)
            spread = F.denominator(variance, o.std_eps, o.std_eps_mode)
        normalised = F.masked((rewards - mean[:, None]) / spread[:, None], used)
        silent = F.group_constant(rewards, used, batch.group_ids)
        advantages = F.return_to_go(normalised, mask)
        return F.masked(advantages, mask & ~silent[:, None]).to(batch.local_rewards.dtype)


def outcome_on_last_step(
    batch: Batch, step_weight: float, outcome_weight: float
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Step rewards on the token that ends each step (the last step ends with the completion), and where."""
    mask, steps = batch.completion_mask, batch.step_ids
    scores, _ = F.step_scores(F.masked(batch.local_rewards.double(), mask), steps, mask)
    ends = F.step_ends(steps, mask)
    on_end = F.at_step_tokens(scores, steps, ends)
    final, last_end = F.last_token(mask), F.last_token(ends)
    moved = F.masked(on_end, last_end).sum(-1)  # the last step's score, carried to the last token
    ends = (ends & ~last_end) | final
    rewards = step_weight * torch.where(final, moved[:, None], F.masked(on_end, ends))
    return rewards + outcome_weight * F.broadcast(batch.rewards.double(), final), ends
