"""Reads run directories back: tolerant of cut lines and of steps that a resume repeated, never silent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.store.manifests import read_manifests

STATUSES = ("completed", "failed", "diverged", "stopped", "running")
RECORD_FILES = ("evals.jsonl", "steps.jsonl", "timings.jsonl")


@dataclass(frozen=True)
class RunRecord:
    """One run as read from its directory; `problems` says in words what was missing or repaired."""

    run_id: str
    path: Path
    arm: str
    algorithm: str
    seed: int
    spec: Mapping[str, Any] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"
    reason: str = ""
    evals: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    mismatch: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Of what names the run, so that what is worked out from a record can be kept beside it."""
        return hash((self.run_id, self.path))


def mismatch_words(found: Mapping[str, float]) -> list[str]:
    """A warning about a run whose sampler and trainer disagreed by more than its limit; none for other runs."""
    if not found:
        return []
    return [
        f"sampler and trainer disagreed by up to {found['worst']:.3g} nats a token on average (limit "
        f"{found['limit']:g}), in {found['over']:g} of {found['rollouts']:g} rollouts, first at optimizer step "
        f"{found['first_step']:g}: doubt this run"
    ]


def read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    """The object in a JSON file; an empty one, with a word in `problems`, where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} is not readable JSON: {error}")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name} does not hold an object")
        return {}
    return found


def read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The objects of a JSONL file in file order; lines that cannot be read are left out and named."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = raw.split(b"\n")
    whole = [line for line in lines if line.strip()]
    try:
        # one call for a sound file is several times faster than one a line
        rows = json.loads(b"[" + b",".join(whole) + b"]")
        if len(rows) == len(whole) and all(isinstance(row, dict) for row in rows):
            return rows
    except (json.JSONDecodeError, UnicodeDecodeError):
        pass
    return _line_by_line(lines, path.name, problems)


def _line_by_line(lines: list[bytes], name: str, problems: list[str]) -> list[dict[str, Any]]:
    """The readable objects of a damaged file; every other line is named in `problems`."""
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            cut = "cut off" if number == len(lines) else "not JSON"
            problems.append(f"{name} line {number} is {cut}: ignored")
            continue
        if not isinstance(row, dict):
            problems.append(f"{name} line {number} is not an object: ignored")
            continue
        rows.append(row)
    return rows


def supersede(rows: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Keeps the last attempt at every optimizer step; returns the rows in force and the steps superseded.

    A resumed run logs again from its checkpoint on. A row whose step does not go beyond the rows before
    it opens a new branch there: what the dead branch logged from that step on is superseded, also the
    steps that the new branch has not reached yet. A row `{"resume_at": s}` says so explicitly. Rows of
    different `phase` (timings) may share a step.
    """
    kept: list[dict[str, Any]] = []
    dropped: list[int] = []

    def cut(index: int) -> None:
        dropped.extend(int(row["optimizer_step"]) for row in kept[index:])
        del kept[index:]

    for row in rows:
        if "resume_at" in row:
            start = row["resume_at"]
            cut(next((i for i, old in enumerate(kept) if old["optimizer_step"] > start), len(kept)))
            continue
        if kept and row["optimizer_step"] <= kept[-1]["optimizer_step"]:
            cut(_branch_point(kept, row))
        kept.append(dict(row))
    return kept, dropped


def _branch_point(kept: list[dict[str, Any]], row: Mapping[str, Any]) -> int:
    """Index of the first kept row that the branch opened by `row` replaces."""
    step, phase = row["optimizer_step"], row.get("phase")
    index = len(kept)
    for i in range(len(kept) - 1, -1, -1):
        if kept[i]["optimizer_step"] < step:
            break
        if kept[i]["optimizer_step"] > step or kept[i].get("phase") == phase:
            index = i
    return index


def _rows_in_force(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    rows = []
    for row in read_lines(path, problems):
        key = "resume_at" if "resume_at" in row else "optimizer_step"
        if not isinstance(row.get(key), int | float):
            problems.append(f"{path.name}: a row without optimizer_step: ignored")
            continue
        rows.append(row)
    kept, dropped = supersede(rows)
    if dropped:
        first, last = min(dropped), max(dropped)
        problems.append(
            f"{path.name}: {len(dropped)} rows of an earlier attempt (optimizer steps {first} to {last}) "
            "were superseded after a resume"
        )
    return kept


def _seed(spec: Mapping[str, Any]) -> int:
    """The run's seed; -1 when the specification does not say."""
    return int(spec.get("seed", (spec.get("seeds") or {}).get("seed", -1)))


def load_run(path: Path, *, with_steps: bool = True) -> RunRecord:
    """Reads one run directory; what is missing or unreadable becomes a word in `problems`, not an error."""
    problems: list[str] = []
    manifest = read_json(path / "manifest.json", problems)
    status = read_json(path / "status.json", problems)
    spec = manifest.get("spec") or {}
    claim = manifest.get("claim") or {}
    algorithm = (spec.get("algorithm") or {}).get("name", "unknown")
    state = status.get("status", "running")
    if state not in STATUSES:
        problems.append(f"status.json says {state!r}, which is not a known status: read as failed")
        state = "failed"
    evals = _rows_in_force(path / "evals.jsonl", problems)
    if not evals:
        problems.append("no evaluation was recorded")
    mismatch = status.get("mismatch") or {}
    problems += mismatch_words(mismatch)
    return RunRecord(
        run_id=str(manifest.get("run_id", path.name)),
        path=path,
        arm=str(claim.get("arm") or algorithm),
        algorithm=str(algorithm),
        seed=_seed(spec),
        spec=spec,
        claim=claim,
        status=state,
        reason=str(status.get("reason") or ""),
        evals=evals,
        steps=_rows_in_force(path / "steps.jsonl", problems) if with_steps else [],
        timings=_rows_in_force(path / "timings.jsonl", problems),
        problems=problems,
        manifest=manifest,
        mismatch=mismatch,
    )


ARCHIVE = ("manifests.json", "evaluations.parquet")
STEPS = "steps.parquet"


def load_archive(folder: Path) -> list[RunRecord]:
    """The runs of committed evidence: manifests with status, and all evaluations in one Parquet table.

    Its columns are `run_id`, `optimizer_step`, `n`, `metric_*`, `cost_*` (cumulative), `train_seconds`; those of
    the steps, where they were kept, are the same less `n`.
    """
    rows, steps = _rows_by_run(folder / ARCHIVE[1]), _rows_by_run(folder / STEPS)
    out = []
    for manifest in read_manifests(folder / ARCHIVE[0]):
        spec, claim = manifest.get("spec") or {}, manifest.get("claim") or {}
        algorithm = str((spec.get("algorithm") or {}).get("name", "unknown"))
        own = sorted(rows.get(manifest["run_id"], []), key=lambda row: row["optimizer_step"])
        trained = sorted(steps.get(manifest["run_id"], []), key=lambda row: row["optimizer_step"])
        mismatch = manifest.get("mismatch") or {}
        out.append(
            RunRecord(
                run_id=manifest["run_id"], path=folder / manifest["run_id"],
                arm=str(claim.get("arm") or manifest.get("arm") or algorithm), algorithm=algorithm,
                seed=_seed(spec), spec=spec, claim=claim, status=manifest.get("status", "completed"),
                reason=manifest.get("reason") or "", evals=[_evaluation(row) for row in own],
                steps=[_record(row) for row in trained], timings=_timings(trained, own),
                problems=[*([] if own else ["no evaluation was recorded"]), *mismatch_words(mismatch)],
                manifest=manifest, mismatch=mismatch,
            )
        )  # fmt: skip
    return out


def _rows_by_run(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of a Parquet table by run; none where there is no file."""
    import pyarrow.parquet as pq

    rows: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(path).to_pylist() if path.exists() else ():
        rows.setdefault(row["run_id"], []).append(row)
    return rows


def _timings(steps: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Seconds by optimizer step and phase, in order, as timings.jsonl holds them."""
    found = [
        {"optimizer_step": row["optimizer_step"], "phase": phase, "seconds": row["train_seconds"]}
        for phase, rows in (("train", steps), ("eval", evals))
        for row in rows
        if row.get("train_seconds") is not None
    ]
    return sorted(found, key=lambda row: row["optimizer_step"])


def _evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    """One evaluation as evals.jsonl holds it, from a row of the table."""
    counts = {"problems": json.loads(row["problems"])} if row.get("problems") else {}
    return {"n": row["n"], **_record(row), **counts}


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer step, metrics and costs from a row of a table."""

    def part(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix) and v is not None}

    return {"optimizer_step": row["optimizer_step"], "metrics": part("metric_"), "costs": part("cost_")}


def _below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Run directories and archives at or below a folder, each in name order."""
    runs, archives = [], []
    for base, folders, files in os.walk(folder):
        if "manifest.json" in files or any(name in files for name in RECORD_FILES):
            runs.append(Path(base))
            folders.clear()
        elif all(name in files for name in ARCHIVE):
            archives.append(Path(base))
        folders.sort()
    return runs, archives


def run_directories(folder: Path) -> list[Path]:
    """Every directory at or below `folder` that holds a manifest or records, in name order."""
    return _below(folder)[0]


def load_runs(folder: Path | str, *, with_steps: bool = True) -> list[RunRecord]:
    """All runs at or below a folder, archived ones too, by arm, seed and run id; UserError when there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"results folder {str(folder)!r} does not exist: give a folder that holds runs")
    paths, archives = _below(folder)
    runs = [load_run(path, with_steps=with_steps) for path in paths]
    runs += [run for path in archives for run in load_archive(path)]
    if not runs:
        raise UserError(f"results folder {str(folder)!r} holds no run: a run has a manifest.json")
    return sorted(runs, key=lambda run: (run.arm, run.seed, run.run_id))
