"""Batches for tests of algorithms: ragged, float64, with NaN wherever the mask is False."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms.base import Algorithm, Batch
from harness.train.reduction import Reducer

few = settings(max_examples=25, deadline=None)
"""For properties whose examples cost milliseconds; CI machines are too uneven for deadlines."""


def make_batch(
    lengths: Sequence[int],
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    local: Sequence[Sequence[float]] | None = None,
    steps: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    **changes: Any,
) -> Batch:
    """Rows of the given lengths; local rewards and steps default to 0 and to one step a row."""
    rows, width = len(lengths), max(1, *lengths)
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]

    def padded(values: Sequence[Sequence[float]] | None, fill: float) -> Tensor:
        out = torch.full((rows, width), fill, dtype=torch.float64)
        for i, row in enumerate(values or []):
            out[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
        return torch.where(mask, out, torch.nan)

    logprobs = torch.log(0.1 + 0.8 * torch.rand(rows, width, generator=generator, dtype=torch.float64))
    logprobs = torch.where(mask, logprobs, torch.nan)
    step_ids = padded(steps, 0.0).nan_to_num(nan=-1).long()
    values: dict[str, Any] = {
        "completion_ids": torch.randint(0, 50, (rows, width), generator=generator),
        "completion_mask": mask,
        "group_ids": torch.tensor([0] * rows if groups is None else list(groups)),
        "rewards": torch.tensor(rewards, dtype=torch.float64),
        "correct": torch.tensor(rewards, dtype=torch.float64) > 0,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "local_rewards": padded(local, 0.0),
        "scored": mask,
        "step_ids": step_ids,
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.bool),
        "old_logprobs": logprobs,
        "sampling_logprobs": logprobs,
        "max_completion_tokens": width,
    }
    return Batch(**{**values, **changes})


def moved(batch: Batch, size: float = 0.3, seed: int = 1) -> Tensor:
    """Log-probs of a policy that has moved since it sampled, as a leaf; NaN outside the mask."""
    noise = torch.randn(
        batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return (batch.old_logprobs - size * noise.abs() * noise.sign()).clamp(max=-1e-3).requires_grad_()


def credited(algorithm: Algorithm, batch: Batch) -> Batch:
    """The batch with the algorithm's advantages."""
    return batch.replace(advantages=algorithm.advantages(batch))


def loss_and_gradient(algorithm: Algorithm, batch: Batch, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Reduced loss of the whole batch, and its gradient in the log-probs."""
    leaf = logprobs.detach().clone().requires_grad_()
    loss = Reducer(batch).value(algorithm.loss(leaf, batch), torch.arange(len(batch)))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def rows_of(batch: Batch, tensor: Tensor) -> list[list[float]]:
    """The values of each row inside its mask."""
    return [tensor[i][batch.completion_mask[i]].tolist() for i in range(len(batch))]


@st.composite
def ragged_batches(draw: st.DrawFn, *, outcomes: Sequence[float] = (0.0, 1.0), max_groups: int = 3) -> Batch:
    """Groups of 2 to 5 completions of 1 to 7 tokens, with local rewards in [-1, 1] and steps of 2 tokens."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=max_groups))
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    lengths = draw(st.lists(st.integers(1, 7), min_size=len(groups), max_size=len(groups)))
    rewards = draw(st.lists(st.sampled_from(list(outcomes)), min_size=len(groups), max_size=len(groups)))
    value = st.floats(-1, 1, allow_nan=False, width=32)
    local = [draw(st.lists(value, min_size=n, max_size=n)) for n in lengths]
    steps = [[t // 2 for t in range(n)] for n in lengths]
    return make_batch(lengths, rewards, groups, local=local, steps=steps, seed=draw(st.integers(0, 99)))
