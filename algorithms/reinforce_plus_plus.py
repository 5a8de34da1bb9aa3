"""REINFORCE++: returns whitened over the whole batch, without groups or critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Algorithm, Batch, ConfigError, LossTerm, Models, Setting, register
from algorithms.options import Aggregation, OptionSet, require_at_least, require_between


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusOptions(OptionSet):
    """Options of REINFORCE++; `baseline` group_mean is its -baseline variant, with KL in the loss."""

    baseline: Literal["none", "group_mean"] = "none"
    kl_coefficient: float = 0.01
    kl_estimator: F.KlEstimator = "k2"  # of the loss, for group_mean; the reward form is always k1
    gamma: float = 1.0
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    aggregation: Aggregation = "token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0.0, "kl_coefficient", "epsilon_low", "epsilon_high")
        require_between(self, 0.0, 1.0, "gamma")


@register
class ReinforcePlusPlus(Algorithm):
    """REINFORCE with PPO's clip and global whitening.

    r_t = 1[t = L] R - beta k1_t; ret_t = sum_{t' >= t} gamma^(t' - t) r_t'; A = (ret - mean) / sqrt(var +
    1e-8) over all tokens of the batch, `Float[Tensor, "B T"]`; PPO's token clip, mean over tokens (arXiv
    2501.03262). `group_mean`: R minus its group's mean first, KL in the loss. Whitening weighs tokens, so
    long completions dominate it, the opposite of BoT-GRPO.

    Differs from the paper: a batch of equal returns gets 0 where the code divides by the guard alone.
    """

    name = "reinforce_plus_plus"
    source = "arXiv 2501.03262"
    requires = frozenset()
    extra_cost = "a reference forward when kl_coefficient > 0"
    Options = ReinforcePlusPlusOptions
    options: ReinforcePlusPlusOptions

    def check(self, setting: Setting) -> None:
        """Also refuses a group mean of one completion."""
        super().check(setting)
        if self.options.baseline == "group_mean" and setting.group_size < 2:
            raise ConfigError(
                f"train.group_size={setting.group_size}: baseline='group_mean' of one completion is itself; "
                "set train.group_size to 2 or more, or algorithm.options.baseline='none'"
            )

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Reference log-probs, when the KL term is on."""
        if self.options.kl_coefficient == 0:
            return batch
        return batch.replace(reference_logprobs=models.reference_logprobs(batch))

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Returns, whitened over all tokens of the batch."""
        o, mask = self.options, batch.completion_mask
        valid = F.valid_rows(batch.rewards, mask)
        outcome = batch.rewards.double()
        if o.baseline == "group_mean":
            outcome = F.group_relative(outcome, valid, batch.group_ids, scale=False)
        rewards = F.broadcast(outcome, F.last_token(mask) & valid[:, None])
        if o.kl_coefficient > 0 and o.baseline == "none":
            assert batch.reference_logprobs is not None, "prepare fills reference_logprobs"
            k1 = F.kl(batch.old_logprobs, batch.reference_logprobs, mask, "k1").double()
            rewards = rewards - o.kl_coefficient * k1
        used = mask & valid[:, None]
        white = F.whiten(F.return_to_go(rewards, mask, o.gamma), used)
        return torch.where(used, white, 0.0).to(batch.local_rewards.dtype)

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """PPO's clipped objective, and KL for the group-mean variant."""
        o, mask = self.options, batch.completion_mask
        ratio = F.log_ratio(logprobs, batch.old_logprobs, mask).exp()
        per_token = F.ppo_clip(ratio, batch.masked_advantages, o.epsilon_low, o.epsilon_high)
        terms = {"policy": LossTerm(per_token, o.aggregation)}
        if o.baseline == "group_mean" and o.kl_coefficient > 0:
            assert batch.reference_logprobs is not None, "prepare fills reference_logprobs"
            kl = F.kl(logprobs, batch.reference_logprobs, mask, o.kl_estimator)
            terms["kl"] = LossTerm(kl, o.aggregation, o.kl_coefficient)
        return terms
