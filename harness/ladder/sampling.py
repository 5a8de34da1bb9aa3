"""Samples answers of the ladder from a table policy and makes them a batch, all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Int

from algorithms.base import Batch
from harness.ladder.policy import TablePolicy, sees_mistakes, states_of
from tasks.ladder.options import FILLER, LETTERS, LadderOptions
from tasks.ladder.rules import PAD, Reading, read

__all__ = ["Answers", "answer_texts", "assemble", "continue_answers", "join", "sample"]


@dataclass(frozen=True)
class Answers:
    """Sampled answers: their prompts (problem and wording), symbols, what the rules say, and their group."""

    prompts: Int[np.ndarray, "B 2"]
    symbols: Int[np.ndarray, "B T"]
    lengths: Int[np.ndarray, " B"]
    finished: Bool[np.ndarray, " B"]
    reading: Reading

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, index: np.ndarray) -> Answers:
        """The answers at `index`, in that order."""
        picked = {f.name: getattr(self.reading, f.name)[index] for f in fields(Reading)}
        own = {name: getattr(self, name)[index] for name in ("prompts", "symbols", "lengths", "finished")}
        return Answers(**own, reading=Reading(**picked))


def join(parts: Sequence[Answers]) -> Answers:
    """Several lots of answers as one."""
    readings = [part.reading for part in parts]
    reading = Reading(
        **{f.name: np.concatenate([getattr(r, f.name) for r in readings]) for f in fields(Reading)}
    )
    names = ("prompts", "symbols", "lengths", "finished")
    own = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Answers(**own, reading=reading)


def sample(
    policy: TablePolicy,
    prompts: Int[np.ndarray, "B 2"],
    rng: np.random.Generator,
    *,
    fresh_noise: bool = True,
) -> Answers:
    """One answer for each prompt; `fresh_noise` draws the degradation of the local reward anew for each."""
    o = policy.options
    symbols = np.full((len(prompts), o.token_limit), PAD, dtype=np.int64)
    filled = np.zeros(len(prompts), dtype=np.int64)
    return _finish(policy, prompts, symbols, filled, rng, fresh_noise)


def continue_answers(
    policy: TablePolicy,
    prompts: Int[np.ndarray, "B 2"],
    prefixes: Int[np.ndarray, "B T"],
    filled: Int[np.ndarray, " B"],
    rng: np.random.Generator,
) -> Answers:
    """Answers that begin with the first `filled` symbols of each prefix, then as the policy goes on."""
    symbols = np.full((len(prompts), policy.options.token_limit), PAD, dtype=np.int64)
    width = min(prefixes.shape[1], symbols.shape[1])
    kept = np.arange(width)[None] < filled[:, None]
    symbols[:, :width] = np.where(kept, prefixes[:, :width], PAD)
    return _finish(policy, prompts, symbols, filled, rng, fresh_noise=True)


def _finish(
    policy: TablePolicy,
    prompts: np.ndarray,
    symbols: np.ndarray,
    filled: np.ndarray,
    rng: np.random.Generator,
    fresh_noise: bool,
) -> Answers:
    o = policy.options
    with torch.no_grad():
        table = policy.log_softmax(plain=not prompts[:, 1].any()).exp().numpy()
    cumulative = np.cumsum(table, -1)
    noise = rng.random(symbols.shape)
    first = int(filled.min(initial=o.token_limit))
    if not o.has_filler and not sees_mistakes(o):
        # the state is the position: all tokens at once
        bounds = cumulative[prompts[:, 0], prompts[:, 1]]
        drawn = (noise[..., None] >= bounds[..., :-1]).sum(-1)
        symbols = np.where(np.arange(symbols.shape[1])[None] < filled[:, None], symbols, drawn)
    else:
        _walk(symbols, filled, prompts, cumulative, noise, o, first)
    letters = (symbols >= 0) & (symbols < o.letters)
    lengths = (symbols != PAD).sum(1)
    finished = letters.sum(1) >= o.units
    salts = rng.integers(0, 2**62, len(prompts)) if fresh_noise and o.degraded else None
    return Answers(
        prompts, symbols, lengths, finished, read(symbols, lengths, finished, prompts[:, 0], o, salts)
    )


def _walk(
    symbols: np.ndarray,
    filled: np.ndarray,
    prompts: np.ndarray,
    cumulative: np.ndarray,
    noise: np.ndarray,
    o: LadderOptions,
    first: int,
) -> None:
    """Writes one token at a time, as the state depends on the tokens before; an answer ends with its last letter."""
    targets = np.repeat(o.targets[prompts[:, 0]], o.period, 1)
    counts = np.arange(o.units) % o.period == 0
    rows = np.arange(len(symbols))
    written = np.zeros(len(symbols), dtype=np.int64)
    spoiled = np.zeros(len(symbols), dtype=bool)
    see = sees_mistakes(o)
    for t in range(symbols.shape[1]):
        at = np.minimum(written, o.units - 1)
        alive = written < o.units
        if t >= first:
            state = at + o.units * spoiled if see else at
            bounds = cumulative[prompts[:, 0], prompts[:, 1], state]
            drawn = (noise[:, t, None] >= bounds[:, :-1]).sum(-1)
            symbols[:, t] = np.where(alive & (t >= filled), drawn, symbols[:, t])
        letter = alive & (symbols[:, t] != o.letters)
        spoiled |= letter & counts[at] & (symbols[:, t] != targets[rows, at])
        written += letter


def assemble(answers: Answers, group_ids: Int[np.ndarray, " B"], policy: TablePolicy) -> Batch:
    """The batch of some answers, with the policy's own log-probs as those of the sampler."""
    o = policy.options
    width = max(1, int(answers.lengths.max(initial=1)))
    symbols, found = answers.symbols[:, :width], answers.reading
    mask = symbols != PAD
    states = states_of(symbols, found.spoiled[:, :width], o)
    prompts = torch.from_numpy(answers.prompts)
    tokens, positions = torch.from_numpy(np.where(mask, symbols, 0)), torch.from_numpy(states)
    with torch.no_grad():
        logprobs = policy.logprobs(prompts, positions, tokens)
    local = torch.from_numpy(np.ascontiguousarray(found.local[:, :width]))
    completion_mask = torch.from_numpy(mask)
    logprobs = torch.where(completion_mask, logprobs, torch.zeros_like(logprobs))
    return Batch(
        completion_ids=tokens,
        completion_mask=completion_mask,
        group_ids=torch.from_numpy(np.asarray(group_ids)),
        rewards=torch.from_numpy(found.outcome),
        correct=torch.from_numpy(found.correct),
        truncated=torch.from_numpy(~answers.finished),
        local_rewards=local,
        scored=local != 0,
        step_ids=torch.from_numpy(np.ascontiguousarray(found.step_ids[:, :width])),
        prompt_ids=prompts,
        prompt_mask=torch.ones(prompts.shape, dtype=torch.bool),
        old_logprobs=logprobs,
        sampling_logprobs=logprobs,
        extras={"states": positions},
        reward_range=(0.0, 1.0),
        max_completion_tokens=o.token_limit,
    )


def answer_texts(answers: Answers, options: LadderOptions) -> list[str]:
    """The answers as the task reads them."""
    alphabet = np.array([*LETTERS[: options.letters], FILLER])
    return [
        "".join(alphabet[row[:length]]) for row, length in zip(answers.symbols, answers.lengths, strict=True)
    ]
