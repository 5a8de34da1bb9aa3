"""Collects the completions of one optimizer step: plan, sample, score, accept or draw again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.base import Algorithm, Batch, Group, Request, Sample
from harness.spec import TrainSpec
from harness.train.alignment import TextAligner, local_to_tokens, steps_to_tokens
from harness.train.costs import Costs
from harness.train.prompts import PromptCodec
from harness.train.sampler import Completions, Sampler, left_pad
from harness.train.streams import Address
from tasks.base import Answer, Example, Recipe, Score, Task


@dataclass(frozen=True)
class Completion:
    """One scored completion with its tokens; `version` as in Completions."""

    example: Example
    prompt_ids: list[int]
    ids: Tensor
    logprobs: Tensor
    ranges: np.ndarray
    answer: Answer
    score: Score
    group: int
    version: int | None = None

    @property
    def truncated(self) -> bool:
        """Whether the token limit cut it."""
        return not self.answer.finished


@dataclass(frozen=True)
class Rollout:
    """The completions of one step, how many groups were refused, and where the data cursor stands now."""

    completions: list[Completion]
    refused_groups: int
    cursor: int


class Generator:
    """Samples and scores requests; shared by training and evaluation."""

    def __init__(
        self, task: Task, codec: PromptCodec, aligner: TextAligner, sampler: Sampler, *, max_tokens: int
    ) -> None:
        self.task = task
        self.codec = codec
        self.aligner = aligner
        self.sampler = sampler
        self.max_tokens = max_tokens

    def generate(
        self, requests: Sequence[Request], address: Address, *, temperature: float
    ) -> list[list[Completion]]:
        """Scored completions of each request; the streams are `address` + (request, sample)."""
        prompts = [
            self.codec.encode(
                r.example.prompt if r.prompt is None else r.prompt,
                room=self.max_tokens,
                shots=r.example.shots,
            )
            for r in requests
        ]
        counts = [r.count for r in requests]
        streams = [(*address, i, k) for i, count in enumerate(counts) for k in range(count)]
        found = self.sampler.sample(
            prompts, counts, streams, max_tokens=self.max_tokens, temperature=temperature
        )
        owners = [i for i, count in enumerate(counts) for _ in range(count)]
        decoded = [self._decode(found, row) for row in range(len(owners))]
        scores = self.task.score([requests[i].example for i in owners], [answer for answer, _ in decoded])
        out: list[list[Completion]] = [[] for _ in requests]
        for row, (owner, (answer, ranges), score) in enumerate(zip(owners, decoded, scores, strict=True)):
            length = len(ranges)
            out[owner].append(
                Completion(
                    example=requests[owner].example,
                    prompt_ids=prompts[owner],
                    ids=found.ids[row, :length].cpu(),
                    logprobs=found.logprobs[row, :length].cpu(),
                    ranges=ranges,
                    answer=answer,
                    score=score,
                    group=requests[owner].group,
                    version=found.version,
                )
            )
        return out

    def _decode(self, found: Completions, row: int) -> tuple[Answer, np.ndarray]:
        ids = found.ids[row, : int(found.mask[row].sum())].tolist()
        text, ranges = self.aligner.decode(ids)
        return Answer(text=text, finished=not bool(found.truncated[row])), ranges


class RolloutCollector:
    """Fills one optimizer step with groups that the algorithm accepts, within a bounded number of rounds."""

    def __init__(
        self,
        generator: Generator,
        algorithm: Algorithm,
        train: TrainSpec,
        costs: Costs,
        draw_example: Callable[[int], Example],
    ) -> None:
        self.generator = generator
        self.algorithm = algorithm
        self.train = train
        self.costs = costs
        self.draw_example = draw_example

    def collect(self, seed: int, step: int, cursor: int) -> Rollout:
        """The rollout of optimizer step `step`; refused groups are counted and paid for, never trained on."""
        wanted, refused = self.train.prompts_per_step, 0
        kept: list[list[Completion]] = []
        for attempt in range(1 + self.train.max_refill_rounds):
            missing = wanted - len(kept)
            if not missing:
                break
            examples = [self.draw_example(cursor + i) for i in range(missing)]
            cursor += missing
            for group in self._run_plan(examples, ("train", seed, step, attempt)):
                if self.algorithm.accept(_group(group)):
                    kept.append(group)
                else:
                    refused += 1
        completions = [
            Completion(**{**completion.__dict__, "group": number})
            for number, group in enumerate(kept)
            for completion in group
        ]
        return Rollout(completions, refused, cursor)

    def _run_plan(self, examples: Sequence[Example], address: Address) -> list[list[Completion]]:
        """Runs the algorithm's plan round by round; the completions to train on, by group."""
        plan = self.algorithm.rollout_plan(examples, self.train.group_size)
        groups: dict[int, list[Completion]] = {}
        requests, number = next(plan), 0
        while True:
            lots = self.generator.generate(requests, (*address, number), temperature=self.train.temperature)
            samples = []
            for request in requests:
                if request.replaces:
                    groups[request.group] = []
            for request, lot in zip(requests, lots, strict=True):
                self._pay(lot)
                if request.train:
                    groups.setdefault(request.group, []).extend(lot)
                samples += [
                    Sample(request, c.answer.text, c.score.outcome, c.score.correct, c.truncated) for c in lot
                ]
            number += 1
            try:
                requests = plan.send(samples)
            except StopIteration:
                return [groups[key] for key in sorted(groups)]

    def _pay(self, lot: Sequence[Completion]) -> None:
        self.costs.prompts += 1
        self.costs.completions += len(lot)
        self.costs.generated_tokens += sum(len(completion.ids) for completion in lot)
        for completion in lot:
            self.costs.judge_calls += round(completion.score.metrics.get("judge_calls", 0))
            self.costs.judge_usd += completion.score.metrics.get("judge_usd", 0.0)


def _group(completions: Sequence[Completion]) -> Group:
    return Group(
        outcomes=tuple(c.score.outcome for c in completions),
        correct=tuple(c.score.correct for c in completions),
        truncated=tuple(c.truncated for c in completions),
    )


def assemble(
    completions: Sequence[Completion],
    recipe: Recipe,
    *,
    pad_id: int,
    max_completion_tokens: int,
    reward_range: tuple[float, float],
    device: Any = "cpu",
) -> Batch:
    """One Batch from scored completions; `old_logprobs` starts as the sampler's."""
    rows, width = len(completions), max(len(c.ids) for c in completions)
    ids = torch.full((rows, width), pad_id, dtype=torch.long)
    mask = torch.zeros((rows, width), dtype=torch.bool)
    logprobs = torch.zeros((rows, width))
    local = torch.zeros((rows, width))
    scored = torch.zeros((rows, width), dtype=torch.bool)
    steps = torch.full((rows, width), -1, dtype=torch.long)
    for row, completion in enumerate(completions):
        length = len(completion.ids)
        ids[row, :length] = completion.ids
        mask[row, :length] = True
        logprobs[row, :length] = completion.logprobs
        rewards, hit = local_to_tokens(
            recipe(completion.answer, completion.score),
            completion.ranges,
            has_end_token=completion.answer.finished,
        )
        local[row, :length] = torch.from_numpy(rewards)
        scored[row, :length] = torch.from_numpy(hit)
        steps[row, :length] = torch.from_numpy(steps_to_tokens(completion.score.steps, completion.ranges))
    prompt_ids, prompt_mask = left_pad([c.prompt_ids for c in completions], pad_id)
    move = {"device": device}
    return Batch(
        completion_ids=ids.to(**move),
        completion_mask=mask.to(**move),
        group_ids=torch.tensor([c.group for c in completions], **move),
        rewards=torch.tensor([c.score.outcome for c in completions], dtype=torch.float32, **move),
        correct=torch.tensor([c.score.correct for c in completions], **move),
        truncated=torch.tensor([c.truncated for c in completions], **move),
        local_rewards=local.to(**move),
        scored=scored.to(**move),
        step_ids=steps.to(**move),
        prompt_ids=prompt_ids.to(**move),
        prompt_mask=prompt_mask.to(**move),
        old_logprobs=logprobs.to(**move),
        sampling_logprobs=logprobs.to(**move),
        examples=tuple(c.example for c in completions),
        reward_range=reward_range,
        max_completion_tokens=max_completion_tokens,
    )


def describe(completions: Sequence[Completion]) -> dict[str, float]:
    """Means of the task's own metrics, and the length, truncation and variety of the answers."""
    names = sorted({name for c in completions for name in c.score.metrics})
    found = {name: float(np.mean([c.score.metrics.get(name, 0.0) for c in completions])) for name in names}
    found["outcome"] = float(np.mean([c.score.outcome for c in completions]))
    found["correct"] = float(np.mean([c.score.correct for c in completions]))
    found["mean_tokens"] = float(np.mean([len(c.ids) for c in completions]))
    found["truncated"] = float(np.mean([c.truncated for c in completions]))
    found["unique_share"] = len({c.answer.text for c in completions}) / len(completions)
    return found
