"""Trains a table policy on the ladder through the algorithms' real hooks and the shared reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from algorithms.base import Algorithm, Batch, Group, Request, Sample, Setting
from harness.ladder.policy import Prompts, TableModels, TablePolicy, batch_logprobs
from harness.ladder.sampling import Answers, answer_texts, assemble, join, sample
from harness.spec import TrainSpec
from harness.train.costs import Costs
from harness.train.reduction import Reducer
from harness.train.streams import generator
from tasks.ladder.generate import problem
from tasks.ladder.options import LadderOptions
from tasks.ladder.task import LadderTask

__all__ = ["LEARNING_RATE", "TableTrainer", "setting_of"]

LEARNING_RATE = 0.05
"""Adam's rate for a table of logits (a model's rate would take thousands of steps)."""
Rows = tuple[Answers, np.ndarray]  # the answers of one request, and the rows among them to train on


def setting_of(train: TrainSpec) -> Setting:
    """What the ladder offers to `Algorithm.check`."""
    return Setting(
        train.group_size, LadderTask.provides, LadderTask.outcome_range, train.updates_per_rollout, "ladder"
    )


class TableTrainer:
    """Samples, credits and updates as the shared loop does, for a table policy."""

    def __init__(self, algorithm: Algorithm, options: LadderOptions, train: TrainSpec, seed: int) -> None:
        self.algorithm = algorithm
        self.options = options
        self.train = train
        self.seed = seed
        self.prompts = Prompts(options)
        self.policy = TablePolicy(options)
        self.models = TableModels(self.policy)
        self.costs = Costs()
        self.rollouts = 0
        algorithm.check(setting_of(train))
        algorithm.setup(self.models)
        rate = train.learning_rate
        own = [
            {**group, "lr": group.get("lr", rate * group.get("lr_scale", 1.0))}
            for group in algorithm.param_groups()
        ]
        self.parameters = [self.policy.table, *(p for group in own for p in group["params"])]
        self.optimizer = torch.optim.AdamW(
            [{"params": [self.policy.table]}, *own], lr=rate, weight_decay=train.weight_decay, fused=True
        )
        self._plain_plan = type(algorithm).rollout_plan is Algorithm.rollout_plan
        self._accepts_all = type(algorithm).accept is Algorithm.accept

    # ------------------------------------------------------------ sampling
    def rollout(self) -> tuple[Batch | None, int]:
        """Groups that the algorithm accepts as one batch (None: it refused all), and how many it refused."""
        number, self.rollouts = self.rollouts, self.rollouts + 1
        rng = generator("ladder", self.seed, number)
        wanted, refused = self.train.prompts_per_step, 0
        kept: list[list[Rows]] = []
        for _ in range(1 + self.train.max_refill_rounds):
            missing = wanted - len(kept)
            if not missing:
                break
            drawn = rng.integers(0, self.options.problems, missing)
            groups = self._plain(drawn, rng) if self._plain_plan else self._planned(drawn, rng)
            accepted = [g for g in groups if self._accepts_all or self.algorithm.accept(_group(g))]
            refused += len(groups) - len(accepted)
            kept += accepted
        return (_join(kept, self.policy) if kept else None), refused

    def _pay(self, answers: Answers, requests: int) -> None:
        self.costs.prompts += requests
        self.costs.completions += len(answers)
        self.costs.generated_tokens += int(answers.lengths.sum())

    def _plain(self, drawn: np.ndarray, rng: np.random.Generator) -> list[list[Rows]]:
        """One round, `group_size` answers a prompt: the default plan, without an object for each answer."""
        size = self.train.group_size
        prompts = np.stack([np.repeat(drawn, size), np.zeros(len(drawn) * size, dtype=np.int64)], 1)
        answers = sample(self.policy, prompts, rng)
        self._pay(answers, len(drawn))
        return [[(answers, np.arange(i * size, (i + 1) * size))] for i in range(len(drawn))]

    def _planned(self, drawn: np.ndarray, rng: np.random.Generator) -> list[list[Rows]]:
        """Runs the algorithm's plan round by round; the answers to train on, by group."""
        examples = [problem(self.options, int(n)) for n in drawn]
        plan = self.algorithm.rollout_plan(examples, self.train.group_size)
        groups: dict[int, list[Rows]] = {}
        requests = next(plan)
        while True:
            for request in requests:
                if request.replaces:
                    groups[request.group] = []
            answers, slices = self._answer(requests, rng)
            for request, rows in zip(requests, slices, strict=True):
                if request.train:
                    groups.setdefault(request.group, []).append((answers, rows))
            try:
                requests = plan.send(self._samples(requests, answers, slices))
            except StopIteration:
                return [groups[key] for key in sorted(groups)]

    def _answer(
        self, requests: Sequence[Request], rng: np.random.Generator
    ) -> tuple[Answers, list[np.ndarray]]:
        codes = [self.prompts.encode(r.example.prompt if r.prompt is None else r.prompt) for r in requests]
        counts = [r.count for r in requests]
        answers = sample(self.policy, np.repeat(np.array(codes), counts, 0), rng)
        self._pay(answers, len(requests))
        ends = np.cumsum(counts)
        return answers, [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def _samples(
        self, requests: Sequence[Request], answers: Answers, slices: Sequence[np.ndarray]
    ) -> list[Sample]:
        texts, found = answer_texts(answers, self.options), answers.reading
        return [
            Sample(
                request, texts[i], float(found.outcome[i]), bool(found.correct[i]), not answers.finished[i]
            )
            for request, rows in zip(requests, slices, strict=True)
            for i in rows
        ]

    # ------------------------------------------------------------ learning
    def credit(self, batch: Batch) -> Batch:
        """Extra forwards and advantages."""
        with torch.no_grad():
            batch = self.algorithm.prepare(batch, self.models)
            return batch.replace(advantages=self.algorithm.advantages(batch).detach())

    def backward(self, batch: Batch) -> float:
        """Adds the gradient of the loss of one optimizer step; returns the loss."""
        rows = torch.arange(len(batch))
        loss = Reducer(batch).value(self.algorithm.loss(batch_logprobs(self.policy, batch), batch), rows)
        if loss.requires_grad:
            loss.backward()
        tokens = int(batch.completion_mask.sum())
        self.costs.forward_tokens += tokens
        self.costs.backward_tokens += tokens
        return float(loss.detach())

    def step(self, *, describe: bool = True) -> dict[str, float]:
        """One rollout and its optimizer steps; what to log of them, where asked for.

        ArithmeticError when a loss is not finite.
        """
        batch, refused = self.rollout()
        record: dict[str, float] = {"refused_groups": float(refused)}
        self.costs.optimizer_steps += self.train.updates_per_rollout
        if batch is None:
            return {**record, "skipped_update": 1.0}
        batch = self.credit(batch)
        if describe:
            record |= describe_batch(batch) | self.algorithm.metrics(batch)
        keep = self.algorithm.select(batch)
        chosen = batch if keep is None else batch.rows(keep.nonzero()[:, 0])
        order = torch.arange(len(chosen))
        if self.train.updates_per_rollout > 1:
            shuffled = generator("ladder-update", self.seed, self.rollouts).permutation(len(chosen))
            order = torch.from_numpy(shuffled)
        for share in torch.chunk(order, self.train.updates_per_rollout):
            record["loss"] = self._update(chosen.rows(share) if len(share) < len(chosen) else chosen)
        return record

    def _update(self, batch: Batch) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(batch)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.train.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ArithmeticError(f"{self.algorithm.name}: the loss or its gradient is not finite")
        self.optimizer.step()
        self.costs.forward_tokens += self.models.forward_tokens
        self.models.forward_tokens = 0
        return loss

    def success(self) -> float:
        """Closed-form success probability of the current policy."""
        with torch.no_grad():
            return float(self.policy.success_probability())


def _group(rows: list[Rows]) -> Group:
    def of(name: str) -> tuple[Any, ...]:
        return tuple(v for answers, own in rows for v in getattr(answers.reading, name)[own].tolist())

    truncated = tuple(not v for answers, own in rows for v in answers.finished[own].tolist())
    return Group(of("outcome"), of("correct"), truncated)


def _join(groups: list[list[Rows]], policy: TablePolicy) -> Batch:
    """One batch of all groups, in their order."""
    order = [(answers, rows, number) for number, own in enumerate(groups) for answers, rows in own]
    ids = np.concatenate([np.full(len(rows), number) for _, rows, number in order])
    if len({id(answers) for answers, _, _ in order}) == 1:
        answers, rows = order[0][0], np.concatenate([rows for _, rows, _ in order])
        whole = len(rows) == len(answers) and bool((np.diff(rows) == 1).all())
        return assemble(answers if whole else answers.rows(rows), ids, policy)
    return assemble(join([answers.rows(rows) for answers, rows, _ in order]), ids, policy)


def describe_batch(batch: Batch) -> dict[str, float]:
    """Means of a rollout: outcome, success, length, truncation, variety, and groups without success."""
    lengths = batch.lengths
    mask = batch.completion_mask
    keys = torch.where(mask, batch.completion_ids, -1).numpy()
    keyed = np.concatenate([batch.prompt_ids[:, :1].numpy(), keys], 1)
    groups = batch.group_ids.numpy()
    right = np.zeros(int(groups.max()) + 1)
    np.add.at(right, groups, batch.correct.numpy())
    return {
        "outcome": float(batch.rewards.mean()),
        "correct": float(batch.correct.double().mean()),
        "mean_tokens": float(lengths.double().mean()),
        "truncated": float(batch.truncated.double().mean()),
        "unique_share": len({row.tobytes() for row in keyed}) / len(batch),
        "all_fail_groups": float((right == 0).mean()),
    }
