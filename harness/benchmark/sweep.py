"""Whole sweeps on all cores: ours as it schedules itself, TRL's runs one after another and two at a time."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.benchmark.setting import Setting, cores, environment
from harness.benchmark.side import in_new_process, run_side

Say = Callable[[str], None]


def rates(seeds: int, tokens: int, seconds: float) -> dict[str, float]:
    """Seeds an hour and completion tokens a second of a sweep, from its first process to its last."""
    return {
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "seeds_per_hour": 3600 * seeds / seconds,
        "tokens_per_second": tokens / seconds,
    }


def our_sweep(setting: Setting, seeds: int, parallel: int = 0) -> dict[str, Any]:
    """All seeds through the local launcher, which starts as many runs at a time as it thinks right (0)."""
    from harness.store.reader import load_run
    from harness.sweep.jobs import job_for
    from harness.sweep.local import run_local

    # the launcher's workers inherit these
    os.environ.update(environment(1))
    with tempfile.TemporaryDirectory() as folder:
        specs = [
            replace(setting, threads=1, seed=seed).spec(horizon=setting.optimizer_steps)
            for seed in range(seeds)
        ]
        jobs = [job_for(spec, Path(folder)) for spec in specs]
        started = time.perf_counter()
        statuses = run_local(jobs, parallel=parallel)
        seconds = time.perf_counter() - started
        if set(statuses.values()) != {"completed"}:
            raise RuntimeError(f"our sweep: runs ended as {sorted(set(statuses.values()))}")
        runs = [load_run(Path(job.folder)) for job in jobs]
    tokens = sum(int(run.steps[-1]["costs"]["generated_tokens"]) for run in runs)
    memory = max(row["peak_memory_bytes"] for run in runs for row in run.timings)
    return {**rates(seeds, tokens, seconds), "peak_memory_bytes": memory}


def trl_sweep(setting: Setting, seeds: int, python: str, *, at_a_time: int, threads: int) -> dict[str, float]:
    """All seeds through TRL, `at_a_time` processes of `threads` threads each."""
    # run_side makes one step more than it reports, which nothing may pay for here
    one = replace(setting, optimizer_steps=setting.optimizer_steps - 1, threads=threads)
    settings = [replace(one, seed=seed) for seed in range(seeds)]
    started = time.perf_counter()
    with ThreadPoolExecutor(max_workers=at_a_time) as pool:
        found = list(pool.map(lambda s: run_side("trl", s, python), settings))
    seconds = time.perf_counter() - started
    return rates(seeds, sum(run["tokens"] for run in found), seconds)


def start_up(setting: Setting) -> dict[str, float]:
    """Seconds of a run of one step of one token, start to end: the first of a sweep, and the next ones.

    The next ones come from the fork server, which has imported torch and transformers by then; called in a
    fresh process, the first one starts it.
    """
    tiny = replace(
        setting, prompts_per_step=1, group_size=2, max_completion_tokens=1, optimizer_steps=1, warm_steps=0
    )
    first = our_sweep(tiny, 1)["seconds"]
    again = [our_sweep(tiny, 1)["seconds"] for _ in range(3)]
    return {"first_run_seconds": first, "next_run_seconds": sorted(again)[1]}


def headline(ours: dict[str, Any], theirs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Our tokens a second, and seeds an hour, over the better of TRL's ways.

    The first is the ratio at like token counts: seeds an hour flatter whoever wrote shorter answers.
    """
    best = max(theirs, key=lambda way: way["tokens_per_second"])
    return {
        "sweep_ratio_to_trl": ours["tokens_per_second"] / best["tokens_per_second"],
        "seeds_ratio_to_trl": ours["seeds_per_hour"] / max(way["seeds_per_hour"] for way in theirs),
    }


def sweep(setting: Setting, python: str, *, seeds: int, say: Say = lambda line: None) -> dict[str, Any]:
    """The same seeds in each way; rates of each, and our ratio to the better of TRL's.

    Ours runs first and last, since shared machines drift; the mean of both counts. Every call of it is made in
    a process of its own, so that it starts its fork server itself and pays for it.
    """
    many = cores()
    say("start-up of our runs")
    starting = in_new_process(start_up, setting)
    say(f"ours: {seeds} seeds as the launcher schedules them")
    calls = [in_new_process(our_sweep, setting, seeds)]
    say(f"trl: {seeds} seeds one after another, {many} threads")
    one = trl_sweep(setting, seeds, python, at_a_time=1, threads=many)
    say(f"trl: {seeds} seeds two at a time")
    two = trl_sweep(setting, seeds, python, at_a_time=2, threads=max(1, many // 2))
    say("ours: once more")
    calls.append(in_new_process(our_sweep, setting, seeds))
    ours = rates(seeds, calls[0]["tokens"], sum(call["seconds"] for call in calls) / len(calls))
    return {
        **headline(ours, [one, two]),
        "seeds": seeds,
        "optimizer_steps": setting.optimizer_steps,
        "threads": "as each way says",
        "start_up": starting,
        "ways": [
            {"way": "ours, as scheduled (one thread a run)", **ours, "calls": calls},
            {"way": f"TRL, one after another, {many} threads", **one},
            {"way": "TRL, two at a time", **two},
        ],
    }
