"""Processor time of what a person waits for at the terminal: help, lists, and a report on many runs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.benchmark.setting import environment
from harness.errors import EnvironmentProblem

METRICS = ("outcome", "mean_tokens", "truncated", "unique_share", "on_task", "grad_norm", "loss_policy")


def _costs(step: int) -> dict[str, float]:
    counted = {"prompts": 8, "completions": 64, "generated_tokens": 4000}
    tokens = {"forward_tokens": 5000, "backward_tokens": 5000, "judge_calls": 0, "judge_usd": 0.0}
    return {"optimizer_steps": step, **{name: n * step for name, n in (counted | tokens).items()}}


def made_up_runs(out: Path, runs: int) -> None:
    """A results folder of compile-speedup whose runs are invented: every arm's rate rises about step 30."""
    from harness.claims.schema import load_claim
    from harness.reproduce import fix_definition, plan
    from harness.store.writer import RunWriter
    from harness.sweep.jobs import manifest_of

    claim = load_claim("compile-speedup")
    todo = plan(claim, "tiny", list(range(max(2, runs // len(claim.arms)))), out=str(out), plugins=[])
    fix_definition(todo)
    rng = np.random.default_rng(0)
    for job in todo.jobs:
        writer = RunWriter(Path(job.folder), manifest_of(job))
        late = rng.normal(0, 5)
        for step in range(job.spec["train"]["horizon"] + 1):
            metrics = {name: float(rng.random()) for name in METRICS}
            kinds = [("train", "steps")] * (step > 0) + [("eval", "evals")] * (step % 5 == 0)
            for phase, name in kinds:
                record: dict[str, Any] = {"optimizer_step": step, "costs": _costs(step)}
                rates = {}
                if phase == "eval":
                    rate = float(rng.binomial(200, 1 / (1 + np.exp(-(step - 30 - late) / 6))) / 200)
                    rates, record["n"] = {"compile": rate, "correct": rate}, 200
                writer.append(name, {**record, "metrics": metrics | rates})
                spent = {"seconds": float(step), "evaluation_seconds": 0.1 * step, "peak_memory_bytes": 6e8}
                writer.append("timings", {"optimizer_step": step, "phase": phase, **spent})
        writer.status("completed", "made up")
        writer.close()


def timed(arguments: list[str], repeats: int) -> dict[str, Any]:
    """The least processor and wall time of a command of `harness`; EnvironmentProblem when it fails."""
    cpu, wall = [], []
    for _ in range(repeats):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", *arguments],
            capture_output=True,
            env=environment(1),
            check=False,
        )
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode:
            raise EnvironmentProblem(f"benchmark: harness {arguments[0]} ended with {done.returncode}")
    return {"cpu_seconds": min(cpu), "wall_seconds": min(wall)}


def interface(*, quick: bool) -> dict[str, Any]:
    """Each command in fresh processes; the report is on runs made up for it."""
    runs, repeats = (4, 1) if quick else (200, 3)
    rows = [
        {"command": "harness " + " ".join(arguments), **timed(arguments, repeats)}
        for arguments in (["--help"], ["ls", "claims"], ["ls", "algorithms"])
    ]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs"
        made_up_runs(out, runs)
        for form in ("md", "html"):
            found = timed(["report", str(out), "--format", form], repeats)
            rows.append({"command": f"harness report, {runs} runs, --format {form}", **found})
    return {"rows": rows, "runs": runs}
