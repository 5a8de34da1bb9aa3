"""A light module that a launcher can name without importing torch itself."""

from __future__ import annotations

from harness.sweep.jobs import Job


def start_worker(job: Job) -> None:
    """Runs a job in this (worker) process."""
    from harness.sweep.worker import process_main

    process_main(job)
