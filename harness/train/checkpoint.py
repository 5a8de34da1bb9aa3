"""Atomic checkpoints with a checksum; the last two are kept, and the best by the primary metric."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from harness.store.writer import write_atomic


def save(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Writes `name.pt` and its SHA-256, each atomically, the checksum last."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    write_atomic(folder / f"{name}.pt", data)
    write_atomic(folder / f"{name}.sha256", hashlib.sha256(data).hexdigest().encode())


def save_step(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Writes the checkpoint of an optimizer step and deletes all but the last two."""
    save(folder, f"step-{step:06d}", state)
    for old in sorted(folder.glob("step-*.pt"))[:-2]:
        old.unlink()
        old.with_suffix(".sha256").unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any] | None:
    """The state in a checkpoint file, or None when it is damaged or its checksum is absent."""
    checksum = path.with_suffix(".sha256")
    if not path.exists() or not checksum.exists():
        return None
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum.read_text():
        return None
    return torch.load(io.BytesIO(data), weights_only=True)


def load_last(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest sound checkpoint and the names of damaged ones that were passed over."""
    damaged: list[str] = []
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        state = load(path)
        if state is not None:
            return state, damaged
        damaged.append(path.name)
    return None, damaged
