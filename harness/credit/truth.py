"""The exact credit of every token on the ladder: by backward induction, and by full enumeration where small."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from harness.ladder.policy import TablePolicy, sees_mistakes, states_of
from harness.ladder.sampling import Answers
from tasks.ladder.options import LadderOptions
from tasks.ladder.rules import PAD, read

__all__ = ["ENUMERATION_LIMIT", "Enumeration", "enumerate_answers", "exact_credit", "exact_values"]

ENUMERATION_LIMIT = 200_000


def _probabilities(policy: TablePolicy) -> Float[np.ndarray, "P S A"]:
    with torch.no_grad():
        return policy.log_softmax()[:, 0].exp().numpy()


def exact_values(policy: TablePolicy) -> tuple[Float[np.ndarray, "P T1 M U1"], float]:
    """Expected outcome still to come, by problem, tokens written, mistaken or not, and letters written.

    Backward induction on V(t, m, u) = sum_a pi(a) (r + V(t + 1, m', u')): r is what the letter adds to the
    outcome `fraction`, and 1 for the last letter of an answer without a mistake under `all_right`. The last
    axis has `units` + 1 entries, the last 0. The second result is the expected outcome of the start,
    averaged over problems.
    """
    o = policy.options
    table = _probabilities(policy)
    values = np.zeros((o.problems, o.token_limit + 1, 2, o.units + 1))
    gain = _gains(o)
    unit = np.arange(o.units)
    targets = np.repeat(o.targets, o.period, 1)
    counts = unit % o.period == 0
    for spoiled in (True, False):  # a mistake is never undone, so the mistaken half comes first
        state = unit + o.units * spoiled if sees_mistakes(o) else unit
        p = table[:, state]
        right = np.take_along_axis(p, targets[:, :, None], 2)[..., 0]
        letters = p[..., : o.letters].sum(-1)
        filler = p[..., o.letters] if o.has_filler else np.zeros_like(right)
        right = np.where(counts, right, letters)
        wrong = letters - right
        for t in range(o.token_limit - 1, -1, -1):
            on, after = values[:, t + 1, int(spoiled)], values[:, t + 1, 1]
            values[:, t, int(spoiled), : o.units] = (
                right * (gain[int(spoiled)] + on[:, 1:]) + wrong * after[:, 1:] + filler * on[:, :-1]
            )
    return values, float(values[:, 0, 0, 0].mean())


def _gains(o: LadderOptions) -> Float[np.ndarray, "2 U"]:
    """What a right letter adds to the outcome at each place, before (0) and after (1) a mistake."""
    unit = np.arange(o.units)
    if o.outcome == "all_right":
        return np.stack([unit == o.units - 1, np.zeros(o.units)]).astype(float)
    share = (unit % o.period == 0) / o.steps
    return np.stack([share, np.zeros(o.units) if o.family == "chain" else share])


def exact_credit(policy: TablePolicy, answers: Answers) -> Float[np.ndarray, "B T"]:
    """A*(s, a) = Q(s, a) - V(s) of every token of answers to plain prompts, under the current policy."""
    o, symbols = policy.options, answers.symbols
    values, _ = exact_values(policy)
    present = symbols != PAD
    letter = present & (symbols != o.letters) if o.has_filler else present
    written = np.cumsum(letter, 1) - letter
    spoiled = answers.reading.spoiled.astype(int)
    t = np.arange(symbols.shape[1])[None]
    problem = answers.prompts[:, :1]
    before = values[problem, t, spoiled, np.minimum(written, o.units)]
    after_spoiled = spoiled | answers.reading.wrong
    after = values[problem, t + 1, after_spoiled, np.minimum(written + letter, o.units)]
    at = np.minimum(written, o.units - 1)
    counting = letter & (at % o.period == 0)
    good = np.where(counting, answers.reading.right, letter)
    gain = np.where(good, _gains(o)[spoiled, at], 0.0)
    return np.where(present, gain + after - before, 0.0)


@dataclass(frozen=True)
class Enumeration:
    """Every answer to one problem with its probability and outcome."""

    symbols: Int[np.ndarray, "N T"]
    probabilities: Float[np.ndarray, " N"]
    outcomes: Float[np.ndarray, " N"]

    def value(self, prefix: Int[np.ndarray, " K"]) -> float:
        """Expected outcome of the answers that begin with a prefix."""
        own = (self.symbols[:, : len(prefix)] == prefix).all(1)
        weights = self.probabilities[own]
        return float(weights @ self.outcomes[own] / weights.sum())

    def credit(self, answer: Int[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """Exact credit of every token of an answer: the rise of the expected outcome that it brings."""
        return np.diff([self.value(answer[:t]) for t in range(len(answer) + 1)])


def enumerate_answers(policy: TablePolicy, number: int) -> Enumeration:
    """All answers to a problem; ValueError when there are too many."""
    o = policy.options
    table = _probabilities(policy)[number]
    if o.symbols**o.token_limit > ENUMERATION_LIMIT:
        raise ValueError(
            f"{o.symbols}^{o.token_limit} answers are too many to enumerate (limit {ENUMERATION_LIMIT:,}): "
            "use exact_credit or Monte Carlo"
        )
    rows = np.array(sorted(_unique(_cut(o), itertools.product(range(o.symbols), repeat=o.token_limit))))
    lengths = (rows != PAD).sum(1)
    finished = ((rows >= 0) & (rows < o.letters)).sum(1) >= o.units
    problems = np.full(len(rows), number)
    found = read(rows, lengths, finished, problems, o)
    states = states_of(rows, found.spoiled, o)
    chosen = table[states, np.maximum(rows, 0)]
    probabilities = np.where(rows != PAD, chosen, 1.0).prod(1)
    return Enumeration(rows, probabilities, found.outcome)


def _cut(o: LadderOptions) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """An answer ends with its last letter; what follows is padding."""

    def cut(row: tuple[int, ...]) -> tuple[int, ...]:
        letters = 0
        for t, symbol in enumerate(row):
            letters += symbol < o.letters
            if letters == o.units:
                return (*row[: t + 1], *([PAD] * (len(row) - t - 1)))
        return row

    return cut


def _unique(
    cut: Callable[[tuple[int, ...]], tuple[int, ...]], rows: itertools.product
) -> set[tuple[int, ...]]:
    return {cut(row) for row in rows}
