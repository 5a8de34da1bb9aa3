"""The contract between an algorithm and the training loop.

An algorithm overrides only the hooks it needs. It never divides a loss: it returns per-token terms with a
named aggregation, and the loop divides once per optimizer step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Batch",
    "ConfigError",
    "Group",
    "LossTerm",
    "Models",
    "NoOptions",
    "Request",
    "Sample",
    "Setting",
    "register",
]


class ConfigError(ValueError):
    """A setting that cannot work; the message names the field, its value and the fix."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The completions of one rollout (or some rows of it), as tensors; every mask excludes the prompt.

    Rows are completions; `group_ids` says which belong together, and never their order. Optional tensors
    are None until the loop or `prepare` fills them. Values under a False `completion_mask` mean nothing.
    """

    completion_ids: Int[Tensor, "B T"]
    completion_mask: Bool[Tensor, "B T"]  # the end token included
    group_ids: Int[Tensor, " B"]
    rewards: Float[Tensor, " B"]  # the outcome, in reward_range
    correct: Bool[Tensor, " B"]  # the metric, untouched by shaping
    truncated: Bool[Tensor, " B"]  # cut by the token limit
    local_rewards: Float[Tensor, "B T"]  # in [-1, 1], 0 where unscored
    scored: Bool[Tensor, "B T"]  # tokens that some span scored
    step_ids: Int[Tensor, "B T"]  # 0-based step of each token, -1 outside any step
    prompt_ids: Int[Tensor, "B P"]  # left-padded
    prompt_mask: Bool[Tensor, "B P"]
    old_logprobs: Float[Tensor, "B T"]
    sampling_logprobs: Float[Tensor, "B T"]
    reference_logprobs: Float[Tensor, "B T"] | None = None
    replay_logprobs: Float[Tensor, "B T"] | None = None
    values: Float[Tensor, "B T"] | None = None
    returns: Float[Tensor, "B T"] | None = None
    advantages: Float[Tensor, "B T"] | None = None
    examples: tuple[Any, ...] = ()  # row by row, opaque here; read by the model facade
    # the algorithm's own tensors: [B], [B, T], or [B, 1, K] for what is not per token (2-D ones are trimmed)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    reward_range: tuple[float, float] = (0.0, 1.0)
    max_completion_tokens: int = 0

    def __len__(self) -> int:
        return self.completion_mask.shape[0]

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """Policy-generated tokens of each row; may be 0."""
        return self.completion_mask.sum(-1)

    @property
    def masked_advantages(self) -> Float[Tensor, "B T"]:
        """The advantages with 0 outside the mask; ValueError before the loop has stored them."""
        if self.advantages is None:
            raise ValueError(
                "this batch holds no advantages yet: batch.replace(advantages=algorithm.advantages(batch))"
            )
        return torch.where(self.completion_mask, self.advantages, torch.zeros_like(self.advantages))

    def replace(self, **changes: Any) -> Batch:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def with_extras(self, **tensors: Tensor) -> Batch:
        """A copy with more row-first tensors under `extras`."""
        return replace(self, extras={**self.extras, **tensors})

    def rows(self, index: Int[Tensor, " K"]) -> Batch:
        """The rows `index`, in that order."""
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                changes[item.name] = value[index]
        changes["extras"] = {name: tensor[index] for name, tensor in self.extras.items()}
        if self.examples:
            changes["examples"] = tuple(self.examples[i] for i in index.tolist())
        return replace(self, **changes)

    def trim(self) -> Batch:
        """The same rows without the columns that are padding in all of them."""
        width, full = max(1, int(self.lengths.max())), self.completion_mask.shape[1]
        if width == full:
            return self
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor) and value.ndim == 2 and not item.name.startswith("prompt_"):
                changes[item.name] = value[:, :width]
        changes["extras"] = {k: v[:, :width] if v.ndim == 2 else v for k, v in self.extras.items()}
        return replace(self, **changes)


@dataclass(frozen=True)
class LossTerm:
    """Per-token (`[B, T]`) or per-sequence (`[B]`) losses, their weight, and how the loop averages them.

    Aggregations: `seq_mean_token_mean`, `token_mean`, `seq_mean_token_sum`,
    `seq_mean_token_sum_norm` (divides by the token limit), `seq_level` (for `[B]` losses), `balanced`
    and its variants `balanced_batch`, `balanced_tokens`, `balanced_count_zero`.
    """

    per_token: Float[Tensor, "B T"] | Float[Tensor, " B"]
    aggregation: str = "seq_mean_token_mean"
    weight: float = 1.0


class Models(Protocol):
    """What an algorithm may ask of the models; every forward is metered by the loop."""

    def logprobs(self, batch: Batch, *, variant: str | None = None) -> Float[Tensor, "B T"]:
        """Log-probs of the completions under the current policy, without gradient.

        `variant` names another wording of each row's prompt (see tasks.base.Example.variants); the
        completion ids are re-attached as they are.
        """
        ...

    def reference_logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Log-probs of the completions under the policy that the run started from, without gradient."""
        ...

    def hidden_states(
        self, batch: Batch, backbone: torch.nn.Module, *, variant: str | None = None
    ) -> Float[Tensor, "B T D"]:
        """Hidden state that precedes each completion token (the state before it), with gradient."""
        ...

    def backbone_copy(self) -> torch.nn.Module:
        """A trainable copy of the starting policy without its head, for a critic."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        ...


@dataclass(frozen=True)
class Request:
    """Completions to sample for one prompt.

    `example` is an element of what `rollout_plan` was given; `prompt` replaces its wording (None keeps
    it); requests with the same `group` form one group, whose statistics are shared; completions with
    `train=False` are scored and handed back, and never reach the loss; `replaces=True` drops what earlier
    rounds sampled for the group (it stays paid for).
    """

    example: Any
    count: int
    group: int
    prompt: str | None = None
    train: bool = True
    replaces: bool = False


@dataclass(frozen=True)
class Sample:
    """One scored completion, as `rollout_plan` sees it."""

    request: Request
    text: str
    outcome: float
    correct: bool
    truncated: bool


@dataclass(frozen=True)
class Group:
    """The outcomes of one group, as `accept` sees them."""

    outcomes: tuple[float, ...]
    correct: tuple[bool, ...]
    truncated: tuple[bool, ...]


@dataclass(frozen=True)
class Setting:
    """What the task and the loop offer, for `check`."""

    group_size: int
    provides: frozenset[str]
    reward_range: tuple[float, float]
    updates_per_rollout: int = 1
    task: str = ""


@dataclass(frozen=True)
class NoOptions:
    """The options of an algorithm that has none."""


class Algorithm:
    """Base class: GRPO-like defaults for every hook but `advantages` and `loss`.

    Class attributes: `name` (registry), `source` (paper or code), `requires` (any of `groups`,
    `token_rewards`, `steps`, `rubric`, `reward_range`, `critic`, `reference`), `extra_cost` (words for
    `harness ls algorithms`), `Options` (a frozen dataclass whose defaults are the paper's setting). An
    instance whose options hold a `kl_coefficient` above 0 also requires `reference`.
    """

    name: ClassVar[str]
    source: ClassVar[str] = ""
    requires: frozenset[str] = frozenset()
    extra_cost: ClassVar[str] = "none"
    Options: ClassVar[type] = NoOptions

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        if getattr(self.options, "kl_coefficient", 0) > 0:
            self.requires = self.requires | {"reference"}

    def check(self, setting: Setting) -> None:
        """Refuses what cannot work, before the first token is sampled; ConfigError names the fix."""
        if "groups" in self.requires and setting.group_size < 2:
            raise ConfigError(
                f"train.group_size={setting.group_size}: {self.name} compares completions of one prompt; "
                "set train.group_size to 2 or more"
            )
        offered = {"token_rewards", "steps", "rubric", "privileged_prompt", "hints"}
        for need in sorted(self.requires & offered - setting.provides):
            raise ConfigError(
                f"task={setting.task!r}: {self.name} needs {need}, which this task does not provide; "
                "choose another task or algorithm"
            )

    def setup(self, models: Models) -> None:
        """Builds modules of the algorithm's own (a critic); called once, before training or loading."""

    def param_groups(self) -> list[dict[str, Any]]:
        """Optimizer groups of the algorithm's own parameters (`params`, and `lr` or `lr_scale`).

        `lr_scale` multiplies the policy's learning rate, so that one default fits every model size.
        """
        return []

    def rollout_plan(
        self, examples: Sequence[Any], group_size: int
    ) -> Generator[list[Request], list[Sample], None]:
        """Rounds of requests; each `yield` receives the scored samples of its round."""
        yield [Request(example=example, count=group_size, group=i) for i, example in enumerate(examples)]

    def accept(self, group: Group) -> bool:
        """Whether a group carries signal; the loop draws other prompts for refused ones, bounded."""
        return True

    def prepare(self, batch: Batch, models: Models) -> Batch:
        """Extra forwards without gradient; returns the batch with what they found."""
        return batch

    def advantages(self, batch: Batch) -> Float[Tensor, "B T"]:
        """Credit of each token: deterministic, detached, 0 outside the mask."""
        raise NotImplementedError

    def select(self, batch: Batch) -> Bool[Tensor, " B"] | None:
        """Rows to keep for the update, after advantages; None keeps all."""
        return None

    def loss(self, logprobs: Float[Tensor, "B T"], batch: Batch) -> dict[str, LossTerm]:
        """Named per-token loss terms of some rows of the batch; never divides by their number."""
        raise NotImplementedError

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Numbers to log for one rollout, after `advantages`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State to checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""


A = TypeVar("A", bound=type[Algorithm])
ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(algorithm: A) -> A:
    """Class decorator that makes an algorithm known under its `name`; ValueError when the name is taken."""
    known = ALGORITHMS.setdefault(algorithm.name, algorithm)
    if known.__qualname__ != algorithm.__qualname__:
        raise ValueError(
            f"algorithm name {algorithm.name!r} is taken by {known.__qualname__}: choose another name"
        )
    return algorithm
