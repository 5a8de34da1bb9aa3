"""PPO: generalised advantage estimation with a critic, and the clipped ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Algorithm, Batch, ConfigError, LossTerm, Models, Setting, register
from algorithms.critic import Critic, ValueBound, clipped_value_loss
from algorithms.options import Aggregation, OptionSet, require_at_least, require_between


@dataclass(frozen=True, kw_only=True)
class PpoOptions(OptionSet):
    """Options of a policy with a critic; the defaults are TRL's PPO."""

    gamma: float = 1.0
    lambda_mode: Literal["fixed", "length_adaptive"] = "fixed"
    gae_lambda: float = 0.95  # for fixed
    alpha: float = 0.4  # for length_adaptive: lambda = 1 - 1 / (alpha L), within the next two
    lambda_low: float = 0.0
    lambda_high: float = 1.0
    adv_whiten: bool = True
    kl_coefficient: float = 0.05  # k1 per token, in the reward
    missing_end_penalty: float = 0.0  # taken off the outcome of a completion cut by the limit
    trust_region: Literal["ppo", "dppo_tv", "dppo_kl"] = "ppo"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    dual_clip: float | None = None
    delta: float = 0.2  # for dppo
    value_bound: ValueBound = "none"
    value_target: Literal["mc", "td_lambda"] = "td_lambda"
    value_clip: float | None = 0.2
    value_coefficient: float = 0.1
    critic_prompt: Literal["plain", "privileged"] = "plain"
    critic_warmup: int = 0  # rollouts that train the critic only
    critic_lr_scale: float = 5.0  # times the policy's learning rate
    aggregation: Aggregation = "token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "gamma", "gae_lambda", "lambda_low", "lambda_high")
        require_at_least(self, 1e-6, "alpha", "critic_lr_scale")
        require_at_least(self, 0.0, "kl_coefficient", "missing_end_penalty", "epsilon_low", "epsilon_high")
        require_at_least(self, 0.0, "delta", "value_clip", "value_coefficient", "critic_warmup")
        require_at_least(self, 1.0, "dual_clip")


@register
class Ppo(Algorithm):
    """Proximal policy optimisation with a learned value of every state.

    r_t = -beta k1_t + 1[t = L] R; delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lambda A_{t+1},
    whitened over the batch; returns = A + V before whitening (td_lambda) or the Monte-Carlo return (mc);
    -min(rho A, clip(rho) A), and max((V - ret)^2, (clip(V) - ret)^2) / 2 for the critic. All `[B, T]`;
    V_t is the value of the state before token t (arXiv 1707.06347; TRL's PPO).

    Differs from the paper: KL to the starting policy is part of the reward, as in language-model practice;
    the critic's optimizer group has its own learning rate in place of a shared network.
    """

    name = "ppo"
    source = "arXiv 1707.06347"
    requires = frozenset({"critic"})
    extra_cost = (
        "a critic: forwards and backwards of a second network; a reference forward when kl_coefficient > 0"
    )
    Options = PpoOptions
    options: PpoOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.critic: Critic | None = None
        self.rollouts = 0

    def check(self, setting: Setting) -> None:
        """Also refuses bounded values without a reward range, and a privileged critic without a prompt."""
        super().check(setting)
        low, high = setting.reward_range
        finite = low > -float("inf") and high < float("inf") and low < high
        if self.options.value_bound != "none" and not finite:
            raise ConfigError(
                f"algorithm.options.value_bound={self.options.value_bound!r}: task {setting.task!r} has the reward "
                f"range [{low:g}, {high:g}], which bounds nothing; set algorithm.options.value_bound='none' or "
                "declare a range"
            )
        if self.options.critic_prompt == "privileged" and "privileged_prompt" not in setting.provides:
            raise ConfigError(
                f"algorithm.options.critic_prompt='privileged': task {setting.task!r} offers no privileged prompt; "
                "set algorithm.options.critic_prompt='plain'"
            )

    # --- the critic ------------------------------------------------------------------------------------

    def setup(self, models: Models) -> None:
        """A critic that starts as the policy does."""
        variant = "privileged" if self.options.critic_prompt == "privileged" else None
        self.critic = Critic(models, self.options.value_bound, variant)

    def param_groups(self) -> list[dict[str, Any]]:
        """The critic's parameters at their own learning rate."""
        return [{"params": list(self._critic.parameters()), "lr_scale": self.options.critic_lr_scale}]

    def state_dict(self) -> dict[str, Any]:
        """The critic and how many rollouts it has seen."""
        return {"critic": self._critic.state_dict(), "rollouts": self.rollouts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the critic and the count."""
        self._critic.load_state_dict(state["critic"])
        self.rollouts = state["rollouts"]

    @property
    def _critic(self) -> Critic:
        if self.critic is None:
            raise ValueError(f"{self.name}: setup(models) builds the critic; call it first")
        return self.critic

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Values, value targets, and reference log-probs when KL is part of the reward."""
        self.rollouts += 1
        if self.options.kl_coefficient > 0:
            batch = batch.replace(reference_logprobs=models.reference_logprobs(batch))
        batch = batch.replace(values=self._critic.values(batch))
        return batch.replace(returns=self.value_targets(batch))

    # --- credit ----------------------------------------------------------------------------------------

    def token_rewards(self, batch: Batch) -> Float[Tensor, "B T"]:
        """The outcome on the last token of the completion, minus KL; float64."""
        o, mask = self.options, batch.completion_mask
        outcome = batch.rewards.double() - o.missing_end_penalty * batch.truncated.double()
        rewards = F.broadcast(torch.where(torch.isfinite(outcome), outcome, 0.0), F.last_token(mask))
        if o.kl_coefficient == 0:
            return rewards
        assert batch.reference_logprobs is not None, "prepare fills reference_logprobs"
        return (
            rewards
            - o.kl_coefficient * F.kl(batch.old_logprobs, batch.reference_logprobs, mask, "k1").double()
        )

    def _lambda(self, batch: Batch) -> float | Float[Tensor, " B"]:
        o = self.options
        if o.lambda_mode == "fixed":
            return o.gae_lambda
        return F.length_adaptive_lambda(batch.lengths, o.alpha, (o.lambda_low, o.lambda_high))

    def _gae(self, batch: Batch) -> Float[Tensor, "B T"]:
        assert batch.values is not None, "prepare fills values"
        return F.gae(
            self.token_rewards(batch),
            batch.values.double(),
            batch.completion_mask,
            gamma=self.options.gamma,
            gae_lambda=self._lambda(batch),
        )

    def value_targets(self, batch: Batch) -> Float[Tensor, "B T"]:
        """What the critic should say; its own value where the completion could not be scored."""
        assert batch.values is not None, "prepare fills values"
        mask, values = batch.completion_mask, batch.values.double()
        if self.options.value_target == "mc":
            targets = F.return_to_go(self.token_rewards(batch), mask, self.options.gamma)
        else:
            targets = self._gae(batch) + values
        scored = mask & torch.isfinite(batch.rewards)[:, None]
        return torch.where(scored, targets, values).to(batch.values.dtype)

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Generalised advantages, whitened over the batch when asked for."""
        scored = batch.completion_mask & torch.isfinite(batch.rewards)[:, None]
        advantages = F.masked(self._gae(batch), scored)
        if self.options.adv_whiten:
            advantages = F.whiten(advantages, scored)
        return advantages.to(batch.local_rewards.dtype)

    # --- losses ----------------------------------------------------------------------------------------

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """The policy's objective (silent during the critic's warm-up) and the critic's regression."""
        o = self.options
        assert batch.values is not None, "prepare fills values"
        assert batch.returns is not None, "prepare fills returns"
        mask = batch.completion_mask
        old, targets = F.masked(batch.values.detach(), mask), F.masked(batch.returns.detach(), mask)
        value = clipped_value_loss(F.masked(self._critic.raw(batch), mask), old, targets, o.value_clip)
        warm = self.rollouts > o.critic_warmup
        return {
            "policy": LossTerm(self._policy_loss(logprobs, batch), o.aggregation, 1.0 if warm else 0.0),
            "value": LossTerm(value, o.aggregation, o.value_coefficient),
        }

    def _policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
        o, mask, advantages = self.options, batch.completion_mask, batch.masked_advantages
        if o.trust_region == "ppo":
            ratio = F.log_ratio(logprobs, batch.old_logprobs, mask).exp()
            return F.ppo_clip(ratio, advantages, o.epsilon_low, o.epsilon_high, o.dual_clip)
        anchor = batch.sampling_logprobs
        divergence: F.Divergence = "tv" if o.trust_region == "dppo_tv" else "kl"
        keep = F.divergence_mask(
            logprobs, anchor, advantages, mask, divergence=divergence, delta_low=o.delta, delta_high=o.delta
        )
        return F.importance_loss(logprobs, anchor, advantages, keep, detach_ratio=False, cap=float("inf"))

    def metrics(self, batch: Batch) -> dict[str, float]:
        """How well the values explain the returns, and their size."""
        assert batch.values is not None, "prepare fills values"
        assert batch.returns is not None, "prepare fills returns"
        mask = batch.completion_mask
        values, returns = batch.values[mask].double(), batch.returns[mask].double()
        variance = returns.var(correction=0) if len(returns) else torch.zeros(())
        explained = 1 - (returns - values).var(correction=0) / variance if variance > 0 else torch.zeros(())
        return {
            "value_mean": float(values.mean()) if len(values) else 0.0,
            "explained_variance": float(explained),
            "critic_warmup": float(self.rollouts <= self.options.critic_warmup),
        }
