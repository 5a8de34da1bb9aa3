"""CoRT: the group advantage of a completion, moved to the tokens that depend on the rubric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, ConfigError, Models, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import require_at_least, require_between


@dataclass(frozen=True, kw_only=True)
class CortOptions(GrpoOptions):
    """GRPO's options and the weighting of tokens; the first value of each choice is the default."""

    weighting: Literal["one_plus_tanh", "softmax_clip", "centered"] = "one_plus_tanh"
    tau: float = 1.0
    c: float = 0.5  # one_plus_tanh: weight bounds (1 - c)/(1 + c) and its inverse; else the clip of d
    k: float = 1.0  # centered: bounds 1 - k and 1 + k
    mix: float = 1.0  # 0: GRPO
    diff: Literal["signed", "abs", "relu"] = "signed"
    scale_d: Literal["none", "per_response_std", "per_response_max"] = "none"
    negative_mode: Literal["same", "inverted"] = "same"  # where A < 0: blame dependent or independent tokens
    total: Literal["mean_one", "sum_one"] = "mean_one"
    dead_zone: float = 0.0  # smaller differences count as none; bf16 noise wants about 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1e-6, "tau")
        require_at_least(self, 0.0, "dead_zone")
        require_between(self, 0.0, 1.0, "mix", "k")
        if self.weighting == "one_plus_tanh" and not 0 < self.c < 1:
            raise ConfigError(
                f"algorithm.options.c={self.c!r}: one_plus_tanh needs 0 < c < 1, or weights turn negative"
            )
        if self.c <= 0:
            raise ConfigError(f"algorithm.options.c={self.c!r}: the clip of differences must be above 0")
        if self.total == "sum_one" and self.aggregation != "seq_mean_token_sum":
            raise ConfigError(
                f"algorithm.options.aggregation={self.aggregation!r}: weights that sum to one already divide by the "
                "length; set algorithm.options.aggregation='seq_mean_token_sum' or algorithm.options.total='mean_one'"
            )


@register
class Cort(Grpo):
    """Counterfactual replay for token-level rubric-guided optimisation.

    d_it = log-prob with the rubric in the prompt - log-prob without it, for the same tokens; bounded weights
    w_it >= 0 with mean 1 over the completion: `one_plus_tanh` w = u L / sum u, u = 1 + c tanh(d / tau);
    `softmax_clip` w = L softmax(clip(d, -c, c) / tau); `centered` w = 1 + k (u - mean u) / (2c),
    u = clip(d / tau, -c, c). A_it = A_i ((1 - mix) + mix w_it), `Float[Tensor, "B T"]`: the sum over the
    tokens stays L_i A_i; then GRPO's loss.

    Differs from the paper: only its public summary was available; the weighting is a family that fits it
    (bounded, response-normalised, signed, total unchanged), not its formula. The completion was sampled with
    the rubric, so `old_logprobs` is the first term and one extra forward is paid, once a rollout.
    """

    name = "cort"
    source = "public summary of CoRT (Zhang et al.)"
    requires = frozenset({"groups", "rubric"})
    extra_cost = "one forward without gradient (the replay without the rubric)"
    Options = CortOptions
    options: CortOptions

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """The replay: the same token ids under the prompt without its rubric."""
        batch = super().prepare(batch, models)
        return batch.replace(replay_logprobs=models.logprobs(batch, variant="without_rubric"))

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """The group advantage, redistributed over the tokens of each completion."""
        advantages = super().advantages(batch)
        weights = self.weights(batch, F.masked_mean(advantages, batch.completion_mask))
        mixed = (1 - self.options.mix) + self.options.mix * weights
        return F.masked(advantages.double() * mixed, batch.completion_mask).to(advantages.dtype)

    def weights(self, batch: Batch, row_advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
        """Bounded weights of mean one (or of sum one), float64, 0 outside the mask."""
        o, mask = self.options, batch.completion_mask
        d = self._difference(batch)
        if o.negative_mode == "inverted":
            d = torch.where(row_advantages[:, None] < 0, -d, d)
        lengths = batch.lengths.clamp(min=1).double()[:, None]
        if o.weighting == "one_plus_tanh":
            u = F.masked(1 + o.c * torch.tanh(d / o.tau), mask)
            weights = u * lengths / u.sum(-1, keepdim=True).clamp(min=1e-12)
        elif o.weighting == "softmax_clip":
            weights = lengths * F.softmin_weights(-d.clamp(-o.c, o.c), mask, o.tau)
        else:
            u = F.masked((d / o.tau).clamp(-o.c, o.c), mask)
            weights = F.masked(1 + o.k * (u - F.masked_mean(u, mask)[:, None]) / (2 * o.c), mask)
        return weights / lengths if o.total == "sum_one" else weights

    def _difference(self, batch: Batch) -> Float[Tensor, "B T"]:
        """d, with its sign rule, dead zone and scale; 0 outside the mask."""
        o, mask = self.options, batch.completion_mask
        assert batch.replay_logprobs is not None, "prepare fills replay_logprobs"
        d = F.log_ratio(batch.old_logprobs.double(), batch.replay_logprobs.double(), mask)
        if o.diff == "abs":
            d = d.abs()
        elif o.diff == "relu":
            d = d.relu()
        d = torch.where(d.abs() < o.dead_zone, 0.0, d)
        if o.scale_d == "none":
            return d
        return d / _row_scale(d, mask, o.scale_d)[:, None]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """GRPO's, the mean size of the difference and the largest weight."""
        assert batch.advantages is not None, "metrics are asked for after advantages"
        rows = F.masked_mean(batch.advantages, batch.completion_mask)
        d, weights = self._difference(batch), self.weights(batch, rows)
        return {
            **super().metrics(batch),
            "rubric_difference": float(F.masked_mean(d.abs(), batch.completion_mask).mean()),
            "largest_weight": float(weights.max()),
        }


def _row_scale(d: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], how: str) -> Float[Tensor, " B"]:
    """Deviation or largest size of each row's differences; 1 where it is 0."""
    if how == "per_response_max":
        scale = d.abs().amax(-1)
    else:
        scale = F.masked_mean((d - F.masked_mean(d, mask)[:, None]).square(), mask).sqrt()
    return torch.where(scale > 1e-12, scale, 1.0)
