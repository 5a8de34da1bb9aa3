"""CPPO: only the completions with the largest advantages are trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import require_between


@dataclass(frozen=True, kw_only=True)
class CppoOptions(GrpoOptions):
    """GRPO's options and the pruning."""

    prune_share: float = 0.5  # P: floor(n (1 - P)) completions are kept, at least one
    prune: Literal["smallest", "largest", "random"] = "smallest"
    prune_scope: Literal["group", "batch"] = "group"
    score: Literal["mean_abs", "abs_mean"] = "mean_abs"  # they differ for token advantages only

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "prune_share")


@register
class Cppo(Grpo):
    """Completion pruning policy optimisation.

    A as in GRPO from the full group, `Float[Tensor, "B T"]`; of n completions the floor(n (1 - P)) with the
    largest |A| stay; statistics come before the pruning, denominators after it (arXiv 2503.22342;
    lzhxmu/CPPO).

    Differs from the paper: pruned within each group (both released codes prune over the batch, so that some
    prompts vanish; `prune_scope` batch does that); the freed slots are not refilled here: raise
    train.prompts_per_step by 1 / (1 - P) for the paper's dynamic allocation. Ties are broken by the
    content of the completion, so that row order does not matter.
    """

    name = "cppo"
    source = "arXiv 2503.22342"
    requires = frozenset({"groups"})
    extra_cost = "none (fewer backwards)"
    Options = CppoOptions
    options: CppoOptions

    def select(self, batch: Batch) -> Bool[Tensor, " B"]:
        """The rows that survive the pruning."""
        o = self.options
        groups = torch.zeros_like(batch.group_ids) if o.prune_scope == "batch" else batch.group_ids
        tie = F.content_hash(batch.completion_ids, batch.completion_mask)
        order = torch.arange(len(batch), device=groups.device)
        for key in (tie, *([] if o.prune == "random" else [self._badness(batch)]), groups):
            order = order[torch.argsort(key[order], stable=True)]
        _, sizes = torch.unique_consecutive(groups[order], return_counts=True)
        start = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        rank = torch.arange(len(batch), device=groups.device) - start
        # 1e-9: 10 (1 - 0.9) is 0.9999999999999998 in floating point, and floors to 0
        kept = torch.tensor([max(1, math.floor(n * (1 - o.prune_share) + 1e-9)) for n in sizes.tolist()])
        keep = torch.zeros(len(batch), dtype=torch.bool, device=groups.device)
        keep[order] = rank < torch.repeat_interleave(kept.to(groups.device), sizes)
        return keep

    def _badness(self, batch: Batch) -> Float[Tensor, " B"]:
        """Low for the completions to keep; rounded, so that equal advantages tie whatever their rounding."""
        advantages = batch.masked_advantages
        if self.options.score == "mean_abs":
            size = F.masked_mean(advantages.abs(), batch.completion_mask)
        else:
            size = F.masked_mean(advantages, batch.completion_mask).abs()
        size = (size.double() * 1e6).round()
        return size if self.options.prune == "largest" else -size
