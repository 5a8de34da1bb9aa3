"""Folders of simulated runs, written as the trainer writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from harness.claims import Claim, load_claim
from harness.claims.simulate import simulated_sweep
from harness.store.reader import RunRecord


def write_runs(
    folder: Path,
    runs: Iterable[RunRecord],
    claim: Claim | None = None,
    scale: str = "tiny",
    task: str = "react",
) -> Path:
    """Writes run folders, and the claim's definition beside them."""
    for run in runs:
        path = folder / "runs" / run.run_id
        path.mkdir(parents=True)
        note = {}
        if claim is not None:
            note = {"name": claim.name, "scale": scale, "hash": claim.hash(scale), "arm": run.arm}
        manifest = {
            "run_id": run.run_id,
            "spec": {
                "algorithm": {"name": run.algorithm, "options": {}}, "task": {"name": task},
                "train": {"learning_rate": 3e-4}, "seeds": {"seed": run.seed},
            },
            "claim": note,
            "versions": {"creditbench": "0.1", "torch": "2.13"},
            "machine": {"system": "Linux"},
        }  # fmt: skip
        (path / "manifest.json").write_text(json.dumps(manifest))
        (path / "status.json").write_text(json.dumps({"status": run.status, "reason": run.reason}))
        for name in ("evals", "timings"):
            lines = "".join(json.dumps(row) + "\n" for row in getattr(run, name))
            (path / f"{name}.jsonl").write_text(lines)
    if claim is not None:
        definition = json.loads(claim.definition(scale))
        body = {"name": claim.name, "scale": scale, "hash": claim.hash(scale), "definition": definition}
        (folder / "claim.json").write_text(json.dumps(body))
    return folder


@pytest.fixture(scope="session")
def writer() -> Callable[..., Path]:
    return write_runs


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """A finished sweep of compile-speedup at tiny scale; one run never reached."""
    claim = load_claim("compile-speedup")
    crossings = {"grpo": [55, 58, 62, 57, 300], "bot_grpo": [30, 28, 33, 31, 29]}
    runs = simulated_sweep(claim, "tiny", crossings, np.random.default_rng(4))
    return write_runs(tmp_path_factory.mktemp("sweep"), runs, claim)
