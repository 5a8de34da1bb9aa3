"""Scores anyone's React answers: one record in, one row out, and rates over the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

from tasks.react.checks import Checked
from tasks.react.sandbox import weaknesses
from tasks.react.spans import error_spans

if TYPE_CHECKING:
    from tasks.react.task import ReactTask

BATCH = 64
BOOLEANS = ("extracted", "syntax", "compile", "types", "renders", "blank")


def _problem(record: Mapping[str, Any]) -> str:
    """What is wrong with a record, or nothing."""
    given = [key for key in ("answer", "source") if key in record]
    if "id" not in record:
        return "the field id is missing"
    if len(given) != 1:
        return "give exactly one of the fields answer (with a fence) and source (bare code)"
    if not isinstance(record[given[0]], str):
        return f"the field {given[0]} must be a string"
    if record.get("props") is not None and not isinstance(record["props"], Mapping):
        return "the field props must be an object"
    return ""


def _row(record: Mapping[str, Any], checked: Checked) -> dict[str, Any]:
    blank = checked.blank is not False
    return {
        "id": record["id"],
        "extracted": checked.extracted,
        "syntax": checked.syntax,
        "compile": checked.compile,
        "types": checked.types,
        "renders": bool(checked.renders),
        "blank": blank,
        "spans": [
            {"start": s.start, "end": s.end, "value": s.value, "source": s.source}
            for s in error_spans(checked.diagnostics)
        ],
        "diagnostics": [
            {"source": d.source, "code": d.code, "message": d.message, "start": d.start, "end": d.end}
            for d in checked.diagnostics
        ],
    }


def _batch(
    task: ReactTask, records: Sequence[Mapping[str, Any]], levels: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of a batch in order; a record that cannot be read becomes a row with `error`."""
    rows: list[dict[str, Any] | None] = []
    good: dict[bool, list[int]] = {False: [], True: []}
    for i, record in enumerate(records):
        problem = str(record.get("error") or "") or _problem(record)
        rows.append({"id": record.get("id"), "error": problem} if problem else None)
        if not problem:
            good["source" in record].append(i)
    for bare, places in good.items():
        texts = [str(records[i]["source" if bare else "answer"]) for i in places]
        props = [records[i].get("props") for i in places]
        for i, checked in zip(places, task.check(texts, bare=bare, levels=levels, props=props), strict=True):
            rows[i] = _row(records[i], checked)
    return [row for row in rows if row is not None]


def _chunks(records: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    source = iter(records)
    while chunk := list(islice(source, BATCH)):
        yield chunk


def score_records(
    task: ReactTask, records: Iterable[Mapping[str, Any]], *, types: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows in the order of the records: `id`, a boolean for each level, `spans` and `diagnostics`.

    A record is `{"id", "answer"}` or `{"id", "source"}`, with `props` if the component is to be shown with
    given ones. `types` is null unless asked for. `blank` is true where nothing was rendered.
    """
    levels = ("renders", "non_blank", *(("types",) if types else ()))
    pending: deque[Future[list[dict[str, Any]]]] = deque()
    # two batches at once: one is parsed while the other is rendered, each in a process of its own
    with ThreadPoolExecutor(max_workers=2) as pool:
        for chunk in _chunks(records):
            pending.append(pool.submit(_batch, task, chunk, levels))
            if len(pending) > 2:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts and rates: of all rows without an error, the share at each level; what the sandbox lacks."""
    scored = [row for row in rows if "error" not in row]
    total = len(scored)
    rates = {
        name: sum(bool(row[name]) for row in scored) / total if total else None
        for name in BOOLEANS
        if name != "types" or any(row["types"] is not None for row in scored)
    }
    visible = sum(bool(row["compile"] and row["renders"] and not row["blank"]) for row in scored)
    return {
        "records": len(rows),
        "errors": len(rows) - total,
        "rates": rates,
        "compile_and_visible": visible / total if total else None,
        "notes": weaknesses(),
    }
