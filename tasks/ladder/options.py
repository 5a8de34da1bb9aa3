"""What a ladder task is: its family, length, outcome, local reward and start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

__all__ = ["FAMILIES", "FILLER", "LETTERS", "OUTCOMES", "LadderOptions"]

FAMILIES = ("independent", "chain", "distractor", "uneven", "hackable")
OUTCOMES = ("all_right", "fraction")
LETTERS = "abcdefgh"
FILLER = "~"


@dataclass(frozen=True)
class LadderOptions:
    """Options of the ladder.

    `steps` H counting steps over `letters` letters. Families: `independent` (every step counts by itself),
    `chain` (nothing counts after the first mistake), `distractor` (each step is followed by `distractors`
    letters that do not matter), `uneven` (a filler `~` that counts for nothing, and that the start writes
    often after a mistake, so that wrong answers are longer), `hackable` (the local reward pays for the
    filler and not for right letters, and the filler can be written to the token limit without ever finishing).

    `outcome`: `all_right` is 1 when every step is right, `fraction` the share of right steps (for `chain`:
    before the first mistake). The local reward is exact, or degraded: `noise` flips a value's sign with
    that probability, `dropout` hides it, `delay` gives it that many tokens later, `bias` is added to the
    value of every token (cut to [-1, 1]), `scale_spread` multiplies by exp(spread x normal), unbounded.

    `start_logit` favours the right letter at the start, `filler_share` is the start's probability of the
    filler where the family has one (None: 0.2 for hackable; 0.05 before and 0.6 after a mistake for uneven).
    """

    family: str = "independent"
    steps: int = 8
    letters: int = 4
    problems: int = 4
    outcome: str = "all_right"
    distractors: int = 1
    noise: float = 0.0
    dropout: float = 0.0
    delay: int = 0
    bias: float = 0.0
    scale_spread: float = 0.0
    degrade_seed: int = 0
    start_logit: float = 1.0
    filler_share: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("family", FAMILIES), ("outcome", OUTCOMES)):
            if getattr(self, name) not in known:
                raise ValueError(f"task.{name}={getattr(self, name)!r}: choose one of {', '.join(known)}")
        limits = {
            "steps": (1, 512),
            "letters": (2, len(LETTERS)),
            "problems": (1, self.letters**2),
            "distractors": (1, 64),
            "noise": (0, 1),
            "dropout": (0, 1),
            "delay": (0, 512),
            "bias": (-2, 2),
            "scale_spread": (0, 10),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"task.{name}={getattr(self, name)!r}: set it from {low} to {high}")
        if not math.isfinite(self.start_logit):
            raise ValueError(f"task.start_logit={self.start_logit!r}: set a finite number")
        if self.filler_share is not None and not 0 < self.filler_share < 1:
            raise ValueError(f"task.filler_share={self.filler_share!r}: set it above 0 and below 1")

    @property
    def has_filler(self) -> bool:
        """Whether the filler is a symbol of its own, or just a mistake."""
        return self.family in ("uneven", "hackable")

    @property
    def period(self) -> int:
        """Letters a counting step takes: itself and its distractors."""
        return 1 + self.distractors if self.family == "distractor" else 1

    @property
    def units(self) -> int:
        """Letters of a complete answer."""
        return self.steps * self.period

    @property
    def token_limit(self) -> int:
        """Longest answer of a table policy, in tokens."""
        return self.units * (4 if self.has_filler else 1)

    @property
    def symbols(self) -> int:
        """Number of symbols that a table policy chooses from."""
        return self.letters + self.has_filler

    @property
    def degraded(self) -> bool:
        """Whether the local reward is anything but exact."""
        return bool(self.noise or self.dropout or self.delay or self.bias or self.scale_spread)

    @property
    def start_probability(self) -> float:
        """Probability of the right letter among the letters at the start, at a counting step."""
        favoured = math.exp(self.start_logit)
        return favoured / (favoured + self.letters - 1)

    def filler_shares(self) -> tuple[float, float]:
        """The start's probability of the filler before and after the first mistake."""
        if not self.has_filler:
            return 0.0, 0.0
        if self.family == "hackable":
            share = 0.2 if self.filler_share is None else self.filler_share
            return share, share
        return 0.05, 0.6 if self.filler_share is None else self.filler_share

    @cached_property
    def targets(self) -> Int[np.ndarray, "P H"]:
        """Right letter (by number) of every problem and step: start + t x shift, modulo the letters."""
        numbers = np.arange(self.problems)
        start, shift = numbers % self.letters, (1 + numbers // self.letters) % self.letters
        return (start[:, None] + np.arange(self.steps)[None] * shift[:, None]) % self.letters
