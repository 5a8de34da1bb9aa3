"""Where a model's files are, and what they hold; no torch here."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

from harness.errors import UserError
from harness.models import PRESETS, ModelPreset, shipped_path
from harness.models.shape import ModelShape, shape_of_folder
from harness.names import did_you_mean

TABLE = "table"
"""The model name that asks for a table of logits as the policy of task `ladder` (harness.ladder): no files."""


def _wheel_file(package: str) -> Path | None:
    """The one GGUF file of an installed package, found without importing it; None when it is not installed."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _preset_source(preset: ModelPreset) -> str:
    if preset.source == "folder":
        return str(shipped_path(preset.name))
    if preset.source == "gguf-wheel":
        return str(_wheel_file(preset.location) or preset.repo)
    return preset.location


def source_of(name: str) -> str:
    """A folder, a GGUF file or a Hub id for a model name; UserError when it is none of these and no preset."""
    preset = PRESETS.get(name)
    if preset is not None:
        return _preset_source(preset)
    path = Path(name)
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return str(files[0])
    if name == TABLE or path.is_dir() or (path.is_file() and path.suffix == ".gguf") or name.count("/") == 1:
        return name
    raise UserError(did_you_mean("model", name, PRESETS) + "; or a folder, or a Hub id such as org/name")


def shape_of(name: str) -> ModelShape | None:
    """The shape of a preset or of a model in a folder; None for what is not here and not known."""
    preset = PRESETS.get(name)
    if preset is not None and preset.shape is not None:
        return preset.shape
    folder = Path(source_of(name))
    return shape_of_folder(folder) if folder.is_dir() else None


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def weights_fingerprint(name: str) -> str:
    """First 16 hex digits of the SHA-256 of a local model's files; empty for a Hub id or a table."""
    if name == TABLE:
        return ""
    place = Path(source_of(name))
    if place.is_file():
        return _digest([place])
    if not place.is_dir():
        return ""
    return _digest(sorted([*place.glob("*.safetensors"), *place.glob("*.gguf"), *place.glob("*.json")]))
