"""Random numbers as pure functions of what they are for, so that resuming needs no generator state.

Every completion has a stream of its own: its uniforms depend on the run's seed and on the completion's
address (purpose, optimizer step, prompt, sample), never on which completions share its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

Address = tuple[int | str, ...]


def seed_of(*address: int | str) -> int:
    """A 64-bit seed from an address, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def generator(*address: int | str) -> np.random.Generator:
    """A numpy generator for an address."""
    return np.random.Generator(np.random.Philox(key=seed_of(*address)))


def uniforms(addresses: Sequence[Address], count: int) -> np.ndarray:
    """`[rows, count]` uniforms in [0, 1), one independent stream for each address."""
    rows = np.empty((len(addresses), count), dtype=np.float64)
    for row, address in zip(rows, addresses, strict=True):
        generator(*address).random(out=row)
    return rows
