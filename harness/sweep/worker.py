"""Runs one job in this process; the launchers call it in processes of their own.

Heavy imports stand at the top on purpose: the local launcher imports this module once in a fork server, so
that each run starts from a process that has them already.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import transformers.models.qwen2.modeling_qwen2
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
from transformers.utils.logging import disable_progress_bar

from harness.errors import EnvironmentProblem, UserError
from harness.ladder.run import run_table
from harness.models.source import TABLE
from harness.spec import parse_run
from harness.store.writer import RunWriter
from harness.sweep.jobs import Job, manifest_of
from harness.train.build import build
from harness.train.loop import Trainer

_ = transformers.models.qwen2.modeling_qwen2
disable_progress_bar()

STORAGE_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Not the run's fault: it stops, and the same command continues it once the storage is well again."""
REFUSED = 3
"""Exit code of a worker whose run belongs to another process, or whose folder cannot be written."""


def run_job(job: Job, should_stop: Callable[[], bool] = lambda: False) -> str:
    """Trains the job's run, or continues it; returns the status, which the run's folder holds too.

    A failure is recorded with its traceback in `error.log`; it is never raised, so that one bad run does
    not stop the others. SIGTERM, a request to stop, or the death of the process that started this one ask
    for a clean stop at the next optimizer step. EnvironmentProblem when the folder cannot be had.
    """
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher turns Ctrl-C into SIGTERM
    parent = multiprocessing.parent_process()

    def stopping() -> bool:
        orphan = parent is not None and not parent.is_alive()
        return stop.is_set() or orphan or should_stop() or bool(job.asked("stop"))

    spec = parse_run(job.spec)
    torch.set_num_threads(spec.train.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, and nothing here reads such memory
    writer = RunWriter(Path(job.folder), manifest_of(job))
    parts, notes = None, {}
    try:
        if spec.model.name == TABLE:
            status, reason = run_table(spec, writer, stopping)
        else:
            parts = build(spec)
            trainer = Trainer(parts, writer, stopping, lambda: job.asked("pause"))
            status, reason = trainer.run()
            notes = trainer.notes
    except Exception as error:  # noqa: BLE001 - whatever ends one run is recorded, and the others go on
        status, reason = explain(error)
        with contextlib.suppress(OSError):  # the disk may be full
            (writer.folder / "error.log").write_text(traceback.format_exc())
    finally:
        if parts is not None:
            parts.task.close()
            parts.generator.sampler.close()
    with contextlib.suppress(OSError):  # then it still says `running`, which the same command continues
        writer.status(status, reason, **notes)
    writer.close()
    return status


def explain(error: Exception) -> tuple[str, str]:
    """Status and one line for a failure, with the remedy where it is known."""
    if isinstance(error, UserError):
        return "failed", str(error)
    if isinstance(error, OSError) and error.errno in STORAGE_FAULTS:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or "results folder"
            return "stopped", f"the disk is full ({where}): free some space and run the same command again"
        return "stopped", f"the results folder failed ({error}): mend it and run the same command again"
    return "failed", f"{type(error).__name__}: {error} (traceback in error.log)"


def process_main(job: Job) -> None:
    """Entry point of a worker process: exit code 0 unless the run failed or was refused."""
    try:
        status = run_job(job)
    except EnvironmentProblem:
        raise SystemExit(REFUSED) from None
    raise SystemExit(1 if status == "failed" else 0)
