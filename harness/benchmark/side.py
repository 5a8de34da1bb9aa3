"""Runs either side of a comparison in a process of its own, and finds the Python that has TRL."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, TypeVar

from harness.benchmark.setting import Setting, environment
from harness.errors import EnvironmentProblem, UserError
from harness.sweep.server import fork_server, huge_pages

Side = Literal["ours", "trl"]
Outcome = TypeVar("Outcome")
MODULES = {"ours": "harness.benchmark.ours", "trl": "harness.benchmark.theirs"}
HOW = "`tox -e trl` makes an environment with TRL 1.16; then --trl-python .tox/trl/bin/python"


def trl_python(named: str) -> str:
    """The Python to run TRL with: the one named, else this one; EnvironmentProblem where it has no TRL."""
    python = named or sys.executable
    if shutil.which(python) is None:
        raise UserError(f"--trl-python {named!r}: not an executable file; {HOW}")
    test = "import importlib.util as u, sys; sys.exit(u.find_spec('trl') is None)"
    if subprocess.run([python, "-c", test], capture_output=True, check=False).returncode:
        where = f"--trl-python {named!r}" if named else "--against trl"
        raise EnvironmentProblem(f"{where}: TRL cannot be imported there; {HOW}")
    return python


def trl_version(python: str) -> str:
    """TRL's version in that Python."""
    test = "from importlib.metadata import version; print(version('trl'))"
    return subprocess.run([python, "-c", test], capture_output=True, text=True, check=True).stdout.strip()


def run_side(side: Side, setting: Setting, python: str = sys.executable) -> dict[str, Any]:
    """One run in a fresh process: what it reports, with `wall_seconds` from its start to its end.

    Ours gets its memory as the launcher's workers do; TRL as its users' processes do.
    EnvironmentProblem with the last line that it said, when it fails.
    """
    with huge_pages() if side == "ours" else contextlib.nullcontext():
        surroundings = environment(setting.threads)
    started = time.perf_counter()
    done = subprocess.run(
        [python, "-m", MODULES[side]],
        input=json.dumps(setting.to_json()),
        capture_output=True,
        text=True,
        env=surroundings,
        check=False,
    )
    wall = time.perf_counter() - started
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise EnvironmentProblem(f"benchmark: the run of {side} ended with {done.returncode}: {said[-1]}")
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "wall_seconds": round(wall, 3)}


def in_worker(function: Callable[..., Outcome], *args: Any, **options: Any) -> Outcome:
    """Calls a function of a module in a process that is made as the launcher makes its workers."""
    with ProcessPoolExecutor(max_workers=1, mp_context=fork_server(), max_tasks_per_child=1) as pool:
        return pool.submit(function, *args, **options).result()


def in_new_process(function: Callable[..., Outcome], *args: Any, **options: Any) -> Outcome:
    """Calls a function of a module in a process started anew, with the environment as it is now."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **options).result()
