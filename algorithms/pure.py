"""PURE: a completion is worth its worst step, by a soft minimum over step rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Algorithm, Batch, LossTerm, Models, register
from algorithms.options import Aggregation, OptionSet, require_at_least, require_between

__all__ = ["PUBLISHED", "Pure", "PureOptions"]

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "openrlhf": {"mask_separator": True},
    "verl": {
        "baseline": "loo_return_padded",
        "vr_mix": "in_return",
        "adv_whiten": True,
        "kl_estimator": "k3",
        "aggregation": "token_mean",
    },
}
"""The two released implementations, which differ, as options that differ from the default."""


@dataclass(frozen=True, kw_only=True)
class PureOptions(OptionSet):
    """Options of PURE; the defaults are those of the released OpenRLHF branch."""

    transform: Literal["softmin", "strict_min", "sum", "mean"] = "softmin"
    temperature: float = 0.1  # of the soft minimum
    gamma: float = 1.0  # over steps, for transform sum
    baseline: Literal["loo_per_token_reward", "loo_per_step", "loo_return_padded", "loo_return_valid"] = (
        "loo_per_token_reward"
    )
    vr_mix: Literal["loo_at_eos", "in_return"] = "loo_at_eos"
    vr_coefficient: float = 1.0  # 0: step rewards only
    adv_whiten: bool = False
    mask_separator: bool = False  # no credit for the token that ends a step
    kl_coefficient: float = 1e-3
    kl_estimator: F.KlEstimator = "k1"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    ratio_guard: float | None = 10.0  # a completion whose mean ratio exceeds it is left out of the update
    aggregation: Aggregation = "seq_mean_token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1e-6, "temperature")
        require_at_least(self, 0.0, "vr_coefficient", "kl_coefficient", "epsilon_low", "epsilon_high")
        require_between(self, 0.0, 1.0, "gamma")


@register
class Pure(Algorithm):
    """Process reward with min-form credit assignment.

    p_j in [-1, 1]: the mean local reward of step j; w = softmax(-p / tau) over the completion's steps;
    p*_j = w_j p_j on the step's last token; return_t = sum of p* from t on, which is about min p before the
    worst step and about 0 after it. Baseline (`loo_per_token_reward`): b_i = reward of the others per token
    of theirs, subtracted from each step end times the step's tokens; verifiable reward against the others'
    mean on the last token; minus beta k1; summed from t on. `[B, T]`; PPO's clipped loss (arXiv 2504.15275;
    CJReinforce/PURE, branches main and verl; see PUBLISHED).

    Differs from the paper: its token-level formula was not read, only the code. `strict_min` ignores tokens
    that end no step (the code lets their 0 cap every return). Step-final tokens keep their credit, as tasks
    here need no separator token. The guard on the ratio acts on single completions, so that it does not
    depend on the micro-batch.
    """

    name = "pure"
    source = "arXiv 2504.15275"
    requires = frozenset({"groups", "steps", "token_rewards"})
    extra_cost = "step rewards (a checker or judge); a reference forward when kl_coefficient > 0"
    Options = PureOptions
    options: PureOptions

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Reference log-probs, when KL is part of the reward."""
        if self.options.kl_coefficient == 0:
            return batch
        return batch.replace(reference_logprobs=models.reference_logprobs(batch))

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Step credit minus its leave-one-out baseline, verifiable reward and KL."""
        o, mask = self.options, batch.completion_mask
        process, verifiable = self.process_rewards(batch), self.verifiable_rewards(batch)
        if o.baseline in ("loo_per_token_reward", "loo_per_step"):
            process = process - self._reward_baseline(process, batch)
        rewards = process + o.vr_coefficient * verifiable - self._kl_reward(batch)
        advantages = F.return_to_go(rewards, mask)
        if o.baseline in ("loo_return_padded", "loo_return_valid"):
            advantages = advantages - self._return_baseline(advantages, batch)[:, None]
        if o.mask_separator:
            advantages = torch.where(F.step_ends(batch.step_ids, mask), 0.0, advantages)
        advantages = F.masked(advantages, mask)
        if o.adv_whiten:
            advantages = F.whiten(advantages, mask)
        return advantages.to(batch.local_rewards.dtype)

    def process_rewards(self, batch: Batch) -> Float[Tensor, "B T"]:
        """p*_j on the last token of each step: its sum from t on is the step return. float64."""
        mask, steps = batch.completion_mask, batch.step_ids
        scores, sizes = F.step_scores(F.masked(batch.local_rewards.double(), mask), steps, mask)
        return F.at_step_tokens(self._transform(scores, sizes > 0), steps, F.step_ends(steps, mask))

    def _transform(self, p: Float[Tensor, "B S"], present: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        o = self.options
        if o.transform == "softmin":
            return F.softmin_weights(p, present, o.temperature) * p
        if o.transform == "mean":
            return F.masked(p / present.sum(-1, keepdim=True).clamp(min=1), present)
        if o.transform == "sum":
            returns = F.return_to_go(p, present, o.gamma)
        else:
            # +inf where there is no step: a 0 there would cap the minimum of positive scores
            filled = torch.where(present, p, torch.inf).flip(-1)
            returns = F.masked(filled.cummin(-1).values.flip(-1), present)
        return returns - _next_step(returns, present)

    def verifiable_rewards(self, batch: Batch) -> Float[Tensor, "B T"]:
        """The outcome, scaled to [0, 1], on the last token; mixed at the end: minus the others' mean."""
        low, high = batch.reward_range
        solved = (batch.rewards.double() - low) / (high - low)
        known = F.valid_rows(batch.rewards, batch.completion_mask)
        solved = torch.where(known, solved, 0.0)
        if self.options.vr_mix == "loo_at_eos":
            others = F.group_sum(known.double(), batch.group_ids) - known.double()
            total = F.group_sum(solved, batch.group_ids) - solved
            solved = torch.where(known & (others > 0), solved - total / others.clamp(min=1), 0.0)
        return F.broadcast(solved, F.last_token(batch.completion_mask))

    def _kl_reward(self, batch: Batch) -> Float[Tensor, "B T"]:
        o, mask = self.options, batch.completion_mask
        if o.kl_coefficient == 0:
            return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
        assert batch.reference_logprobs is not None, "prepare fills reference_logprobs"
        return (
            o.kl_coefficient
            * F.kl(batch.old_logprobs, batch.reference_logprobs, mask, o.kl_estimator).double()
        )

    def _reward_baseline(self, process: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
        """What each step end loses: the others' reward per token times its tokens, or per step."""
        mask, steps = batch.completion_mask, batch.step_ids
        ends = F.step_ends(steps, mask)
        per_token = self.options.baseline == "loo_per_token_reward"
        counts = (mask if per_token else ends).sum(-1).double()
        baseline = _leave_one_out(process.sum(-1), counts, batch)[:, None].expand(process.shape)
        if per_token:
            sizes = F.step_scores(process, steps, mask)[1]
            baseline = baseline * F.at_step_tokens(sizes, steps, ends)
        return F.masked(baseline, ends)

    def _return_baseline(self, returns: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, " B"]:
        """Mean return of a token of the others, over their tokens or over the padded width."""
        width = torch.full_like(returns[:, 0], returns.shape[1])
        counts = width if self.options.baseline == "loo_return_padded" else batch.lengths.double()
        return _leave_one_out(returns.sum(-1), counts, batch)

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """PPO's clipped objective on each token."""
        o, mask = self.options, batch.completion_mask
        ratio = F.log_ratio(logprobs, batch.old_logprobs, mask).exp()
        per_token = F.ppo_clip(ratio, batch.masked_advantages, o.epsilon_low, o.epsilon_high)
        if o.ratio_guard is not None:
            runaway = F.masked_mean(ratio.detach(), mask) > o.ratio_guard
            per_token = torch.where(runaway[:, None], 0.0, per_token)
        return {"policy": LossTerm(per_token, o.aggregation)}

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Mean step score, its minimum per completion, and the number of steps."""
        mask = batch.completion_mask
        scores, sizes = F.step_scores(F.masked(batch.local_rewards.double(), mask), batch.step_ids, mask)
        present = sizes > 0
        stepped = present.any(-1)
        worst = torch.where(present, scores, torch.inf).amin(-1)[stepped]
        return {
            "step_score_mean": float(F.masked_mean(scores, present)[stepped].mean()) if len(worst) else 0.0,
            "step_score_min": float(worst.mean()) if len(worst) else 0.0,
            "steps_per_completion": float(present.sum(-1).double().mean()),
        }


def _next_step(returns: Float[Tensor, "B S"], present: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """The return of the next present step, 0 after the last; step ids may have gaps."""
    ones = present.to(returns.dtype)
    # present[j] times the first present return after j, by a backward pass over the (few) steps
    following, carry = [], torch.zeros_like(returns[:, 0])
    for j in range(returns.shape[1] - 1, -1, -1):
        following.append(carry)
        carry = torch.where(present[:, j], returns[:, j], carry)
    return torch.stack(following[::-1], dim=1) * ones


def _leave_one_out(
    sums: Float[Tensor, " B"], counts: Float[Tensor, " B"], batch: Batch
) -> Float[Tensor, " B"]:
    """Sum over the others of the group / count over the others; 0 when there are none."""
    others = F.group_sum(counts, batch.group_ids) - counts
    total = F.group_sum(sums, batch.group_ids) - sums
    return torch.where(others > 0, total / others.clamp(min=1), 0.0)
