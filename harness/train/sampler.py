"""Sampling of completions at a temperature, without top-p or top-k, with their log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.train.decoders import decoder_for
from harness.train.streams import Address, uniforms


@dataclass(frozen=True)
class Completions:
    """Sampled tokens, row by row: ids, mask (end token included), log-probs, and whether the limit cut them.

    `version` is the optimizer step of the weights that were sampled from, where the sampler holds a copy of them.
    """

    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    logprobs: Float[Tensor, "B T"]
    truncated: Bool[Tensor, " B"]
    version: int | None = None


class Sampler(Protocol):
    """Samples from the current policy."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """What this process spent beside sampling, by name."""
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        streams: Sequence[Address],
        *,
        max_tokens: int,
        temperature: float,
    ) -> Completions:
        """`counts[i]` completions of `prompts[i]`, in order; one stream address for each completion."""
        ...

    def refresh(self, version: int = 0) -> None:
        """Takes over the policy's weights, which are those of optimizer step `version`."""
        ...

    def rest(self) -> None:
        """Gives up memory that the trainer needs, until completions are asked for again."""
        ...

    def close(self) -> None:
        """Ends what runs beside this process."""
        ...


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Int[Tensor, "B P"], Bool[Tensor, "B P"]]:
    """Token rows as one left-padded tensor, and its mask."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        if row:
            ids[i, width - len(row) :] = torch.as_tensor(row)
            mask[i, width - len(row) :] = True
    return ids, mask


def draw(logits: Float[Tensor, "B V"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Inverse-CDF draw: the first token whose cumulative probability exceeds the uniform."""
    cumulative = torch.softmax(logits.double(), dim=-1).cumsum(-1)
    found = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    return found[:, 0].clamp(max=logits.shape[-1] - 1)


class NativeSampler:
    """The harness's own sampler: one uniform a token from the completion's own stream.

    Rows that have ended are dropped from the batch (every `compact_every` tokens, once a tenth has ended).
    """

    compact_every = 4
    seconds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, model: Any, *, eos_ids: Sequence[int], pad_id: int, max_rows: int = 256) -> None:
        self.decoder = decoder_for(model)
        self.device = next(model.parameters()).device
        self.eos = torch.as_tensor(sorted(eos_ids), device=self.device)
        self.pad_id = pad_id
        self.max_rows = max_rows

    def refresh(self, version: int = 0) -> None:
        """Takes over the policy's weights after an optimizer step."""
        self.decoder.refresh()

    def rest(self) -> None:
        """Has nothing to give up."""

    def close(self) -> None:
        """Has nothing to end."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        streams: Sequence[Address],
        *,
        max_tokens: int,
        temperature: float,
    ) -> Completions:
        """See Sampler.sample; long lists are sampled `max_rows` completions at a time."""
        if sum(counts) != len(streams):
            raise ValueError(f"streams: {len(streams)} addresses for {sum(counts)} completions")
        parts, first, row = [], 0, 0
        while first < len(prompts):
            last, rows = first + 1, counts[first]
            while last < len(prompts) and rows + counts[last] <= self.max_rows:
                rows += counts[last]
                last += 1
            noise = torch.from_numpy(uniforms(streams[row : row + rows], max_tokens)).to(self.device)
            parts.append(self._sample(prompts[first:last], counts[first:last], noise, temperature))
            first, row = last, row + rows
        return join_completions(parts, self.pad_id)

    def _sample(
        self, prompts: Sequence[Sequence[int]], counts: Sequence[int], noise: Tensor, temperature: float
    ) -> Completions:
        rows, limit = noise.shape
        ids = torch.full((rows, limit), self.pad_id, dtype=torch.long, device=self.device)
        logprobs = torch.zeros((rows, limit), device=self.device)
        # made outside, so that they stay ordinary tensors, which the trainer's graph may keep
        with torch.inference_mode():
            prompt_ids, prompt_mask = left_pad(prompts, self.pad_id)
            logits = self.decoder.start(
                prompt_ids.to(self.device),
                prompt_mask.to(self.device),
                torch.as_tensor(counts, device=self.device),
                limit,
            )
            self._decode(logits, noise, temperature, (ids, logprobs))
        last = self._is_end(ids)
        ended = last.any(1)
        lengths = torch.where(ended, last.byte().argmax(1) + 1, limit)
        mask = torch.arange(limit, device=self.device)[None, :] < lengths[:, None]
        return Completions(
            ids.masked_fill(~mask, self.pad_id), mask, logprobs.masked_fill(~mask, 0.0), ~ended
        )

    def _is_end(self, tokens: Tensor) -> Tensor:
        return tokens == self.eos if len(self.eos) == 1 else torch.isin(tokens, self.eos)

    def _decode(self, logits: Tensor, noise: Tensor, temperature: float, into: tuple[Tensor, Tensor]) -> None:
        """Draws token after token into ids and log-probs, until every row has ended or is full.

        Rows that have ended are drawn on until they are dropped, and masked at the end: cheaper than choosing
        at every token. Tokens go to their rows when rows are dropped, many at a time.
        """
        rows, limit = noise.shape
        alive = torch.arange(rows, device=self.device)
        going = torch.ones(rows, dtype=torch.bool, device=self.device)
        uniform = noise.t().contiguous()
        drawn: list[tuple[Tensor, Tensor]] = []
        for t in range(limit):
            scaled = logits.float() if temperature == 1 else logits.float() / temperature
            tokens = draw(scaled, uniform[t])
            drawn.append((tokens, scaled.gather(1, tokens[:, None])[:, 0] - torch.logsumexp(scaled, dim=-1)))
            going = going & ~self._is_end(tokens)
            left = int(going.sum())
            full = t + 1 == limit or not left
            drop = (t + 1) % self.compact_every == 0 and left <= 0.9 * len(alive)
            if full or drop:
                for whole, parts in zip(into, zip(*drawn, strict=True), strict=True):
                    whole[alive, t + 1 - len(drawn) : t + 1] = torch.stack(parts, dim=1)
                drawn.clear()
            if full:
                return
            if drop:
                kept = going.nonzero()[:, 0]
                self.decoder.keep(kept)
                alive, tokens, going, uniform = alive[kept], tokens[kept], going[kept], uniform[:, kept]
            logits = self.decoder.step(tokens)


def join_completions(parts: Sequence[Completions], pad_id: int) -> Completions:
    """Several lots of completions as one, cut to the longest."""
    width = max(int(part.mask.sum(1).max()) for part in parts)

    def fit(tensor: Tensor, fill: float) -> Tensor:
        short = width - tensor.shape[1]
        return torch.nn.functional.pad(tensor, (0, max(0, short)), value=fill)[:, :width]

    return Completions(
        ids=torch.cat([fit(part.ids, pad_id) for part in parts]),
        mask=torch.cat([fit(part.mask, False) for part in parts]),
        logprobs=torch.cat([fit(part.logprobs, 0.0) for part in parts]),
        truncated=torch.cat([part.truncated for part in parts]),
    )
