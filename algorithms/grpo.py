"""GRPO: the outcome of a completion against the other completions of its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Algorithm, Batch, ConfigError, LossTerm, Models, register
from algorithms.options import Aggregation, OptionSet, require_at_least


@dataclass(frozen=True, kw_only=True)
class GrpoOptions(OptionSet):
    """Options of GRPO; `scale` none leaves the division by the group's deviation out."""

    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    dual_clip: float | None = None  # c > 1: cuts the loss of negative advantages at -c A (verl: 3)
    log_ratio_clamp: float | None = None  # verl: 20
    kl_coefficient: float = 0.0
    kl_estimator: F.KlEstimator = "k3"
    mask_zero_variance_kl: bool = False  # no KL on groups without signal
    scale: Literal["std", "none"] = "std"
    std_ddof: F.StdDdof = "population"
    std_eps: float = 1e-6
    std_eps_mode: F.EpsMode = "add_to_std"
    singleton: Literal["zero", "raw", "error"] = "zero"  # a group with one scorable completion
    aggregation: Aggregation = "seq_mean_token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(
            self, 0.0, "epsilon_low", "epsilon_high", "log_ratio_clamp", "kl_coefficient", "std_eps"
        )
        require_at_least(self, 1.0, "dual_clip")


@register
class Grpo(Algorithm):
    """Group relative policy optimisation with outcome supervision.

    A_it = (R_i - mean_g R) / (std_g R + eps) on every token of completion i, `Float[Tensor, "B T"]`;
    l_it = -min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A) + beta k3, averaged per completion and then
    over completions (arXiv 2402.03300, equations 3 and 4).

    Differs from the paper: population deviation (the paper names none; TRL and verl use n - 1) plus 1e-6;
    beta is 0 by default (paper 0.04), so that no reference forward is paid unless asked for; completions
    that could not be scored (NaN reward) or hold no token enter no statistic and get 0.
    """

    name = "grpo"
    source = "arXiv 2402.03300"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = GrpoOptions
    options: GrpoOptions

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Reference log-probs, when the KL term is on."""
        if self.options.kl_coefficient == 0:
            return batch
        return batch.replace(reference_logprobs=models.reference_logprobs(batch))

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """The group-relative outcome on every token."""
        return F.broadcast(self.outcome_advantages(batch.rewards, batch), batch.completion_mask)

    def outcome_advantages(self, rewards: Float[Tensor, " B"], batch: Batch) -> Float[Tensor, " B"]:
        """The group-relative value of each completion's scalar reward."""
        o = self.options
        valid = F.valid_rows(rewards, batch.completion_mask)
        advantages = F.group_relative(
            rewards,
            valid,
            batch.group_ids,
            scale=o.scale == "std",
            ddof=o.std_ddof,
            eps=o.std_eps,
            eps_mode=o.std_eps_mode,
        )
        alone = valid & (F.group_sum(valid.double(), batch.group_ids) == 1)
        if o.singleton == "error" and bool(alone.any()):
            raise ConfigError(
                f"algorithm.options.singleton='error': group {int(batch.group_ids[alone][0])} has one scorable "
                "completion; "
                "set algorithm.options.singleton to 'zero' or 'raw', or raise train.group_size"
            )
        return torch.where(alone, rewards, advantages) if o.singleton == "raw" else advantages

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """The clipped token objective and, when asked for, the KL to the reference policy."""
        return {"policy": self.policy_loss(logprobs, batch), **self.kl_loss(logprobs, batch)}

    def policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> LossTerm:
        """-min(rho A, clip(rho) A) for each token."""
        o = self.options
        ratio = F.log_ratio(logprobs, batch.old_logprobs, batch.completion_mask, o.log_ratio_clamp).exp()
        per_token = F.ppo_clip(ratio, batch.masked_advantages, o.epsilon_low, o.epsilon_high, o.dual_clip)
        return LossTerm(per_token, o.aggregation)

    def kl_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """beta times the KL estimate, under the name `kl`; empty when beta is 0."""
        o = self.options
        if o.kl_coefficient == 0:
            return {}
        assert batch.reference_logprobs is not None, (
            "prepare fills reference_logprobs when kl_coefficient > 0"
        )
        per_token = F.kl(logprobs, batch.reference_logprobs, batch.completion_mask, o.kl_estimator)
        if o.mask_zero_variance_kl:
            per_token = torch.where((batch.masked_advantages != 0).any(-1, keepdim=True), per_token, 0.0)
        aggregation = "token_mean" if o.aggregation.startswith("balanced") else o.aggregation
        return {"kl": LossTerm(per_token, aggregation, o.kl_coefficient)}

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Share of groups without signal (all outcomes equal)."""
        return {"frac_constant_groups": group_fraction(constant_outcome(batch), batch)}


def sequence_advantages(batch: Batch, name: str) -> Float[Tensor, " B"]:
    """The one advantage of each completion; ValueError when its tokens have different ones."""
    advantages, mask = batch.masked_advantages, batch.completion_mask
    highest = torch.where(mask, advantages, -torch.inf).amax(-1)
    lowest = torch.where(mask, advantages, torch.inf).amin(-1)
    if bool((highest - lowest > 1e-6 * (1 + highest.abs()))[mask.any(-1)].any()):
        raise ValueError(
            f"{name}: a ratio of the whole completion loses token advantages; use gspo with form='token'"
        )
    return torch.where(mask.any(-1), highest, 0.0)


def constant_outcome(batch: Batch) -> Bool[Tensor, " B"]:
    """Rows of groups whose scorable completions all have the same outcome."""
    valid = F.valid_rows(batch.rewards, batch.completion_mask)
    return F.group_constant(batch.rewards[:, None], valid[:, None], batch.group_ids)


def group_fraction(rows: Bool[Tensor, " B"], batch: Batch) -> float:
    """Share of groups with a flag that all rows of a group have in common."""
    share = 1 / F.group_sum(torch.ones(len(batch), dtype=torch.float64, device=rows.device), batch.group_ids)
    return float((rows.double() * share).sum() / share.sum().clamp(min=1))
