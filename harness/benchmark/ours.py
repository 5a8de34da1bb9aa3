"""One run of ours, timed step by step: `python -m harness.benchmark.ours`, the setting as JSON on stdin."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.benchmark.clock import Clock, peak_memory_bytes, step_rows
from harness.benchmark.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """Trains one step more than the setting asks for; rows of the others, and the largest memory."""
    started = time.perf_counter()
    from harness.store.reader import load_run
    from harness.sweep.jobs import job_for
    from harness.sweep.worker import run_job

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        job = job_for(setting.spec(horizon=setting.optimizer_steps + 1), Path(folder))
        status = run_job(job, clock)
        if status != "completed":
            raise SystemExit(f"our run is {status}")
        run = load_run(Path(job.folder))
    totals = [0, *(int(step["costs"]["generated_tokens"]) for step in run.steps)]
    tokens = [after - before for before, after in pairwise(totals)]
    return {
        "start_seconds": round(clock.marks[0][0] - started, 3),
        "steps": step_rows(clock.marks, tokens),
        "tokens": totals[-1],
        "peak_memory_bytes": peak_memory_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Setting.of(json.load(sys.stdin)))))
