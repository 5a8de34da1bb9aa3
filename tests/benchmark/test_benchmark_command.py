"""Wiring of `harness benchmark`: its parts in small, both sides' settings, and the lines for bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.benchmark import against, interface, side, theirs
from harness.benchmark.document import calls, sweep_table
from harness.benchmark.setting import Setting, environment, example_indices
from harness.cli import app
from harness.commands import benchmark as command
from harness.errors import EnvironmentProblem
from harness.store.reader import load_runs


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "error: benchmark: nothing to measure; give --against trl, --sweep, --floor"),
        (["--against", "trll"], "error: unknown --against 'trll': did you mean 'trl'?"),
        (["--write", "page.md"], "error: --write: give --out FOLDER too"),
        (
            ["--sweep", "--trl-python", "/no/python"],
            "error: --trl-python '/no/python': not an executable file",
        ),
        (["--scoring", "--steps", "2"], "error: --steps 2: the first 3 are dropped; give at least 4"),
        (["--write", "/no/page.md", "--out", "/no"], "error: --write '/no/page.md': not a file"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str) -> None:
    found = CliRunner().invoke(app, ["benchmark", *arguments])
    assert found.exit_code == 2
    assert found.stderr.startswith(line)
    assert found.stderr.count("\n") == 1


def test_a_python_without_trl_is_one_line_that_names_the_environment(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match="TRL cannot be imported there; `tox -e trl`"):
        side.trl_python(str(python))


def test_a_side_that_fails_says_its_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'Trace' >&2\necho 'OSError: no such model' >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match="the run of trl ended with 3: OSError: no such model"):
        side.run_side("trl", Setting(), str(python))


def test_both_sides_have_the_same_settings() -> None:
    setting = Setting(prompts_per_step=4, group_size=4, learning_rate=2e-4, max_completion_tokens=40, seed=3)
    train = setting.spec(horizon=5).train
    other = theirs.config_values(setting, "folder")
    assert other["per_device_train_batch_size"] * other["gradient_accumulation_steps"] == 16
    assert train.prompts_per_step * train.group_size == 16
    assert other["num_generations"] == train.group_size == 4
    assert other["learning_rate"] == train.learning_rate == 2e-4
    assert other["max_completion_length"] == train.max_completion_tokens == 40
    assert other["max_grad_norm"] == train.max_grad_norm
    assert other["weight_decay"] == train.weight_decay
    assert not other["bf16"]
    assert not other["gradient_checkpointing"]
    for rows, parts in ((16, (16, 8)), (0, (128, 1)), (500, (128, 1))):
        found = theirs.config_values(Setting(trl_micro_batch_size=rows), "folder")
        assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == parts


def test_both_sides_have_the_same_prompts() -> None:
    """The loop's own order of examples, over the end of an epoch."""
    from harness.train.loop import Trainer
    from tasks.react import ReactTask

    spec = Setting(seed=5).spec(horizon=1)
    trainer = object.__new__(Trainer)
    trainer.spec, trainer._permutation = spec, None
    task = ReactTask()
    trainer.parts = type("Parts", (), {"task": task})()  # type: ignore[assignment]
    size = task.size("train")
    assert size is not None
    places = [0, 1, 17, size - 1, size, size + 3]
    indices = example_indices(spec, size, size + 4)
    assert [task.example("train", indices[i]).id for i in places] == [
        trainer._draw_example(i).id for i in places
    ]
    assert len(indices) == size + 4


def test_trls_reward_is_the_tasks_outcome_and_counts_tokens() -> None:
    class Task:
        def score(self, examples: Any, answers: Any) -> list[Any]:
            return [
                type("S", (), {"outcome": float(a.finished and e == a.text)})
                for e, a in zip(examples, answers, strict=True)
            ]

    reward = theirs.Reward(Task(), ["x", "y"], [1])
    found = reward(completions=["x", "y", "y"], completion_ids=[[5, 1], [6, 1], [7, 8]], number=[0, 1, 1])
    assert found == [1.0, 1.0, 0.0]
    assert reward.tokens == [6]


def test_runs_alternate_and_drop_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    def run(name: str, setting: Setting, python: str) -> dict[str, Any]:
        calls.append((name, python))
        seconds = 1.0 if name == "ours" else 2.0
        rows = [
            {
                "optimizer_step": i + 1,
                "tokens": 100 + 10 * i,
                "seconds": seconds + (50 if i == 0 else 0),
                "cpu_seconds": 1.0,
            }
            for i in range(setting.optimizer_steps)
        ]
        return {"steps": rows, "peak_memory_bytes": len(calls), "start_seconds": 1.0}

    monkeypatch.setattr(against, "run_side", run)
    found = against.against_trl(Setting(optimizer_steps=4, warm_steps=1), "/trl/python", rounds=2)
    assert calls == [("ours", sys.executable), ("trl", "/trl/python")] * 2
    assert found["ratio_to_trl"] == pytest.approx(2.0)
    assert found["peak_memory_bytes"] == {"ours": 3, "trl": 4}
    assert [row["warm_up"] for row in found["steps"][:4]] == [True, False, False, False]
    assert len(found["steps"]) == 16


def test_processes_get_their_threads_and_one_node() -> None:
    found = environment(2)
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "2"
    assert Path(found["CREDITBENCH_NODE"]).is_file()
    assert (Path(found["PYTHONPATH"].split(":")[0]) / "harness" / "benchmark").is_dir()


def test_json_is_one_object_with_the_headline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {"ratio_to_trl": 2.0, "ratio_low": 1.5, "ratio_high": 2.5, "steps": [{"tokens": 1}]}
    monkeypatch.setitem(command.PARTS, "against", lambda setting, options: found)
    monkeypatch.setattr(side, "trl_python", lambda named: named)
    monkeypatch.setattr("harness.setup.prepare_task", lambda name: None)
    result = CliRunner().invoke(
        app, ["benchmark", "--against", "trl", "--quick", "--json", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["ratio_to_trl"] == 2.0
    assert printed["steps"] == [{"tokens": 1}]
    assert printed["against"]["ratio_high"] == 2.5
    assert printed["quick"] is True
    (kept,) = tmp_path.glob("against-*.json")
    assert json.loads(kept.read_text())["ratio_low"] == 1.5


@pytest.mark.parametrize("part", ["floor", "variants"])
def test_parts_run_in_small(part: str) -> None:
    options = command.BenchmarkOptions(quick=True)
    found = command.PARTS[part](command._setting(options), options)
    if part == "floor":
        assert found["tokens"] > 0
        assert 0 < found["training_share_of_peak"] < 1
        assert found["decode_step_seconds"] > found["decode_memory_floor_seconds"]
    else:
        assert {row["part"] for row in found["rows"]} == {"sampling", "training"}
        assert 0 < found["scoring_share_of_step"] < 1


def test_made_up_runs_make_a_report(tmp_path: Path) -> None:
    interface.made_up_runs(tmp_path / "runs", 4)
    runs = load_runs(tmp_path / "runs")
    assert len(runs) == 4
    assert {run.status for run in runs} == {"completed"}
    assert all(run.evals[-1]["metrics"]["compile"] > 0.9 for run in runs)


def test_a_commands_time_is_that_of_its_process() -> None:
    found = interface.timed(["--help"], 1)
    assert 0.05 < found["cpu_seconds"] < 60
    with pytest.raises(EnvironmentProblem, match="harness ls ended with 2"):
        interface.timed(["ls", "nothing"], 1)


@pytest.mark.trl
def test_trls_side_runs_in_small() -> None:
    """In TRL's own environment: the same tokens are counted as are reported, in as many steps."""
    if importlib.util.find_spec("trl") is None:
        if os.environ.get("CREDITBENCH_REQUIRE_TRL") == "1":
            pytest.fail("CREDITBENCH_REQUIRE_TRL=1, but trl cannot be imported")
        pytest.skip("trl is not installed: run this in the trl environment")
    found = side.run_side("trl", Setting().quick())
    assert len(found["steps"]) == 3
    assert all(4 <= row["tokens"] <= 4 * 12 for row in found["steps"])


@pytest.mark.slow
def test_our_side_runs_in_small() -> None:
    found = side.run_side("ours", Setting().quick())
    assert len(found["steps"]) == 3
    assert found["tokens"] >= sum(row["tokens"] for row in found["steps"]) > 0
    assert found["peak_memory_bytes"] < 2**30


def test_every_kept_call_of_a_sweep_is_told() -> None:
    one = calls(Path(__file__).parents[2] / "results" / "benchmark", "sweep")[0]
    several = [{**one, "sweep_ratio_to_trl": ratio} for ratio in (2.0, 8.0)]
    assert "the 2 calls kept: 2.00, 8.00; geometric mean 4.00." in sweep_table(several).notes[-1]
    assert not any("calls kept" in note for note in sweep_table([one]).notes)
