"""Many runs' manifests in one file: what all share once, then what each has of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def shared_part(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys, at any depth, that all of several objects hold with the same value."""
    out: dict[str, Any] = {}
    first, *others = values
    for key, value in first.items():
        if any(key not in other for other in others):
            continue
        if isinstance(value, Mapping) and all(isinstance(other[key], Mapping) for other in others):
            inner = shared_part([v[key] for v in values])
            if inner:
                out[key] = inner
        elif all(other[key] == value for other in others):
            out[key] = value
    return out


def own_part(value: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What an object holds besides the shared part; `merged` puts the two together again."""
    out: dict[str, Any] = {}
    for key, item in value.items():
        if key not in shared:
            out[key] = item
        elif isinstance(item, Mapping):
            inner = own_part(item, shared[key])
            if inner:
                out[key] = inner
    return out


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The shared part with an object's own part laid over it."""
    out = {key: merged(value, {}) if isinstance(value, Mapping) else value for key, value in shared.items()}
    for key, value in own.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if both else value
    return out


def read_manifests(path: Path) -> list[dict[str, Any]]:
    """All manifests of a file, whole: as a list, or as a shared part and each run's own."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, list):
        return found
    return [merged(found["shared"], own) for own in found["runs"]]
