"""Arithmetic that algorithms share: masked and grouped statistics, ratios, clipping, KL, returns.

Every function takes the mask and picks with `torch.where`, never by multiplying: what lies under a False
mask may be NaN, and NaN * 0 is NaN. Rows belong to a group by their id, never by their position.
Statistics are computed in float64 and returned in the dtype of their input.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "EpsMode",
    "KlEstimator",
    "StdDdof",
    "bessel",
    "broadcast",
    "denominator",
    "gae",
    "group_constant",
    "group_moments",
    "group_relative",
    "group_sum",
    "kl",
    "last_token",
    "length_adaptive_lambda",
    "log_ratio",
    "masked",
    "masked_mean",
    "ppo_clip",
    "return_to_go",
    "softmin_weights",
    "valid_rows",
    "whiten",
]

EpsMode = Literal["add_to_std", "add_to_var", "floor"]
StdDdof = Literal["population", "sequence_bessel"]
KlEstimator = Literal["k1", "k2", "k3", "k3+"]


# --- masks -------------------------------------------------------------------------------------------------


def masked(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`x` where the mask is True, 0 elsewhere (in value and in gradient)."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_mean(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Mean over the True tokens of each row; 0 for a row that has none."""
    return masked(x, mask).sum(-1) / mask.sum(-1).clamp(min=1)


def broadcast(rows: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The value of each row on each of its tokens, 0 outside the mask."""
    return masked(rows[:, None].expand(mask.shape), mask)


def last_token(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the last True token of each row, nowhere else."""
    later = mask.flip(-1).cumsum(-1).flip(-1)
    return mask & (later == 1)


def valid_rows(rewards: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Bool[Tensor, " B"]:
    """Rows that may enter a statistic: a finite reward and at least one token."""
    return torch.isfinite(rewards) & mask.any(-1)


# --- groups ------------------------------------------------------------------------------------------------


def group_sum(rows: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Sum of `rows` over the group of each row, given back to each row."""
    groups, index = torch.unique(group_ids, return_inverse=True)
    total = torch.zeros(len(groups), dtype=rows.dtype, device=rows.device)
    return total.index_add_(0, index, rows)[index]


def group_moments(
    x: Float[Tensor, "B T"], weights: Float[Tensor, "B T"], group_ids: Int[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Weighted mean and population variance of each row's group, in two passes (float64).

    mu = sum w x / sum w, s2 = sum w (x - mu)^2 / sum w. Values of weight 0 may be NaN. A group without
    weight has mean 0 and variance 0. The second pass keeps a small variance exact (verl issue 6348).
    """
    x, weights = x.double(), weights.double()
    used = weights > 0
    total = group_sum(weights.sum(-1), group_ids)
    total = torch.where(total > 0, total, 1.0)
    mean = group_sum(masked(weights * x, used).sum(-1), group_ids) / total
    deviation = masked(x - mean[:, None], used)
    variance = group_sum((weights * deviation.square()).sum(-1), group_ids) / total
    return mean, variance


def group_constant(
    x: Float[Tensor, "B T"], used: Bool[Tensor, "B T"], group_ids: Int[Tensor, " B"]
) -> Bool[Tensor, " B"]:
    """Whether all used values in a row's group are the same (also when there are none or one)."""
    groups, index = torch.unique(group_ids, return_inverse=True)
    low = torch.full((len(groups),), torch.inf, dtype=x.dtype, device=x.device)
    high = (-low).scatter_reduce(0, index, torch.where(used, x, -torch.inf).amax(-1), "amax")
    low = low.scatter_reduce(0, index, torch.where(used, x, torch.inf).amin(-1), "amin")
    return (high <= low)[index]


def denominator(variance: Float[Tensor, " B"], eps: float, mode: EpsMode) -> Float[Tensor, " B"]:
    """Standard deviation guarded by eps: `std + eps`, `sqrt(var + eps)` or `max(std, eps)`."""
    if mode == "add_to_var":
        return (variance + eps).sqrt()
    std = variance.sqrt()
    return std + eps if mode == "add_to_std" else std.clamp(min=eps)


def group_relative(
    rewards: Float[Tensor, " B"],
    valid: Bool[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    scale: bool = True,
    ddof: StdDdof = "population",
    eps: float = 1e-6,
    eps_mode: EpsMode = "add_to_std",
) -> Float[Tensor, " B"]:
    """GRPO's outcome advantage, A_i = (R_i - mean_g R) / (std_g R + eps) (arXiv 2402.03300).

    Invalid rows enter no statistic and get 0; a group of equal rewards (or of one row) gets exactly 0.
    `scale=False` leaves the division out (Dr. GRPO); `sequence_bessel` divides the variance by n - 1.
    """
    weights = valid.double()[:, None]
    mean, variance = group_moments(rewards[:, None], weights, group_ids)
    advantages = rewards.double() - mean
    if scale:
        if ddof == "sequence_bessel":
            variance = bessel(variance, valid, group_ids)
        advantages = advantages / denominator(variance, eps, eps_mode)
    silent = ~valid | group_constant(rewards[:, None], valid[:, None], group_ids)
    return torch.where(silent, 0.0, advantages).to(rewards.dtype)


def bessel(
    variance: Float[Tensor, " B"], valid: Bool[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Variance times n / (n - 1), n = valid rows of the group (n = 1 leaves it as it is)."""
    n = group_sum(valid.double(), group_ids)
    return variance * n / (n - 1).clamp(min=1)


def whiten(
    x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, eps: float = 1e-8, shift: bool = True
) -> Float[Tensor, "B T"]:
    """(x - mean) / sqrt(var + eps) over all True tokens of the batch; 0 when they are all equal.

    Population variance; `shift=False` adds the mean back.
    """
    values = x[mask].double()
    if values.numel() == 0 or bool((values == values[0]).all()):
        return torch.zeros_like(x) if shift else masked(x, mask)
    mean = values.mean()
    white = (x.double() - mean) / ((values - mean).square().mean() + eps).sqrt()
    return masked((white if shift else white + mean).to(x.dtype), mask)


# --- ratios, clipping, KL ----------------------------------------------------------------------------------


def log_ratio(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    clamp: float | None = None,
) -> Float[Tensor, "B T"]:
    """logprobs - old_logprobs, 0 outside the mask, cut to [-clamp, clamp] when `clamp` is given.

    Masked before any exp: the backward pass of exp(NaN) would spread NaN even through a later where.
    """
    ratio = masked(logprobs - old_logprobs, mask)
    return ratio if clamp is None else ratio.clamp(-clamp, clamp)


def ppo_clip(
    ratio: Float[Tensor, ...],
    advantages: Float[Tensor, ...],
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> Float[Tensor, ...]:
    """-min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A) (arXiv 1707.06347).

    With `dual_clip` c > 1 the loss of A < 0 is cut at -c A (arXiv 1912.09729).
    """
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def kl(
    logprobs: Float[Tensor, "B T"],
    reference_logprobs: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    estimator: KlEstimator = "k3",
) -> Float[Tensor, "B T"]:
    """Per-token estimate of KL(policy || reference), with d = logprobs - reference_logprobs.

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) + d - 1; `k3+` has the value of k3 and the gradient of k2.
    """
    d = log_ratio(logprobs, reference_logprobs, mask)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    k3 = torch.exp(-d) + d - 1
    if estimator == "k3":
        return k3
    k2 = d.square() / 2
    return k2 + (k3 - k2).detach()


# --- credit over time --------------------------------------------------------------------------------------


def return_to_go(
    rewards: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], gamma: float = 1.0
) -> Float[Tensor, "B T"]:
    """ret_t = sum over later True tokens of gamma^(their distance) r; masked tokens take no step."""
    if gamma == 1.0:
        return masked(masked(rewards, mask).flip(-1).cumsum(-1).flip(-1), mask)
    zero = torch.zeros_like(rewards)
    return gae(rewards, zero, mask, gamma=gamma, gae_lambda=1.0)


def gae(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    gae_lambda: float | Float[Tensor, " B"] = 0.95,
) -> Float[Tensor, "B T"]:
    """Generalised advantage estimation (arXiv 1506.02438), skipping masked tokens; lambda may differ by row.

    delta_t = r_t + gamma V_{t+1} - V_t with V = 0 after the last token, A_t = delta_t + gamma lambda A_{t+1}.
    """
    rewards, values = masked(rewards, mask), masked(values, mask)
    carry = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(carry)
    columns = []
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        carry = torch.where(mask[:, t], delta + gamma * gae_lambda * carry, carry)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        columns.append(carry)
    return masked(torch.stack(columns[::-1], dim=1), mask)


def length_adaptive_lambda(
    lengths: Int[Tensor, " B"], alpha: float, bounds: tuple[float, float] = (0.0, 1.0)
) -> Float[Tensor, " B"]:
    """lambda_i = 1 - 1 / (alpha L_i), so that 1 / (1 - lambda) = alpha L (VAPO, arXiv 2504.05118), clamped.

    Without the clamp lambda is negative for L < 1 / alpha (at alpha = 0.05: any answer under 20 tokens).
    """
    span = alpha * lengths.clamp(min=1).double()
    return (1 - 1 / span).clamp(*bounds)


def softmin_weights(
    scores: Float[Tensor, "B S"], present: Bool[Tensor, "B S"], temperature: float
) -> Float[Tensor, "B S"]:
    """softmax(-score / temperature) over the present entries of each row; 0 elsewhere and in empty rows."""
    filled = torch.where(present, -scores / temperature, -torch.inf)
    empty = ~present.any(-1, keepdim=True)
    weights = torch.softmax(torch.where(empty, 0.0, filled), dim=-1)
    return masked(weights, present)
