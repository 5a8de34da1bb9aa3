"""Compacts the records of many runs to a few Parquet tables; the JSONL files stay what counts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.store.checksums import write_checksums
from harness.store.reader import RunRecord, load_runs
from harness.store.writer import write_atomic

KINDS = ("runs", "evals", "steps", "timings")


def flat(run: RunRecord, record: dict[str, Any]) -> dict[str, Any]:
    """One record as a flat row: which run, then `metric_*`, `cost_*`, and nested rest as JSON text."""
    row: dict[str, Any] = {
        "run_id": run.run_id,
        "arm": run.arm,
        "algorithm": run.algorithm,
        "seed": run.seed,
    }
    for name, value in record.items():
        if name in ("metrics", "costs"):
            row.update({f"{name[:-1]}_{key}": float(number) for key, number in value.items()})
        else:
            row[name] = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
    return row


def _rows(kind: str, runs: list[RunRecord]) -> Iterator[dict[str, Any]]:
    for run in runs:
        if kind == "runs":
            yield flat(
                run,
                {
                    "status": run.status,
                    "reason": run.reason,
                    "claim": run.claim.get("name", ""),
                    "claim_hash": run.claim.get("hash", ""),
                    "spec": dict(run.spec),
                    "manifest": dict(run.manifest),
                    "problems": run.problems,
                },
            )
        else:
            for record in getattr(run, kind):
                yield flat(run, record)


def compact(root: Path, out: Path) -> dict[str, Path]:
    """Writes `runs`, `evals`, `steps` and `timings` of all runs below `root` as Parquet, with SHA256SUMS.

    Rows in force only: what a resume superseded is left out, and each run's `problems` say so. Each file
    is replaced atomically. UserError when there is no run.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs = load_runs(root)
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for kind in KINDS:
        rows = list(_rows(kind, runs))
        names = list(dict.fromkeys(name for row in rows for name in row))  # records may lack a metric
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        files[kind] = out / f"{kind}.parquet"
        write_atomic(files[kind], buffer.getvalue())
    write_checksums(out, files.values())
    return files
