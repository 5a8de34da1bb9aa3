"""Forward passes of a causal language model over prompt and completion, without padding waste."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def backbone_of(model: Any) -> torch.nn.Module:
    """The transformer without its output head."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def join(
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Bool[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Bool[Tensor, "B T"],
) -> tuple[Int[Tensor, "B W"], Int[Tensor, "B T"]]:
    """Prompt and completion of each row without a gap, right-padded, and the position before each token.

    Right padding lets causal attention run without a mask: what follows a token never changes it.
    """
    prompt_lengths = prompt_mask.sum(1)
    lengths = completion_mask.sum(1)
    width = int((prompt_lengths + lengths).max())
    both = torch.cat([prompt_ids, completion_ids], dim=1)
    shift = prompt_ids.shape[1] - prompt_lengths
    columns = torch.arange(width, device=both.device)[None, :] + shift[:, None]
    tokens = both.gather(1, columns.clamp(max=both.shape[1] - 1))
    offsets = torch.arange(completion_ids.shape[1], device=both.device)[None, :]
    before = (prompt_lengths[:, None] - 1 + offsets).clamp(0, width - 1)
    return tokens, before


def states_before(
    backbone: torch.nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Bool[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T D"]:
    """Hidden state from which each completion token is predicted (that of the token before it)."""
    tokens, before = join(prompt_ids, prompt_mask, completion_ids, completion_mask)
    hidden = backbone(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))


def _token_logprobs(head: Any, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
    logits = head(hidden).float() / temperature
    return -F.cross_entropy(logits, targets, reduction="none")


def completion_logprobs(
    model: Any,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Bool[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Bool[Tensor, "B T"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 8192,
) -> Float[Tensor, "B T"]:
    """Log-prob of every completion token, fp32, logits divided by the temperature; 0 outside the mask.

    The head sees completion positions only, `chunk_tokens` at a time; with more than one chunk their
    logits are recomputed in backward, so that the logits of a long batch never exist at once.
    """
    hidden = states_before(backbone_of(model), prompt_ids, prompt_mask, completion_ids, completion_mask)
    states, targets = hidden[completion_mask], completion_ids[completion_mask]
    head = model.get_output_embeddings()
    if len(targets) <= chunk_tokens:
        found = _token_logprobs(head, states, targets, temperature)
    else:
        found = torch.cat(
            [
                checkpoint(_token_logprobs, head, s, t, temperature, use_reentrant=False)
                for s, t in zip(states.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
            ]
        )
    out = torch.zeros(completion_ids.shape, dtype=found.dtype, device=found.device)
    return out.masked_scatter(completion_mask, found)


def micro_batches(lengths: Int[Tensor, " B"], size: int) -> list[Int[Tensor, " K"]]:
    """Row indices in micro-batches of `size` rows of like length, longest first."""
    order = torch.argsort(lengths, descending=True, stable=True)
    return list(order.split(size))
