from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.stats.threshold import crossing
from harness.store.reader import load_run, load_runs, supersede


def row(step: int, value: float = 0.0, **more) -> dict:
    return {"optimizer_step": step, "n": 200, "metrics": {"compile": value}, "costs": {}, **more}


def write_run(
    folder: Path, evals: list[dict], *, arm: str = "grpo", seed: int = 0, status: str = "completed"
) -> Path:
    folder.mkdir(parents=True)
    manifest = {
        "run_id": folder.name,
        "spec": {"algorithm": {"name": arm}, "seeds": {"seed": seed}},
        "claim": {"name": "compile-speedup", "arm": arm, "hash": "h", "scale": "tiny"},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "status.json").write_text(json.dumps({"status": status, "reason": "because"}))
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evals))
    return folder


def test_a_run_is_read_whole(tmp_path):
    run = load_run(write_run(tmp_path / "a", [row(0), row(5, 0.3)], seed=3))
    assert (run.run_id, run.arm, run.algorithm, run.seed) == ("a", "grpo", "grpo", 3)
    assert (run.status, run.reason) == ("completed", "because")
    assert [line["optimizer_step"] for line in run.evals] == [0, 5]
    assert run.problems == []


def test_a_line_cut_by_a_kill_is_left_out_and_named(tmp_path):
    folder = write_run(tmp_path / "a", [row(0), row(5, 0.3)])
    with open(folder / "evals.jsonl", "a") as file:
        file.write('{"optimizer_step":10,"metr')
    run = load_run(folder)
    assert len(run.evals) == 2
    assert run.problems == ["evals.jsonl line 3 is cut off: ignored"]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    folder = write_run(tmp_path / "a", [row(0)])
    with open(folder / "evals.jsonl", "a") as file:
        file.write('garbage\n[1]\n{"n":3}\n' + json.dumps(row(5)) + "\n")
    run = load_run(folder)
    assert [line["optimizer_step"] for line in run.evals] == [0, 5]
    assert len(run.problems) == 3


def test_resumed_steps_replace_the_dead_branch():
    """Crossing at 110 belongs to a branch that the resume from 100 abandoned: 120 counts."""
    log = [row(100, 0.7, attempt="a"), row(110, 0.81, attempt="a"), {"resume_at": 100, "attempt": "b"},
           row(110, 0.76, attempt="b"), row(120, 0.83, attempt="b")]  # fmt: skip
    for rows in (log, [line for line in log if "resume_at" not in line]):
        kept, dropped = supersede(rows)
        steps = [line["optimizer_step"] for line in kept]
        values = [line["metrics"]["compile"] for line in kept]
        assert steps == [100, 110, 120]
        assert dropped == [110]
        assert crossing(steps, values, threshold=0.8, rule="raw").time == 120


def test_a_shorter_new_branch_still_kills_the_old_tail():
    kept, dropped = supersede([row(0), row(5, 0.1), row(10, 0.9), row(15, 0.95), row(5, 0.2)])
    assert [(line["optimizer_step"], line["metrics"]["compile"]) for line in kept] == [(0, 0.0), (5, 0.2)]
    assert dropped == [5, 10, 15]


def test_phases_share_a_step():
    rows = [{"optimizer_step": s, "phase": p} for s, p in
            ((5, "train"), (5, "evaluation"), (6, "train"), (5, "train"), (5, "evaluation"))]  # fmt: skip
    kept, dropped = supersede(rows)
    assert [(line["optimizer_step"], line["phase"]) for line in kept] == [(5, "train"), (5, "evaluation")]
    assert len(dropped) == 3


def test_superseded_rows_are_told(tmp_path):
    run = load_run(write_run(tmp_path / "a", [row(0), row(5), row(10), row(5)]))
    assert any("superseded after a resume" in problem for problem in run.problems)


def test_missing_and_unknown_parts_become_problems(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "evals.jsonl").write_text("")
    (folder / "status.json").write_text('{"status": "exploded"}')
    run = load_run(folder)
    assert run.status == "failed"
    assert run.run_id == "broken"
    text = " ".join(run.problems)
    assert "manifest.json is missing" in text
    assert "exploded" in text
    assert "no evaluation" in text


def test_runs_are_found_below_a_folder_in_a_fixed_order(tmp_path):
    for name, arm, seed in (("z", "grpo", 1), ("deep/y", "grpo", 0), ("x", "bot_grpo", 4)):
        write_run(tmp_path / name, [row(0)], arm=arm, seed=seed)
    assert [(run.arm, run.seed) for run in load_runs(tmp_path)] == [("bot_grpo", 4), ("grpo", 0), ("grpo", 1)]
    assert len(load_runs(tmp_path / "x")) == 1


def test_no_runs_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_runs(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no run"):
        load_runs(tmp_path)


def test_archived_evidence_reads_like_the_runs_it_came_from(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = write_run(tmp_path / "runs" / "a", [row(0), row(5, 0.3)], seed=3, status="diverged")
    run = load_run(folder)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "manifests.json").write_text(
        json.dumps([{**run.manifest, "status": "diverged", "reason": "NaN"}])
    )
    rows = [
        {"run_id": "a", "optimizer_step": e["optimizer_step"], "n": e["n"], "metric_compile": e["metrics"]["compile"],
         "cost_completions": 8.0 * e["optimizer_step"], "train_seconds": 2.0 * e["optimizer_step"]}
        for e in reversed(run.evals)
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), kept / "evaluations.parquet")
    (found,) = load_runs(kept)
    assert (found.run_id, found.arm, found.seed, found.status) == ("a", "grpo", 3, "diverged")
    assert [e["optimizer_step"] for e in found.evals] == [0, 5]
    assert found.evals[1]["metrics"] == {"compile": 0.3}
    assert found.evals[1]["costs"] == {"completions": 40.0}
    assert found.timings[-1]["seconds"] == 10.0
