"""BoT-GRPO: the token rewards of a group pooled into one bag, every completion weighing the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, ConfigError, Setting, register
from algorithms.grpo import Grpo, GrpoOptions, constant_outcome
from algorithms.options import require_at_least

__all__ = ["ABLATIONS", "BotGrpo", "BotGrpoOptions"]

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "off_global": {"local_form": "off"},  # with inv_len this is GRPO; with uniform, length-weighted GRPO
    "off_scalarised": {"local_form": "scalarised"},  # the same local information, without its place
    "token_shuffle": {"local_form": "shuffled"},  # the same values, mean and deviation, at wrong places
    "pooled": {"token_weight": "uniform"},  # token rewards without length balancing
    "off_global_uniform": {"local_form": "off", "token_weight": "uniform"},
    "off_scalarised_uniform": {"local_form": "scalarised", "token_weight": "uniform"},
}
"""Cells of the question `token placement or length balancing`, as options that differ from the default."""


@dataclass(frozen=True, kw_only=True)
class BotGrpoOptions(GrpoOptions):
    """Options of BoT-GRPO; the first value of each choice is the default."""

    local_weight: float = 0.25  # lambda: the local part of a token's reward lies in [-lambda, lambda]
    dominance: Literal["pairwise", "sign", "none"] = "pairwise"
    global_placement: Literal["every_token", "last_token", "spread"] = "every_token"
    credit: Literal["immediate", "return_to_go", "return_to_go_mean"] = "immediate"
    norm_order: Literal["credit_then_norm", "norm_then_credit"] = "credit_then_norm"
    token_weight: Literal["inv_len", "uniform"] = "inv_len"
    normalize_scope: Literal["joint", "separate"] = "joint"
    local_bound: Literal["clip", "tanh", "none"] = "clip"
    local_center: Literal["none", "per_rollout"] = "none"
    local_form: Literal["per_token", "off", "scalarised", "shuffled"] = "per_token"
    step_to_token: Literal["broadcast", "step_end", "spread"] = "broadcast"
    unscored_tokens: Literal["local_zero", "exclude_from_stats"] = "local_zero"
    # keep: a group of equal outcomes is driven by its local rewards alone, rescaled to unit variance however
    # small they are; in a pilot 7 of 11 such runs collapsed. std_floor softens that, unscaled leaves the
    # division out for those groups, zero_if_global_const gives them no signal at all.
    degenerate: Literal["zero_if_global_const", "keep", "std_floor", "unscaled"] = "zero_if_global_const"
    std_floor: float = 0.33

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0.0, "local_weight", "std_floor")
        if self.local_bound == "none" and self.dominance != "none":
            raise ConfigError(
                "algorithm.options.local_bound='none': an unbounded local reward cannot be dominated; "
                "set algorithm.options.local_bound='clip' or algorithm.options.dominance='none'"
            )


class _Bag(NamedTuple):
    """A group's statistics on each of its rows, and the token rewards they were taken from."""

    rewards: Float[Tensor, "B T"]
    used: Bool[Tensor, "B T"]
    weights: Float[Tensor, "B T"]
    mean: Float[Tensor, " B"]
    variance: Float[Tensor, " B"]


@register
class BotGrpo(Grpo):
    """Bag-of-token GRPO: every token against the length-balanced statistics of its whole group.

    r_it = g_i + l_it with |l_it| <= lambda; w_it = 1 / (G L_i); mu = sum w r; s2 = sum w (r - mu)^2;
    A_it = (r_it - mu) / (s + eps), `Float[Tensor, "B T"]`; then GRPO's clipped loss. `rewards` is g,
    `local_rewards` in [-1, 1] is l / lambda (arXiv 2610.09804, from published summaries).

    With l = 0 it equals GRPO for any lengths. The mean advantage of a completion is GRPO's advantage of its
    mean token reward, times kappa in [0, 1]: logged, as it scales the step like a learning rate.

    Differs from the paper: the placement of the outcome, the credit rule, the deviation and joint or
    separate normalisation are not in the public summaries; each is an option whose default reduces to
    GRPO. Groups of equal outcomes get no signal by default (`degenerate`).
    """

    name = "bot_grpo"
    source = "arXiv 2610.09804"
    requires = frozenset({"groups", "token_rewards"})
    extra_cost = "token rewards (a checker or judge that locates evidence)"
    Options = BotGrpoOptions
    options: BotGrpoOptions

    def check(self, setting: Setting) -> None:
        """Also refuses a local weight that could let a token outweigh the outcome."""
        super().check(setting)
        o = self.options
        if o.step_to_token != "broadcast" and "steps" not in setting.provides:
            raise ConfigError(
                f"algorithm.options.step_to_token={o.step_to_token!r}: task {setting.task!r} has no steps; "
                "set algorithm.options.step_to_token='broadcast'"
            )
        if o.dominance == "none" or o.local_form == "off" or o.local_weight == 0:
            return
        placed = o.global_placement == "every_token" and o.credit != "return_to_go"
        if not placed or o.normalize_scope == "separate":
            raise ConfigError(
                f"algorithm.options.dominance={o.dominance!r}: bounds nothing with "
                f"global_placement={o.global_placement!r}, credit={o.credit!r}, "
                f"normalize_scope={o.normalize_scope!r}; set algorithm.options.dominance='none'"
            )
        self._check_local_weight(setting)

    def _check_local_weight(self, setting: Setting) -> None:
        """pairwise: 2 lambda < Gamma; sign: 2 lambda < Gamma / G; centring doubles the reach of pairwise."""
        o = self.options
        low, high = setting.reward_range
        reach = 2 * o.local_weight
        limit = high - low if o.dominance == "pairwise" else (high - low) / setting.group_size
        if o.dominance == "pairwise" and o.local_center == "per_rollout":
            # A centred value stays strictly inside +-2 lambda, so equality is still safe.
            reach *= 2
            safe = reach <= limit
        else:
            safe = reach < limit
        if not safe:
            bound = o.local_weight * limit / reach
            raise ConfigError(
                f"algorithm.options.local_weight={o.local_weight:g}: {o.dominance} dominance over outcomes in "
                f"[{low:g}, {high:g}] needs less than {bound:g}; lower it or set algorithm.options.dominance='none'"
            )

    # --- rewards ---------------------------------------------------------------------------------------

    def token_rewards(self, batch: Batch) -> Float[Tensor, "B T"]:
        """r_it = placed outcome + bounded local part, float64, 0 outside the mask."""
        local = self.local_part(batch)
        return self._placed_outcome(batch) + (local if self.options.normalize_scope == "joint" else 0.0)

    def _placed_outcome(self, batch: Batch) -> Float[Tensor, "B T"]:
        mask, outcome = batch.completion_mask, batch.rewards.double()
        if self.options.global_placement == "every_token":
            return F.broadcast(outcome, mask)
        if self.options.global_placement == "last_token":
            return F.broadcast(outcome, F.last_token(mask))
        return F.broadcast(outcome / batch.lengths.clamp(min=1), mask)

    def local_part(self, batch: Batch) -> Float[Tensor, "B T"]:
        """lambda times the bounded local reward, mapped, centred or disarranged as the options say."""
        o, mask = self.options, batch.completion_mask
        if o.local_form == "off":
            return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
        local = F.masked(batch.local_rewards.double(), mask)
        if o.step_to_token != "broadcast":
            local = step_rewards(local, batch, at_end=o.step_to_token == "step_end")
        if o.local_bound == "clip":
            local = local.clamp(-1, 1)
        elif o.local_bound == "tanh":
            local = local.tanh()
        if o.local_center == "per_rollout":
            used = self._used(batch)
            local = torch.where(used, local - F.masked_mean(local, used)[:, None], local)
        if o.local_form == "scalarised":
            local = F.broadcast(F.masked_mean(local, mask), mask)
        elif o.local_form == "shuffled":
            local = F.shuffle_tokens(local, batch.completion_ids, mask)
        return o.local_weight * local

    def _used(self, batch: Batch) -> Bool[Tensor, "B T"]:
        """Tokens that enter the statistics: those of scorable completions, or only the scored ones."""
        used = batch.completion_mask & torch.isfinite(batch.rewards)[:, None]
        return used & batch.scored if self.options.unscored_tokens == "exclude_from_stats" else used

    # --- statistics ------------------------------------------------------------------------------------

    def _bag(self, rewards: Float[Tensor, "B T"], batch: Batch) -> _Bag:
        o, used = self.options, self._used(batch)
        weights = used.double()
        if o.token_weight == "inv_len":
            weights = weights / used.sum(-1, keepdim=True).clamp(min=1)
        mean, variance = F.group_moments(rewards, weights, batch.group_ids)
        if o.std_ddof == "sequence_bessel":
            variance = F.bessel(variance, used.any(-1), batch.group_ids)
        elif o.std_ddof == "reliability":
            total = F.group_sum(weights.sum(-1), batch.group_ids).clamp(min=1e-300)
            square = F.group_sum(weights.square().sum(-1), batch.group_ids) / total.square()
            variance = variance / (1 - square).clamp(min=1e-12)
        return _Bag(rewards, used, weights, mean, variance)

    def _credit(self, rewards: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
        mask = batch.completion_mask
        if self.options.credit == "immediate":
            return rewards
        returns = F.return_to_go(rewards, mask)
        if self.options.credit == "return_to_go":
            return returns
        remaining = F.return_to_go(mask.to(rewards.dtype), mask)
        return returns / remaining.clamp(min=1)

    def _standardised(self, rewards: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
        """Credit and normalisation, in the order the options ask for."""
        o, mask = self.options, batch.completion_mask
        before = o.norm_order == "credit_then_norm"
        bag = self._bag(self._credit(rewards, batch) if before else rewards, batch)
        spread = F.denominator(bag.variance, o.std_eps, o.std_eps_mode)
        if o.degenerate == "std_floor":
            spread = spread.clamp(min=o.std_floor)
        if o.scale == "none":
            spread = torch.ones_like(spread)
        elif o.degenerate == "unscaled":
            spread = torch.where(constant_outcome(batch), 1.0, spread)
        advantages = (bag.rewards - bag.mean[:, None]) / spread[:, None]
        silent = F.group_constant(bag.rewards, bag.used, batch.group_ids)
        if o.degenerate == "zero_if_global_const":
            silent = silent | constant_outcome(batch)
        keep = mask & torch.isfinite(batch.rewards)[:, None] & ~silent[:, None]
        advantages = F.masked(advantages, keep)
        return advantages if before else F.masked(self._credit(advantages, batch), keep)

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Each token's reward against the bag of its group."""
        advantages = self._standardised(self.token_rewards(batch), batch)
        if self.options.normalize_scope == "separate":
            advantages = advantages + self.options.local_weight * self._standardised(
                self.local_part(batch), batch
            )
        return advantages.to(batch.local_rewards.dtype)

    # --- what to log -----------------------------------------------------------------------------------

    def metrics(self, batch: Batch) -> dict[str, float]:
        """kappa, sign flips, and the share of gradient weight that comes from groups of equal outcomes."""
        assert batch.advantages is not None, "metrics are asked for after advantages"
        mask, constant = batch.completion_mask, constant_outcome(batch)
        advantages = F.masked(batch.advantages, mask).double()
        per_row = F.masked_mean(advantages.abs(), mask)
        total = per_row.sum()
        return {
            **super().metrics(batch),
            "kappa": self._kappa(batch, advantages),
            "frac_sign_flips": self._sign_flips(batch, advantages),
            "gradient_share_constant_groups": float(per_row[constant].sum() / total) if total > 0 else 0.0,
        }

    def _kappa(self, batch: Batch, advantages: Float[Tensor, "B T"]) -> float:
        """sd between completions / sqrt(between + within variance), mean over groups that carry signal."""
        bag = self._bag(self._credit(self.token_rewards(batch), batch), batch)
        row_mean = F.masked_mean(bag.rewards, bag.used)
        present = bag.used.any(-1).double()[:, None]
        _, between = F.group_moments(row_mean[:, None], present, batch.group_ids)
        within_row = F.masked_mean((bag.rewards - row_mean[:, None]).square(), bag.used)
        within, _ = F.group_moments(within_row[:, None], present, batch.group_ids)
        live = F.group_sum((advantages != 0).any(-1).double(), batch.group_ids) > 0
        live = live & (between + within > 0)
        return float((between / (between + within))[live].sqrt().mean()) if bool(live.any()) else 1.0

    def _sign_flips(self, batch: Batch, advantages: Float[Tensor, "B T"]) -> float:
        """Share of tokens, in groups of differing outcomes, whose advantage contradicts their outcome."""
        valid = F.valid_rows(batch.rewards, batch.completion_mask)
        outcome = F.group_relative(batch.rewards, valid, batch.group_ids, scale=False).double()
        judged = batch.completion_mask & (outcome != 0)[:, None]
        flips = judged & (advantages * outcome[:, None] < 0)
        return float(flips.sum() / judged.sum().clamp(min=1))


def step_rewards(local: Float[Tensor, "B T"], batch: Batch, *, at_end: bool) -> Float[Tensor, "B T"]:
    """Each step's score (mean of its tokens) on its last token, or split evenly over its tokens; else 0."""
    steps, mask = batch.step_ids, batch.completion_mask
    scores, sizes = F.step_scores(local, steps, mask)
    if at_end:
        return F.at_step_tokens(scores, steps, F.step_ends(steps, mask))
    return F.at_step_tokens(scores / sizes.clamp(min=1), steps, mask & (steps >= 0))
