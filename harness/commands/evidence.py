"""Commands on evidence: plan, calibrate, compare, report, archive, readme, trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.common import command, print_json, say
from harness.errors import UserError


@dataclass(frozen=True)
class PlanOptions:
    """Options of `harness plan`."""

    claim: Annotated[str, typer.Option(help="A claim of `harness ls claims`, or a TOML file.")] = ""
    scale: Annotated[str, typer.Option(help="smoke, tiny, small or paper.")] = "tiny"
    memory: Annotated[
        bool, typer.Option("--memory", help="Instead: what a run takes of a card, without loading anything.")
    ] = False
    model: Annotated[str, typer.Option(help="--memory without a claim: a preset or a model's folder.")] = ""
    algorithm: Annotated[str, typer.Option(help="--memory without a claim: names, or all.")] = "grpo,bpco"
    card: Annotated[str, typer.Option(help="--memory: sizes of cards in GiB.")] = "24,48,80"
    prompt_tokens: Annotated[int, typer.Option(min=1, help="--memory: length of a prompt.")] = 256
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="--memory: change a setting of the runs.")
    ] = None  # type: ignore[assignment]
    pilot: Annotated[str, typer.Option(help="A folder of runs of this claim, for spread and cost.")] = ""
    sigma: Annotated[float, typer.Option(help="SD between seeds of log time, where there is no pilot.")] = 0.0
    seeds: Annotated[int, typer.Option(min=0, help="Seeds an arm to plan for; 0 is the claim's own.")] = 0
    gpu_hour_usd: Annotated[float, typer.Option(help="Price of a GPU hour in dollars.")] = 0.0
    million_tokens_usd: Annotated[float, typer.Option(help="Price of a million generated tokens.")] = 0.0
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False


def plan(options: PlanOptions) -> None:
    """Say how many seeds a claim needs, what they cost, and what they cannot answer; or what fits a card."""
    if options.memory:
        _plan_memory(options)
        return
    if not options.claim:
        raise UserError("--claim: name a claim of `harness ls claims`, or give --memory with --model")
    from harness.claims.schema import load_claim
    from harness.plan import Prices, plan_table
    from harness.plan import plan as make
    from harness.report.tables import to_text
    from harness.store.reader import load_runs

    found = make(
        load_claim(options.claim),
        options.scale,
        load_runs(options.pilot) if options.pilot else (),
        sigma=options.sigma or None,
        seeds=options.seeds or None,
        prices=Prices(options.gpu_hour_usd, options.million_tokens_usd),
    )
    if options.json:
        print_json(found.to_json())
    else:
        print(to_text(plan_table(found), 110))


def _plan_memory(options: PlanOptions) -> None:
    from harness.memory import memory_tables
    from harness.plan import claim_specs, memory_answers, model_specs, preset_note
    from harness.report.tables import to_text

    try:
        cards = [float(part) for part in options.card.split(",")]
    except ValueError:
        cards = []
    if not cards or min(cards) <= 0:
        raise UserError(f"--card {options.card!r}: give sizes in GiB, e.g. 24,80")
    if options.claim:
        specs = claim_specs(options.claim, options.scale, options.settings or ())
    elif options.model:
        specs = model_specs(options.model, options.algorithm, options.settings or ())
    else:
        raise UserError("--memory: name a model with --model (harness ls models), or a claim with --claim")
    found = memory_answers(specs, cards, options.prompt_tokens)
    if options.json:
        print_json([one.to_json() for one in found])
        return
    print("\n".join(to_text(table, 126) for table in memory_tables(found)))
    if not options.claim and (note := preset_note(options.model)):
        print(note)


@dataclass(frozen=True)
class CalibrateOptions:
    """Options of `harness calibrate`."""

    estimator: Annotated[str, typer.Option(help="An estimator, or `verdict` for the rates of verdicts.")] = (
        "aft_t"
    )
    quick: Annotated[bool, typer.Option("--quick", help="500 simulated sweeps a cell instead of 4,000.")] = (
        False
    )
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False


def calibrate(options: CalibrateOptions) -> None:
    """Print an estimator's coverage and false-support rate on simulated sweeps."""
    from harness.calibrate import calibrate as run
    from harness.report.tables import to_json, to_text

    found = run(options.estimator, options.quick)
    if options.json:
        print_json(to_json(found))
    else:
        print(to_text(found, 110))


@dataclass(frozen=True)
class CompareOptions:
    """Options of `harness compare`."""

    folders: Annotated[list[str], typer.Argument(help="Run or results folders; the first is the baseline.")]
    metric: Annotated[str, typer.Option(help="A metric of the evaluations; the task's own by default.")] = ""
    threshold: Annotated[float, typer.Option(help="The level whose time is compared.")] = 0.8
    format: Annotated[str, typer.Option(help="text, md, latex, html or json.")] = "text"


def compare(options: CompareOptions) -> None:
    """Compare any two or more runs or results folders."""
    from harness.names import lookup
    from harness.report.compare import compare as run
    from harness.report.tables import FORMATS, render, to_json, to_text

    form = lookup("format", options.format, {name: name for name in ("text", *FORMATS)})
    tables = run(options.folders, metric=options.metric or None, threshold=options.threshold)
    if form == "json":
        print_json([to_json(found) for found in tables])
        return
    for found in tables:
        print(to_text(found, 110) if form == "text" else render(found, form))


@dataclass(frozen=True)
class ReportOptions:
    """Options of `harness report`."""

    folders: Annotated[list[str], typer.Argument(help="Run, results or evidence folders.")]
    format: Annotated[str, typer.Option(help="md, latex, html or json; of a study also text.")] = "md"
    out: Annotated[
        str,
        typer.Option(help="Folder for the report; `report` in the first folder of runs by default."),
    ] = ""


def report(options: ReportOptions) -> None:
    """Write a report with tables and pictures: Markdown, LaTeX, self-contained HTML or JSON.

    Of published evidence, without --out, the study table is printed: what every claim came to.
    """
    from harness.report.study import is_published, study_text

    folders = [Path(folder) for folder in options.folders]
    if not options.out and all(map(is_published, folders)):
        print(study_text(folders, options.format), end="")
        return
    from harness.report.build import report as run

    print(run(options.folders, options.format, options.out or None))


@dataclass(frozen=True)
class ArchiveOptions:
    """Options of `harness archive`."""

    out: Annotated[str, typer.Argument(help="The results folder of a finished `harness reproduce`.")]
    published: Annotated[str, typer.Option(help="Where evidence is kept.")] = "results/published"


def archive(options: ArchiveOptions) -> None:
    """Make evidence of a finished claim in results/published: tables, verdict, report, pictures."""
    from harness.archive import archive as run

    say(f"archived: {run(Path(options.out), Path(options.published))}")


@dataclass(frozen=True)
class ReadmeOptions:
    """Options of `harness readme`."""

    pages: Annotated[
        list[str], typer.Argument(help="Markdown files with generated blocks; README.md and docs by default.")
    ] = None  # type: ignore[assignment]
    published: Annotated[str, typer.Option(help="Where evidence is kept.")] = "results/published"


def readme(options: ReadmeOptions) -> None:
    """Fill the generated blocks of README.md and other pages: study table, evidence, methods of claims."""
    from harness.report.pages import pages_with_blocks, update_page

    for page in options.pages or map(str, pages_with_blocks(Path())):
        if not Path(page).is_file():
            raise UserError(f"{page!r} is not a file: name a Markdown page")
        changed = update_page(Path(page), Path(options.published))
        say(f"{page}: {'updated' if changed else 'already up to date'}")


@dataclass(frozen=True)
class TrialsOptions:
    """Options of `harness trials`."""

    folders: Annotated[list[str], typer.Argument(help="Folders that hold tuning runs.")]
    out: Annotated[str, typer.Option(help="The JSON Lines file to write.")]
    metric: Annotated[str, typer.Option(help="The metric that was tuned.")] = "compile"
    threshold: Annotated[float, typer.Option(help="Its threshold.")] = 0.8


def trials(options: TrialsOptions) -> None:
    """Log every tuning run of some folders, none left out."""
    from harness.trials import write_trials

    count = write_trials(
        map(Path, options.folders), Path(options.out), metric=options.metric, threshold=options.threshold
    )
    say(f"{options.out}: {count} trials")


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "plan", PlanOptions)(plan)
    command(app, "calibrate", CalibrateOptions)(calibrate)
    command(app, "compare", CompareOptions)(compare)
    command(app, "report", ReportOptions)(report)
    command(app, "archive", ArchiveOptions)(archive)
    command(app, "readme", ReadmeOptions)(readme)
    command(app, "trials", TrialsOptions)(trials)
