"""What the machine can do, and the share of it that sampling, training and one decode step reach."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.benchmark.setting import Setting
from harness.models.shape import ModelShape, shape_of_config
from harness.train.loop import Parts
from harness.train.policy import completion_logprobs, micro_batches
from harness.train.sampler import Completions, left_pad

BYTES = 4


@dataclass(frozen=True)
class Work:
    """A rollout's tensors: what was sampled, and the prompts in front of it, row by row."""

    prompts: list[list[int]]
    counts: list[int]
    streams: list[tuple[int | str, ...]]
    found: Completions


def seconds_of(action: Callable[[], object], repeats: int) -> float:
    """The shortest of so many timings of processor time, over the threads: other processes count little."""
    timings = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        timings.append(time.process_time() - start)
    return min(timings) / torch.get_num_threads()


def build_parts(setting: Setting) -> Parts:
    """The parts of our run of a setting, its threads set."""
    from harness.train.build import build

    torch.set_num_threads(setting.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return build(setting.spec(horizon=setting.optimizer_steps))


def sample_work(parts: Parts, setting: Setting) -> Work:
    """One rollout of the start weights."""
    examples = [parts.task.example("train", i) for i in range(setting.prompts_per_step)]
    prompts = [parts.codec.encode(example.prompt, shots=example.shots) for example in examples]
    counts = [setting.group_size] * len(prompts)
    streams: list[tuple[int | str, ...]] = [
        ("benchmark", i, k) for i in range(len(prompts)) for k in range(setting.group_size)
    ]
    found = parts.generator.sampler.sample(
        prompts,
        counts,
        streams,
        max_tokens=setting.max_completion_tokens,
        temperature=setting.temperature,
    )
    return Work(prompts, counts, streams, found)


def train_pass(
    parts: Parts, work: Work, micro_batch_size: int, *, order: Sequence[torch.Tensor] | None = None
) -> None:
    """Forward and backward over a rollout, without the optimizer; `order` replaces the length-sorted rows."""
    prompt_ids, prompt_mask = left_pad(
        [p for p, count in zip(work.prompts, work.counts, strict=True) for _ in range(count)],
        parts.codec.pad_id,
    )
    parts.model.zero_grad(set_to_none=True)
    lengths = work.found.mask.sum(1)
    for rows in micro_batches(lengths, micro_batch_size) if order is None else order:
        width = int(lengths[rows].max())
        logprobs = completion_logprobs(
            parts.model,
            prompt_ids[rows],
            prompt_mask[rows],
            work.found.ids[rows, :width],
            work.found.mask[rows, :width],
        )
        (-logprobs.sum() / len(lengths)).backward()


def matmul_peak(repeats: int, size: int = 2048) -> float:
    """GFLOP/s of a square fp32 product on this process's threads."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / seconds_of(lambda: a @ b, repeats) / 1e9


def copy_bandwidth(repeats: int, mib: int = 256) -> float:
    """GB/s of a copy in memory, read and write both counted."""
    a = torch.ones(mib * 2**20 // BYTES)
    b = torch.empty_like(a)
    return 2 * a.numel() * BYTES / seconds_of(lambda: b.copy_(a), repeats) / 1e9


def matrix_parameters(shape: ModelShape) -> int:
    """Parameters that multiply every decoded token: linear layers and head, no embedding, no norm."""
    per_layer = sum(inputs * outputs for inputs, outputs in shape.linears.values())
    return shape.layers * per_layer + shape.vocabulary * shape.hidden


def attention_flops(shape: ModelShape, context: int) -> int:
    """Of one token that attends to so many: scores and weighted values, 2 FLOP a product."""
    return 4 * shape.layers * shape.heads * shape.head_size * context


def rollout_flops(shape: ModelShape, prompts: Sequence[int], completions: Sequence[int]) -> float:
    """FLOP that sampling these completions needs: each prompt once, each token once, no padding."""
    per_token = 2 * matrix_parameters(shape)
    total = sum(per_token * p + attention_flops(shape, 1) * p * (p + 1) / 2 for p in set(prompts))
    for prompt, length in zip(prompts, completions, strict=True):
        contexts = length * prompt + length * (length + 1) / 2
        total += per_token * length + attention_flops(shape, 1) * contexts
    return total


def training_flops(shape: ModelShape, prompts: Sequence[int], completions: Sequence[int]) -> float:
    """FLOP of forward and backward (three times the forward), the head on completion tokens only."""
    head = shape.vocabulary * shape.hidden
    backbone = matrix_parameters(shape) - head
    total = 0.0
    for prompt, length in zip(prompts, completions, strict=True):
        both = prompt + length
        total += 2 * backbone * both + 2 * head * length + attention_flops(shape, 1) * both * (both + 1) / 2
    return 3 * total


def decode_step(parts: Parts, shape: ModelShape, rows: int, context: int, steps: int) -> dict[str, float]:
    """One decode step of a full batch: seconds, and the bytes and FLOP that it cannot do without."""
    decoder = parts.generator.sampler.decoder  # type: ignore[attr-defined]
    ids = torch.full((1, context), 5)
    tokens = torch.full((rows,), 5)
    timings = []
    for _ in range(3):
        decoder.start(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([rows]), steps + 1)
        decoder.step(tokens)
        timings.append(seconds_of(lambda: decoder.step(tokens), 1))
        timings += [seconds_of(lambda: decoder.step(tokens), 1) for _ in range(steps - 2)]
    middle = context + steps // 2
    return {
        "seconds": statistics.median(timings),
        "bytes": BYTES * (matrix_parameters(shape) + rows * middle * shape.cache_per_token),
        "flops": rows * (2 * matrix_parameters(shape) + attention_flops(shape, middle)),
    }


def floor(setting: Setting, *, quick: bool) -> dict[str, Any]:
    """Peaks of the machine, shares of them, and one decode step over the larger of its two floors."""
    repeats = 1 if quick else 5
    parts = build_parts(setting)
    shape = shape_of_config(parts.model.config.to_dict())
    sizes = (256, 8) if quick else (2048, 256)
    peak, bandwidth = matmul_peak(2 * repeats, sizes[0]), copy_bandwidth(2 * repeats, sizes[1])
    work = sample_work(parts, setting)
    prompts = [len(p) for p, count in zip(work.prompts, work.counts, strict=True) for _ in range(count)]
    lengths = work.found.mask.sum(1).tolist()
    sampling = seconds_of(lambda: sample_work(parts, setting), repeats)
    training = seconds_of(lambda: train_pass(parts, work, setting.micro_batch_size), repeats)
    step = decode_step(parts, shape, len(lengths), 16 if quick else 96, 4 if quick else 16)
    memory_floor, compute_floor = step["bytes"] / bandwidth / 1e9, step["flops"] / peak / 1e9
    parts.task.close()
    return {
        "threads": setting.threads,
        "matmul_peak_gflops": peak,
        "copy_gb_per_second": bandwidth,
        "tokens": sum(lengths),
        "sampling_seconds": sampling,
        "sampling_share_of_peak": rollout_flops(shape, prompts, lengths) / sampling / peak / 1e9,
        "training_seconds": training,
        "training_share_of_peak": training_flops(shape, prompts, lengths) / training / peak / 1e9,
        "decode_step_seconds": step["seconds"],
        "decode_memory_floor_seconds": memory_floor,
        "decode_compute_floor_seconds": compute_floor,
        "decode_step_over_memory_floor": step["seconds"] / memory_floor,
        "decode_step_over_floors": step["seconds"] / (memory_floor + compute_floor),
    }
