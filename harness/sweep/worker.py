"""Runs one job in this process; the launchers call it in processes of their own.

Heavy imports stand at the top on purpose: the local launcher imports this module once in a fork server, so
that each run starts from a process that has them already.
"""

from __future__ import annotations

import errno
import signal
import threading
import traceback
from pathlib import Path

import torch
import transformers.models.qwen2.modeling_qwen2
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
from transformers.utils.logging import disable_progress_bar

from harness.errors import UserError
from harness.spec import parse_run
from harness.store.writer import RunWriter
from harness.sweep.jobs import Job, manifest_of
from harness.train.build import build
from harness.train.loop import Trainer

_ = transformers.models.qwen2.modeling_qwen2
disable_progress_bar()


def run_job(job: Job) -> str:
    """Trains the job's run, or continues it; returns the status, which the run's folder holds too.

    A failure is recorded with its traceback in `error.log`; it is never raised, so that one bad run does
    not stop the others. SIGTERM asks for a clean stop at the next optimizer step.
    """
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher turns Ctrl-C into SIGTERM
    spec = parse_run(job.spec)
    torch.set_num_threads(spec.train.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, and nothing here reads such memory
    writer = RunWriter(Path(job.folder), manifest_of(job))
    parts = None
    try:
        parts = build(spec)
        status, reason = Trainer(parts, writer, stop.is_set).run()
    except Exception as error:  # noqa: BLE001 - whatever ends one run is recorded, and the others go on
        status, reason = "failed", explain(error)
        (writer.folder / "error.log").write_text(traceback.format_exc())
    finally:
        if parts is not None:
            parts.task.close()
    writer.status(status, reason)
    writer.close()
    return status


def explain(error: Exception) -> str:
    """One line for a failure, with the remedy where it is known."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or 'results folder'}): free some space and run the same command again"
    return f"{type(error).__name__}: {error} (traceback in error.log)"


def process_main(job: Job) -> None:
    """Entry point of a worker process: exit code 0 unless the run failed."""
    raise SystemExit(1 if run_job(job) == "failed" else 0)
