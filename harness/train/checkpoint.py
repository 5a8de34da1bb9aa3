"""Atomic checkpoints with a checksum; the last two are kept, and the best by the primary metric."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from harness.store.writer import write_atomic


def save(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Writes `name.pt` and its SHA-256, each atomically, the checksum last."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    write_atomic(folder / f"{name}.pt", data)
    write_atomic(folder / f"{name}.sha256", hashlib.sha256(data).hexdigest().encode())


def save_step(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Writes the checkpoint of an optimizer step and deletes all but the last two."""
    save(folder, f"step-{step:06d}", state)
    for old in steps(folder)[:-2]:
        remove(old)


def steps(folder: Path) -> list[Path]:
    """The checkpoint files of optimizer steps, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def remove(path: Path) -> None:
    """Deletes a checkpoint, its checksum first: a checkpoint without one is never trusted."""
    path.with_suffix(".sha256").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def load(path: Path, *, device: str | None = None) -> dict[str, Any] | None:
    """The state in a checkpoint file (on `device`, else where it was), or None when it or its checksum is damaged."""
    checksum = path.with_suffix(".sha256")
    if not path.exists() or not checksum.exists():
        return None
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest().encode() != checksum.read_bytes():
        return None
    return torch.load(io.BytesIO(data), weights_only=True, map_location=device)


def load_last(
    folder: Path, usable: Callable[[Mapping[str, Any]], bool] = lambda state: True
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest sound and usable checkpoint, and the names of those passed over, which are deleted.

    They must go: a later step's damaged file would outlive the sound ones that the resumed run writes.
    """
    damaged: list[str] = []
    found = None
    for path in reversed(steps(folder)):
        state = load(path)
        if state is not None and usable(state):
            found = state
            break
        damaged.append(path.name)
    for name in damaged:
        remove(folder / name)
    return found, damaged
