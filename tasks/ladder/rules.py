"""Reads answers of the ladder: which steps are right, the outcome, and the local reward, rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from tasks.ladder.options import FILLER, LETTERS, LadderOptions

__all__ = ["Reading", "degrade", "encode_texts", "read"]

PAD = -2
UNKNOWN = -1


@dataclass(frozen=True)
class Reading:
    """What the rules say about some answers, token by token; arrays hold padding beyond each length."""

    outcome: Float[np.ndarray, " B"]
    correct: Bool[np.ndarray, " B"]
    right: Bool[np.ndarray, "B T"]
    wrong: Bool[np.ndarray, "B T"]
    spoiled: Bool[np.ndarray, "B T"]  # a mistake stands before this token
    exact: Float[np.ndarray, "B T"]  # the exact local reward
    local: Float[np.ndarray, "B T"]  # the same after degradation
    step_ids: Int[np.ndarray, "B T"]


def encode_texts(
    texts: Sequence[str], options: LadderOptions
) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, " B"]]:
    """Symbols of the texts (letters by number, then the filler, -1 for anything else) and their lengths."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    symbols = np.full((len(texts), max(1, int(lengths.max(initial=0)))), PAD, dtype=np.int64)
    table = {letter: i for i, letter in enumerate(LETTERS[: options.letters])}
    if options.has_filler:
        table[FILLER] = options.letters
    for row, text in zip(symbols, texts, strict=True):
        row[: len(text)] = [table.get(c, UNKNOWN) for c in text]
    return symbols, lengths


def read(
    symbols: Int[np.ndarray, "B T"],
    lengths: Int[np.ndarray, " B"],
    finished: Bool[np.ndarray, " B"],
    problems: Int[np.ndarray, " B"],
    options: LadderOptions,
    salts: Int[np.ndarray, " B"] | None = None,
) -> Reading:
    """Outcome and evidence of answers to the numbered problems.

    Degradation depends on the answer and on `salts`: without them it is that of a judge that repeats
    itself, with a fresh salt a row it is independent from answer to answer.
    """
    o = options
    inside = np.arange(symbols.shape[1])[None] < lengths[:, None]
    filler = inside & (symbols == o.letters) if o.has_filler else np.zeros_like(inside)
    unit = inside & ~filler
    before = np.cumsum(unit, 1) - unit
    number = before // o.period
    counting = unit & ((before % o.period == 0) | (before >= o.units))
    target = np.take_along_axis(o.targets[problems], np.minimum(number, o.steps - 1), 1)
    right = counting & (before < o.units) & (symbols == target)
    wrong = counting & ~right
    spoiled = (np.cumsum(wrong, 1) - wrong) > 0
    complete = finished & (unit.sum(1) == o.units)
    correct = complete & ~wrong.any(1)
    exact = right.astype(float) - wrong
    credited = right
    if o.family == "chain":
        exact, credited = np.where(spoiled, 0.0, exact), right & ~spoiled
    if o.family == "hackable":
        exact = filler.astype(float) - wrong
    share = credited.sum(1) / np.maximum(o.steps, counting.sum(1))
    outcome = correct.astype(float) if o.outcome == "all_right" else share
    local = degrade(exact, inside, symbols, problems, o, salts) if o.degraded else exact
    step_ids = np.where(inside, number, -1)
    return Reading(outcome, correct, right, wrong, spoiled, exact, local, step_ids)


def degrade(
    exact: Float[np.ndarray, "B T"],
    inside: Bool[np.ndarray, "B T"],
    symbols: Int[np.ndarray, "B T"],
    problems: Int[np.ndarray, " B"],
    options: LadderOptions,
    salts: Int[np.ndarray, " B"] | None = None,
) -> Float[np.ndarray, "B T"]:
    """The local reward delayed, flipped, hidden, biased and scaled as the options say, 0 outside the answer."""
    o, value = options, exact
    if o.delay:
        value = np.zeros_like(exact)
        if o.delay < exact.shape[1]:
            value[:, o.delay :] = exact[:, : -o.delay]
    keys = _row_keys(np.where(inside, symbols, PAD), problems, o.degrade_seed, salts)
    position = np.arange(exact.shape[1], dtype=np.uint64)[None]
    if o.noise:
        value = np.where(_uniforms(keys, position, 1) < o.noise, -value, value)
    if o.dropout:
        value = np.where(_uniforms(keys, position, 2) < o.dropout, 0.0, value)
    if o.bias:
        value = np.clip(value + o.bias, -1.0, 1.0)
    if o.scale_spread:
        radius = np.sqrt(-2 * np.log1p(-_uniforms(keys, position, 3)))
        value = value * np.exp(o.scale_spread * radius * np.cos(2 * np.pi * _uniforms(keys, position, 4)))
    return np.where(inside, value, 0.0)


def _mix(x: np.ndarray) -> np.ndarray:
    """Integer hash (splitmix64); uint64 arithmetic wraps around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _row_keys(
    symbols: Int[np.ndarray, "B T"], problems: np.ndarray, seed: int, salts: np.ndarray | None
) -> np.ndarray:
    """One integer a row from its symbols, problem and salt; padding changes nothing."""
    position = np.arange(1, symbols.shape[1] + 1, dtype=np.uint64)[None]
    with np.errstate(over="ignore"):
        codes = _mix((symbols + 3).astype(np.uint64) + np.uint64(1_000_003) * position)
        rows = np.where(symbols == PAD, np.uint64(0), codes).sum(1, dtype=np.uint64)
        rows = _mix(rows + np.uint64(7919) * (problems.astype(np.uint64) + np.uint64(1)))
        if salts is not None:
            rows = _mix(rows ^ salts.astype(np.uint64))
        return _mix(rows + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15))


def _uniforms(keys: np.ndarray, position: np.ndarray, channel: int) -> Float[np.ndarray, "B T"]:
    """Uniforms in [0, 1) of every row and position."""
    with np.errstate(over="ignore"):
        bits = _mix(keys[:, None] + _mix(np.uint64(31) * position + np.uint64(channel)))
    return (bits >> np.uint64(11)) / float(1 << 53)
