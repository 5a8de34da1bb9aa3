"""How the time of each algorithm's advantages grows with the number of tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from algorithms.base import Algorithm, Batch
from harness import registry
from harness.benchmark.fit import Exponent, exponent

__all__ = ["Scaling", "batch_of", "measure", "scaling_of"]

SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
QUICK_SIZES = (2_000, 8_000, 32_000)
TOKENS_PER_COMPLETION = 250
GROUP_SIZE = 8


@dataclass(frozen=True)
class Scaling:
    """Seconds of processor time at each number of tokens, and the fitted power law (exponent 1 is linear)."""

    name: str
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: Exponent


def batch_of(tokens: int, *, length: int = TOKENS_PER_COMPLETION, seed: int = 0) -> Batch:
    """About `tokens` tokens in ragged completions of mean `length`, groups of eight, all optional tensors filled."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(GROUP_SIZE, tokens // length // GROUP_SIZE * GROUP_SIZE)
    lengths = torch.randint(length // 2, length + length // 2 + 1, (rows,), generator=generator)
    width = int(lengths.max())
    mask = torch.arange(width)[None] < lengths[:, None]

    def uniform() -> torch.Tensor:
        return torch.rand(rows, width, generator=generator)

    logprobs = torch.log(0.1 + 0.8 * uniform())
    return Batch(
        completion_ids=torch.randint(0, 1000, (rows, width), generator=generator),
        completion_mask=mask,
        group_ids=torch.arange(rows) // GROUP_SIZE,
        rewards=(torch.rand(rows, generator=generator) < 0.5).float(),
        correct=torch.zeros(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        local_rewards=2 * uniform() - 1,
        scored=mask,
        step_ids=torch.where(mask, torch.arange(width)[None] // 32, -1),
        prompt_ids=torch.zeros(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        old_logprobs=logprobs,
        sampling_logprobs=logprobs,
        reference_logprobs=logprobs - 0.1,
        replay_logprobs=logprobs - uniform(),
        values=uniform(),
        returns=uniform(),
        max_completion_tokens=width,
    )


def measure(compute: Callable[[], object], *, repeats: int = 5) -> float:
    """The shortest of `repeats` timings, in seconds of processor time: other processes do not count."""
    timings = []
    for _ in range(repeats):
        start = time.process_time()
        compute()
        timings.append(time.process_time() - start)
    return min(timings)


def scaling_of(algorithm: Algorithm, sizes: Sequence[int] = SIZES, *, repeats: int = 5) -> Scaling:
    """Times the advantages of one algorithm over `sizes` and fits a power law."""
    tokens, seconds = [], []
    for size in sizes:
        batch = batch_of(size)
        algorithm.advantages(batch)  # the first call pays for allocation
        tokens.append(int(batch.completion_mask.sum()))
        seconds.append(measure(partial(algorithm.advantages, batch), repeats=repeats))
    return Scaling(algorithm.name, tuple(tokens), tuple(seconds), exponent(tokens, seconds))


def advantages(*, quick: bool) -> dict[str, Any]:
    """Every registered algorithm on one thread: seconds at each number of tokens, exponent with its interval."""
    torch.set_num_threads(1)
    sizes, repeats = (QUICK_SIZES, 1) if quick else (SIZES, 5)
    found = [scaling_of(made(), sizes, repeats=repeats) for _, made in sorted(registry.algorithms().items())]
    return {
        "rows": [
            {"algorithm": one.name, "tokens": one.tokens, "seconds": one.seconds, **one.exponent.to_json()}
            for one in found
        ]
    }
