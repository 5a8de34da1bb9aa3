"""BPCO: a critic made to work, by bounding it, aiming it at plain returns and adapting to length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from algorithms.base import register
from algorithms.critic import ValueBound
from algorithms.options import Aggregation
from algorithms.ppo import Ppo, PpoOptions

__all__ = ["PARTS_OFF", "Bpco", "BpcoOptions"]

PARTS_OFF: Mapping[str, Mapping[str, Any]] = {
    "no_value_bound": {"value_bound": "none"},
    "no_mc_target": {"value_target": "td_lambda"},
    "no_length_adaptive": {"lambda_mode": "fixed"},
    "no_raw_advantages": {"adv_whiten": True},
    "no_dppo": {"trust_region": "ppo", "epsilon_high": 0.28},
}
"""BPCO minus one of its five parts each, as options that differ from the default."""


@dataclass(frozen=True, kw_only=True)
class BpcoOptions(PpoOptions):
    """PPO's options with BPCO's defaults."""

    lambda_mode: Literal["fixed", "length_adaptive"] = "length_adaptive"
    adv_whiten: bool = False
    kl_coefficient: float = 0.0
    trust_region: Literal["ppo", "dppo_tv", "dppo_kl"] = "dppo_tv"
    value_bound: ValueBound = "atan"
    value_target: Literal["mc", "td_lambda"] = "mc"
    value_clip: float | None = 0.5
    value_coefficient: float = 1.0
    critic_warmup: int = 15
    aggregation: Aggregation = "seq_mean_token_sum"


@register
class Bpco(Ppo):
    """Best-practice critic optimisation, with one rollout a prompt.

    V = a + (b - a) sigma(v) in the reward's range [a, b]; target: the Monte-Carlo return (the outcome R on
    every token); A: length-adaptive GAE, lambda = 1 - 1 / (0.4 L) within [0, 1], not whitened; loss -A rho M
    with DPPO's mask M at |p - q| > 0.2, anchored at the rollout policy; sums over tokens, mean over
    completions, `[B, T]` (QPHutu/golden_critic). The critic may read a privileged prompt, which the policy
    never sees.

    Differs from the paper: taken from the released code, which may differ; lambda is clamped (the code
    lets it turn negative for L < 1 / alpha; clamped, a completion of at most two tokens has lambda 0). The
    threshold 0.2 is inherited there. The warm-up counts rollouts.
    """

    name = "bpco"
    source = "QPHutu/golden_critic"
    requires = frozenset({"critic", "reward_range"})
    extra_cost = "a critic: forwards and backwards of a second network"
    Options = BpcoOptions
    options: BpcoOptions
