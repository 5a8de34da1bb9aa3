"""A table of logits as the policy of the ladder, with its success probability in closed form."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from algorithms.base import Batch, ConfigError
from tasks.ladder.generate import HINTS, problem
from tasks.ladder.options import LadderOptions
from tasks.ladder.rules import PAD

__all__ = ["WORDINGS", "Prompts", "TableModels", "TablePolicy", "states_of"]

WORDINGS = ("", "without_rubric", "privileged", *(f"hint_{k}" for k in range(1, HINTS + 1)), "high", "low")
"""Wordings of a prompt, by the number that stands for them in prompt ids."""
FAVOUR = {"privileged": 1.0, "high": 0.5, "low": -0.5}
HINT_LOGIT = 2.0
FEATURES = 16


@dataclass(frozen=True)
class Prompts:
    """Reads prompts of one ladder: the number of the problem and that of the wording."""

    options: LadderOptions

    @cached_property
    def known(self) -> dict[str, tuple[int, int]]:
        """All prompts that the task writes itself."""
        found = {}
        for number in range(self.options.problems):
            example = problem(self.options, number)
            found[example.prompt] = (number, 0)
            for name, text in example.variants.items():
                found.setdefault(text, (number, WORDINGS.index(name)))
        return found

    def encode(self, text: str) -> tuple[int, int]:
        """Problem and wording; a text around a known prompt counts by its reward token, if it has one.

        ValueError when the text holds no prompt of this ladder.
        """
        if text in self.known:
            return self.known[text]
        for prompt, (number, wording) in self.known.items():
            if wording == 0 and prompt in text:
                around = text.replace(prompt, "")
                token = re.search(r"\b(high|low)\b", around)
                return number, WORDINGS.index(token[1]) if token else 0
        raise ValueError(f"prompt {text!r} holds no prompt of this ladder")


def states_of(symbols: Int[np.ndarray, "B T"], spoiled: np.ndarray, options: LadderOptions) -> np.ndarray:
    """The policy's state before each token: letters written, and (where it sees them) whether one was wrong."""
    letters = symbols != PAD
    if options.has_filler:
        letters &= symbols != options.letters
    before = np.minimum(np.cumsum(letters, 1) - letters, options.units - 1)
    return before + options.units * spoiled if sees_mistakes(options) else before


def sees_mistakes(options: LadderOptions) -> bool:
    """Whether the policy may behave differently after a mistake."""
    return options.family in ("chain", "uneven")


class TablePolicy(nn.Module):
    """Logits [problem, state, symbol] in float64; the fixed `favour` of other wordings is not learned."""

    def __init__(self, options: LadderOptions) -> None:
        super().__init__()
        self.options = options
        targets = torch.from_numpy(options.targets)
        right = nn.functional.one_hot(targets, options.symbols).double()
        right = right.repeat_interleave(options.period, 1)
        counts = (torch.arange(options.units) % options.period == 0).double()
        right = right * counts[None, :, None]
        start = options.start_logit * right
        before, after = options.filler_shares()
        tables = [_with_filler(start, before)] if options.has_filler else [start]
        if sees_mistakes(options):
            tables.append(_with_filler(start, after) if options.has_filler else start)
            right = torch.cat([right, right], 1)
        self.table = nn.Parameter(torch.cat(tables, 1).clone())
        self.register_buffer("right", right)

    def favour(self) -> Float[Tensor, "W S"]:
        """Logit that each wording adds to the right letter, by state; without the rule only the first is known."""
        o = self.options
        step = torch.arange(self.table.shape[1]) % o.units // o.period
        rows = []
        for name in WORDINGS:
            if name == "without_rubric":
                rows.append(torch.where(step > 0, -o.start_logit, 0.0))
            elif name.startswith("hint_"):
                rows.append(torch.where(step < int(name.removeprefix("hint_")), HINT_LOGIT, 0.0))
            else:
                rows.append(torch.full(step.shape, FAVOUR.get(name, 0.0)))
        return torch.stack(rows).double()

    def log_softmax(self, *, plain: bool = True) -> Float[Tensor, "P W S A"]:
        """Log-probabilities of every symbol; `plain` gives the first wording alone."""
        if plain:
            return torch.log_softmax(self.table, -1)[:, None]
        shifted = self.table[:, None] + self.favour()[None, :, :, None] * self.get_buffer("right")[:, None]
        return torch.log_softmax(shifted, -1)

    def logprobs(
        self, prompt_ids: Int[Tensor, "B 2"], states: Int[Tensor, "B T"], symbols: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T"]:
        """Log-probs of the symbols in their states (padding must be clamped by the caller)."""
        table = self.log_softmax(plain=not bool(prompt_ids[:, 1].any()))
        _, wordings, states_, actions = table.shape
        flat = ((prompt_ids[:, :1] * wordings + prompt_ids[:, 1:]) * states_ + states) * actions + symbols
        return table.reshape(-1).index_select(0, flat.reshape(-1)).reshape(symbols.shape)

    def success_probability(self) -> Float[Tensor, ""]:
        """Probability of a right and finished answer, mean over problems; differentiable, closed form.

        Without a filler the product over the steps; with it a recursion over time and letters written.
        """
        o = self.options
        probabilities = torch.softmax(self.table, -1)[:, : o.units]
        chosen = (probabilities * self.get_buffer("right")[:, : o.units]).sum(-1)
        counts = (torch.arange(o.units) % o.period == 0)[None]
        if not o.has_filler:
            return torch.where(counts, chosen, torch.ones_like(chosen)).log().sum(1).exp().mean()
        filler = probabilities[..., o.letters]
        reached = nn.functional.pad(torch.ones_like(chosen[:, :1]), (0, o.units - 1))
        total = torch.zeros_like(chosen[:, 0])
        for _ in range(o.token_limit):
            moved = reached * chosen
            total = total + moved[:, -1]
            reached = reached * filler + nn.functional.pad(moved[:, :-1], (1, 0))
        return total.mean()


def _with_filler(letters: Float[Tensor, "P S A"], share: float) -> Float[Tensor, "P S A"]:
    """The same logits with the filler's set so that it has this probability."""
    letters = letters.clone()
    rest = torch.logsumexp(letters[..., :-1], -1)
    letters[..., -1] = rest + float(np.log(share / (1 - share)))
    return letters


class TableBackbone(nn.Module):
    """What a critic sees: features of the problem and state before each token."""

    def __init__(self, options: LadderOptions) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = (options.problems, options.units * (1 + sees_mistakes(options)), FEATURES)
        self.features = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float32))

    def forward(self, prompt_ids: Int[Tensor, "B 2"], states: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """tanh of the features."""
        return torch.tanh(self.features[prompt_ids[:, :1], states])


class TableModels:
    """The Models protocol over a TablePolicy; the states of a batch are under `extras['states']`."""

    hidden_size = FEATURES

    def __init__(self, policy: TablePolicy) -> None:
        self.policy = policy
        self.start = copy.deepcopy(policy)
        self.forward_tokens = 0

    def _no_grad(self, policy: TablePolicy, batch: Batch, variant: str | None) -> Float[Tensor, "B T"]:
        self.forward_tokens += int(batch.completion_mask.sum())
        with torch.no_grad():
            return batch_logprobs(policy, batch, variant)

    def logprobs(self, batch: Batch, *, variant: str | None = None) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.logprobs."""
        return self._no_grad(self.policy, batch, variant)

    def reference_logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.reference_logprobs."""
        return self._no_grad(self.start, batch, None)

    def hidden_states(
        self, batch: Batch, backbone: nn.Module, *, variant: str | None = None
    ) -> Float[Tensor, "B T D"]:
        """See algorithms.base.Models.hidden_states; a state says all there is, whatever the wording."""
        self.forward_tokens += int(batch.completion_mask.sum())
        return backbone(batch.prompt_ids, batch.extras["states"])

    def backbone_copy(self) -> nn.Module:
        """See algorithms.base.Models.backbone_copy."""
        return TableBackbone(self.policy.options)


def batch_logprobs(policy: TablePolicy, batch: Batch, variant: str | None = None) -> Float[Tensor, "B T"]:
    """Log-probs of a batch's completions, 0 outside the mask; ConfigError for an unknown wording."""
    prompt_ids = batch.prompt_ids
    if variant is not None:
        if variant not in WORDINGS:
            raise ConfigError(f"the ladder has no prompt variant {variant!r}; choose a task that offers it")
        wording = torch.full_like(prompt_ids[:, 1:], WORDINGS.index(variant))
        prompt_ids = torch.cat([prompt_ids[:, :1], wording], 1)
    tokens = batch.completion_ids.clamp(0, policy.options.symbols - 1)
    found = policy.logprobs(prompt_ids, batch.extras["states"], tokens)
    return torch.where(batch.completion_mask, found, torch.zeros_like(found))
