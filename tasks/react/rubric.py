"""What a prompt asked for, item by item: found or missing, with places in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.base import Diagnostic, Span
from tasks.react.checks import Checked, feature_places, features_shown, is_named, uses_props
from tasks.react.spans import locate

FOUND_VALUE = 0.5


@dataclass(frozen=True)
class Item:
    """One requested thing: is it there, and the first place in the code that shows it (UTF-16 units)."""

    name: str
    met: bool
    place: tuple[int, int] | None


def rubric_items(reference: Mapping[str, Any], checked: Checked) -> list[Item]:
    """The requested name and features, and use of the given props; rendered evidence where there is some."""
    component = checked.static.get("component")
    whole = (component["start"], component["end"] - component["start"]) if component else None
    items = [Item("name", is_named(reference, checked), whole)] if "name" in reference else []
    shown = None if checked.rendered is None else features_shown(reference, checked)
    for name, place in feature_places(reference, checked).items():
        items.append(Item(name, place is not None if shown is None else shown[name], place))
    used = uses_props(checked)
    if used is not None:
        items.append(Item("props", used, None))
    return items


def rubric_evidence(
    reference: Mapping[str, Any], checked: Checked
) -> tuple[tuple[Span, ...], tuple[Diagnostic, ...]]:
    """Spans of what was found, each once and at its first place, and diagnostics of what is missing.

    Nothing is said of an answer that is no component: its errors come first.
    """
    code, component = checked.extraction.code, checked.static.get("component")
    if code is None or not component:
        return (), ()
    whole = {"start": component["start"], "length": component["end"] - component["start"]}
    found, missing = [], []
    for item in rubric_items(reference, checked):
        report = {"source": "rubric", "code": item.name, "message": f"{item.name} as asked"}
        if item.met and item.place is not None and item.name != "name":
            found.append(report | {"start": item.place[0], "length": item.place[1]})
        elif not item.met:
            missing.append(report | whole | {"message": f"{item.name} is missing"})
    spans = tuple(
        Span(d.start, d.end, FOUND_VALUE, "rubric") for d in locate(code, checked.extraction.start, found)
    )
    return spans, locate(code, checked.extraction.start, missing)
