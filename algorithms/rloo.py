"""RLOO: REINFORCE against the mean of the other completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Algorithm, Batch, LossTerm, Models, register
from algorithms.options import Aggregation, OptionSet, require_at_least


@dataclass(frozen=True, kw_only=True)
class RlooOptions(OptionSet):
    """Options of RLOO; the defaults are TRL's."""

    kl_coefficient: float = 0.05  # times the sum of k1 over the completion, taken off the reward
    reward_clip: float | None = None  # rewards cut to +-this before the KL
    normalize: bool = False  # (A - mean) / (std + 1e-4) over the batch
    surrogate: Literal["sequence", "reinforce", "token"] = "sequence"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    aggregation: Aggregation = "seq_mean_token_mean"  # for token

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0.0, "kl_coefficient", "reward_clip", "epsilon_low", "epsilon_high")


@register
class Rloo(Algorithm):
    """REINFORCE leave-one-out.

    R'_i = R_i - beta sum_t k1_it; A_i = R'_i - mean of the others' R' = G / (G - 1) (R'_i - mean R'), on
    every token, `Float[Tensor, "B T"]`; the completion is one action: `sequence` clips the ratio
    exp(sum_t (lp - lp_old)) (TRL), `reinforce` is -A_i sum_t lp_it, `token` PPO's token ratio (verl)
    (arXiv 2402.14740).

    Differs from the paper: one clipped update more than REINFORCE needs, as in TRL; KL enters before the
    baseline is taken.
    """

    name = "rloo"
    source = "arXiv 2402.14740"
    requires = frozenset({"groups"})
    extra_cost = "a reference forward when kl_coefficient > 0"
    Options = RlooOptions
    options: RlooOptions

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Reference log-probs, when KL is part of the reward."""
        if self.options.kl_coefficient == 0:
            return batch
        return batch.replace(reference_logprobs=models.reference_logprobs(batch))

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Each completion against the mean of the others."""
        o, mask = self.options, batch.completion_mask
        rewards = batch.rewards.double()
        if o.reward_clip is not None:
            rewards = rewards.clamp(-o.reward_clip, o.reward_clip)
        if o.kl_coefficient > 0:
            assert batch.reference_logprobs is not None, "prepare fills reference_logprobs"
            kl = F.kl(batch.old_logprobs, batch.reference_logprobs, mask, "k1").double()
            rewards = rewards - o.kl_coefficient * kl.sum(-1)
        valid = F.valid_rows(rewards, mask)
        n = F.group_sum(valid.double(), batch.group_ids)
        centred = F.group_relative(rewards, valid, batch.group_ids, scale=False)
        advantages = centred * n / (n - 1).clamp(min=1)
        if o.normalize and bool(valid.sum() > 1):
            chosen = advantages[valid]
            advantages = torch.where(valid, (advantages - chosen.mean()) / (chosen.std() + 1e-4), 0.0)
        return F.broadcast(advantages, mask).to(batch.local_rewards.dtype)

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """The clipped ratio of whole completions, REINFORCE, or the token ratio."""
        o, mask, advantages = self.options, batch.completion_mask, batch.masked_advantages
        log_ratio = F.log_ratio(logprobs, batch.old_logprobs, mask)
        if o.surrogate == "token":
            per_token = F.ppo_clip(log_ratio.exp(), advantages, o.epsilon_low, o.epsilon_high)
            return {"policy": LossTerm(per_token, o.aggregation)}
        row = F.masked_mean(advantages, mask)
        if o.surrogate == "reinforce":
            return {"policy": LossTerm(-row * F.masked(logprobs, mask).sum(-1), "seq_level")}
        per_row = F.ppo_clip(log_ratio.sum(-1).exp(), row, o.epsilon_low, o.epsilon_high)
        return {"policy": LossTerm(per_row, "seq_level")}
