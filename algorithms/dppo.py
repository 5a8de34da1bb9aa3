"""DPPO: a trust region by the divergence of probabilities, not by their ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, LossTerm, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation, require_at_least

DEFAULT_DELTA = {"tv": 0.15, "kl": 0.05}


@dataclass(frozen=True, kw_only=True)
class DppoOptions(GrpoOptions):
    """Options of DPPO; `delta` is 0.15 for tv and 0.05 for kl unless given."""

    divergence: F.Divergence = "tv"
    delta_low: float | None = None
    delta_high: float | None = None
    surrogate: Literal["detached_ratio_logp", "ratio"] = "detached_ratio_logp"
    ratio_cap: float = 20.0
    anchor: Literal["rollout", "trainer_old"] = "rollout"
    scale: Literal["std", "none"] = "none"
    aggregation: Aggregation = "seq_mean_token_sum_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0.0, "ratio_cap")
        for name in ("delta_low", "delta_high"):
            value = getattr(self, name)
            if value is not None and value != float("inf"):
                require_at_least(self, 0.0, name)


@register
class Dppo(Grpo):
    """Divergence proximal policy optimisation.

    p, q: probability of the sampled token under the current and the rollout policy. M = 0 where A > 0, p > q
    and D > delta_high, or A <= 0, p < q and D > delta_low, else 1; D = |p - q| (tv) or
    q log(q/p) + (1-q) log((1-q)/(1-p)) (kl). l = -A sg[min(rho, c)] M lp, or -A rho M with surrogate ratio:
    the same gradient while rho <= c. A as in Dr. GRPO, `Float[Tensor, "B T"]` (arXiv 2602.04879;
    sail-sg/Stable-RL).

    Differs from the paper: the binary divergences only; the top-K forms need the sampler's K best tokens at
    every position, which the batch does not carry. The anchor is the sampler's log-probs, not recomputed ones
    (`trainer_old` is a different algorithm).
    """

    name = "dppo"
    source = "arXiv 2602.04879"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = DppoOptions
    options: DppoOptions

    def policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> LossTerm:
        """The masked importance-weighted objective."""
        o, mask = self.options, batch.completion_mask
        anchor = batch.sampling_logprobs if o.anchor == "rollout" else batch.old_logprobs
        advantages = batch.masked_advantages
        default = DEFAULT_DELTA[o.divergence]
        keep = F.divergence_mask(
            logprobs,
            anchor,
            advantages,
            mask,
            divergence=o.divergence,
            delta_low=default if o.delta_low is None else o.delta_low,
            delta_high=default if o.delta_high is None else o.delta_high,
        )
        detach = o.surrogate == "detached_ratio_logp"
        per_token = F.importance_loss(
            logprobs, anchor, advantages, keep, detach_ratio=detach, cap=o.ratio_cap
        )
        return LossTerm(per_token, o.aggregation)
