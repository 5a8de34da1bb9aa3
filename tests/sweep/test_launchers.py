"""Launchers: names, what is skipped and retried, places, memory, GPUs, overhead, budgets; slurm without a cluster."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from trivial import trivial_worker

from harness.errors import EnvironmentProblem, RunsFailed, UserError
from harness.store.tail import RunView
from harness.store.writer import RunWriter, read_status, run_lock, write_json
from harness.sweep import local, resources
from harness.sweep.budget import Budget, Limits
from harness.sweep.execute import Settings, execute, parse_options
from harness.sweep.jobs import Job, job_for
from harness.sweep.launcher import find_launcher, settle, to_do
from harness.sweep.local import run_local

TRIVIAL = {"train": {"threads": 1, "horizon": 1}}


def trivial_jobs(root: Path, count: int) -> list[Job]:
    return [
        Job({**TRIVIAL, "seeds": {"seed": seed}}, str(root / f"run-{seed}"), arm="trivial")
        for seed in range(count)
    ]


def run_trivial(jobs, **options):
    return run_local(jobs, entry=trivial_worker, **options)


def test_launcher_names():
    assert find_launcher("local") is run_local
    with pytest.raises(UserError, match="did you mean 'slurm'"):
        find_launcher("slrum")
    with pytest.raises(UserError, match="the local launcher has none"):
        run_local([], parallel=1, options={"partition": "gpu"})
    assert parse_options(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(UserError, match="write it as key=value"):
        parse_options(["gpu"])


def test_one_bad_run_never_stops_the_rest(tmp_path):
    jobs = trivial_jobs(tmp_path, 10)
    statuses = run_trivial(jobs, parallel=3)
    assert [statuses[job.run_id] for job in jobs] == [
        *["completed"] * 3,
        "failed",
        *["completed"] * 3,
        "stopped",
        *["completed"] * 2,
    ]
    assert "ended with code 3" in read_status(Path(jobs[7].folder))["reason"]


def test_done_runs_are_skipped_and_failed_ones_retried_on_request(tmp_path):
    jobs = trivial_jobs(tmp_path, 4)
    for job, status in zip(jobs, ("completed", "diverged", "stopped", "failed"), strict=True):
        Path(job.folder).mkdir()
        write_json(Path(job.folder) / "status.json", {"status": status, "reason": ""})
        job.ask("pause", "an old budget")
    assert to_do(jobs, retry_failed=False) == [jobs[2]]
    assert to_do(jobs, retry_failed=True) == [jobs[2], jobs[3]]
    assert jobs[3].asked("pause") == ""
    assert jobs[0].asked("pause") == "an old budget"
    assert jobs[0].asked("stop") == ""


def test_a_run_that_another_process_writes_is_left_alone(tmp_path):
    job = trivial_jobs(tmp_path, 1)[0]
    Path(job.folder).mkdir()
    write_json(Path(job.folder) / "status.json", {"status": "running", "reason": ""})
    with run_lock(Path(job.folder)):
        assert settle(job, "its process ended with code 3") == "running"
    assert settle(job, "its process ended with code 3") == "stopped"


def test_a_busy_run_is_reported_with_its_owner(tiny_spec, tmp_path):
    job = job_for(tiny_spec(), tmp_path)
    writer = RunWriter(Path(job.folder), {"run_id": job.run_id})
    writer.status("running")
    with pytest.raises(RunsFailed, match=rf"being written by process {os.getpid()} on "):
        execute([job], Settings(parallel=1))
    assert job.status() == "running"
    writer.close()


def overhead(root: Path, count: int) -> tuple[float, float]:
    """Wall-clock and the launcher's own processor seconds a run, after its fork server is up."""
    run_trivial(trivial_jobs(root / "warm", 1), parallel=1)
    jobs = trivial_jobs(root, count)
    started, used = time.monotonic(), time.process_time()
    statuses = run_trivial(jobs, parallel=2, on_poll=lambda running: None)
    found = (time.monotonic() - started) / count, (time.process_time() - used) / count
    assert len(statuses) == count
    assert set(statuses.values()) == {"completed", "failed", "stopped"}
    return found


def test_the_launcher_itself_takes_little_time(tmp_path):
    """Its own processor time, which a busy machine does not change."""
    _, used = overhead(tmp_path, 40)
    assert used < 0.02


@pytest.mark.slow
def test_a_thousand_runs(tmp_path):
    seconds, used = overhead(tmp_path, 1000)
    load = os.getloadavg()[0]
    print(
        f"\n1,000 trivial runs: {1000 * seconds:.0f} ms a run, {1000 * used:.1f} of them the launcher's own; load {load:.1f}"
    )
    assert seconds < 0.2


def test_memory_bounds_the_runs_at_a_time(tmp_path, monkeypatch):
    """Room for one run and a half: one at a time, though there are four places."""
    monkeypatch.setattr(local, "available_bytes", lambda: int(1.5 * resources.BASE_BYTES))
    monkeypatch.setattr(local, "resident_bytes", lambda pid: 0)
    most = []
    jobs = trivial_jobs(tmp_path, 3)
    run_trivial(jobs, parallel=4, on_poll=lambda running: most.append(len(running)))
    assert max(most) == 1
    monkeypatch.setattr(local, "available_bytes", lambda: 0)
    assert (
        len(run_trivial(trivial_jobs(tmp_path / "none", 1), parallel=4)) == 1
    )  # a run alone is always tried


def test_memory_estimate_counts_parameters_and_logits(tiny_spec, tiny_model_folder):
    spec = tiny_spec().model_dump(mode="json")
    found = resources.parameters_and_vocabulary(str(tiny_model_folder))
    assert found is not None
    parameters, vocabulary = found
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    assert parameters == sum(p.numel() for p in model.parameters())
    assert vocabulary == model.config.vocab_size
    tokens = 4 * (8 + resources.PROMPT_TOKENS)
    assert resources.estimate_bytes(spec) == resources.BASE_BYTES + 20 * parameters + 12 * tokens * vocabulary
    assert resources.estimate_bytes({**spec, "model": {"name": "org/unknown"}}) == resources.UNKNOWN_BYTES
    assert 0 < resources.available_bytes() < 1 << 50
    assert resources.resident_bytes(os.getpid()) > 1 << 20
    assert resources.resident_bytes(2**22 + 1) == 0


def test_each_run_gets_a_gpu_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert resources.visible_gpus() == ["2", "5"]
    jobs = [
        Job(
            {**TRIVIAL, "model": {"name": "org/m", "device": device}, "seeds": {"seed": seed}},
            str(tmp_path / str(seed)),
        )
        for seed, device in enumerate(("auto", "cuda", "cpu", "auto"))
    ]
    monkeypatch.setattr(local, "available_bytes", lambda: 1 << 50)
    monkeypatch.setattr(local, "estimate_bytes", lambda spec: 1)
    most = []
    run_trivial(jobs, parallel=4, on_poll=lambda running: most.append(len(running)))
    seen = [json.loads((tmp_path / str(seed) / "seen.json").read_text())["gpu"] for seed in (0, 1, 2, 4)[:3]]
    assert seen[2] is None
    assert {seen[0], seen[1]} <= {"2", "5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resources.visible_gpus() == []


def test_gpus_are_not_shared_at_one_time(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(local, "available_bytes", lambda: 1 << 50)
    jobs = [
        Job({"model": {"name": "org/m", "device": "cuda"}, "seeds": {"seed": s}}, "unused") for s in range(3)
    ]
    pool = local.Pool(jobs, 3, trivial_worker)
    assert pool._free_gpu() == "0"
    one = local.Running(None, jobs[0], "0", 0)  # type: ignore[arg-type]
    monkeypatch.setattr(local, "resident_bytes", lambda pid: 0)
    one = type("One", (), {"gpu": "0", "bytes": 0, "process": type("P", (), {"pid": 1})})()
    pool.running[1] = one
    assert pool._free_gpu() == "1"
    pool.running[2] = type("Two", (), {"gpu": "1", "bytes": 0, "process": one.process})()
    assert not pool._room(jobs[2])


# ---------------------------------------------------------------------------- budgets


def view_with(root: Path, name: str, steps: int, status: str, usd: float = 0.0) -> RunView:
    writer = RunWriter(root / name, {"run_id": name})
    for step in range(1, steps + 1):
        costs = {"generated_tokens": 100 * step, "judge_usd": usd * step}
        writer.append("steps", {"optimizer_step": step, "metrics": {}, "costs": costs})
        writer.append(
            "timings",
            {"optimizer_step": step, "phase": "train", "seconds": 36.0 * step, "evaluation_seconds": 0.0},
        )
    writer.status(status)
    writer.close()
    view = RunView(root / name, name, 10)
    view.refresh()
    return view


def test_budget_adds_up_all_runs_and_says_what_is_left(tmp_path):
    views = [view_with(tmp_path, "a", 10, "completed", 0.01), view_with(tmp_path, "b", 5, "stopped", 0.01)]
    clock = iter([0.0, 1800.0, 1800.0, 7200.0, 7200.0])
    budget = Budget(Limits(hours=1.0), views, lambda: next(clock))
    assert budget.exceeded() == ""
    spent = budget.spent()
    assert (spent.hours, spent.tokens) == (0.5, 1500)
    assert spent.usd == pytest.approx(0.15)
    assert budget.exceeded() == "the budget of 1 hours is used up"
    # 15 steps took 540 s, 1,500 tokens and 0.15 US$; five steps are left
    assert budget.remaining(2) == (
        "1 of 2 runs and at most 5 optimizer steps are left: about 0.05 hours (2 runs at a time), 500 tokens, "
        "0.05 US$ more"
    )


def test_each_limit_is_named(tmp_path):
    views = [view_with(tmp_path, "a", 10, "running", 0.01)]
    assert Budget(Limits(), views).exceeded() == ""
    assert Budget(Limits(tokens=1001), views).exceeded() == ""
    assert "budget of 1,000 tokens is used up" in Budget(Limits(tokens=1000), views).exceeded()
    assert "0.1 US$ is used up (0.10 US$ spent)" in Budget(Limits(usd=0.1), views).exceeded()


def test_budget_stops_at_an_evaluation_and_a_larger_one_ends_equal(tiny_spec, tmp_path):
    """The paused run resumes to the same bytes as one without a budget."""
    spec = tiny_spec(train={"horizon": 200}, evaluation={"every": 3})
    jobs = [job_for(spec, tmp_path / "cut"), job_for(tiny_spec(seed=1), tmp_path / "cut")]
    with pytest.raises(
        RunsFailed, match=r"budget of 100 tokens is used up .* 2 of 2 runs .* larger budget continues"
    ):
        execute(jobs, Settings(parallel=1, tokens=100))
    status = read_status(Path(jobs[0].folder))
    assert status["status"] == "stopped"
    step = int(status["reason"].rpartition(" ")[2])
    assert step % 3 == 0
    rows = [json.loads(line) for line in (Path(jobs[0].folder) / "evals.jsonl").open()]
    assert rows[-1]["optimizer_step"] == step
    assert jobs[1].status() == "absent"


# ---------------------------------------------------------------------------- slurm


def test_array_parameters_follow_the_largest_run(tiny_spec, tmp_path):
    from harness.sweep.slurm_launcher import array_parameters

    jobs = [
        job_for(tiny_spec(seed=s, train={"threads": 1 + s}, model={"device": "cpu"}), tmp_path)
        for s in (0, 2)
    ]
    found = array_parameters(jobs, 7, {"slurm_partition": "short", "timeout_min": "90", "executor": "slurm"})
    assert found == {
        "name": "creditbench",
        "cpus_per_task": 3,
        "mem_gb": 1,
        "timeout_min": 90,
        "slurm_array_parallelism": 7,
        "slurm_signal_delay_s": 120,
        "slurm_partition": "short",
    }
    gpu = array_parameters([job_for(tiny_spec(), tmp_path)], 0, {})
    assert gpu["gpus_per_node"] == 1
    assert gpu["slurm_array_parallelism"] == 1


def test_the_batch_file_is_an_array_that_is_warned_and_queued_again(tiny_spec, tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")
    from submitit.slurm.slurm import _make_sbatch_string

    from harness.sweep.slurm_launcher import array_parameters

    jobs = [job_for(tiny_spec(seed=s, model={"device": "cpu"}), tmp_path) for s in range(3)]
    wanted = array_parameters(jobs, 2, {"slurm_partition": "short"})
    from submitit import AutoExecutor
    from submitit.slurm import slurm

    executor = AutoExecutor(folder=tmp_path / "logs", cluster="debug")
    executor.update_parameters(**{k: v for k, v in wanted.items() if not k.startswith("slurm_")})
    text = _make_sbatch_string(
        "work",
        tmp_path,
        map_count=3,
        array_parallelism=wanted["slurm_array_parallelism"],
        partition="short",
        signal_delay_s=wanted["slurm_signal_delay_s"],
        time=wanted["timeout_min"],
        cpus_per_task=wanted["cpus_per_task"],
        mem=f"{wanted['mem_gb']}GB",
        job_name=wanted["name"],
    )
    assert "#SBATCH --array=0-2%2" in text
    assert "#SBATCH --signal=USR2@120" in text
    assert "#SBATCH --partition=short" in text
    assert "#SBATCH --cpus-per-task=1" in text
    assert slurm is not None


def test_slurm_without_sbatch_says_what_to_use(tiny_spec, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")
    from harness.sweep import slurm_launcher

    monkeypatch.setattr(slurm_launcher.shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="no sbatch on this machine; use --launcher local"):
        execute([job_for(tiny_spec(), tmp_path)], Settings(launcher="slurm"))
    with pytest.raises(UserError, match="use one of slurm, local, debug"):
        execute(
            [job_for(tiny_spec(), tmp_path)], Settings(launcher="slurm", launcher_options=["executor=pbs"])
        )


@pytest.mark.slow
def test_slurm_launcher_runs_an_array_here(tiny_spec, tmp_path):
    """submitit's own local executor in place of sbatch: the same pickles, processes and signals."""
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")
    from faults import assert_equal_runs, work

    from harness.sweep.entry import start_worker

    jobs = [job_for(tiny_spec(seed=s), tmp_path / "slurm") for s in (0, 1)]
    bad = job_for(tiny_spec(train={"max_completion_tokens": 255}), tmp_path / "slurm")
    settings = Settings(launcher="slurm", launcher_options=["executor=local"])
    statuses = execute([*jobs, bad], settings)
    assert [statuses[job.run_id] for job in (*jobs, bad)] == ["completed", "completed", "failed"]
    reference = job_for(tiny_spec(), tmp_path / "whole")
    assert work(start_worker, reference) == 0
    assert_equal_runs(Path(jobs[0].folder), Path(reference.folder))
    cut = job_for(tiny_spec(train={"horizon": 500}), tmp_path / "slurm")
    with pytest.raises(RunsFailed, match="budget of 200 tokens"):
        execute([cut], Settings(launcher="slurm", launcher_options=["executor=local"], tokens=200))
    assert "paused at optimizer step" in read_status(Path(cut.folder))["reason"]


def test_a_preempted_task_is_queued_again_with_its_job(tiny_spec, tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")
    from harness.sweep.slurm_launcher import ArrayTask

    job = job_for(tiny_spec(), tmp_path)
    again = ArrayTask().checkpoint(job)
    assert isinstance(again.function, ArrayTask)
    assert again.args == (job,)
