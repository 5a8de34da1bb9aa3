"""The one place that divides losses: weights of every named aggregation, once per optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, LossTerm
from harness.names import lookup

__all__ = ["AGGREGATIONS", "Reducer"]

EmptyRows = Literal["drop", "count"]
Weights = Callable[[Batch, Float[Tensor, ""]], Float[Tensor, "B T"]]


class Reducer:
    """Turns the per-token terms of any micro-batch into its share of the loss of the whole step.

    Build it from all rows of an optimizer step (after `select`): each aggregation is a fixed weight for
    each token, so summing `value` over any split of the rows, in any order, gives the same loss and
    gradients. `empty_rows` says whether a row without tokens counts in the mean over rows.
    """

    def __init__(self, batch: Batch, *, empty_rows: EmptyRows = "drop") -> None:
        self.batch = batch
        self.mask: Bool[Tensor, "B T"] = batch.completion_mask
        rows = self.mask.any(-1).sum() if empty_rows == "drop" else torch.tensor(len(batch))
        self._rows = rows.double().clamp(min=1).to(self.mask.device)
        self._weights: dict[str, Tensor] = {}

    def weights(self, aggregation: str) -> Float[Tensor, "B T"] | Float[Tensor, " B"]:
        """The weight of each token (of each row for `seq_level`); UserError for an unknown name."""
        if aggregation not in self._weights:
            weigh = lookup("aggregation", aggregation, AGGREGATIONS)
            self._weights[aggregation] = weigh(self.batch, self._rows)
        return self._weights[aggregation]

    def value(self, terms: Mapping[str, LossTerm], rows: Int[Tensor, " K"]) -> Float[Tensor, ""]:
        """The contribution of `rows` (indices into the step's batch) to the loss, with gradient."""
        values = self.values(terms, rows)
        return torch.stack([values[name] * term.weight for name, term in terms.items()]).sum()

    def values(self, terms: Mapping[str, LossTerm], rows: Int[Tensor, " K"]) -> dict[str, Float[Tensor, ""]]:
        """The contribution of each term before its weight, for the log."""
        return {name: self._reduce(name, term, rows) for name, term in terms.items()}

    def _reduce(self, name: str, term: LossTerm, rows: Int[Tensor, " K"]) -> Float[Tensor, ""]:
        weights = self.weights(term.aggregation)[rows]
        if weights.ndim == 2 and term.per_token.ndim == 2:
            weights = weights[
                :, : term.per_token.shape[1]
            ]  # a trimmed micro-batch drops padding columns only
        if term.per_token.shape != weights.shape:
            raise ValueError(
                f"loss term {name!r} has shape {tuple(term.per_token.shape)}, but {term.aggregation} needs "
                f"{tuple(weights.shape)}: use seq_level for one loss a row, another for one a token"
            )
        weights = weights.to(term.per_token.dtype)
        zero = torch.zeros((), dtype=term.per_token.dtype, device=term.per_token.device)
        # A weight of 0 drops the term by choice, not by product: it may be NaN under the mask.
        return torch.where(weights != 0, term.per_token * weights, zero).sum()


def _seq_mean_token_mean(batch: Batch, rows: Tensor) -> Tensor:
    lengths = batch.lengths.clamp(min=1).double()
    return batch.completion_mask / lengths[:, None] / rows


def _token_mean(batch: Batch, rows: Tensor) -> Tensor:
    return batch.completion_mask / batch.lengths.sum().clamp(min=1).double()


def _seq_mean_token_sum(batch: Batch, rows: Tensor) -> Tensor:
    return batch.completion_mask / rows


def _seq_mean_token_sum_norm(batch: Batch, rows: Tensor) -> Tensor:
    limit = batch.max_completion_tokens
    if limit < 1:
        raise ValueError(
            f"max_completion_tokens={limit}: seq_mean_token_sum_norm divides by it; fill it in the batch"
        )
    return batch.completion_mask / rows / limit


def _seq_level(batch: Batch, rows: Tensor) -> Tensor:
    return batch.completion_mask.any(-1) / rows


def _balanced(batch: Batch, rows: Tensor, *, options: frozenset[str] = frozenset()) -> Tensor:
    """Per group, |P| / (|P| + |N|) x token mean over P + the same for N (arXiv 2605.04077), P = {A > 0}.

    A row's sign is that of its mean advantage, and rows of sign 0 are dropped; groups weigh by their rows.
    Options: `batch` takes the whole batch for one group, `tokens` signs each token (a row then counts by the
    share of its tokens), `count_zero` keeps rows of sign 0 in the denominator |P| + |N|.
    """
    assert batch.advantages is not None, "the balanced aggregation needs advantages"
    mask, lengths = batch.completion_mask, batch.lengths.clamp(min=1).double()
    groups = torch.zeros_like(batch.group_ids) if "batch" in options else batch.group_ids
    sign = F.masked(batch.advantages, mask).sign().double()
    if "tokens" not in options:
        sign = F.broadcast(F.masked_mean(batch.advantages, mask).sign().double(), mask)
    size = F.group_sum(mask.any(-1).double(), groups)
    mass = {side: F.group_sum((mask & (sign == side)).sum(-1) / lengths, groups) for side in (-1, 0, 1)}
    total = mass[1] + mass[-1] + (mass[0] if "count_zero" in options else 0.0)
    weights = torch.zeros_like(sign)
    for side in (1, -1):
        own = mask & (sign == side)
        tokens = F.group_sum(own.sum(-1).double(), groups).clamp(min=1)
        row = size / rows * mass[side] / total.clamp(min=1e-12) / tokens
        weights = torch.where(own, row[:, None], weights)
    return weights


AGGREGATIONS: dict[str, Weights] = {
    "seq_mean_token_mean": _seq_mean_token_mean,
    "token_mean": _token_mean,
    "seq_mean_token_sum": _seq_mean_token_sum,
    "seq_mean_token_sum_norm": _seq_mean_token_sum_norm,
    "seq_level": _seq_level,
    "balanced": _balanced,
    "balanced_batch": partial(_balanced, options=frozenset({"batch"})),
    "balanced_tokens": partial(_balanced, options=frozenset({"tokens"})),
    "balanced_count_zero": partial(_balanced, options=frozenset({"count_zero"})),
}
