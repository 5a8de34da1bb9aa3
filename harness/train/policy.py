"""Forward passes of a causal language model over prompt and completion, without padding waste."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.train import fused

LOGITS_BYTES = 256 * 1024**2
"""The most that the 32-bit logits of one chunk may take."""
MOST_CHUNK_TOKENS = 8192


def backbone_of(model: Any) -> torch.nn.Module:
    """The transformer without its output head."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def chunk_for(vocabulary: int) -> int:
    """Tokens whose logits over a vocabulary stay within LOGITS_BYTES."""
    return max(1, min(MOST_CHUNK_TOKENS, LOGITS_BYTES // (4 * vocabulary)))


def mixed_precision(autocast: str, device: torch.device) -> Any:
    """Matrix products in `autocast` (a dtype's name) inside the block; as the weights are for `none`."""
    if autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, autocast))


def last_hidden(backbone: Any, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W D"]:
    """The final hidden states of right-padded rows.

    Where gradient checkpointing is on, transformers recompute a layer in backward only in training mode;
    the layers alone enter it, for this forward, so that no dropout comes alive.
    """
    if fused.supports(backbone):
        return fused.fused_hidden(backbone, tokens)
    layers: list[torch.nn.Module] = []
    if torch.is_grad_enabled():
        blocks = [m for m in backbone.modules() if isinstance(m, GradientCheckpointingLayer)]
        layers = [block for block in blocks if block.gradient_checkpointing]
    for layer in layers:
        layer.training = True
    try:
        return backbone(input_ids=tokens, use_cache=False).last_hidden_state
    finally:
        for layer in layers:
            layer.training = False


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
    hidden = last_hidden(backbone, tokens)
    return hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))


def _token_logprobs(head: Any, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
    logits = head(hidden).float()
    if temperature != 1:
        logits = logits / temperature
    return -F.cross_entropy(logits, targets, reduction="none")


def completion_logprobs(
    model: Any,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Bool[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Bool[Tensor, "B T"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    autocast: str = "none",
) -> Float[Tensor, "B T"]:
    """Log-prob of every completion token, fp32, logits divided by the temperature; 0 outside the mask.

    The head sees completion positions only, `chunk_tokens` at a time (as many as LOGITS_BYTES allow where not
    given); with more than one chunk their logits are recomputed in backward, so that the logits of a long
    batch never exist at once. With `autocast` the products are in that dtype, the log-softmax in fp32.
    """
    with mixed_precision(autocast, prompt_ids.device):
        return _logprobs(
            model, (prompt_ids, prompt_mask, completion_ids, completion_mask), temperature, chunk_tokens
        )


def _logprobs(
    model: Any, row: tuple[Tensor, Tensor, Tensor, Tensor], temperature: float, chunk: int | None
) -> Float[Tensor, "B T"]:
    prompt_ids, prompt_mask, completion_ids, completion_mask = row
    tokens, before = join(prompt_ids, prompt_mask, completion_ids, completion_mask)
    hidden = last_hidden(backbone_of(model), tokens)
    rows, columns = completion_mask.nonzero(as_tuple=True)
    # one gather of the rows that count; a padded copy of all states would be gathered from twice
    states = hidden.flatten(0, 1).index_select(0, rows * hidden.shape[1] + before[rows, columns])
    targets = completion_ids[rows, columns]
    head = model.get_output_embeddings()
    chunk = chunk or chunk_for(head.weight.shape[0])
    if len(targets) <= chunk:
        found = _token_logprobs(head, states, targets, temperature)
    else:
        found = torch.cat(
            [
                checkpoint(_token_logprobs, head, s, t, temperature, use_reentrant=False)
                for s, t in zip(states.split(chunk), targets.split(chunk), strict=True)
            ]
        )
    out = torch.zeros(completion_ids.shape, dtype=found.dtype, device=found.device)
    return out.masked_scatter(completion_mask, found)


def micro_batches(lengths: Int[Tensor, " B"], size: int) -> list[Int[Tensor, " K"]]:
    """Row indices in micro-batches of `size` rows of like length, longest first."""
    order = torch.argsort(lengths, descending=True, stable=True)
    return list(order.split(size))
