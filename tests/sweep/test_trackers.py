"""Each tracker for real and offline; without its package a test is skipped, but not in `tox -e trackers`."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from harness.store.writer import RunWriter
from harness.trackers import Trackers

SPEC = {"seeds": {"seed": 0}, "train": {"horizon": 3}}


def need(name: str):
    if os.environ.get("CREDITBENCH_REQUIRE_TRACKERS"):
        import importlib

        return importlib.import_module(name)
    return pytest.importorskip(
        name, reason=f"{name} is not installed: tox -e trackers, or the extra trackers"
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """A finished run of three steps and two evaluations."""
    writer = RunWriter(tmp_path / "run", {"run_id": "abc123", "spec": SPEC})
    for step in range(4):
        costs = {"generated_tokens": 10 * step}
        if step:
            writer.append("steps", {"optimizer_step": step, "metrics": {"loss": 1 / step}, "costs": costs})
        if step in (0, 3):
            writer.append("evals", {"optimizer_step": step, "metrics": {"correct": step / 3}, "costs": costs})
    writer.status("completed")
    writer.close()
    return tmp_path / "run"


def feed(folder: Path, name: str) -> None:
    with Trackers([folder], [name]) as trackers:
        trackers()
    assert trackers.problems == {}


def test_tensorboard(folder):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed(folder, "tensorboard")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/correct")] == [(0, 0.0), (3, 1.0)]
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3]
    feed(folder, "tensorboard")
    events.Reload()
    assert len(events.Scalars("train/loss")) == 3


def test_mlflow(folder, tmp_path, monkeypatch):
    need("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    feed(folder, "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("creditbench")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.data.tags["creditbench_run_id"] for run in runs] == ["abc123"]
    assert runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "eval/correct")
    assert [(m.step, m.value) for m in history] == [(0, 0.0), (3, 1.0)]


def test_wandb(folder, monkeypatch):
    wandb = need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    feed(folder, "wandb")
    wandb.teardown()  # its service writes the file out at the end of the process
    files = list((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    assert b"train/loss" in files[0].read_bytes()


def test_trackio(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which trackio reads when it is imported
    need("trackio")
    feed(folder, "trackio")
    with sqlite3.connect(tmp_path / "trackio" / "creditbench.db") as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    assert [step for step, _ in rows] == [0, 1, 2, 3, 3]
    assert json.loads(rows[-1][1])["eval/correct"] == 1.0
