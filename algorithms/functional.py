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
    "Divergence",
    "EpsMode",
    "KlEstimator",
    "StdDdof",
    "at_step_tokens",
    "bessel",
    "binary_divergence",
    "broadcast",
    "content_hash",
    "denominator",
    "divergence_mask",
    "gae",
    "group_constant",
    "group_moments",
    "group_relative",
    "group_sum",
    "importance_loss",
    "kl",
    "last_token",
    "length_adaptive_lambda",
    "log_ratio",
    "masked",
    "masked_mean",
    "ppo_clip",
    "return_to_go",
    "shuffle_tokens",
    "softmin_weights",
    "step_ends",
    "step_scores",
    "valid_rows",
    "whiten",
]

EpsMode = Literal["add_to_std", "add_to_var", "floor"]
StdDdof = Literal["population", "sequence_bessel", "reliability"]  # of equal weights, the last two agree
KlEstimator = Literal["k1", "k2", "k3", "k3+"]
Divergence = Literal["tv", "kl"]


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
    `scale=False` leaves the division out (Dr. GRPO); `sequence_bessel` (and `reliability`, the same for equal
    weights) divides the variance by n - 1.
    """
    weights = valid.double()[:, None]
    mean, variance = group_moments(rewards[:, None], weights, group_ids)
    advantages = rewards.double() - mean
    if scale:
        if ddof != "population":
            variance = bessel(variance, valid, group_ids)
        advantages = advantages / denominator(variance, eps, eps_mode)
    silent = ~valid | group_constant(rewards[:, None], valid[:, None], group_ids)
    return torch.where(silent, 0.0, advantages).to(rewards.dtype)


def bessel(
    variance: Float[Tensor, " B"], counts: Int[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Variance times n / (n - 1), n = the sum of `counts` over the group (n = 1 leaves it as it is)."""
    n = group_sum(counts.double(), group_ids)
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


def binary_divergence(
    logprobs: Float[Tensor, "B T"],
    anchor: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    divergence: Divergence,
) -> Float[Tensor, "B T"]:
    """Divergence of (sampled token, any other token) between anchor q and current p; no gradient.

    tv: |p - q|; kl: q log(q/p) + (1 - q) log((1 - q)/(1 - p)), with 1 - p from expm1 and at least 1e-12.
    """
    lp, lq = masked(logprobs.detach().double(), mask), masked(anchor.detach().double(), mask)
    if divergence == "tv":
        return masked((lp.exp() - lq.exp()).abs(), mask)
    rest_p, rest_q = (-torch.expm1(lp)).clamp(min=1e-12), (-torch.expm1(lq)).clamp(min=1e-12)
    return masked(lq.exp() * (lq - lp) + rest_q * (rest_q / rest_p).log(), mask).clamp(min=0)


def divergence_mask(
    logprobs: Float[Tensor, "B T"],
    anchor: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    divergence: Divergence,
    delta_low: float,
    delta_high: float,
) -> Bool[Tensor, "B T"]:
    """DPPO's M: False where the policy has gone too far in the direction that A asks for, and off the mask.

    Too far: A > 0, p > q, D > delta_high; or A <= 0, p < q, D > delta_low (arXiv 2602.04879).
    """
    distance = binary_divergence(logprobs, anchor, mask, divergence)
    step = masked((logprobs - anchor).detach(), mask)
    up = (advantages > 0) & (step > 0) & (distance > delta_high)
    down = (advantages <= 0) & (step < 0) & (distance > delta_low)
    return mask & ~up & ~down


def importance_loss(
    logprobs: Float[Tensor, "B T"],
    anchor: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    keep: Bool[Tensor, "B T"],
    *,
    detach_ratio: bool,
    cap: float,
) -> Float[Tensor, "B T"]:
    """-A sg[min(rho, cap)] lp (detached) or -A rho (the cap then does not act) where kept, 0 elsewhere."""
    ratio = log_ratio(logprobs, anchor, keep).exp()
    if detach_ratio:
        return -advantages * ratio.detach().clamp(max=cap) * masked(logprobs, keep)
    return masked(-advantages * ratio, keep)


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


# --- steps -------------------------------------------------------------------------------------------------


def _step_slots(
    step_ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> tuple[Bool[Tensor, "B T"], Int[Tensor, "B T"], int]:
    """Which tokens lie in a step, their step (0 where none), and the number of steps of the longest row."""
    inside = mask & (step_ids >= 0)
    slot = torch.where(inside, step_ids, 0).long()
    return inside, slot, int(slot.max()) + 1 if slot.numel() else 1


def step_scores(
    x: Float[Tensor, "B T"], step_ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """Mean of `x` over the tokens of every step, and the number of those tokens (0: no such step)."""
    inside, slot, width = _step_slots(step_ids, mask)
    empty = torch.zeros(len(mask), width, dtype=x.dtype, device=x.device)
    sizes = empty.scatter_add(1, slot, inside.to(x.dtype))
    sums = empty.scatter_add(1, slot, masked(x, inside))
    return sums / sizes.clamp(min=1), sizes


def step_ends(step_ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the last token of every step."""
    inside, slot, width = _step_slots(step_ids, mask)
    position = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    last = torch.full((len(mask), width), -1, device=mask.device)
    last = last.scatter_reduce(1, slot, torch.where(inside, position, -1), "amax")
    return inside & (last.gather(1, slot) == position)


def at_step_tokens(
    scores: Float[Tensor, "B S"], step_ids: Int[Tensor, "B T"], where: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The score of each token's step at the tokens of `where` (all inside steps), 0 elsewhere."""
    return masked(scores.gather(1, torch.where(where, step_ids, 0).long()), where)


# --- pseudo-random choices that depend on the tokens alone --------------------------------------------------


def content_hash(ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """An integer for each row's tokens, whatever the padding and the other rows."""
    position = mask.cumsum(-1)
    return torch.where(mask, _mix(ids.long() + 1_000_003 * position), 0).sum(-1)


def shuffle_tokens(
    x: Float[Tensor, "B T"], ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The values of each row permuted among its True tokens, by an order that depends on its ids alone."""
    position = mask.cumsum(-1)
    largest = torch.iinfo(torch.int64).max
    keys = _mix(content_hash(ids, mask)[:, None] + 998_244_353 * position)
    order = torch.where(mask, keys, largest).argsort(dim=-1, stable=True)
    places = torch.where(mask, position, largest).argsort(dim=-1, stable=True)
    return masked(torch.zeros_like(x).scatter(1, places, x.gather(1, order)), mask)


def _mix(x: Int[Tensor, ...]) -> Int[Tensor, ...]:
    """Integer hash (splitmix64's constants; int64 arithmetic wraps around)."""
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)
