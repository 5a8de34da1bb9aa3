"""A light module that a launcher can name without importing torch itself."""

from __future__ import annotations

import os

from harness.sweep.jobs import Job


def start_worker(job: Job, gpu: str | None = None) -> None:
    """Runs a job in this (worker) process, on one GPU of this machine where one is given."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    from harness.sweep.worker import process_main

    process_main(job)
