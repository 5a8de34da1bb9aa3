"""A value head on a copy of the policy, with its output bounded to the range of the reward."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from algorithms.base import Batch, Models

__all__ = ["Critic", "ValueBound", "bound_values", "clipped_value_loss"]

ValueBound = Literal["none", "clamp", "atan", "sigmoid", "tanh"]
ROWS_PER_FORWARD = 16


class Critic(nn.Module):
    """V(s_t) = bound(w . h_t + b), h_t = hidden state before token t.

    The head starts at 0: every value starts in the middle of the reward's range, the same in every run.
    """

    def __init__(self, models: Models, bound: ValueBound, variant: str | None = None) -> None:
        super().__init__()
        self._models = models  # the metered facade; no module, so not in the state
        self.bound = bound
        self.variant = variant
        self.backbone = models.backbone_copy()
        device = next(self.backbone.parameters()).device
        self.head = nn.Linear(models.hidden_size, 1, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def raw(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Values before a clamp (a squash is applied: it keeps gradients), with gradient."""
        hidden = self._models.hidden_states(batch, self.backbone, variant=self.variant)
        value = self.head(hidden.to(self.head.weight.dtype))[..., 0]
        return value if self.bound == "clamp" else bound_values(value, self.bound, *batch.reward_range)

    @torch.no_grad()
    def values(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Bounded values of all rows, 0 outside the mask, in forwards of a few rows."""
        out = torch.zeros(batch.completion_mask.shape, device=batch.completion_mask.device)
        for rows in torch.arange(len(batch)).split(ROWS_PER_FORWARD):
            part = batch.rows(rows).trim()
            found = bound_values(
                self.raw(part), self.bound if self.bound == "clamp" else "none", *part.reward_range
            )
            out[rows, : found.shape[1]] = torch.where(part.completion_mask, found, 0.0).to(out.dtype)
        return out


def bound_values(
    raw: Float[Tensor, "B T"], bound: ValueBound, low: float, high: float
) -> Float[Tensor, "B T"]:
    """`raw` mapped into [low, high]: a cut (clamp) or a squash a + (b - a) sigma(v) with sigma in (0, 1).

    atan: sigma = (2/pi atan(v) + 1) / 2 (QPHutu/golden_critic, with range [0, 1]); tanh: (tanh(v) + 1) / 2.
    """
    if bound == "none":
        return raw
    if bound == "clamp":
        return raw.clamp(low, high)
    if bound == "atan":
        share = (2 / math.pi * torch.atan(raw) + 1) / 2
    elif bound == "tanh":
        share = (torch.tanh(raw) + 1) / 2
    else:
        share = torch.sigmoid(raw)
    return low + (high - low) * share


def clipped_value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    clip: float | None,
) -> Float[Tensor, "B T"]:
    """max((V - ret)^2, (clip(V, V_old - c, V_old + c) - ret)^2) / 2; the first alone when `clip` is None."""
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    near = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
    return torch.maximum(plain, (near - returns).square()) / 2
