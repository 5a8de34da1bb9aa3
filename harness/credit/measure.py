"""Advantages of many algorithms on the same answers of one policy, beside the true credit of those answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithms.base import Algorithm, Batch, ConfigError, Models, Request, Setting
from harness import registry
from harness.credit.monte_carlo import (
    Cost,
    Credit,
    ModelContinuer,
    Sampled,
    TableContinuer,
    monte_carlo_credit,
)
from harness.credit.quality import Quality, Segments, gradient_snr, group_gradients, quality, segments
from harness.credit.truth import exact_credit
from harness.ladder.policy import batch_logprobs
from harness.ladder.run import table_trainer
from harness.ladder.sampling import Answers, answer_texts, assemble, sample
from harness.models.source import TABLE
from harness.names import lookup
from harness.spec import RunSpec
from harness.train.alignment import local_to_tokens
from harness.train.build import build
from harness.train.policy import completion_logprobs
from harness.train.rollout import Completion
from harness.train.rollout import assemble as assemble_completions
from harness.train.streams import generator
from tasks.base import LocalReward, Score
from tasks.ladder.task import LadderTask

__all__ = ["Bench", "Measured", "ModelBench", "TableBench", "bench_of", "measure"]

FLIPPED = 0.3
DRAWS = 8
TRUTH = "true credit"


@dataclass(frozen=True)
class Lot:
    """Answers of one policy in groups: as a batch, and as what people read."""

    batch: Batch
    answers: list[Sampled]
    tokens: list[list[str]]
    prompts: list[str]
    spans: list[list[dict[str, Any]]]
    exact: list[Credit] | None = None


class Bench(Protocol):
    """A policy on a task: samples groups, tells true credit, and offers its models to algorithms."""

    @property
    def models(self) -> Models:
        """What algorithms may ask of the policy."""
        ...

    @property
    def setting(self) -> Setting:
        """What the task and the loop offer."""
        ...

    @property
    def parameters(self) -> Sequence[Tensor]:
        """What the gradient is taken with respect to."""
        ...

    def lot(self, prompts: int, group_size: int, seed: int) -> Lot:
        """`prompts` groups of `group_size` answers."""
        ...

    def credit(self, lot: Lot, *, samples: int, most: int, seed: int) -> tuple[list[Credit], Cost]:
        """True credit of each answer, and what it cost."""
        ...

    def logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Log-probs of the completions, with gradient."""
        ...

    def close(self) -> None:
        """Ends the task's helper processes."""
        ...


class TableBench:
    """A table policy on the ladder at its start: true credit is exact."""

    def __init__(self, spec: RunSpec) -> None:
        self.trainer = table_trainer(spec)
        self.models: Models = self.trainer.models
        self.setting = setting_of(spec, LadderTask)
        self.parameters = [self.trainer.policy.table]

    def lot(self, prompts: int, group_size: int, seed: int) -> Lot:
        """See Bench.lot."""
        options, rng = self.trainer.options, generator("credit", seed)
        drawn = np.repeat(rng.integers(0, options.problems, prompts), group_size)
        codes = np.stack([drawn, np.zeros_like(drawn)], 1)
        answers = sample(self.trainer.policy, codes, rng)
        batch = assemble(answers, np.repeat(np.arange(prompts), group_size), self.trainer.policy)
        texts = answer_texts(answers, options)
        credit = exact_credit(self.trainer.policy, answers)
        names = {
            number: text for text, (number, wording) in self.trainer.prompts.known.items() if wording == 0
        }
        return Lot(
            batch=batch,
            answers=Sampled.all_of(answers),
            tokens=[list(text) for text in texts],
            prompts=[names[int(n)] for n in drawn],
            spans=[_local_spans(row) for row in _rows(answers)],
            exact=[Credit.exact(row[:n]) for row, n in zip(credit, answers.lengths, strict=True)],
        )

    def credit(self, lot: Lot, *, samples: int, most: int, seed: int) -> tuple[list[Credit], Cost]:
        """Exact, by backward induction; `samples` above 0 asks for Monte Carlo all the same."""
        if samples:
            continuer = TableContinuer(self.trainer.policy)
            return monte_carlo_credit(
                lot.answers, continuer, samples=samples, most=most, address=("credit-mc", seed)
            )
        assert lot.exact is not None
        return lot.exact, Cost()

    def logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """See Bench.logprobs."""
        return batch_logprobs(self.trainer.policy, batch)

    def close(self) -> None:
        """Nothing to end."""


def _rows(answers: Answers) -> list[np.ndarray]:
    return [row[:n] for row, n in zip(answers.reading.local, answers.lengths, strict=True)]


def _local_spans(values: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"start": int(t), "end": int(t) + 1, "value": float(values[t]), "source": "local reward"}
        for t in np.flatnonzero(values)
    ]


class ModelBench:
    """A language model on any task, sampled by the shared loop's own sampler; true credit by Monte Carlo."""

    def __init__(self, spec: RunSpec) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self.parts = build(spec)
        self.parts.models.keep_start(self.parts.model)
        self.models: Models = self.parts.models
        self.setting = setting_of(spec, self.parts.task)
        self.temperature = spec.train.temperature
        self.parameters = [p for p in self.parts.model.parameters() if p.requires_grad]

    def lot(self, prompts: int, group_size: int, seed: int) -> Lot:
        """The first prompts of the training split's own order."""
        parts = self.parts
        size = parts.task.size("train")
        order = generator("credit-prompts", seed).integers(0, 2**31 if size is None else size, prompts)
        examples = [parts.task.example("train", int(i)) for i in order]
        requests = [Request(example=e, count=group_size, group=i) for i, e in enumerate(examples)]
        lots = parts.generator.generate(requests, ("credit", seed), temperature=self.temperature)
        found = [completion for lot in lots for completion in lot]
        batch = assemble_completions(
            found,
            parts.recipe,
            pad_id=parts.codec.pad_id,
            max_completion_tokens=parts.generator.max_tokens,
            reward_range=parts.task.outcome_range,
            device=self.parameters[0].device,
        )
        return Lot(
            batch=batch,
            answers=[Sampled.of(c) for c in found],
            tokens=[_token_texts(c) for c in found],
            prompts=[c.example.prompt for c in found],
            spans=[_evidence(c, c.score, parts.recipe(c.answer, c.score)) for c in found],
        )

    def credit(self, lot: Lot, *, samples: int, most: int, seed: int) -> tuple[list[Credit], Cost]:
        """See Bench.credit."""
        continuer = ModelContinuer(self.parts.generator, temperature=self.temperature)
        return monte_carlo_credit(
            lot.answers, continuer, samples=samples, most=most, address=("credit-mc", seed)
        )

    def logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """See Bench.logprobs."""
        return completion_logprobs(
            self.parts.model, batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask,
            temperature=self.temperature,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the task's helper processes."""
        self.parts.task.close()


def _token_texts(completion: Completion) -> list[str]:
    text = completion.answer.text
    out = [text[start:end] for start, end in completion.ranges]
    if completion.answer.finished and out and not out[-1]:
        out[-1] = "⏹"
    return out


def _evidence(completion: Completion, score: Score, local: LocalReward) -> list[dict[str, Any]]:
    """The local reward as runs of equal tokens, with the first message that a checker gave there."""
    values, _ = local_to_tokens(local, completion.ranges, has_end_token=completion.answer.finished)
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    out = []
    for start, end in itertools.pairwise(edges):
        if end > start and values[start]:
            low, high = completion.ranges[start][0], completion.ranges[end - 1][1]
            said = [d.message for d in score.diagnostics if d.start < high and d.end >= low]
            out.append(
                {
                    "start": start, "end": end, "value": float(values[start]), "source": "local reward",
                    "message": said[0] if said else "",
                }
            )  # fmt: skip
    return out


def setting_of(spec: RunSpec, task: Any) -> Setting:
    """What a task and the loop offer, for `Algorithm.check`."""
    return Setting(
        spec.train.group_size,
        task.provides,
        task.outcome_range,
        spec.train.updates_per_rollout,
        spec.task.name,
    )


def bench_of(spec: RunSpec) -> Bench:
    """The bench of a specification: a table policy where the model is one, else a language model."""
    return TableBench(spec) if spec.model.name == TABLE else ModelBench(spec)


@dataclass(frozen=True)
class Measured:
    """What was found: qualities by algorithm, who was left out and why, groups for the heat map, the costs."""

    qualities: list[Quality]
    skipped: dict[str, str]
    groups: list[dict[str, Any]]
    truth: Segments | None
    lot: Lot
    advantages: Mapping[str, Float[np.ndarray, "B T"]]
    cost: Cost = field(default_factory=Cost)

    def records(self) -> list[dict[str, Any]]:
        """One record an algorithm, with what the true credit cost."""
        return [{**q.to_json(), "credit_cost": self.cost.as_dict()} for q in self.qualities]


def named_algorithms(names: Sequence[str]) -> dict[str, Algorithm]:
    """Instances by label: registered names (all, if none), or `name:option=value,option=value`."""
    from harness.spec import parse_value
    from harness.train.build import typed_options

    known = registry.algorithms()
    out = {}
    for label in names or sorted(known):
        name, _, text = label.partition(":")
        chosen: Any = lookup("algorithm", name, known)
        options = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        values = {key: parse_value(value) for key, value in options.items()}
        out[label] = chosen(typed_options(name, chosen.Options, values))
    return out


def measure(
    bench: Bench,
    names: Sequence[str],
    *,
    prompts: int,
    samples: int,
    most: int,
    seed: int = 0,
    gradients: bool = True,
    with_truth: bool = True,
) -> Measured:
    """Advantages of the algorithms on the same answers; with true credit, how well they agree with it."""
    lot = bench.lot(prompts, bench.setting.group_size, seed)
    credits: list[Credit] | None = None
    cost, truth = Cost(), None
    if with_truth:
        credits, cost = bench.credit(lot, samples=samples, most=most, seed=seed)
        truth = segments(credits, lot.batch.group_ids.tolist())
    qualities, skipped, found = [], {}, {}
    for name, algorithm in named_algorithms(names).items():
        try:
            algorithm.check(bench.setting)
        except ConfigError as error:
            skipped[name] = str(error)
            continue
        algorithm.setup(bench.models)
        batch = credited(algorithm, lot.batch, bench.models)
        found[name] = (batch.masked_advantages.double().cpu().numpy(), algorithm.metrics(batch))
        if truth is not None:
            qualities.append(_quality(name, algorithm, batch, truth, bench, gradients, seed))
    if credits is not None:
        found = {TRUTH: (_padded(credits, lot.batch), {}), **found}
    advantages = {name: a for name, (a, _) in found.items() if name != TRUTH}
    return Measured(qualities, skipped, _groups(lot, found), truth, lot, advantages, cost)


def credited(algorithm: Algorithm, batch: Batch, models: Models) -> Batch:
    """The batch with an algorithm's advantages."""
    with torch.no_grad():
        batch = algorithm.prepare(batch, models)
        return batch.replace(advantages=algorithm.advantages(batch).detach())


def _quality(
    name: str, algorithm: Algorithm, batch: Batch, truth: Segments, bench: Bench, gradients: bool, seed: int
) -> Quality:
    clean = batch.masked_advantages.double().cpu().numpy()
    snr = None
    if gradients:
        snr = gradient_snr(group_gradients(algorithm, batch, bench.logprobs, bench.parameters))
    bias = 0.0
    noisy = [
        credited(algorithm, flipped(batch, FLIPPED, (seed, k)), bench.models).masked_advantages
        for k in range(DRAWS)
    ]
    degraded = [a.double().cpu().numpy() for a in noisy]
    size = float(np.linalg.norm(clean))
    if size > 0:
        bias = float(np.linalg.norm(np.mean(degraded, 0) - clean)) / size
    cosines = [c for a in degraded if (c := quality(name, a, truth).cosine) is not None]
    worse = float(np.mean(cosines)) if cosines else None
    return quality(name, clean, truth, snr=snr, degraded_bias=bias, degraded_cosine=worse)


def flipped(batch: Batch, share: float, address: tuple[int, ...]) -> Batch:
    """The batch with the sign of the local reward flipped on this share of its tokens, drawn anew."""
    draws = generator("credit-flip", *address).random(batch.local_rewards.shape)
    flip = torch.from_numpy(draws < share).to(batch.local_rewards.device)
    return batch.replace(local_rewards=torch.where(flip, -batch.local_rewards, batch.local_rewards))


def _padded(credits: Sequence[Credit], batch: Batch) -> Float[np.ndarray, "B T"]:
    out = np.zeros(tuple(batch.completion_mask.shape))
    for row, credit in zip(out, credits, strict=True):
        tokens = credit.per_token()
        row[: len(tokens)] = tokens
    return out


def _groups(
    lot: Lot, found: Mapping[str, tuple[Float[np.ndarray, "B T"], Mapping[str, float]]]
) -> list[dict[str, Any]]:
    """The groups in the form that harness.report.credit shows."""
    ids = lot.batch.group_ids.tolist()
    rewards, cut = lot.batch.rewards.tolist(), lot.batch.truncated.tolist()
    out: list[dict[str, Any]] = []
    for group in dict.fromkeys(ids):
        rows = [i for i, g in enumerate(ids) if g == group]
        answers = [
            {
                "tokens": lot.tokens[i],
                "outcome": rewards[i],
                "truncated": cut[i],
                "advantages": {name: a[i, : len(lot.tokens[i])].tolist() for name, (a, _) in found.items()},
                "spans": lot.spans[i],
            }
            for i in rows
        ]
        statistics = {name: dict(metrics) for name, (_, metrics) in found.items() if metrics}
        out.append({"prompt": lot.prompts[rows[0]], "answers": answers, "statistics": statistics})
    return out
