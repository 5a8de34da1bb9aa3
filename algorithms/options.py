"""Options of algorithms: frozen dataclasses whose named choices are checked when they are built."""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import dataclass, fields
from typing import Any, Literal

from algorithms.base import ConfigError

Aggregation = Literal[
    "seq_mean_token_mean",
    "token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "balanced",
    "balanced_batch",
    "balanced_tokens",
    "balanced_count_zero",
]
"""How the loop averages per-token losses (`seq_level` is for one loss a completion, and no option)."""

__all__ = ["Aggregation", "OptionSet", "require_at_least", "require_between"]


@dataclass(frozen=True, kw_only=True)
class OptionSet:
    """Base of every algorithm's Options: a Literal field accepts nothing but its values (ConfigError)."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            value, allowed = getattr(self, item.name), _choices(hints[item.name])
            if allowed and value not in allowed:
                near = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                known = ", ".join(repr(a) for a in allowed)
                raise ConfigError(f"algorithm.options.{item.name}={value!r}: {hint}choose one of {known}")


def _choices(hint: Any) -> tuple[Any, ...]:
    """The values a field may take: those of its Literal, with None where it is optional; () when free."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = typing.get_args(hint)
        literal = [choice for part in parts for choice in _choices(part)]
        return (*literal, None) if literal and type(None) in parts else ()
    return ()


def require_at_least(options: OptionSet, minimum: float, *names: str) -> None:
    """ConfigError when one of the named options (None is let through) is below `minimum` or not finite."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not (minimum <= value < float("inf")):
            raise ConfigError(
                f"algorithm.options.{name}={value!r}: set a finite number of at least {minimum:g}"
            )


def require_between(options: OptionSet, low: float, high: float, *names: str) -> None:
    """ConfigError when one of the named options (None is let through) lies outside [low, high]."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"algorithm.options.{name}={value!r}: set a number from {low:g} to {high:g}")
