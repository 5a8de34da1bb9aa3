"""The README: its example works and is short, its figures come from the evidence; see tests/docs for its commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.report.pages import BLOCK, latest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = Path(__file__).parent / "examples" / "leave_one_out.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_example_shown_is_the_file_that_is_tested_and_short():
    code = README.split("```python\n")[1].split("```")[0]
    assert code == EXAMPLE.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 40


def test_example_validates_and_is_listed():
    done = run("validate", str(EXAMPLE), "--json")
    findings = json.loads(done.stdout)
    assert [f for f in findings if not f["ok"]] == []
    assert done.returncode == 0
    listed = json.loads(run("ls", "algorithms", "--plugin", str(EXAMPLE), "--json").stdout)
    assert "leave_one_out" in {row["name"] for row in listed}


def test_example_trains_by_plugin(tiny_model_folder, letters_plugin, tmp_path):
    done = run(
        *("train", "--algorithm", "leave_one_out", "--task", "letters", "--model", str(tiny_model_folder)),
        *("--plugin", str(EXAMPLE), "--plugin", str(letters_plugin), "--out", str(tmp_path), "--quiet"),
        *("--set", "train.horizon=2", "--set", "train.max_completion_tokens=6"),
    )
    assert done.returncode == 0, done.stderr


EVIDENCE = [m["name"] for m in BLOCK.finditer(README) if m["kind"] == "evidence"]


def test_the_readme_shows_evidence():
    assert EVIDENCE


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_holds_every_seed_it_speaks_of(name):
    import pyarrow.parquet as pq

    folder = latest(ROOT / "results" / "published", name)
    verdict = json.loads((folder / "verdict.json").read_text())
    rows = pq.read_table(folder / "evaluations.parquet").to_pylist()
    assert {row["run_id"] for row in rows} == set(verdict["run_ids"])
    for arm in verdict["arms"]:
        assert {row["seed"] for row in rows if row["arm"] == arm["name"]} == set(arm["seeds"])


@pytest.mark.parametrize("name", EVIDENCE)
def test_definition_has_not_changed_since_its_evidence(name):
    from harness.claims.schema import CONTROL, load_claim

    stored = json.loads((latest(ROOT / "results" / "published", name) / "claim.json").read_text())
    claim = load_claim(stored["name"])
    if any(arm["name"].endswith(CONTROL) for arm in stored["definition"]["arms"]):
        claim = claim.with_control()
    assert claim.version > stored["definition"]["version"] or claim.hash(stored["scale"]) == stored["hash"]
