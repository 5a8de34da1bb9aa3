"""lambda-GRPO: a learned preference for the length of completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, LossTerm, Models, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation, require_at_least


@dataclass(frozen=True, kw_only=True)
class LambdaGrpoOptions(GrpoOptions):
    """GRPO's options and the length preference."""

    aggregation: Aggregation = "token_mean"
    lambda_start: float = 0.0
    learnable: bool = True  # False: a fixed preference, which the policy loss cannot game
    r: float = 0.1  # h = 1 + r z: small, as h must stay positive
    h_floor: float = 0.05
    lambda_lr_scale: float = 1.0  # times the policy's learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0.0, "r")
        require_at_least(self, 1e-6, "h_floor", "lambda_lr_scale")


@register
class LambdaGrpo(Grpo):
    """GRPO with a learnable token preference.

    z_i = (L_i - mean L) / (std L + e) in the group, h_i = max(1 + r z_i, floor), f_i = G
    softmax_i(h_i^lambda); loss sum_i f_i sum_t l_it / sum_i L_i, with lambda a parameter of its own
    optimizer group (arXiv 2510.06870). lambda = 0 gives f = 1, the token mean. A is GRPO's, `Float[Tensor,
    "B T"]`.

    Differs from the paper: r and the deviation are not stated; r is 0.1, the deviation that of the
    population, and h has a floor (with r = 1 a completion one deviation below the mean has h = 0, and NaN
    below).
    """

    name = "lambda_grpo"
    source = "arXiv 2510.06870"
    requires = frozenset({"groups"})
    extra_cost = "one parameter"
    Options = LambdaGrpoOptions
    options: LambdaGrpoOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.preference = torch.nn.Parameter(torch.tensor(float(self.options.lambda_start)))

    def setup(self, models: Models) -> None:
        """Nothing to build: the parameter is a scalar."""

    def param_groups(self) -> list[dict[str, Any]]:
        """lambda, unless it is fixed; never decayed, as 0 is a meaningful value of it."""
        if not self.options.learnable:
            return []
        scale = self.options.lambda_lr_scale
        return [{"params": [self.preference], "lr_scale": scale, "weight_decay": 0.0}]

    def state_dict(self) -> dict[str, Any]:
        """lambda."""
        return {"lambda": self.preference.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores lambda."""
        with torch.no_grad():
            self.preference.copy_(state["lambda"])

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """h of every completion and of its whole group, which the loss of a few rows cannot see."""
        batch = super().prepare(batch, models)
        h = self.length_scores(batch)
        width = int(torch.unique(batch.group_ids, return_counts=True)[1].max())
        group = torch.full((len(batch), width), torch.nan, dtype=h.dtype, device=h.device)
        for number in torch.unique(batch.group_ids).tolist():
            rows = batch.group_ids == number
            group[rows, : int(rows.sum())] = h[rows]
        return batch.with_extras(length_score=h, group_length_scores=group[:, None, :])

    def length_scores(self, batch: Batch) -> Float[Tensor, " B"]:
        """h_i = max(1 + r z_i, floor), float64."""
        lengths = batch.lengths.double()
        mean, variance = F.group_moments(lengths[:, None], torch.ones_like(lengths)[:, None], batch.group_ids)
        z = (lengths - mean) / (variance.sqrt() + self.options.std_eps)
        return (1 + self.options.r * z).clamp(min=self.options.h_floor)

    def row_weights(self, batch: Batch) -> Float[Tensor, " B"]:
        """f_i = G softmax_i(h_i^lambda), with gradient to lambda when it is learnable."""
        power = self.preference if self.options.learnable else self.preference.detach()
        group = batch.extras["group_length_scores"][:, 0, :]
        present = ~torch.isnan(group)
        own = batch.extras["length_score"].pow(power)
        others = torch.where(present, group, 1.0).pow(power)
        total = torch.where(present, (others - own[:, None]).exp(), 0.0).sum(-1)
        return present.sum(-1) / total

    def policy_loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> LossTerm:
        """GRPO's token loss times the weight of its completion."""
        term = super().policy_loss(logprobs, batch)
        weights = self.row_weights(batch).to(logprobs.dtype)
        return LossTerm(term.per_token * weights[:, None], term.aggregation)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """GRPO's, lambda and the largest weight."""
        weights = self.row_weights(batch).detach()
        return {
            **super().metrics(batch),
            "lambda": float(self.preference.detach()),
            "largest_row_weight": float(weights.max()),
        }
