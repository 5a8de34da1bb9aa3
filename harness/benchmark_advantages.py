"""How the time of each algorithm's advantages grows with the number of tokens: `python -m harness.benchmark_advantages`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from algorithms.base import Algorithm, Batch
from harness import registry
from harness.names import lookup

__all__ = ["Scaling", "batch_of", "measure", "scaling_of"]

SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
TOKENS_PER_COMPLETION = 250
GROUP_SIZE = 8


@dataclass(frozen=True)
class Scaling:
    """Seconds at each number of tokens, and the exponent of the fitted power law (1 is linear)."""

    name: str
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: float


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
    """Times the advantages of one algorithm over `sizes` and fits log seconds = a + exponent x log tokens."""
    tokens, seconds = [], []
    for size in sizes:
        batch = batch_of(size)
        algorithm.advantages(batch)  # the first call pays for allocation
        tokens.append(int(batch.completion_mask.sum()))
        seconds.append(measure(partial(algorithm.advantages, batch), repeats=repeats))
    exponent = float(np.polyfit(np.log(tokens), np.log(seconds), 1)[0])
    return Scaling(algorithm.name, tuple(tokens), tuple(seconds), exponent)


def main() -> None:
    """Prints one line an algorithm: seconds at each size, and the exponent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="algorithms (all when none is named)")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    known = registry.algorithms()
    print(f"{'algorithm':22s}" + "".join(f"{size:>12,d}" for size in SIZES) + "   exponent")
    for name in arguments.names or sorted(known):
        found = scaling_of(lookup("algorithm", name, known)())
        times = "".join(f"{second * 1000:10.2f}ms" for second in found.seconds)
        print(f"{found.name:22s}{times}   {found.exponent:.2f}")


if __name__ == "__main__":
    main()
