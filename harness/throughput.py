"""Seconds that sampling and training would take on a card: a roofline with stated shares, never a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from harness.models.shape import ModelShape

HALF = 2
"""Bytes of a bfloat16 number."""
DECODE_SHARE = 0.5
TRAIN_SHARE = 0.35
STEP_SECONDS = 0.002
ROWS_IN_FLIGHT = 256
ROLLOUT_SECONDS = 1.5
SLEEP_SECONDS = 4.0
START_SECONDS = 120.0


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet: dense bfloat16 FLOP/s, bytes of memory and bytes of it a second."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float


H100 = Card("one H100 SXM of 80 GB", 989e12, 3.35e12, 81_559 * 2**20)
"""Source: NVIDIA H100 data sheet (dense bfloat16, without sparsity); memory as nvidia-smi reports it."""


def assumptions(card: Card) -> tuple[str, ...]:
    """What the estimates take for granted, in words."""
    return (
        f"estimate, not measured: {card.name}, {card.flops / 1e12:.0f} TFLOP/s dense bfloat16 and "
        f"{card.bandwidth / 1e12:.2f} TB/s by NVIDIA's data sheet",
        f"chosen: decoding at {DECODE_SHARE:.0%} of the memory bandwidth (weights and cached keys read once a token) plus "
        f"{STEP_SECONDS * 1e3:g} ms a token of overhead, {ROWS_IN_FLIGHT} answers at a time where their cache fits; "
        f"training and scoring passes at {TRAIN_SHARE:.0%} of the FLOP/s",
        f"chosen: {ROLLOUT_SECONDS:g} s a rollout for scoring and handing over weights, {SLEEP_SECONDS:g} s more where "
        f"the sampler sleeps and wakes, and {START_SECONDS:g} s to start a run",
    )


def rows_in_flight(shape: ModelShape, rows: int, context: float, cache_bytes: float) -> int:
    """Answers that are decoded at a time: bounded by the engine and by the room for their keys and values."""
    room = int(cache_bytes / (context * shape.cache_per_token * HALF))
    return max(1, min(rows, ROWS_IN_FLIGHT, room))


def decode_seconds(
    shape: ModelShape, rows: int, prompt: int, new: int, *, card: Card, memory_share: float
) -> float:
    """Seconds to sample `rows` answers of `new` tokens: bytes read a token over the usable bandwidth."""
    weights = shape.parameters * HALF
    context = prompt + new / 2
    flying = rows_in_flight(shape, rows, context, max(0.0, memory_share * card.memory_bytes - weights))
    read = weights + flying * context * shape.cache_per_token * HALF
    step = read / (DECODE_SHARE * card.bandwidth) + STEP_SECONDS
    return rows / flying * new * step


def pass_seconds(shape: ModelShape, rows: int, prompt: int, new: int, *, card: Card, passes: float) -> float:
    """Seconds of forward passes over `rows` sequences; a backward counts for two, recomputation for one more.

    FLOPs a token and pass: 2 x parameters, and 4 x layers x width x context / 2 for causal attention.
    """
    length = prompt + new
    attention = 4 * shape.layers * shape.heads * shape.head_size * length / 2
    return passes * rows * length * (2 * shape.parameters + attention) / (TRAIN_SHARE * card.flops)
