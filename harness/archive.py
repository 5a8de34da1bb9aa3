"""Turns a finished results folder into committed evidence, and evidence into the README's figures."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentProblem, UserError
from harness.store.reader import RunRecord, load_runs
from harness.store.writer import read_json, write_atomic, write_json

KEPT = (
    "claim.json",
    "verdict.json",
    "summary.txt",
    "report.md",
    "table.tex",
    "learning-curve.svg",
    "learning-curve.png",
    "pairs.jsonl",
)
BLOCK = re.compile(r"(<!-- evidence: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)


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


def archive(out: Path, published: Path) -> Path:
    """Copies a finished claim's evidence to `published/<claim>-<scale>/<date>`; the new folder.

    Kept are the definition, the verdict, the report with its picture, each run's manifest and status, and
    all evaluations as one Parquet table. EnvironmentProblem when a run is not finished.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    claim = read_json(out / "claim.json")
    target = published / f"{claim['name']}-{claim['scale']}" / time.strftime("%Y-%m-%d", time.gmtime())
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (out / name).exists():
            shutil.copyfile(out / name, target / name)
    manifests = [
        {
            **run.manifest,
            "status": run.status,
            "reason": run.reason,
            **({"mismatch": dict(run.mismatch)} if run.mismatch else {}),
        }
        for run in runs
    ]
    write_json(target / "manifests.json", manifests)
    pq.write_table(pa.Table.from_pylist(tidy_rows(runs)), target / "evaluations.parquet", compression="zstd")
    return target


def latest(published: Path, name: str) -> Path:
    """The newest evidence of a claim at a scale (`compile-speedup-tiny`); UserError when there is none."""
    dates = sorted(path for path in (published / name).glob("*") if (path / "verdict.json").exists())
    if not dates:
        raise UserError(
            f"{published / name}: holds no evidence; run the claim and `harness archive` it first"
        )
    return dates[-1]


def evidence_text(folder: Path) -> str:
    """What the terminal showed, and the picture, in Markdown for the README."""
    summary = (folder / "summary.txt").read_text(encoding="utf-8").rstrip()
    picture = (folder / "learning-curve.png").as_posix()
    return f"```text\n{summary}\n```\n\n![Learning curves, every seed]({picture})\n"


def fill(text: str, published: Path) -> str:
    """The text with each `<!-- evidence: NAME -->` block filled from the newest evidence of that name."""
    return BLOCK.sub(lambda m: m[1] + evidence_text(latest(published, m["name"])) + m[3], text)


def update_readme(readme: Path, published: Path) -> bool:
    """Fills the README's evidence blocks; whether anything changed."""
    before = readme.read_text(encoding="utf-8")
    after = fill(before, published)
    if after != before:
        write_atomic(readme, after.encode())
    return after != before
