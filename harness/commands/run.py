"""`harness reproduce` and `harness train`: commands that run something."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.common import RunOptions, command, print_json, say
from harness.errors import RunsFailed, UserError

if TYPE_CHECKING:
    from harness.evaluate.pairs import PairSettings
    from harness.reproduce import Plan
    from harness.store.reader import RunRecord
    from harness.sweep.jobs import Job

STRICT_CODES = {"inconclusive": 3, "mechanism_inconclusive": 3, "not_testable": 3}
STRICT_CODES |= {"refuted": 5, "reversed": 5, "mechanism_failed": 5}


@dataclass(frozen=True)
class ReproduceOptions(RunOptions):
    """Options of `harness reproduce`."""

    claim: Annotated[str, typer.Option(help="A claim of `harness ls claims`, or a TOML file.")] = (
        "compile-speedup"
    )
    scale: Annotated[str, typer.Option(help="smoke, tiny, small or paper.")] = "tiny"
    seeds: Annotated[str, typer.Option(help="A count (5), a range (0-4) or a list (0,2,4).")] = ""
    control: Annotated[
        bool, typer.Option("--control", help="Add an A/A control: the baseline again, on seeds of its own.")
    ] = False
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 0 supported, 3 inconclusive, 5 contradicted.")
    ] = False
    judge: Annotated[
        str,
        typer.Option(help="Who compares screenshots, in claims of win rates: scripted, openai, anthropic."),
    ] = "scripted"
    judge_option: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="An option of that judge: model, budget_usd, cache."),
    ] = None  # type: ignore[assignment]


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Options of `harness train`."""

    algorithm: Annotated[str, typer.Option(help="An algorithm of `harness ls algorithms`.")] = "grpo"
    task: Annotated[str, typer.Option(help="A task of `harness ls tasks`.")] = "react"
    model: Annotated[str, typer.Option(help="A model of `harness ls models`, a folder, or a Hub id.")] = (
        "react-tiny"
    )
    seeds: Annotated[str, typer.Option(help="A seed (0), a range (0-4) or a list (0,2,4).")] = "0"


def prepare_tasks(jobs: Sequence[Job]) -> None:
    """Installs what the jobs' checkers need before any worker starts."""
    from harness.setup import prepare_task

    for name in sorted({job.spec["task"]["name"] for job in jobs}):
        prepare_task(name)


def run_jobs(jobs: Sequence[Job], options: RunOptions, *, metric: str, title: str) -> dict[str, str]:
    """Runs jobs with the chosen launcher and a display; the statuses by run id.

    RunsFailed when runs are left unfinished, with the reason (a budget, a full disk, a dead worker).
    """
    from harness.sweep.execute import Settings, execute
    from harness.watch import Display

    prepare_tasks(jobs)
    settings = Settings(
        launcher=options.launcher,
        launcher_options=options.launcher_option or (),
        parallel=options.parallel,
        retry_failed=options.retry_failed,
        hours=options.budget_hours or None,
        tokens=options.budget_tokens or None,
        usd=options.budget_usd or None,
        trackers=options.tracker or (),
    )
    with Display(jobs, metric, quiet=options.quiet, title=title) as display:
        return execute(jobs, settings, display)


PROBED = ("smoke", "tiny")
"""Scales whose pace a dry run measures with a probe; larger ones are estimated, as they may not run here."""


def _dry_run(plan: Plan, options: RunOptions) -> None:
    runs = [
        {"run_id": job.run_id, "arm": job.arm, "seed": job.spec["seeds"]["seed"], "status": job.status()}
        for job in plan.jobs
    ]
    head = {"claim": plan.claim.name, "scale": plan.scale, "out": str(plan.out), "runs": runs}
    (_probe_run if plan.scale in PROBED else _estimate_run)(plan, options, head)


def _print_lines(plan: Plan) -> None:
    from harness.reproduce import train_line

    for job in plan.jobs:
        print(shlex.join(train_line(job.spec)))


def _estimate_run(plan: Plan, options: RunOptions, head: dict[str, Any]) -> None:
    """The complete plan of a scale that needs a GPU; nothing is loaded or installed for it."""
    from harness.resolved import resolve
    from harness.resolved_tables import resolved_text

    found = resolve(plan.claim, plan.scale, plan.jobs)
    if options.json:
        minutes = None if found.hours is None else round(found.hours * 60, 1)
        print_json({**head, "tokens": found.tokens, "minutes": minutes, "plan": found.to_json()})
        return
    print(resolved_text(found))
    _print_lines(plan)


def _probe_run(plan: Plan, options: RunOptions, head: dict[str, Any]) -> None:
    from harness.reproduce import estimate
    from harness.sweep.local import default_parallel, run_local

    prepare_tasks(plan.jobs)
    parallel = options.parallel or default_parallel(len(plan.jobs))
    if not options.quiet:
        say(f"probe: two optimizer steps of {plan.jobs[0].name}")
    cost = estimate(plan.jobs, parallel, lambda job: run_local([job], parallel=1)[job.run_id])
    if options.json:
        print_json({**head, **cost})
        return
    _print_lines(plan)
    print(
        f"{len(plan.jobs)} runs, {parallel} at a time; at most {cost['tokens']:,} generated tokens and "
        f"{cost['minutes']:.0f} minutes at the probe's pace of {cost['seconds_per_step']} s a step"
    )


def _check_options(options: RunOptions) -> None:
    """Refuses an unknown launcher or tracker before anything is written."""
    from harness.sweep.execute import parse_options
    from harness.sweep.launcher import find_launcher

    find_launcher(options.launcher)
    parse_options(options.launcher_option or ())
    if options.tracker:
        from harness.trackers import find_tracker

        for name in options.tracker:
            find_tracker(name)


def reproduce(options: ReproduceOptions) -> int:
    """Train a claim's arms over several seeds and judge the claim."""
    _check_options(options)
    from harness.claims.measure import shown_metric
    from harness.claims.schema import SCALES, load_claim
    from harness.names import did_you_mean
    from harness.reproduce import amend, fix_definition, parse_seeds, plan

    if options.scale not in SCALES:
        raise UserError(did_you_mean("scale", options.scale, SCALES))
    claim = amend(load_claim(options.claim), options.scale, options.settings or [])
    if options.control:
        claim = claim.with_control()
    plugins = [str(Path(p).resolve()) for p in options.plugin or []]
    todo = plan(
        claim,
        options.scale,
        parse_seeds(options.seeds, claim, options.scale),
        out=options.out,
        plugins=plugins,
    )
    _check_specs(todo.jobs, judged=not options.dry_run)
    if options.dry_run:
        _dry_run(todo, options)
        return 0
    if claim.endpoint.kind == "win_rate":
        from harness.evaluate.pairs import check_ready

        check_ready(_pair_settings(options), claim.scale(options.scale).task_options.get("browser"), say)
    fix_definition(todo)
    started = time.monotonic()
    if not options.quiet:
        say(f"{claim.statement} ({len(todo.jobs)} runs, {options.scale} scale, in {todo.out})")
    # of a share, the table of runs shows the part
    metric = shown_metric(claim.endpoint.metric).partition("/")[0]
    run_jobs(todo.jobs, options, metric=metric, title=claim.name)
    return _conclude(todo, options, time.monotonic() - started)


def _check_specs(jobs: Sequence[Job], *, judged: bool = True) -> None:
    """Refuses impossible combinations of every arm before anything is written or sampled.

    A dry run is not `judged`: it must not load a process-reward model, nor ask for a judge's key.
    """
    from harness.spec import parse_run
    from harness.train.build import check

    for spec in {job.arm: job.spec for job in jobs}.values():
        found = parse_run(spec)
        if not judged and "judge_options" in found.task.options:
            options = {k: v for k, v in found.task.options.items() if not k.startswith("judge")}
            found = found.model_copy(update={"task": found.task.model_copy(update={"options": options})})
        check(found)


def _pair_settings(options: ReproduceOptions) -> PairSettings:
    """Who judges pairs, from the command line; UserError for an option without `=`."""
    from harness.evaluate.pairs import PairSettings
    from harness.spec import parse_value

    found = {}
    for text in options.judge_option or ():
        key, sep, value = text.partition("=")
        if not sep or not key:
            raise UserError(f"--judge-option {text!r}: write it as key=value, e.g. budget_usd=5")
        found[key] = parse_value(value)
    return PairSettings(options.judge, found, retry=options.retry_failed)


def _judge_pairs(
    todo: Plan, runs: list[RunRecord], options: ReproduceOptions
) -> tuple[list[RunRecord], list[str]]:
    """The runs with their win rates, and notes for the report."""
    from harness.evaluate.pairs import judge_pairs

    progress = (lambda line: None) if options.quiet else say
    return judge_pairs(todo.claim, todo.scale, runs, todo.out, _pair_settings(options), progress)


def _conclude(todo: Plan, options: ReproduceOptions, seconds: float) -> int:
    from harness.claims.verdict import judge
    from harness.conclude import write_report
    from harness.store.reader import load_run

    runs = [load_run(Path(job.folder)) for job in todo.jobs]
    failed = [run for run in runs if run.status == "failed"]
    notes: list[str] = []
    if todo.claim.endpoint.kind == "win_rate":
        runs, notes = _judge_pairs(todo, runs, options)
    verdict = judge(todo.claim, todo.scale, runs)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    files = write_report(todo, verdict, runs)
    if options.json:
        print_json({**verdict.to_json(), "seconds": round(seconds, 1), "out": str(todo.out), "files": files})
    else:
        from rich.console import Console

        from harness.report.claim import claim_table
        from harness.report.tables import to_rich

        console = Console()
        if not todo.claim.cells:  # with cells the tables are too wide for a terminal: see the report
            console.print(to_rich(claim_table(verdict)))
        # a person's terminal breaks lines between words, a file keeps each whole
        console.print(f"\n{verdict.sentence}\n", soft_wrap=not console.is_terminal, highlight=False)
        for note in notes:
            console.print(note, soft_wrap=True, highlight=False)
        for name, path in files.items():
            console.print(f"{name:<16}{path}", soft_wrap=True, highlight=False)
    if failed:
        lines = "; ".join(f"{run.path.name}: {run.reason}" for run in failed[:3])
        raise RunsFailed(
            f"{len(failed)} of {len(runs)} runs failed ({lines}); --retry-failed runs them again"
        )
    return STRICT_CODES.get(verdict.verdict, 0) if options.strict else 0


def train(options: TrainOptions) -> int:
    """Train one algorithm on one task, a run a seed."""
    _check_options(options)
    from harness.store.writer import read_status

    jobs = train_jobs(options)
    _check_specs(jobs)
    if options.dry_run:
        print_json([job.spec for job in jobs])
        return 0
    from harness.registry import tasks

    metric = tasks()[jobs[0].spec["task"]["name"]].primary_metric  # type: ignore[attr-defined]
    run_jobs(jobs, options, metric=metric, title=f"{options.algorithm} on {options.task}")
    rows = [{"run_id": job.run_id, "folder": job.folder, **read_status(Path(job.folder))} for job in jobs]
    if options.json:
        print_json(rows)
    else:
        for row in rows:
            print(f"{row['status']:<10} {row['folder']}  {row['reason']}")
    if any(row["status"] == "failed" for row in rows):
        root = Path(jobs[0].folder).parent
        raise RunsFailed(f"runs failed: see the reasons above and error.log in {root}")
    return 0


def train_jobs(options: TrainOptions) -> list[Job]:
    """The runs that `harness train` would make, a job a seed; UserError for a setting that cannot be read."""
    from harness.registry import load_plugin
    from harness.reproduce import seed_list
    from harness.spec import apply_settings, parse_run
    from harness.sweep.jobs import job_for

    plugins = [str(Path(p).resolve()) for p in options.plugin or []]
    for plugin in plugins:
        load_plugin(Path(plugin))
    value = {
        "algorithm": {"name": options.algorithm},
        "task": {"name": options.task},
        "model": {"name": options.model},
        "plugins": plugins,
    }
    root = Path(options.out) if options.out else Path("results/runs") / f"train-{options.task}"
    return [
        job_for(parse_run(apply_settings({**value, "seeds": {"seed": seed}}, options.settings or [])), root)
        for seed in seed_list(options.seeds)
    ]


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "reproduce", ReproduceOptions)(reproduce)
    command(app, "train", TrainOptions)(train)
