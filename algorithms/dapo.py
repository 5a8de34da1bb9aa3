"""DAPO: a higher upper clip, only prompts with signal, a mean over tokens, a soft penalty on length."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, Group, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation, require_at_least, require_between


@dataclass(frozen=True, kw_only=True)
class DapoOptions(GrpoOptions):
    """GRPO's options with DAPO's defaults; each of its parts can be switched off."""

    epsilon_high: float = 0.28
    aggregation: Aggregation = "token_mean"
    dynamic_sampling: bool = True
    overlong_cache_share: float = 0.2  # the last share of the token limit is penalised; 0 switches it off
    overlong_penalty: float = 0.5  # at the limit, as a share of the reward range (paper: 1 over a range of 2)
    overlong_filter: bool = False  # drops cut completions from the loss instead

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "overlong_cache_share")
        require_at_least(self, 0.0, "overlong_penalty")


@register
class Dapo(Grpo):
    """Decoupled clip and dynamic sampling policy optimisation.

    R'_i = R_i + penalty x overlong(L_i); A as in GRPO from R'; l = -min(rho A, clip(rho, 0.8, 1.28) A),
    averaged over all tokens; no KL (arXiv 2503.14476). overlong(L) is 0 up to L_max - L_cache, then falls
    linearly to -1 at L_max. A prompt is kept iff 0 < correct completions < G: by the metric, never by the
    shaped reward, or a length penalty would let groups of failures pass. Advantages are `[B, T]`.

    Differs from the paper: the penalty is a share of the reward range, as rewards here are not always -1 and
    1; population deviation as in our GRPO; the loop bounds the rounds of refilling and counts their cost.
    """

    name = "dapo"
    source = "arXiv 2503.14476"
    requires = frozenset({"groups"})
    extra_cost = "completions of the prompts that were drawn and refused"
    Options = DapoOptions
    options: DapoOptions

    def accept(self, group: Group) -> bool:
        """Keeps groups with both right and wrong completions (and those of one, which have no spread)."""
        right = sum(group.correct)
        return not self.options.dynamic_sampling or len(group.correct) == 1 or 0 < right < len(group.correct)

    def shaped_rewards(self, batch: Batch) -> Float[Tensor, " B"]:
        """The outcome plus the soft overlong penalty."""
        o = self.options
        cache = round(o.overlong_cache_share * batch.max_completion_tokens)
        if cache == 0 or o.overlong_filter:
            return batch.rewards
        low, high = batch.reward_range
        penalty = soft_overlong(batch.lengths, batch.max_completion_tokens, cache).to(batch.rewards.dtype)
        return batch.rewards + o.overlong_penalty * (high - low) * penalty

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """The group-relative shaped outcome on every token."""
        return F.broadcast(self.outcome_advantages(self.shaped_rewards(batch), batch), batch.completion_mask)

    def select(self, batch: Batch) -> Bool[Tensor, " B"] | None:
        """Without the cut completions, when filtering instead of shaping."""
        return ~batch.truncated if self.options.overlong_filter else None

    def metrics(self, batch: Batch) -> dict[str, float]:
        """GRPO's, and the mean overlong penalty."""
        penalty = self.shaped_rewards(batch) - batch.rewards
        return {**super().metrics(batch), "overlong_penalty": float(penalty.nanmean())}


def soft_overlong(lengths: Int[Tensor, " B"], limit: int, cache: int) -> Float[Tensor, " B"]:
    """0 up to limit - cache, linear to -1 at the limit, -1 above (arXiv 2503.14476, equation 13)."""
    return -((lengths.double() - (limit - cache)) / cache).clamp(0, 1)
