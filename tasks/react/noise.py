"""Degraded recipes: how much does a method lose when its local reward is noisy, sparse, late or unbounded?

Noise is a pure function of the answer's text and a seed, so that a run can be repeated and the same answer
always gets the same noise.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from tasks.base import Answer, LocalReward, Recipe, Score, Span

PIECE = 4
"""Characters that share one draw of noise: about a token."""


@dataclass(frozen=True)
class Noise:
    """What is done to a recipe; the defaults do nothing.

    `amplitude` a of uniform noise in [-a, a] on each piece, the sum clipped to [-1, 1]; `drop_out` share of
    pieces without a local reward; `delay` characters by which values come late; `scale` factor on all
    values, at the end; above 1 it breaks the bound on purpose.
    """

    amplitude: float = 0.0
    drop_out: float = 0.0
    delay: int = 0
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field, low, high in (
            ("amplitude", 0.0, 2.0),
            ("drop_out", 0.0, 1.0),
            ("scale", 0.0, float("inf")),
        ):
            value = getattr(self, field)
            if not low <= value <= high:
                raise ValueError(f"noise.{field}={value!r}: use a value from {low:g} to {high:g}")
        if self.delay < 0:
            raise ValueError(f"noise.delay={self.delay!r}: use 0 or more characters")

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return (self.amplitude, self.drop_out, self.delay, self.scale) != (0.0, 0.0, 0, 1.0)


def _generator(answer: Answer, seed: int) -> random.Random:
    text = answer.text.encode("utf-8", "surrogatepass")
    return random.Random(hashlib.sha256(b"%d:" % seed + text).digest())


def degrade(recipe: Recipe, noise: Noise, values_of: Callable[[LocalReward, int], list[float]]) -> Recipe:
    """The recipe with noise on its values, the end token included; a success gets noise too."""
    if not noise.active:
        return recipe

    def degraded(answer: Answer, score: Score) -> LocalReward:
        local = recipe(answer, score)
        length = len(answer.text)
        values = values_of(local, length)
        late = [0.0] * min(noise.delay, length) + values
        values, rest = late[:length], late[length:]
        end = local.end_token if noise.delay == 0 else next((v for v in rest if v), 0.0)
        draw = _generator(answer, noise.seed)
        spans = []
        for start in range(0, length, PIECE):
            piece = values[start : start + PIECE]
            shift, dropped = draw.uniform(-noise.amplitude, noise.amplitude), draw.random() < noise.drop_out
            for offset, value in enumerate(piece):
                noisy = 0.0 if dropped else noise.scale * max(-1.0, min(1.0, value + shift))
                spans.append(Span(start + offset, start + offset + 1, noisy, "noisy"))
        shift = draw.uniform(-noise.amplitude, noise.amplitude)
        return LocalReward(tuple(spans), noise.scale * max(-1.0, min(1.0, end + shift)))

    degraded.__doc__ = recipe.__doc__
    return degraded
