"""Leave-one-out: each completion against the mean of the others of its prompt."""

from dataclasses import dataclass

import torch

from algorithms.base import Algorithm, LossTerm, register


@dataclass(frozen=True)
class Options:
    clip: float = 0.2


@register
class LeaveOneOut(Algorithm):
    """A_i = R_i - mean of the other R of the group; clipped token ratio (my paper, equation 3)."""

    name = "leave_one_out"
    source = "my paper"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = Options

    def advantages(self, batch):
        known = batch.rewards.isfinite()  # an answer that could not be scored teaches nothing
        rewards = torch.where(known, batch.rewards, 0.0)
        same = (batch.group_ids[:, None] == batch.group_ids[None, :]) & known
        others = same.to(rewards).fill_diagonal_(0)
        baseline = (others @ rewards) / others.sum(1).clamp(min=1)
        return torch.where(known, rewards - baseline, 0.0)[:, None] * batch.completion_mask

    def loss(self, logprobs, batch):
        ratio = torch.exp(torch.where(batch.completion_mask, logprobs - batch.old_logprobs, 0.0))
        clipped = ratio.clamp(1 - self.options.clip, 1 + self.options.clip)
        return {"policy": LossTerm(-torch.minimum(ratio * batch.advantages, clipped * batch.advantages))}
