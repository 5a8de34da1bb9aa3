"""The commands watch, index, compact, track and publish; budget and launcher options of train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.store.writer import RunWriter

SPEC = {"seeds": {"seed": 0}, "train": {"horizon": 2}, "algorithm": {"name": "grpo"}}


@pytest.fixture
def results(tmp_path) -> Path:
    writer = RunWriter(tmp_path / "runs" / "a", {"run_id": "a1", "arm": "grpo", "spec": SPEC})
    for step in (1, 2):
        row = {"optimizer_step": step, "metrics": {"correct": 0.5, "mean_tokens": 3.0, "truncated": 0.0}}
        writer.append("steps", {**row, "costs": {"generated_tokens": step}})
        writer.append("evals", {**row, "n": 4, "costs": {"generated_tokens": step}})
    writer.status("completed")
    writer.close()
    return tmp_path


def harness(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_watch_prints_a_table_or_json_once(results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = harness("watch", results, "--once")
    assert code == 0
    assert "grpo seed 0" in out
    code, out, _ = harness("watch", results, "--json")
    assert json.loads(out)[0]["correct"] == 0.5
    code, _, said = harness("watch", results / "none")
    assert code == 2
    assert "does not exist" in said


def test_index_and_compact_write_what_they_say(results):
    code, out, said = harness("index", results, "--json")
    assert code == 0
    assert json.loads(out)[0]["run_id"] == "a1"
    assert "index.jsonl: 1 runs" in said
    assert harness("compact", results)[0] == 0
    assert harness("compact", results, "--check")[0] == 0
    path = results / "tables" / "steps.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    code, _, said = harness("compact", results, "--check")
    assert code == 1
    assert "steps.parquet differs from its checksum" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["track", "RESULTS", "--to", "wandbb"], 2, "did you mean 'wandb'"),
        (["publish", "RESULTS"], 2, "holds no manifest.json"),
        (["publish", "RESULTS", "--to", "hubb"], 2, "did you mean 'hub'"),
        (["publish", "RESULTS", "--to", "hub"], 2, "name the Hub repository as org/name"),
        (["publish", "RESULTS", "--repo", "org/name"], 2, "add --to hub"),
        (["train", "--launcher", "slrum"], 2, "did you mean 'slurm'"),
        (["train", "--launcher-option", "gpu"], 2, "write it as key=value"),
        (["train", "--tracker", "tensorbord"], 2, "did you mean 'tensorboard'"),
        (["index", "nowhere"], 2, "does not exist"),
    ],
)
def test_mistakes_get_one_line(results, words, code, said):
    found, _, text = harness(*(str(results) if word == "RESULTS" else word for word in words))
    assert found == code
    assert said in text
    assert text.count("error:") == 1


def test_train_with_a_budget_says_what_is_left_and_goes_on(tmp_path, tiny_model_folder, letters_plugin):
    words = [
        "train",
        "--task",
        "letters",
        "--model",
        tiny_model_folder,
        "--plugin",
        letters_plugin,
        "--quiet",
    ]
    words += ["--out", tmp_path / "out"]
    # long enough that the budget is noticed before the end, also on a fast machine
    for setting in ("horizon=200", "prompts_per_step=2", "group_size=4", "max_completion_tokens=8"):
        words += ["--set", f"train.{setting}"]
    words += ["--set", "evaluation.every=2", "--set", "evaluation.prompts=4"]
    code, _, said = harness(*words, "--budget-tokens", "10")
    assert code == 4
    assert "the budget of 10 tokens is used up" in said
    assert "the same command with a larger budget continues" in said
    code, out, _ = harness(*words)
    assert code == 0
    assert out.startswith("completed")
