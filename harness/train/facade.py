"""The models as an algorithm sees them: every extra forward goes through here and is counted."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from algorithms.base import Batch, ConfigError
from harness.train.adapters import adapter_layers, adapter_off, twin
from harness.train.costs import Costs
from harness.train.policy import (
    backbone_of,
    completion_logprobs,
    micro_batches,
    mixed_precision,
    states_before,
)
from harness.train.prompts import PromptCodec
from harness.train.sampler import left_pad


class MeteredModels:
    """Implements algorithms.base.Models over one policy and, on demand, a frozen copy of its start.

    A policy with an adapter needs no copy: without the adapter it is its own start.
    """

    def __init__(
        self,
        model: Any,
        codec: PromptCodec,
        costs: Costs,
        *,
        temperature: float,
        rows: int,
        autocast: str = "none",
    ) -> None:
        self._model = model
        self._codec = codec
        self._costs = costs
        self._temperature = temperature
        self._rows = rows
        self._autocast = autocast
        self._start: Any = None

    def keep_start(self, model: Any) -> None:
        """Remembers the policy that the run starts from (call with the untrained weights)."""
        self._start = model if adapter_layers(model) else copy.deepcopy(model).requires_grad_(False)

    def forget_start(self) -> None:
        """Frees that copy; for an algorithm that needed it for a critic alone."""
        self._start = None

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return self._model.config.hidden_size

    def backbone_copy(self) -> torch.nn.Module:
        """A trainable copy of the starting policy without its head; with an adapter, the copy is one of the adapter."""
        if adapter_layers(self._start):
            return twin(backbone_of(self._start))
        return copy.deepcopy(backbone_of(self._start)).requires_grad_(True)

    def logprobs(self, batch: Batch, *, variant: str | None = None) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.logprobs."""
        return self._no_grad_logprobs(self._model, self._worded(batch, variant))

    def reference_logprobs(self, batch: Batch) -> Float[Tensor, "B T"]:
        """See algorithms.base.Models.reference_logprobs."""
        with adapter_off(self._start):
            return self._no_grad_logprobs(self._start, batch)

    def hidden_states(
        self, batch: Batch, backbone: torch.nn.Module, *, variant: str | None = None
    ) -> Float[Tensor, "B T D"]:
        """See algorithms.base.Models.hidden_states."""
        worded = self._worded(batch, variant)
        tokens = self._tokens(worded)
        self._costs.forward_tokens += tokens
        if torch.is_grad_enabled():
            self._costs.backward_tokens += tokens
        with mixed_precision(self._autocast, worded.prompt_ids.device):
            return states_before(
                backbone,
                worded.prompt_ids,
                worded.prompt_mask,
                worded.completion_ids,
                worded.completion_mask,
            )

    def _tokens(self, batch: Batch) -> int:
        return int(batch.prompt_mask.sum() + batch.completion_mask.sum())

    def _worded(self, batch: Batch, variant: str | None) -> Batch:
        if variant is None:
            return batch
        rows = []
        for example in batch.examples:
            if variant not in example.variants:
                raise ConfigError(
                    f"task: example {example.id!r} has no prompt variant {variant!r}; choose a task that offers it"
                )
            rows.append(self._codec.encode(example.variants[variant], shots=example.shots))
        ids, mask = left_pad(rows, self._codec.pad_id)
        device = batch.prompt_ids.device
        return batch.replace(prompt_ids=ids.to(device), prompt_mask=mask.to(device))

    @torch.no_grad()
    def _no_grad_logprobs(self, model: Any, batch: Batch) -> Float[Tensor, "B T"]:
        self._costs.forward_tokens += self._tokens(batch)
        out = torch.zeros_like(batch.old_logprobs)
        for rows in micro_batches(batch.lengths, self._rows):
            part = batch.rows(rows).trim()
            found = completion_logprobs(
                model,
                part.prompt_ids,
                part.prompt_mask,
                part.completion_ids,
                part.completion_mask,
                temperature=self._temperature,
                autocast=self._autocast,
            )
            out[rows, : found.shape[1]] = found
        return out
