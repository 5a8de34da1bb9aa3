"""The command line: output, exit codes, errors in one line, resuming, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.catalogue import algorithms as catalogue_algorithms

HERE = Path(__file__).parent
PLUGIN = HERE.parent / "plugins" / "letters_task.py"


def harness(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **environment},
    )


@pytest.fixture(scope="module")
def claim_file(tmp_path_factory, tiny_model_folder) -> Path:
    """The toy claim with the model's folder filled in."""
    path = tmp_path_factory.mktemp("claim") / "letters.toml"
    path.write_text((HERE / "letters.toml").read_text().replace("MODEL", str(tiny_model_folder)))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, claim_file) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The toy claim reproduced once at smoke scale."""
    out = tmp_path_factory.mktemp("out") / "letters"
    done = harness(*reproduce(claim_file, out), "--json")
    assert done.returncode == 0, done.stderr
    return out, done


def reproduce(claim: Path, out: Path, scale: str = "smoke") -> list[str]:
    return ["reproduce", "--claim", str(claim), "--scale", scale, "--plugin", str(PLUGIN), "--out", str(out)]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_help_names_the_commands_and_imports_nothing_heavy():
    done = harness("--help")
    assert done.returncode == 0
    for name in ("reproduce", "train", "ls", "show", "validate", "doctor"):
        assert name in done.stdout
    probe = (
        "import sys, harness.cli; "
        "print([m for m in ('torch', 'transformers', 'scipy', 'matplotlib', 'datasets', 'pandas') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["algorithms", "tasks", "claims", "models"])
def test_ls_json_is_a_list_of_named_objects(kind):
    done = harness("ls", kind, "--json")
    rows = json.loads(done.stdout)
    assert rows
    assert all(isinstance(row["name"], str) and row["name"] for row in rows)
    plain = harness("ls", kind)
    assert plain.returncode == 0
    assert rows[0]["name"] in plain.stdout


def test_listed_algorithms_are_those_registered():
    from harness.registry import algorithms

    registered = {name: a for name, a in algorithms().items() if a.__module__.startswith("algorithms.")}
    listed = {row["name"]: row for row in catalogue_algorithms()}
    assert set(listed) == set(registered)
    for name, row in listed.items():
        assert row["source"] == registered[name].source
        assert row["requires"] == sorted(registered[name].requires)
        assert row["extra_cost"] == registered[name].extra_cost


def test_reproduce_prints_the_documented_object(finished):
    _, done = finished
    found = json.loads(done.stdout)
    assert found["claim"] == "letters"
    assert found["scale"] == "smoke"
    assert found["verdict"] == "not_testable"
    assert isinstance(found["sentence"], str)
    assert [arm["name"] for arm in found["arms"]] == ["grpo", "bot_grpo"]
    for arm in found["arms"]:
        assert arm["seeds"] == [0, 1]
        assert {"reached", "final_compile_rate"} <= set(arm)
    assert len(found["run_ids"]) == 4
    assert found["seconds"] > 0
    assert {"estimate", "low", "high", "method"} <= set(found["speedup"]["optimizer_steps"])
    assert "grpo seed 0" in done.stderr


def test_reproduce_leaves_a_report_a_picture_and_the_definition(finished):
    out, _ = finished
    definition = json.loads((out / "claim.json").read_text())
    assert definition["definition"]["statement"].startswith("BoT-GRPO writes")
    for run in (out / "runs").iterdir():
        assert json.loads((run / "manifest.json").read_text())["claim"]["hash"] == definition["hash"]
    assert (out / "learning-curve.svg").stat().st_size > 1000
    assert "not testable" in (out / "report.md").read_text()


def test_same_command_again_runs_nothing_and_says_the_same(finished, claim_file):
    out, first = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
    again = harness(*reproduce(claim_file, out), "--json", "--quiet")
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")} == before
    assert json.loads(again.stdout)["sentence"] == json.loads(first.stdout)["sentence"]
    assert again.stderr == ""


def test_archived_evidence_fills_a_page(finished, tmp_path):
    out, first = finished
    done = harness("archive", str(out), "--published", str(tmp_path / "published"))
    assert done.returncode == 0, done.stderr
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- evidence: letters-smoke -->\nstale words\n<!-- end -->\nrest\n")
    assert harness("readme", str(page), "--published", str(tmp_path / "published")).returncode == 0
    text = page.read_text()
    assert "stale words" not in text
    assert text.endswith("rest\n")
    assert "Verdict: not testable" in " ".join(text.split())
    import pyarrow.parquet as pq

    rows = pq.read_table(next((tmp_path / "published").rglob("evaluations.parquet"))).to_pylist()
    assert len(rows) == 4 * 3
    assert {row["run_id"] for row in rows} == set(json.loads(first.stdout)["run_ids"])


def test_archive_refuses_what_is_not_finished(tmp_path):
    done = harness("archive", str(tmp_path), "--published", str(tmp_path / "published"))
    assert done.returncode == 2
    assert "holds no verdict.json" in one_line(done)


def test_every_trial_is_logged(finished, tmp_path):
    out, _ = finished
    log = tmp_path / "trials.jsonl"
    words = ["trials", str(out / "runs"), "--out", str(log), "--metric", "correct"]
    assert harness(*words).returncode == 0
    rows = [json.loads(line) for line in log.open()]
    assert len(rows) == 4
    assert {(row["algorithm"], row["seed"]) for row in rows} == {
        (name, seed) for name in ("grpo", "bot_grpo") for seed in (0, 1)
    }
    assert all(row["reached"] is False for row in rows)


def test_control_adds_the_baseline_on_other_seeds(claim_file, tmp_path):
    done = harness(*reproduce(claim_file, tmp_path / "out"), "--control", "--dry-run", "--json")
    found = json.loads(done.stdout)
    arms = {(run["arm"], run["seed"]) for run in found["runs"]}
    assert ("grpo_control", 5000) in arms
    assert ("grpo", 0) in arms


def test_plan_says_how_many_seeds_a_claim_needs():
    found = json.loads(harness("plan", "--claim", "compile-speedup", "--sigma", "0.2", "--json").stdout)
    assert found["claim"] == "compile-speedup"
    assert found["runs"] == 10


def test_strict_turns_the_verdict_into_an_exit_code(finished, claim_file):
    out, _ = finished
    assert harness(*reproduce(claim_file, out), "--strict", "--quiet").returncode == 3


def test_folder_of_another_claim_version_is_refused(finished, claim_file):
    out, _ = finished
    done = harness(*reproduce(claim_file, out), "--set", "train.learning_rate=1e-3")
    assert done.returncode == 1
    assert "choose another folder" in one_line(done)


def test_dry_run_trains_nothing_and_estimates(claim_file, tmp_path):
    out = tmp_path / "dry"
    done = harness(*reproduce(claim_file, out), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["runs"]) == 4
    assert found["tokens"] > 0
    assert found["minutes"] >= 0
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["reproduce", "--claim", "compile-sped"], 2, "did you mean 'compile-speedup'"),
        (["reproduce", "--scale", "tinny"], 2, "did you mean 'tiny'"),
        (["reproduce", "--set", "train.learning_rat=1"], 2, "did you mean 'train.learning_rate'"),
        (["reproduce", "--set", "arms.bot_grpo.local_wait=1"], 2, "did you mean 'local_weight'"),
        (["reproduce", "--set", "task.recipe=first_error"], 2, "did you mean"),
        (["reproduce", "--seeds", "9001-9002"], 2, "were used for tuning"),
        (["reproduce", "--seeds", "none"], 2, "--seeds 'none'"),
        (["train", "--algorithm", "gpro"], 2, "or 'grpo'"),
        (["train", "--set", "train.group_size=1"], 2, "set train.group_size to 2 or more"),
        (["train", "--plugin", "nowhere.py"], 2, "is not a file"),
        (["ls", "algorithm"], 2, "did you mean 'algorithms'"),
        (["show", "bot_gpro"], 2, "did you mean 'bot_grpo'"),
    ],
)
def test_mistakes_get_one_line_with_the_remedy(words, code, said, tmp_path):
    done = harness(*words, cwd=tmp_path)
    assert done.returncode == code
    assert said in one_line(done)
    assert not list(tmp_path.iterdir())


def test_unknown_option_is_a_usage_error():
    done = harness("reproduce", "--seed", "3")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_show_knows_algorithms_claims_models_and_runs(finished):
    out, _ = finished
    run = next((out / "runs").iterdir())
    assert json.loads(harness("show", str(run), "--json").stdout)["status"] == "completed"
    shown = json.loads(harness("show", "bot_grpo", "--json").stdout)
    assert "local_weight" in shown["options"]
    assert "compile" in harness("show", "compile-speedup").stdout


def test_evaluate_keeps_the_samples_and_reports_pass_at_k(tmp_path):
    words = ["evaluate", "chains-tiny", "--task", "aime", "--problems", "4", "--samples", "4", "--k", "1,2"]
    done = harness(*words, "--max-tokens", "32", "--out", str(tmp_path / "eval"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["metrics"]) >= {"pass_at_1", "pass_at_2", "avg_at_n"}
    assert all(n == 4 for n, _ in found["problems"].values())
    assert (tmp_path / "eval" / "samples.parquet").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "lm-evil"], "the one known suite is lm-eval"),
        (["--suite", "lm-eval"], "name the tasks of lm-eval"),
        (["--k", "two"], "give numbers"),
        (["--samples", "2", "--k", "4"], "1 <= k <= samples=2"),
        (["--task", "aim"], "did you mean 'aime'"),
    ],
)
def test_evaluate_refuses_what_it_cannot_do(words, said):
    done = harness("evaluate", "react-tiny", *words)
    assert done.returncode == 2
    assert said in one_line(done)


def test_doctor_reports_and_never_prints_keys():
    done = harness("doctor", "--json", OPENAI_API_KEY="sk-secret-value")
    found = json.loads(done.stdout)
    assert "OPENAI_API_KEY" in found["facts"]["keys set"]
    assert "sk-secret-value" not in done.stdout
    assert set(found["lacks"]) == {"smoke", "tiny", "small", "paper"}
    assert done.returncode == (0 if found["ok"] else 1)


@pytest.mark.slow
def test_interrupt_stops_cleanly_and_the_same_command_ends_with_the_same_records(claim_file, tmp_path):
    words = [*reproduce(claim_file, tmp_path / "cut"), "--seeds", "2", "--set", "train.horizon=40"]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # a test runner in the background ignores Ctrl-C, and its children would inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cut").rglob("steps.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group gets Ctrl-C
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    again = harness(*words, "--quiet")
    assert again.returncode == 0, again.stderr
    whole = reproduce(claim_file, tmp_path / "whole") + words[len(reproduce(claim_file, tmp_path)) :]
    assert harness(*whole, "--quiet").returncode == 0
    for path in sorted((tmp_path / "whole" / "runs").iterdir()):
        for name in ("steps.jsonl", "evals.jsonl"):
            assert (tmp_path / "cut" / "runs" / path.name / name).read_bytes() == (path / name).read_bytes()


def test_failed_runs_give_exit_code_4_and_the_others_finish(claim_file, tmp_path):
    words = reproduce(claim_file, tmp_path / "out")
    # a prompt that does not fit is found when a run starts, not when the settings are read
    done = harness(*words, "--set", "train.max_completion_tokens=255", "--quiet")
    assert done.returncode == 4
    assert "--retry-failed" in one_line(done)
    assert "exceed the model's context" in done.stderr
