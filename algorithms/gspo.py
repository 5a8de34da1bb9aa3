"""GSPO: one importance ratio for a whole completion, clipped as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, ConfigError, LossTerm, Setting, register
from algorithms.bot_grpo import BotGrpo, BotGrpoOptions
from algorithms.grpo import Grpo, sequence_advantages


@dataclass(frozen=True, kw_only=True)
class GspoOptions(BotGrpoOptions):
    """GSPO's clip range; BoT-GRPO's options act with `advantage` bot only."""

    epsilon_low: float = 3e-4
    epsilon_high: float = 4e-4
    form: Literal["sequence", "token"] = "sequence"
    advantage: Literal["outcome", "bot"] = "outcome"


@register
class Gspo(Grpo):
    """Group sequence policy optimisation.

    s_i = exp(mean_t (lp - lp_old)); `sequence`: l_i = -min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i), one
    loss a completion; `token`: s_it = sg[s_i] exp(lp_it - sg[lp_it]), the same value and gradient for a
    constant A, and well defined for token advantages `[B, T]` (arXiv 2507.18071, equations 5 to 7, 13 to 18).
    Token advantages in the sequence form would lose their place silently, so they are refused.

    Differs from the paper: population deviation as in our GRPO. The clip range is that of the paper; GRPO's
    0.2 would never act here.
    """

    name = "gspo"
    source = "arXiv 2507.18071"
    requires = frozenset({"groups"})
    extra_cost = "none"
    Options = GspoOptions
    options: GspoOptions

    def check(self, setting: Setting) -> None:
        """Also refuses token advantages in the sequence form."""
        super().check(setting)
        if self.options.advantage == "outcome":
            return
        if self.options.form == "sequence":
            raise ConfigError(
                "algorithm.options.form='sequence': one ratio a completion cannot carry token advantages "
                "(advantage='bot'); set algorithm.options.form='token'"
            )
        BotGrpo(self.options).check(setting)

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """GRPO's outcome advantage, or BoT-GRPO's token advantage."""
        if self.options.advantage == "bot":
            return BotGrpo(self.options).advantages(batch)
        return super().advantages(batch)

    def policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> LossTerm:
        """The clipped sequence ratio, once a completion or on each of its tokens."""
        o, mask = self.options, batch.completion_mask
        mean_log_ratio = F.masked_mean(
            F.log_ratio(logprobs, batch.old_logprobs, mask, o.log_ratio_clamp), mask
        )
        if o.form == "sequence":
            advantages = sequence_advantages(batch, self.name)
            per_row = F.ppo_clip(mean_log_ratio.exp(), advantages, o.epsilon_low, o.epsilon_high, o.dual_clip)
            return LossTerm(per_row, "seq_level")
        one = F.log_ratio(logprobs, logprobs.detach(), mask).exp()
        ratio = mean_log_ratio.detach().exp()[:, None] * one
        per_token = F.ppo_clip(ratio, batch.masked_advantages, o.epsilon_low, o.epsilon_high, o.dual_clip)
        return LossTerm(per_token, o.aggregation)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """GRPO's, or BoT-GRPO's with its token advantages."""
        return (
            BotGrpo(self.options).metrics(batch)
            if self.options.advantage == "bot"
            else super().metrics(batch)
        )
