"""The index and the Parquet tables: rebuilt from the folders, sound by checksum, read by the usual libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.store.checksums import verify_checksums, write_checksums
from harness.store.compact import compact
from harness.store.index import NAME, build_index, write_index
from harness.store.writer import RunWriter


@pytest.fixture
def sweep(tmp_path) -> Path:
    """Two arms, two seeds; two evaluations each, the second of one run superseded by a resume."""
    for arm in ("grpo", "bot_grpo"):
        for seed in (0, 1):
            spec = {
                "algorithm": {"name": arm},
                "task": {"name": "react"},
                "model": {"name": "react-tiny"},
                "seeds": {"seed": seed},
                "train": {"horizon": 10},
            }
            manifest = {
                "run_id": f"{arm}{seed}",
                "arm": arm,
                "spec": spec,
                "claim": {"name": "c", "arm": arm},
            }
            writer = RunWriter(tmp_path / "runs" / f"{arm}-{seed}", manifest)
            for step in (5, 10):
                metrics = {"compile": step / 20 + seed / 10} | ({"extra": 1.0} if arm == "grpo" else {})
                row = {"optimizer_step": step, "metrics": metrics, "costs": {"generated_tokens": 100 * step}}
                writer.append("steps", row)
                writer.append("evals", {**row, "n": 8, "problems": {"p0": [1, 1]}})
                writer.append("timings", {"optimizer_step": step, "phase": "eval", "seconds": 1.5})
            writer.status("completed" if seed == 0 else "running")
            writer.close()
    return tmp_path


def test_index_has_a_row_a_run_and_is_written_once_more_alike(sweep):
    rows = write_index(sweep)
    assert [row["folder"] for row in rows] == [
        "runs/bot_grpo-0",
        "runs/bot_grpo-1",
        "runs/grpo-0",
        "runs/grpo-1",
    ]
    assert rows[0]["status"] == "completed"
    assert rows[1]["status"] == "running"
    assert rows[3]["metrics"]["compile"] == pytest.approx(0.6)
    assert rows[3]["costs"] == {"generated_tokens": 1000}
    before = (sweep / NAME).read_bytes()
    write_index(sweep)
    assert (sweep / NAME).read_bytes() == before


def test_index_takes_up_changes_and_survives_damage(sweep, monkeypatch):
    write_index(sweep)
    read = []
    import harness.store.index as index

    original = index.index_row
    monkeypatch.setattr(
        index, "index_row", lambda folder, root: read.append(folder.name) or original(folder, root)
    )
    assert len(build_index(sweep)) == 4
    assert read == []
    (sweep / "runs" / "grpo-1" / "status.json").write_text('{"status": "failed", "reason": "why"}')
    rows = build_index(sweep)
    assert read == ["grpo-1"]
    assert rows[3]["status"] == "failed"
    (sweep / NAME).write_bytes(b'{"folder": "runs/grpo-1", "sta\n\xff\n')
    assert build_index(sweep) == build_index(sweep, fresh=True)
    (sweep / NAME).unlink()
    assert build_index(sweep) == rows


def test_tables_hold_the_records_in_force(sweep):
    import pandas as pd

    path = sweep / "runs" / "grpo-0" / "evals.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(path.read_bytes() + first)  # a resume from step 5 logs step 5 again
    files = compact(sweep, sweep / "tables")
    evals = pd.read_parquet(files["evals"])
    assert list(evals.groupby("run_id").size()) == [2, 2, 1, 2]
    assert evals[evals.run_id == "grpo1"].metric_compile.tolist() == pytest.approx([0.35, 0.6])
    assert evals[evals.arm == "bot_grpo"].metric_extra.isna().all()
    assert json.loads(evals.problems.iloc[0]) == {"p0": [1, 1]}
    runs = pd.read_parquet(files["runs"])
    assert runs.status.tolist() == ["completed", "running", "completed", "running"]
    assert "superseded" in runs[runs.run_id == "grpo0"].problems.iloc[0]
    assert len(pd.read_parquet(files["timings"])) == 8


def test_checksums_find_a_flipped_bit_and_a_lost_file(sweep):
    out = sweep / "tables"
    files = compact(sweep, out)
    assert verify_checksums(out) == []
    data = bytearray(files["steps"].read_bytes())
    data[len(data) // 2] ^= 1
    files["steps"].write_bytes(bytes(data))
    files["evals"].unlink()
    assert verify_checksums(out) == ["evals.parquet is missing", "steps.parquet differs from its checksum"]
    with pytest.raises(UserError, match="holds no SHA256SUMS"):
        verify_checksums(sweep)


def test_checksums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    write_checksums(tmp_path, [tmp_path / "a"])
    # FIPS 180-2, appendix B.1
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / "SHA256SUMS").read_text() == f"{known}  a\n"


def test_records_are_read_as_the_readme_shows(sweep):
    """The one-liners: each library reads the JSONL files of a sweep and its Parquet tables."""
    compact(sweep, sweep / "tables")
    lines = str(sweep / "runs" / "*" / "evals.jsonl")
    tables = str(sweep / "tables" / "evals.parquet")
    import glob

    import pandas as pd

    frame = pd.concat(
        pd.json_normalize(pd.read_json(path, lines=True).to_dict("records")).assign(run=path)
        for path in glob.glob(lines)
    )
    assert frame["metrics.compile"].sum() == pytest.approx(3.4)
    assert pd.read_parquet(tables).metric_compile.sum() == pytest.approx(3.4)


def test_polars_reads_records_and_tables(sweep):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    compact(sweep, sweep / "tables")
    found = pl.scan_ndjson(sweep / "runs" / "*" / "evals.jsonl", include_file_paths="run").collect()
    assert found.unnest("metrics")["compile"].sum() == pytest.approx(3.4)
    assert pl.read_parquet(sweep / "tables" / "evals.parquet")["metric_compile"].sum() == pytest.approx(3.4)


def test_duckdb_reads_records_and_tables(sweep):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    compact(sweep, sweep / "tables")
    query = f"select sum(metrics.compile) from read_json('{sweep}/runs/*/evals.jsonl', filename=true)"
    assert duckdb.sql(query).fetchall()[0][0] == pytest.approx(3.4)
    query = f"select arm, avg(metric_compile) from '{sweep}/tables/evals.parquet' group by arm order by arm"
    assert [row[1] for row in duckdb.sql(query).fetchall()] == pytest.approx([0.425, 0.425])
