"""How well an algorithm's advantages agree with true credit, and how much signal its gradient carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithms.base import Algorithm, Batch
from harness.credit.monte_carlo import Credit
from harness.train.reduction import Reducer

__all__ = [
    "Quality",
    "Segments",
    "bot_alignment",
    "cosine",
    "gradient_snr",
    "group_gradients",
    "grpo_alignment",
    "quality",
    "segments",
]


@dataclass(frozen=True)
class Segments:
    """True credit per token of segments of answers: their row, group, size in tokens, credit and its error."""

    row: np.ndarray
    group: np.ndarray
    start: np.ndarray
    size: np.ndarray
    credit: np.ndarray
    error: np.ndarray

    def means(self, advantages: Float[np.ndarray, "B T"]) -> Float[np.ndarray, " S"]:
        """Mean advantage over the tokens of each segment."""
        total = np.concatenate([np.zeros((len(advantages), 1)), np.cumsum(advantages, 1)], 1)
        return (total[self.row, self.start + self.size] - total[self.row, self.start]) / self.size


def segments(credits: Sequence[Credit], group_ids: Sequence[int]) -> Segments:
    """All segments of some answers, row by row."""
    sizes = [np.diff(c.edges) for c in credits]
    return Segments(
        row=np.concatenate([np.full(len(s), i) for i, s in enumerate(sizes)]),
        group=np.concatenate([np.full(len(s), g) for s, g in zip(sizes, group_ids, strict=True)]),
        start=np.concatenate([c.edges[:-1] for c in credits]),
        size=np.concatenate(sizes),
        credit=np.concatenate([c.credit / s for c, s in zip(credits, sizes, strict=True)]),
        error=np.concatenate([c.standard_error / s for c, s in zip(credits, sizes, strict=True)]),
    )


@dataclass(frozen=True)
class Quality:
    """Agreement of one algorithm's advantages with true credit; None where it cannot be told.

    `cosine` over tokens, corrected for the error of the true credit, with a 95% jackknife interval over
    prompts; `sign_agreement` on segments whose credit differs from 0 by two standard errors (`resolved` is
    their share of the tokens); `variance_explained` the squared correlation, corrected likewise; `snr` the
    squared norm of the mean gradient of a group over the variance of one group's, unbiased (it may be below 0).
    """

    algorithm: str
    cosine: float | None
    cosine_low: float | None
    cosine_high: float | None
    sign_agreement: float | None
    resolved: float
    variance_explained: float | None
    nonzero: float
    snr: float | None = None
    degraded_bias: float | None = None
    degraded_cosine: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def cosine(a: np.ndarray, s: Segments, keep: np.ndarray) -> float | None:
    """Weighted cosine of advantages and credit; the error's share is taken out of the credit's norm."""
    w, a, c, e = s.size[keep], a[keep], s.credit[keep], s.error[keep]
    truth = float((w * (c**2 - e**2)).sum())
    norm = float((w * a**2).sum())
    if norm <= 0 or truth <= 0:
        return None
    return float((w * a * c).sum()) / math.sqrt(norm * truth)


def _explained(a: np.ndarray, s: Segments) -> float | None:
    w = s.size / s.size.sum()
    da, dc = a - (w * a).sum(), s.credit - (w * s.credit).sum()
    truth = float((w * (dc**2 - s.error**2)).sum())
    spread = float((w * da**2).sum())
    if truth <= 0 or spread <= 1e-24:
        return None
    return min(1.0, float((w * da * dc).sum()) ** 2 / (spread * truth))


def _jackknife(a: np.ndarray, s: Segments, value: float | None) -> tuple[float | None, float | None]:
    """Limits of the cosine from leaving out one prompt at a time; none with fewer than three prompts."""
    from scipy.stats import t as student

    groups = np.unique(s.group)
    left_out = [cosine(a, s, s.group != g) for g in groups]
    known = np.array([c for c in left_out if c is not None])
    if value is None or len(groups) < 3 or len(known) < len(groups):
        return None, None
    n = len(groups)
    error = math.sqrt((n - 1) / n * float(((known - known.mean()) ** 2).sum()))
    half = float(student.ppf(0.975, n - 1)) * error
    return max(-1.0, value - half), min(1.0, value + half)


def quality(
    name: str, advantages: Float[np.ndarray, "B T"], truth: Segments, **more: float | None
) -> Quality:
    """The agreement of an algorithm's advantages [B, T] with the true credit of the same answers."""
    a = truth.means(advantages)
    everything = np.ones(len(a), dtype=bool)
    agreement = cosine(a, truth, everything)
    low, high = _jackknife(a, truth, agreement)
    resolved = np.abs(truth.credit) > np.maximum(2 * truth.error, 1e-12)
    weight = truth.size * resolved
    agree = np.sign(a) == np.sign(truth.credit)
    return Quality(
        algorithm=name,
        cosine=agreement,
        cosine_low=low,
        cosine_high=high,
        sign_agreement=float((weight * agree).sum() / weight.sum()) if weight.sum() else None,
        resolved=float(weight.sum() / truth.size.sum()),
        variance_explained=_explained(a, truth),
        nonzero=float((truth.size * (a != 0)).sum() / truth.size.sum()),
        **more,
    )


# --- gradients ---------------------------------------------------------------------------------------------


def group_gradients(
    algorithm: Algorithm,
    batch: Batch,
    logprobs: Callable[[Batch], Float[Tensor, "B T"]],
    parameters: Sequence[Tensor],
) -> Float[Tensor, "G N"]:
    """Gradient of the algorithm's loss on each group alone, advantages being those of the whole batch."""
    rows = []
    for group in torch.unique(batch.group_ids):
        index = (batch.group_ids == group).nonzero()[:, 0]
        part = batch.rows(index).trim()
        loss = Reducer(part).value(algorithm.loss(logprobs(part), part), torch.arange(len(part)))
        found: Sequence[Tensor | None] = [None] * len(parameters)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, list(parameters), allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        rows.append(torch.cat([g.reshape(-1) for g in flat]).double())
    return torch.stack(rows)


def gradient_snr(gradients: Float[Tensor, "G N"]) -> float | None:
    """(|mean|^2 - S / G) / S with S the summed variance over groups: signal over the noise of one group, unbiased.

    None with fewer than two groups, or where no group has a gradient.
    """
    groups = len(gradients)
    if groups < 2:
        return None
    mean = gradients.mean(0)
    noise = float((gradients - mean).square().sum() / (groups - 1))
    if noise <= 0:
        return None
    return (float(mean.square().sum()) - noise / groups) / noise


# --- what to expect ----------------------------------------------------------------------------------------


def grpo_alignment(steps: int) -> float:
    """Cosine of GRPO's advantage with true credit in large groups: 1 / sqrt(H), for every task of H tokens.

    Credits of one answer add up to R - V0 and are uncorrelated, so sum_t Var(A*_t) = Var(R), and with
    A_t = (R - V0) / sd(R) on all H tokens the cosine is Var(R) / (sd(R) sqrt(H) sd(R)). Any outcome, any rule.
    """
    return 1 / math.sqrt(steps)


def bot_alignment(steps: int, local_weight: float = 0.25) -> float:
    """Cosine of BoT-GRPO with an exact local reward on `independent`, outcome `fraction`, in large groups.

    With x_t - p the centred correctness of step t, A*_t = (x_t - p) / H and the centred token reward is
    mean_t(x_t - p) + 2 lambda (x_t - p): the cosine is (1/H + 2 lambda) / sqrt(1/H + 4 lambda/H + 4 lambda^2),
    whatever p is. It is 1 at H = 1, least near H = 1 / lambda, and rises to 1 as H grows.
    """
    inverse, double = 1 / steps, 2 * local_weight
    return (inverse + double) / math.sqrt(inverse + 2 * double * inverse + double**2)
