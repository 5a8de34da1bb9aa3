"""Where a model's files are, and what they hold; no torch here."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from harness.errors import UserError
from harness.models import PRESETS, shipped_path
from harness.names import did_you_mean

TABLE = "table"
"""The model name that asks for a table of logits as the policy of task `ladder` (harness.ladder): no files."""


def source_of(name: str) -> str:
    """A folder path or a Hub id for a model name; UserError when it is neither preset, folder nor Hub id."""
    preset = PRESETS.get(name)
    if preset is not None:
        return str(shipped_path(name)) if preset.source == "folder" else preset.location
    if name == TABLE or Path(name).is_dir() or name.count("/") == 1:
        return name
    raise UserError(did_you_mean("model", name, PRESETS) + "; or a folder, or a Hub id such as org/name")


@cache
def weights_fingerprint(name: str) -> str:
    """First 16 hex digits of the SHA-256 of a local model's files; empty for a Hub id or a table."""
    if name == TABLE:
        return ""
    folder = Path(source_of(name))
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf"), *folder.glob("*.json")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
