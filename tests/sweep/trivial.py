"""A run without torch, for tests of launchers: it leaves a status, and what it was given."""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness.sweep.jobs import Job


def trivial_worker(job: Job, gpu: str | None) -> None:
    """Seeds ending in 7 die without a word, those in 3 fail, the others complete."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seen.json").write_text(json.dumps({"gpu": gpu}))
    seed = job.spec["seeds"]["seed"]
    if seed % 10 == 7:
        os._exit(3)
    status = "failed" if seed % 10 == 3 else "completed"
    (folder / "status.json").write_text(json.dumps({"status": status, "reason": ""}))
