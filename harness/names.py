"""Looking things up by name, with errors that name the nearest ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from harness.errors import UserError

T = TypeVar("T")


def did_you_mean(kind: str, name: str, known: Iterable[str]) -> str:
    """One line that says what is unknown, what is near, and what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}"


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry called `name`; UserError with the nearest names otherwise."""
    if name not in known:
        raise UserError(did_you_mean(kind, name, known))
    return known[name]
