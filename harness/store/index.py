"""An index of the runs below a folder: one line a run, rebuilt from the folders whenever it is doubted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.store.reader import load_run, read_lines, run_directories
from harness.store.writer import write_atomic

NAME = "index.jsonl"
WATCHED = ("manifest.json", "status.json", "evals.jsonl")


def _signature(folder: Path) -> list[list[int]]:
    """Size and time of the files that a row is made from: while they stay, the row holds."""
    found = []
    for name in WATCHED:
        path = folder / name
        stat = path.stat() if path.exists() else None
        found.append([stat.st_size, stat.st_mtime_ns] if stat else [0, 0])
    return found


def index_row(folder: Path, root: Path) -> dict[str, Any]:
    """Where a run is, what it is, how far it came, and its last evaluation."""
    run = load_run(folder, with_steps=False)
    last = run.evals[-1] if run.evals else {}
    return {
        "folder": folder.relative_to(root).as_posix(),
        "run_id": run.run_id,
        "arm": run.arm,
        "algorithm": run.algorithm,
        "task": (run.spec.get("task") or {}).get("name", ""),
        "model": (run.spec.get("model") or {}).get("name", ""),
        "seed": run.seed,
        "claim": run.claim.get("name", ""),
        "claim_hash": run.claim.get("hash", ""),
        "status": run.status,
        "reason": run.reason,
        "evaluations": len(run.evals),
        "optimizer_step": last.get("optimizer_step", 0),
        "metrics": last.get("metrics", {}),
        "costs": last.get("costs", {}),
        "problems": run.problems,
        "signature": _signature(folder),
    }


def build_index(root: Path, *, fresh: bool = False) -> list[dict[str, Any]]:
    """The rows of every run below `root`, in name order; nothing is written.

    Rows of an index file that still fit their folders are taken over, the others (all, with `fresh`) read anew.
    """
    known: dict[str, dict[str, Any]] = {}
    if not fresh:
        known = {row["folder"]: row for row in read_lines(root / NAME, []) if "folder" in row}
    rows = []
    for folder in run_directories(root):
        row = known.get(folder.relative_to(root).as_posix())
        if row is None or row.get("signature") != _signature(folder):
            row = index_row(folder, root)
        rows.append(row)
    return rows


def write_index(root: Path, *, fresh: bool = False) -> list[dict[str, Any]]:
    """Builds the index and writes it to `root/index.jsonl`, atomically; its rows."""
    rows = build_index(root, fresh=fresh)
    text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
    write_atomic(root / NAME, text.encode())
    return rows
