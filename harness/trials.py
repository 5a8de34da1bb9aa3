"""The log of tuning trials: one line a run, none left out, so that every arm's budget can be counted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.claims.measure import curve
from harness.stats.threshold import crossing
from harness.store.reader import RunRecord, load_runs
from harness.store.writer import write_atomic


def trial_row(run: RunRecord, metric: str, threshold: float, sustain: int) -> dict[str, Any]:
    """What was tried and what came of it: settings, steps to the threshold, metrics at the end."""
    steps, values = curve(run, metric)
    horizon = run.spec["train"]["horizon"]
    found = crossing(steps, values, threshold=threshold, rule="isotonic", sustain=sustain, horizon=horizon)
    last = run.evals[-1]["metrics"] if run.evals else {}
    return {
        "run_id": run.run_id,
        "algorithm": run.algorithm,
        "options": run.spec["algorithm"]["options"],
        "recipe": run.spec["task"]["recipe"],
        "task_options": run.spec["task"]["options"],
        "model": run.spec["model"]["name"],
        "train": run.spec["train"],
        "seed": run.seed,
        "status": run.status,
        "reached": found.event,
        "optimizer_steps_to_threshold": round(found.time, 2) if found.event else None,
        "start": round(values[0], 4) if values else None,
        **{f"final_{name}": round(last[name], 4) for name in sorted(last)},
    }


def write_trials(
    folders: Iterable[Path], out: Path, *, metric: str, threshold: float, sustain: int = 3
) -> int:
    """Writes the trials found in some folders as JSON Lines, in order of algorithm, settings and seed."""
    runs = [run for folder in folders for run in load_runs(folder, with_steps=False)]
    rows = [trial_row(run, metric, threshold, sustain) for run in runs]
    rows.sort(key=lambda r: (r["algorithm"], json.dumps([r["options"], r["recipe"], r["train"]]), r["seed"]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode())
    return len(rows)
