"""A task with a closed-form optimum and a table for a policy: learned through the real hooks in seconds.

Each prompt has one right answer: `horizon` tokens and the end token. The policy is a table of logits by
prompt and position, so its success probability is a product of soft-maxes, and its optimum is 1.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from algorithms.base import Algorithm, Batch, Group, Request, Sample, Setting
from harness.train.hacks import hack_metrics
from harness.train.reduction import Reducer

__all__ = ["ToyExample", "ToyModels", "ToyPolicy", "ToyRun", "ToyTask", "ToyTrainer", "train_toy"]

CONTENT_TOKENS = 4
END = CONTENT_TOKENS
VOCABULARY = CONTENT_TOKENS + 1
KINDS = {"without_rubric": -1.0, "privileged": 0.0, "hint_1": 1.0, "hint_2": 2.0, "high": 0.5, "low": -0.5}
"""Wordings of a prompt, and how much each favours the right token at even positions (a logit, not learned)."""
NETWORK_RATE = 0.02
"""Learning rate of an algorithm's own parameters before `lr_scale`: a table takes larger steps than a network."""


@dataclass(frozen=True)
class ToyExample:
    """One prompt; its text names its number, its variants are other wordings."""

    number: int

    @property
    def id(self) -> str:
        """Stable name."""
        return f"toy-{self.number}"

    @property
    def prompt(self) -> str:
        """The text that the policy reads."""
        return f"p{self.number}"

    @property
    def variants(self) -> Mapping[str, str]:
        """The same prompt in other words."""
        return {kind: f"p{self.number} {kind}" for kind in KINDS if kind not in ("high", "low")}


@dataclass(frozen=True)
class ToyTask:
    """Rewards of the toy: `all_right` and `fraction` ask for the answer, `end_at_once` is won by ending."""

    outcome: Literal["all_right", "fraction", "end_at_once"] = "all_right"
    prompts: int = 2
    horizon: int = 3
    limit: int = 6
    start_logit: float = 1.5  # how much the start favours each right token

    def setting(self, group_size: int, updates_per_rollout: int = 1) -> Setting:
        """What the toy offers to `Algorithm.check`."""
        provides = frozenset({"token_rewards", "steps", "rubric", "privileged_prompt", "hints"})
        return Setting(group_size, provides, (0.0, 1.0), updates_per_rollout, "toy")

    def target(self, number: int) -> list[int]:
        """The right answer of a prompt, its end token included."""
        return [(number + t) % CONTENT_TOKENS for t in range(self.horizon)] + [END]

    def targets(self) -> Int[Tensor, "N T"]:
        """Right token of every prompt and position; the end token after the answer."""
        return torch.tensor(
            [self.target(n) + [END] * (self.limit - self.horizon - 1) for n in range(self.prompts)]
        )

    def right(self, ids: Sequence[int], number: int) -> bool:
        """The untouched metric."""
        return list(ids) == self.target(number)

    def reward(self, ids: Sequence[int], number: int) -> float:
        """The outcome that is trained on, in [0, 1]."""
        if self.outcome == "end_at_once":
            return float(len(ids) == 1 and ids[0] == END)
        if self.outcome == "all_right":
            return float(self.right(ids, number))
        target = self.target(number)
        hits = sum(a == b for a, b in zip(ids, target, strict=False))
        return hits / max(len(ids), len(target))


class ToyPolicy(nn.Module):
    """Logits [prompt, position, token]; float64, so that invariances can be tested to 1e-7."""

    def __init__(self, task: ToyTask) -> None:
        super().__init__()
        self.task = task
        right = torch.nn.functional.one_hot(task.targets(), VOCABULARY).double()
        self.table = nn.Parameter(task.start_logit * right)
        even = (torch.arange(task.limit) % 2 == 0).double()[None, :, None]
        self.register_buffer("favour", right * even)

    def log_softmax(self, prompt_ids: Int[Tensor, "B P"]) -> Float[Tensor, "B T V"]:
        """Log-probabilities of every token at every position."""
        numbers, strength = prompt_ids[:, 0], prompt_ids[:, 1].double() / 2
        favour = self.get_buffer("favour")[numbers]
        return torch.log_softmax(self.table[numbers] + strength[:, None, None] * favour, -1)

    def success_probability(self) -> float:
        """Closed form: mean over prompts of the product of the right tokens' probabilities."""
        with torch.no_grad():
            prompts = torch.tensor([encode(ToyExample(n).prompt) for n in range(self.task.prompts)])
            steps = self.log_softmax(prompts).gather(-1, self.task.targets()[..., None])[..., 0]
            return float(steps[:, : self.task.horizon + 1].sum(-1).exp().mean())


def encode(text: str) -> list[int]:
    """The toy's tokenizer: the number of the prompt, and twice the logit that its wording adds."""
    number = re.search(r"p(\d+)", text)
    if number is None:
        raise ValueError(f"toy prompt {text!r} names no prompt: it must hold p and a number")
    return [int(number[1]), round(2 * sum(value for kind, value in KINDS.items() if kind in text))]


class ToyBackbone(nn.Module):
    """Hidden state before each token from the prompt, the position and the token before."""

    def __init__(self, task: ToyTask, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        sizes = {"prompt": task.prompts, "position": task.limit, "token": VOCABULARY + 1}
        self.parts = nn.ParameterDict(
            {name: torch.randn(size, width, generator=generator) for name, size in sizes.items()}
        )

    def forward(
        self, prompt_ids: Int[Tensor, "B P"], completion_ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """tanh of the sum of three embeddings."""
        start = torch.full_like(completion_ids[:, :1], VOCABULARY)
        before = torch.cat([start, completion_ids[:, :-1]], 1)
        position = self.parts["position"][: before.shape[1]]
        return torch.tanh(self.parts["prompt"][prompt_ids[:, :1]] + position + self.parts["token"][before])


@dataclass
class ToyModels:
    """The Models protocol over a ToyPolicy; counts its forwards by name."""

    policy: ToyPolicy
    hidden_size: int = 16
    calls: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = copy.deepcopy(self.policy)

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def logprobs(self, batch: Batch, *, variant: str | None = None) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.logprobs."""
        self._count("logprobs")
        with torch.no_grad():
            return gather(self.policy, worded(batch, variant), batch)

    def reference_logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.reference_logprobs."""
        self._count("reference_logprobs")
        with torch.no_grad():
            return gather(self.start, batch.prompt_ids, batch)

    def hidden_states(
        self, batch: Batch, backbone: nn.Module, *, variant: str | None = None
    ) -> Float[Tensor, "B T D"]:
        """See algorithms.base.Models.hidden_states."""
        self._count("hidden_states")
        return backbone(worded(batch, variant), batch.completion_ids)

    def backbone_copy(self) -> nn.Module:
        """See algorithms.base.Models.backbone_copy."""
        return ToyBackbone(self.policy.task, self.hidden_size)


def worded(batch: Batch, variant: str | None) -> Int[Tensor, "B P"]:
    """Prompt ids under another wording."""
    if variant is None:
        return batch.prompt_ids
    return torch.tensor([encode(example.variants[variant]) for example in batch.examples])


def gather(policy: ToyPolicy, prompt_ids: Int[Tensor, "B P"], batch: Batch) -> Float[Tensor, "B T"]:
    """Log-probs of the completion tokens; NaN outside the mask, which no algorithm may notice."""
    width = batch.completion_mask.shape[1]
    tokens = batch.completion_ids.clamp(max=VOCABULARY - 1)
    found = policy.log_softmax(prompt_ids)[:, :width].gather(-1, tokens[..., None])[..., 0]
    return torch.where(batch.completion_mask, found, torch.nan)


@dataclass(frozen=True)
class _Row:
    """One sampled completion."""

    example: ToyExample
    prompt: list[int]
    ids: list[int]
    truncated: bool
    group: int


@dataclass(frozen=True)
class ToyRun:
    """What happened, one value a rollout; `success` is the closed-form success probability after it."""

    success: list[float]
    rewards: list[float]
    lengths: list[float]
    truncated: list[float]
    unique_share: list[float]
    correct: list[float]
    metrics: list[dict[str, float]]
    completions: int

    def hacks(self) -> dict[str, float]:
        """The hack flags of the run."""
        return hack_metrics(self.lengths, self.truncated, self.unique_share, correct=self.correct)


class ToyTrainer:
    """Samples, credits and updates as the shared loop does, for the toy."""

    def __init__(
        self, algorithm: Algorithm, task: ToyTask | None = None, *, seed: int = 0, learning_rate: float = 0.1
    ) -> None:
        self.algorithm = algorithm
        self.task = task or ToyTask()
        self.policy = ToyPolicy(self.task)
        self.models = ToyModels(self.policy)
        self.generator = torch.Generator().manual_seed(seed)
        self.completions = 0
        algorithm.setup(self.models)
        own = [
            {"lr": group.get("lr", NETWORK_RATE * group.get("lr_scale", 1.0)), **group}
            for group in algorithm.param_groups()
        ]
        self.optimizer = torch.optim.Adam([{"params": [self.policy.table]}, *own], lr=learning_rate)

    # --- sampling --------------------------------------------------------------------------------------

    def rollout(self, prompts: int, group_size: int, refills: int = 5) -> Batch:
        """Groups that the algorithm accepts, as one batch; after `refills` rounds it keeps what it has."""
        kept: list[list[_Row]] = []
        last: list[list[_Row]] = []
        for _ in range(1 + refills):
            missing = prompts - len(kept)
            if missing == 0:
                break
            drawn = torch.randint(self.task.prompts, (missing,), generator=self.generator)
            last = self._plan([ToyExample(int(n)) for n in drawn], group_size)
            kept += [rows for rows in last if self.algorithm.accept(self._group(rows))]
        kept = kept or last
        return self.assemble([(i, row) for i, rows in enumerate(kept) for row in rows])

    def _plan(self, examples: list[ToyExample], group_size: int) -> list[list[_Row]]:
        plan = self.algorithm.rollout_plan(examples, group_size)
        groups: dict[int, list[_Row]] = {}
        requests = next(plan)
        while True:
            samples: list[Sample] = []
            for request in requests:
                if request.replaces:
                    groups[request.group] = []
            for request in requests:
                rows = self._sample(request)
                samples += [self._scored(request, row) for row in rows]
                if request.train:
                    groups.setdefault(request.group, []).extend(rows)
            try:
                requests = plan.send(samples)
            except StopIteration:
                return [groups[key] for key in sorted(groups)]

    def _sample(self, request: Request) -> list[_Row]:
        prompt = encode(request.example.prompt if request.prompt is None else request.prompt)
        with torch.no_grad():
            table = self.policy.log_softmax(torch.tensor([prompt]))[0].exp()
        draws = torch.multinomial(table, request.count, replacement=True, generator=self.generator).T.tolist()
        self.completions += request.count
        rows = []
        for draw in draws:
            ids = draw[: draw.index(END) + 1] if END in draw else draw
            rows.append(_Row(request.example, prompt, ids, END not in draw, request.group))
        return rows

    def _scored(self, request: Request, row: _Row) -> Sample:
        number = row.example.number
        text = "".join("abcd"[i] for i in row.ids if i != END)
        correct = self.task.right(row.ids, number)
        return Sample(request, text, self.task.reward(row.ids, number), correct, row.truncated)

    def _group(self, rows: list[_Row]) -> Group:
        return Group(
            tuple(self.task.reward(r.ids, r.example.number) for r in rows),
            tuple(self.task.right(r.ids, r.example.number) for r in rows),
            tuple(r.truncated for r in rows),
        )

    def assemble(self, numbered: list[tuple[int, _Row]]) -> Batch:
        """The batch of sampled rows: local reward 1 on right tokens, -1 on wrong ones, 0 on a right end."""
        task, rows = self.task, [row for _, row in numbered]
        lengths = torch.tensor([len(row.ids) for row in rows])
        width = int(lengths.max())
        mask = torch.arange(width)[None] < lengths[:, None]
        ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
        right = ids == task.targets()[[row.example.number for row in rows], :width]
        at_end = torch.arange(width)[None] >= task.horizon
        local = torch.where(right, torch.where(at_end, 0.0, 1.0), -1.0).double()
        batch = Batch(
            completion_ids=ids,
            completion_mask=mask,
            group_ids=torch.tensor([group for group, _ in numbered]),
            rewards=torch.tensor([task.reward(row.ids, row.example.number) for row in rows]).double(),
            correct=torch.tensor([task.right(row.ids, row.example.number) for row in rows]),
            truncated=torch.tensor([row.truncated for row in rows]),
            local_rewards=torch.where(mask, local, torch.nan),
            scored=mask,
            step_ids=torch.where(mask, torch.arange(width)[None] // 2, -1),
            prompt_ids=torch.tensor([row.prompt for row in rows]),
            prompt_mask=torch.ones(len(rows), 2, dtype=torch.bool),
            old_logprobs=torch.zeros(mask.shape, dtype=torch.float64),
            sampling_logprobs=torch.zeros(mask.shape, dtype=torch.float64),
            examples=tuple(row.example for row in rows),
            reward_range=(0.0, 1.0),
            max_completion_tokens=task.limit,
        )
        with torch.no_grad():
            logprobs = gather(self.policy, batch.prompt_ids, batch)
        return batch.replace(old_logprobs=logprobs, sampling_logprobs=logprobs)

    # --- learning --------------------------------------------------------------------------------------

    def credit(self, batch: Batch) -> Batch:
        """Extra forwards and advantages."""
        with torch.no_grad():
            batch = self.algorithm.prepare(batch, self.models)
            return batch.replace(advantages=self.algorithm.advantages(batch).detach())

    def gradients(self, batch: Batch, parts: Sequence[Int[Tensor, " K"]]) -> float:
        """Adds the gradients of one optimizer step, rows split into `parts`; returns the loss."""
        reducer, total = Reducer(batch), 0.0
        for rows in parts:
            part = batch.rows(rows).trim()
            loss = reducer.value(self.algorithm.loss(gather(self.policy, part.prompt_ids, part), part), rows)
            loss.backward()
            total += float(loss.detach())
        return total

    def step(self, batch: Batch) -> float:
        """One optimizer step; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.gradients(batch, torch.arange(len(batch)).split(16))
        self.optimizer.step()
        return loss


def train_toy(
    algorithm: Algorithm,
    task: ToyTask | None = None,
    *,
    rollouts: int = 80,
    prompts: int = 8,
    group_size: int = 8,
    updates_per_rollout: int = 1,
    seed: int = 0,
    learning_rate: float = 0.1,
) -> ToyRun:
    """Trains the table policy; ArithmeticError when a loss is not finite."""
    trainer = ToyTrainer(algorithm, task, seed=seed, learning_rate=learning_rate)
    algorithm.check(trainer.task.setting(group_size, updates_per_rollout))
    run = ToyRun([], [], [], [], [], [], [], 0)
    for _ in range(rollouts):
        batch = trainer.credit(trainer.rollout(prompts, group_size))
        run.metrics.append(algorithm.metrics(batch))
        _observe(run, batch)
        keep = algorithm.select(batch)
        chosen = batch if keep is None else batch.rows(keep.nonzero()[:, 0])
        order = torch.randperm(len(chosen), generator=trainer.generator)
        for share in torch.chunk(order, updates_per_rollout):
            if not math.isfinite(trainer.step(chosen.rows(share))):
                raise ArithmeticError(
                    f"{algorithm.name}: the loss of rollout {len(run.success) + 1} is not finite"
                )
        run.success.append(trainer.policy.success_probability())
    return ToyRun(**{**run.__dict__, "completions": trainer.completions})


def _observe(run: ToyRun, batch: Batch) -> None:
    mask: Bool[Tensor, "B T"] = batch.completion_mask
    texts = {
        (example.number, *ids[keep].tolist())
        for example, ids, keep in zip(batch.examples, batch.completion_ids, mask, strict=True)
    }
    run.rewards.append(float(batch.rewards.mean()))
    run.lengths.append(float(batch.lengths.double().mean()))
    run.truncated.append(float(batch.truncated.double().mean()))
    run.correct.append(float(batch.correct.double().mean()))
    run.unique_share.append(len(texts) / len(batch))


def algorithm_of(algorithm: type[Algorithm], options: Mapping[str, Any] | None = None) -> Algorithm:
    """An instance from plain option values."""
    return algorithm(algorithm.Options(**(options or {})))
