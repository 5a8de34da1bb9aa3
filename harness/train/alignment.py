"""Where each token lies in the decoded text, and how rewards on characters become rewards on tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.base import LocalReward


def _byte_alphabet() -> dict[str, int]:
    """The inverse of the printable alphabet in which byte-level BPE writes bytes (GPT-2's convention)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in visible}
    hidden = [b for b in range(256) if b not in set(visible)]
    table.update({chr(256 + i): b for i, b in enumerate(hidden)})
    return table


class TextAligner:
    """Decodes token ids to text with the code-point range of each token.

    Byte-level tokenizers only (GPT-2, Llama 3, Qwen, SmolLM families): a token is a byte string, text is
    their concatenation as UTF-8 with U+FFFD for what is not. A token that holds part of a character covers
    that character. Special tokens are empty text.
    """

    def __init__(self, tokenizer: Any) -> None:
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        if "ByteLevel" not in repr(decoder):
            raise ValueError(
                f"tokenizer {type(tokenizer).__name__} is not byte-level: token rewards need to know each token's bytes"
            )
        alphabet = _byte_alphabet()
        special = set(tokenizer.all_special_ids)
        added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if i not in special}
        self._bytes: list[bytes] = []
        for i, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))):
            if i in special or token is None:
                self._bytes.append(b"")
            elif i in added:
                self._bytes.append(added[i].encode())
            else:
                self._bytes.append(bytes(alphabet[c] for c in token))

    def decode(self, ids: Sequence[int]) -> tuple[str, np.ndarray]:
        """Text of the ids and `[tokens, 2]` code-point ranges (start, end)."""
        pieces = [self._bytes[token] if token < len(self._bytes) else b"" for token in ids]
        whole = b"".join(pieces)
        if whole.isascii():
            sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
            ends = sizes.cumsum()
            return whole.decode("ascii"), np.stack([ends - sizes, ends], axis=1)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts: list[str] = []
        ranges = np.zeros((len(ids), 2), dtype=np.int64)
        done = 0
        for row, piece in zip(ranges, pieces, strict=True):
            text = decoder.decode(piece)
            pending = 1 if piece and decoder.getstate()[0] else 0
            row[:] = done, done + len(text) + pending
            parts.append(text)
            done += len(text)
        parts.append(decoder.decode(b"", final=True))
        return "".join(parts), ranges


def local_to_tokens(
    local: LocalReward, ranges: np.ndarray, *, has_end_token: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Local reward of each token and whether a span scored it.

    A token takes the value of the span that overlaps it; of several the one of largest magnitude, the
    negative one at a tie. With `has_end_token` the last token is the end token, scored by itself.
    """
    rewards = np.zeros(len(ranges), dtype=np.float32)
    scored = np.zeros(len(ranges), dtype=bool)
    for span in local.spans:
        hit = (ranges[:, 0] < span.end) & (ranges[:, 1] > span.start)
        stronger = (np.abs(rewards) < abs(span.value)) | ((rewards == -span.value) & (span.value < 0))
        rewards[hit & (stronger | ~scored)] = span.value
        scored |= hit
    if has_end_token and len(ranges):
        rewards[-1] = local.end_token
        scored[-1] = local.end_token != 0
    return rewards, scored


def steps_to_tokens(steps: Sequence[tuple[int, int]], ranges: np.ndarray) -> np.ndarray:
    """Step number of each token (that of its first overlapping step), -1 outside any step."""
    out = np.full(len(ranges), -1, dtype=np.int64)
    for number in range(len(steps) - 1, -1, -1):
        start, end = steps[number]
        out[(ranges[:, 0] < end) & (ranges[:, 1] > start)] = number
    return out
