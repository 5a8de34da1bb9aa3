"""Turns a finished results folder into committed evidence."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.claims.schema import parse_claim
from harness.claims.verdict import judge
from harness.conclude import write_files
from harness.errors import EnvironmentProblem, UserError
from harness.evaluate.pair_records import stored_win_rates
from harness.store.manifests import own_part, shared_part
from harness.store.reader import ARCHIVE, STEPS, RunRecord, load_runs
from harness.store.writer import read_json, write_atomic

KEPT = ("claim.json", "pairs.jsonl")
STEP_METRICS = (
    "mean_tokens",
    "truncated",
    "unique_share",
    "on_task",
    "all_fail_groups",
    "kappa",
    "frac_sign_flips",
    "gradient_share_constant_groups",
)
STEP_ROWS = 20_000
"""Above so many optimizer steps in all, a sweep's steps are not kept: its evaluations and pictures are."""


def tidy_rows(runs: list[RunRecord]) -> list[dict[str, Any]]:
    """One row for each evaluation of each run: where it belongs, metrics, cumulative costs and seconds."""
    rows = []
    for run in runs:
        seconds = {t["optimizer_step"]: t["seconds"] for t in run.timings if t["phase"] == "eval"}
        for record in run.evals:
            rows.append(
                {
                    "run_id": run.run_id,
                    "arm": run.arm,
                    "algorithm": run.algorithm,
                    "seed": run.seed,
                    "status": run.status,
                    "optimizer_step": record["optimizer_step"],
                    "n": record["n"],
                    **{f"metric_{name}": float(value) for name, value in record["metrics"].items()},
                    **{f"cost_{name}": float(value) for name, value in record["costs"].items()},
                    "train_seconds": seconds.get(record["optimizer_step"]),
                    # samples and right ones by problem, so that any Pass@k can be recomputed
                    "problems": json.dumps(record["problems"]) if "problems" in record else None,
                }
            )
    return rows


def step_rows(runs: list[RunRecord]) -> list[dict[str, Any]]:
    """One row for each optimizer step of each run: what explains a result, and cumulative costs and seconds."""
    rows = []
    for run in runs:
        seconds = {t["optimizer_step"]: t["seconds"] for t in run.timings if t["phase"] == "train"}
        for record in run.steps:
            found = record["metrics"]
            rows.append(
                {
                    "run_id": run.run_id,
                    "optimizer_step": record["optimizer_step"],
                    **{f"metric_{name}": found[name] for name in STEP_METRICS if name in found},
                    **{f"cost_{name}": float(value) for name, value in record["costs"].items()},
                    "train_seconds": seconds.get(record["optimizer_step"]),
                }
            )
    return rows


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def archive(out: Path, published: Path) -> Path:
    """Makes evidence of a finished claim in `published/<claim>-<scale>/<date>`; the new folder.

    Kept are the definition, each run's manifest and status, all evaluations (and the steps of sweeps up to
    STEP_ROWS of them) as Parquet; from these the verdict, report, LaTeX table and pictures are made anew.
    EnvironmentProblem when a run is not finished.
    """
    if not (out / "verdict.json").exists():
        raise UserError(
            f"{out}: holds no verdict.json; give the --out folder of a finished `harness reproduce`"
        )
    runs = load_runs(out / "runs")
    open_runs = [run.path.name for run in runs if run.status not in ("completed", "diverged", "failed")]
    if open_runs:
        raise EnvironmentProblem(
            f"{out}: {', '.join(open_runs)} not finished; run the same command again first"
        )
    kept = read_json(out / "claim.json")
    claim, scale = parse_claim(kept["definition"], str(out / "claim.json")), kept["scale"]
    target = published / f"{claim.name}-{scale}" / time.strftime("%Y-%m-%d", time.gmtime())
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (out / name).exists():
            shutil.copyfile(out / name, target / name)
    for sheet in sorted(out.glob("screenshots-*.png"))[:1]:
        shutil.copyfile(sheet, target / sheet.name)
    _write_manifests(target / ARCHIVE[0], runs)
    _write_table(target / ARCHIVE[1], tidy_rows(runs))
    steps = step_rows(runs)
    if 0 < len(steps) <= STEP_ROWS:
        _write_table(target / STEPS, steps)
    notes: list[str] = []
    judged: list[RunRecord] = list(runs)
    if claim.endpoint.kind == "win_rate":
        judged, notes = stored_win_rates(claim, scale, runs)
    verdict = judge(claim, scale, judged)
    write_files(claim, scale, target, replace(verdict, notes=(*verdict.notes, *notes)), judged)
    for drawing in target.glob("*.svg"):  # the report shows the PNG of each
        drawing.unlink()
    return target


def _write_manifests(path: Path, runs: list[RunRecord]) -> None:
    """What every run's manifest shares once, then what each has of its own, a run a line."""
    manifests = [
        {
            **run.manifest,
            "status": run.status,
            "reason": run.reason,
            **({"mismatch": dict(run.mismatch)} if run.mismatch else {}),
        }
        for run in runs
    ]
    shared = shared_part(manifests)
    own = [json.dumps(own_part(manifest, shared), sort_keys=True) for manifest in manifests]
    head = json.dumps(shared, indent=2, sort_keys=True)
    text = f'{{"shared": {head},\n"runs": [\n' + ",\n".join(own) + "\n]}\n"
    write_atomic(path, text.encode())
