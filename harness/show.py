"""Everything known of one name: an algorithm, a task, a claim, a model, or a run's folder."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

from harness import catalogue
from harness.errors import UserError
from harness.names import did_you_mean


def describe(name: str) -> dict[str, Any]:
    """Fields and values for people and programs; UserError with the nearest names when there is none."""
    if Path(name).is_dir():
        return _run(Path(name))
    for kind, describer in (
        ("claims", _claim),
        ("tasks", _task),
        ("models", _model),
        ("algorithms", _algorithm),
    ):
        if any(row["name"] == name for row in catalogue.KINDS[kind]()):
            return describer(name)
    known = [row["name"] for kind in catalogue.KINDS for row in catalogue.KINDS[kind]()]
    raise UserError(did_you_mean("name", name, known))


def _run(folder: Path) -> dict[str, Any]:
    from harness.store.reader import load_run

    run = load_run(folder)
    last = run.evals[-1] if run.evals else {}
    return {
        "run": run.run_id,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "status": run.status,
        "reason": run.reason,
        "evaluations": len(run.evals),
        "last": last.get("metrics", {}),
        "costs": last.get("costs", {}),
        "problems": run.problems,
    }


def _claim(name: str) -> dict[str, Any]:
    from harness.claims.schema import load_claim

    claim = load_claim(name)
    return {
        **json.loads(claim.definition()),
        "hash": {scale: claim.hash(scale) for scale in claim.scales},
    }


def _task(name: str) -> dict[str, Any]:
    from harness.registry import tasks

    task: Any = tasks()[name]
    example = task().example("train", 0)
    row = next(row for row in catalogue.tasks() if row["name"] == name)
    recipes = {key: inspect.getdoc(value) or "" for key, value in task.recipes.items()}
    return {**row, "recipes": recipes, "options": options_of(task), "example": example.prompt}


def _model(name: str) -> dict[str, Any]:
    from harness.models import PRESETS

    return dataclasses.asdict(PRESETS[name])


def _algorithm(name: str) -> dict[str, Any]:
    from harness.registry import algorithms

    algorithm: Any = algorithms()[name]
    row = next(row for row in catalogue.algorithms() if row["name"] == name)
    return {
        **row,
        "file": inspect.getsourcefile(algorithm),
        "options": options_of(algorithm),
        "text": inspect.getdoc(algorithm),
    }


def options_of(owner: Any) -> dict[str, Any]:
    """Option names of an algorithm or a task with their defaults."""
    options = getattr(owner, "Options", None)
    if options is None:
        return {}
    defaults = options()
    return {field.name: getattr(defaults, field.name) for field in dataclasses.fields(options)}
