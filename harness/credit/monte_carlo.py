"""True credit by Monte Carlo: continues prefixes of an answer with the policy, and counts what becomes of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int

from harness.ladder.policy import TablePolicy
from harness.ladder.sampling import Answers, continue_answers
from harness.train.rollout import Completion, Generator
from harness.train.streams import Address, generator
from tasks.base import Answer, Example
from tasks.ladder.rules import PAD

__all__ = ["Continuer", "Cost", "Credit", "ModelContinuer", "Sampled", "TableContinuer", "monte_carlo_credit"]

Ids = tuple[int, ...]
Prefix = tuple[Ids, Ids]  # prompt and what the answer begins with
ROWS = 256


@dataclass(frozen=True)
class Sampled:
    """One answer whose credit is asked for; `example` is what the grader needs."""

    prompt_ids: Ids
    ids: Ids
    outcome: float
    example: Example | None = None

    @classmethod
    def of(cls, completion: Completion) -> Sampled:
        """From a completion of the shared loop."""
        return cls(
            tuple(completion.prompt_ids), tuple(completion.ids.tolist()), completion.score.outcome, completion.example
        )  # fmt: skip

    @classmethod
    def all_of(cls, answers: Answers) -> list[Sampled]:
        """From answers of a table policy."""
        return [
            cls(tuple(prompt), tuple(row[:length]), float(outcome))
            for prompt, row, length, outcome in zip(
                answers.prompts.tolist(), answers.symbols.tolist(), answers.lengths, answers.reading.outcome,
                strict=True,
            )
        ]  # fmt: skip


class Continuer(Protocol):
    """Continues prefixes with the current policy until the answer ends."""

    def continue_from(
        self,
        prefixes: Sequence[Prefix],
        counts: Sequence[int],
        examples: Sequence[Example | None],
        address: Address,
    ) -> tuple[list[Float[np.ndarray, " K"]], int]:
        """Outcomes of `counts[i]` continuations of `prefixes[i]`, and the tokens generated for all of them."""
        ...


class TableContinuer:
    """Continues answers of the ladder with a table policy."""

    def __init__(self, policy: TablePolicy) -> None:
        self.policy = policy

    def continue_from(
        self,
        prefixes: Sequence[Prefix],
        counts: Sequence[int],
        examples: Sequence[Example | None],
        address: Address,
    ) -> tuple[list[Float[np.ndarray, " K"]], int]:
        """See Continuer.continue_from."""
        width = self.policy.options.token_limit
        rows = np.full((len(prefixes), width), PAD, dtype=np.int64)
        for row, (_, ids) in zip(rows, prefixes, strict=True):
            row[: len(ids)] = ids
        owner = np.repeat(np.arange(len(prefixes)), counts)
        filled = np.array([len(ids) for _, ids in prefixes])[owner]
        prompts = np.array([prompt for prompt, _ in prefixes])[owner]
        found = continue_answers(self.policy, prompts, rows[owner], filled, generator(*address))
        tokens = int((found.lengths - filled).sum())
        return np.split(found.reading.outcome, np.cumsum(counts)[:-1]), tokens


class ModelContinuer:
    """Continues answers with the sampler and the grader of the shared loop; equal texts are graded once."""

    def __init__(self, parts: Generator, *, temperature: float = 1.0) -> None:
        self.parts = parts
        self.temperature = temperature

    def continue_from(
        self,
        prefixes: Sequence[Prefix],
        counts: Sequence[int],
        examples: Sequence[Example | None],
        address: Address,
    ) -> tuple[list[Float[np.ndarray, " K"]], int]:
        """See Continuer.continue_from; prefixes of like length are continued together, the longest first."""
        order = sorted(range(len(prefixes)), key=lambda i: -len(prefixes[i][1]))
        out: dict[int, np.ndarray] = {}
        tokens, first = 0, 0
        while first < len(order):
            last, rows = first + 1, counts[order[first]]
            while last < len(order) and rows + counts[order[last]] <= ROWS:
                rows += counts[order[last]]
                last += 1
            lot = order[first:last]
            some = [prefixes[i] for i in lot], [counts[i] for i in lot], [examples[i] for i in lot]
            found, spent = self._lot(*some, address=(*address, first))
            out |= dict(zip(lot, found, strict=True))
            tokens, first = tokens + spent, last
        return [out[i] for i in range(len(prefixes))], tokens

    def _lot(
        self,
        prefixes: Sequence[Prefix],
        counts: Sequence[int],
        examples: Sequence[Example | None],
        address: Address,
    ) -> tuple[list[np.ndarray], int]:
        parts, limit = self.parts, self.parts.max_tokens
        room = limit - min(len(ids) for _, ids in prefixes)
        prompts = [list(prompt + ids) for prompt, ids in prefixes]
        streams = [(*address, i, k) for i, count in enumerate(counts) for k in range(count)]
        found = parts.sampler.sample(prompts, counts, streams, max_tokens=room, temperature=self.temperature)
        owner = [i for i, count in enumerate(counts) for _ in range(count)]
        answers: list[Answer] = []
        tokens = 0
        for row, own in enumerate(owner):
            begun = prefixes[own][1]
            length = int(found.mask[row].sum())
            cut = len(begun) + length > limit  # a shorter prefix in this lot left more room than this one has
            length = min(length, limit - len(begun))
            text, _ = parts.aligner.decode([*begun, *found.ids[row, :length].tolist()])
            answers.append(Answer(text, finished=not (cut or bool(found.truncated[row]))))
            tokens += length
        outcomes = self._score([examples[own] for own in owner], answers)
        return np.split(outcomes, np.cumsum(counts)[:-1]), tokens

    def _score(
        self, examples: Sequence[Example | None], answers: Sequence[Answer]
    ) -> Float[np.ndarray, " N"]:
        keys: dict[tuple[str, Answer], int] = {}
        asked: list[tuple[Example, Answer]] = []
        index = []
        for example, answer in zip(examples, answers, strict=True):
            assert example is not None, "a model's answers come with their examples"
            key = (example.id, answer)
            if key not in keys:
                keys[key] = len(asked)
                asked.append((example, answer))
            index.append(keys[key])
        scores = self.parts.task.score([e for e, _ in asked], [a for _, a in asked])
        return np.array([score.outcome for score in scores])[index]


@dataclass(frozen=True)
class Credit:
    """Credit of one answer by segments [edges[j], edges[j + 1]) of its tokens.

    `credit[j]` = V(edges[j + 1]) - V(edges[j]), with its standard error and 95% limits; the value after the
    last token is the outcome itself and has no error.
    """

    edges: Int[np.ndarray, " M1"]
    values: Float[np.ndarray, " M1"]
    credit: Float[np.ndarray, " M"]
    standard_error: Float[np.ndarray, " M"]
    low: Float[np.ndarray, " M"]
    high: Float[np.ndarray, " M"]

    @classmethod
    def exact(cls, credit: Float[np.ndarray, " T"]) -> Credit:
        """Known without error, token by token (values are those after the start's)."""
        values = np.concatenate([[0.0], np.cumsum(credit)])
        return cls(np.arange(len(credit) + 1), values, credit, np.zeros(len(credit)), credit, credit)

    def per_token(self) -> Float[np.ndarray, " T"]:
        """Each segment's credit spread evenly over its tokens."""
        sizes = np.diff(self.edges)
        return np.repeat(self.credit / sizes, sizes)


@dataclass
class Cost:
    """What an estimate cost."""

    continuations: int = 0
    tokens: int = 0
    prefixes: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """By name, for a record."""
        return {
            "continuations": self.continuations, "generated_tokens": self.tokens, "prefixes": self.prefixes,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass
class _Value:
    count: int = 0
    example: Example | None = None
    outcomes: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def mean(self) -> float:
        return float(self.outcomes.mean())

    def variance(self) -> float:
        """Unbiased variance of the mean."""
        return float(self.outcomes.var(ddof=1)) / len(self.outcomes)

    def limits(self, z: float = 1.959964) -> tuple[float, float]:
        """Wilson's 95% limits; for outcomes between 0 and 1 they are too wide rather than too narrow."""
        n, p = len(self.outcomes), self.mean()
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return middle - half, middle + half


def edges_of(length: int, most: int) -> Int[np.ndarray, " M1"]:
    """Edges of at most `most` segments of like size over an answer."""
    return np.unique(np.round(np.linspace(0, length, min(length, most) + 1)).astype(int))


def monte_carlo_credit(
    answers: Sequence[Sampled], continuer: Continuer, *, samples: int, most: int, address: Address
) -> tuple[list[Credit], Cost]:
    """Credit of every answer under the current policy, unbiased, with errors; and what it cost.

    V(prefix) is the mean outcome of `samples` continuations (times the number of answers that share the
    prefix); nothing of the answers' own outcomes enters it, so that credit is unbiased given the answer.
    Limits are Newcombe's for a difference of two proportions. At most `most` segments an answer.
    ValueError for fewer than two samples.
    """
    if samples < 2:
        raise ValueError(f"samples={samples}: give two or more, or no standard error can be told")
    began = time.perf_counter()
    edges = [edges_of(len(answer.ids), most) for answer in answers]
    values: dict[Prefix, _Value] = {}
    for answer, own in zip(answers, edges, strict=True):
        for t in own[:-1]:
            value = values.setdefault((answer.prompt_ids, answer.ids[:t]), _Value(example=answer.example))
            value.count += samples
    prefixes = list(values)
    counts = [values[p].count for p in prefixes]
    found, tokens = continuer.continue_from(prefixes, counts, [values[p].example for p in prefixes], address)
    for prefix, outcomes in zip(prefixes, found, strict=True):
        values[prefix].outcomes = outcomes
    credits = [_credit(answer, own, values) for answer, own in zip(answers, edges, strict=True)]
    return credits, Cost(sum(counts), tokens, len(prefixes), time.perf_counter() - began)


def _credit(answer: Sampled, edges: np.ndarray, values: Mapping[Prefix, _Value]) -> Credit:
    own: list[Any] = [values[answer.prompt_ids, answer.ids[:t]] for t in edges[:-1]]
    v = np.array([value.mean() for value in own] + [answer.outcome])
    variance = np.array([value.variance() for value in own] + [0.0])
    limits = np.array([value.limits() for value in own] + [(answer.outcome, answer.outcome)])
    below, above = v - limits[:, 0], limits[:, 1] - v
    credit = np.diff(v)
    return Credit(
        edges=edges,
        values=v,
        credit=credit,
        standard_error=np.sqrt(variance[1:] + variance[:-1]),
        low=credit - np.hypot(below[1:], above[:-1]),
        high=credit + np.hypot(above[1:], below[:-1]),
    )
