"""Scores a file of answers with a task's grader: `harness score`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError

Row = dict[str, Any]
BULKY = frozenset({"spans", "diagnostics"})


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; a line that is none becomes `{"id": None, "error", "line"}`.

    Raises UserError when the file cannot be opened.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise UserError(
            f"input={str(path)!r} cannot be read ({error.strerror}): give a JSON Lines file"
        ) from error
    with stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _parse(line, number)


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return {"id": None, "line": number, "error": f"line {number} is not JSON: {error}"}
    if not isinstance(record, dict):
        return {"id": None, "line": number, "error": f"line {number} is not a JSON object"}
    return record


def score_file(
    task: Any, input_path: Path | str, *, types: bool = False, write: Callable[[Row], None]
) -> Row:
    """Hands every row to `write`, in the order of the input, and returns the task's summary.

    Raises UserError for a file that cannot be read, a file without records, and a task that cannot do this.
    """
    if not hasattr(task, "score_records") or not hasattr(task, "summarise"):
        raise UserError(
            f"task={task.name!r} scores no files: use a task whose answers can be scored alone, like react"
        )
    options: Mapping[str, Any] = {"types": True} if types else {}
    kept: list[Row] = []
    for row in task.score_records(read_records(Path(input_path)), **options):
        write(row)
        kept.append({key: value for key, value in row.items() if key not in BULKY})
    if not kept:
        raise UserError(f"input={str(input_path)!r} holds no records: give one JSON object a line")
    return {"task": task.name, **task.summarise(kept)}
