"""`harness benchmark`: how fast, against TRL, against the machine, and with size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.common import command, print_json, say
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.benchmark.setting import Setting

SUMMARY = ("ratio_to_trl", "ratio_low", "ratio_high", "sweep_ratio_to_trl", "steps")
"""What a part's result also shows at the top of the JSON object."""
SWEEP_STEPS = 24


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options of `harness benchmark`."""

    against: Annotated[str, typer.Option(help="trl: one run of ours against GRPOTrainer, in turn.")] = ""
    sweep: Annotated[bool, typer.Option("--sweep", help="Seeds an hour on all cores, ours and TRL's.")] = (
        False
    )
    floor: Annotated[bool, typer.Option("--floor", help="Share of the machine's peak; decode floor.")] = False
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Time and memory against sizes, with exponents.")
    ] = False
    scoring: Annotated[bool, typer.Option("--scoring", help="Components a second, and bare esbuild.")] = False
    advantages: Annotated[bool, typer.Option("--advantages", help="Advantages against tokens.")] = False
    variants: Annotated[bool, typer.Option("--variants", help="What was tried, against its default.")] = False
    interface: Annotated[bool, typer.Option("--interface", help="Help, lists, a report on 200 runs.")] = False
    trl_python: Annotated[str, typer.Option(help="A Python that has TRL 1.16; this one by default.")] = ""
    model: Annotated[str, typer.Option(help="A model of `harness ls models`, or a folder.")] = "react-tiny"
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs of --against.")] = 2
    steps: Annotated[
        int, typer.Option(min=0, help=f"Optimizer steps a run; 0: 12, of --sweep {SWEEP_STEPS}.")
    ] = 0
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of --sweep.")] = 4
    threads: Annotated[int, typer.Option(min=0, help="Threads of either side in --against; 0: all.")] = 0
    quick: Annotated[bool, typer.Option("--quick", help="Sizes that only prove that everything runs.")] = (
        False
    )
    out: Annotated[str, typer.Option(help="Keep each part as a JSON file here, e.g. results/benchmark.")] = ""
    write: Annotated[str, typer.Option(help="Fill this Markdown file's benchmark blocks from --out.")] = ""
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def _setting(options: BenchmarkOptions) -> Setting:
    from harness.benchmark.setting import Setting, cores

    made = Setting(model=options.model, threads=options.threads or cores())
    if options.steps:
        made = replace(made, optimizer_steps=options.steps)
    return made.quick() if options.quick else made


def _of_sweep(setting: Setting, options: BenchmarkOptions) -> Setting:
    return replace(setting, optimizer_steps=options.steps or (3 if options.quick else SWEEP_STEPS))


def _against(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.against import against_trl
    from harness.benchmark.side import trl_python, trl_version

    python = trl_python(options.trl_python)
    found = against_trl(setting, python, rounds=options.rounds, say=say)
    return {**found, "trl_version": trl_version(python)}


def _sweep(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.side import trl_python, trl_version
    from harness.benchmark.sweep import sweep

    python = trl_python(options.trl_python)
    seeds = min(options.seeds, 2) if options.quick else options.seeds
    found = sweep(_of_sweep(setting, options), python, seeds=seeds, say=say)
    return {**found, "trl_version": trl_version(python)}


def _floor(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.floor import floor
    from harness.benchmark.side import in_worker

    return in_worker(floor, replace(setting, threads=1), quick=options.quick)


def _scaling(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.scaling import scaling

    few = replace(setting, optimizer_steps=3, warm_steps=0, prompts_per_step=min(4, setting.prompts_per_step))
    return scaling(few, quick=options.quick, say=say)


def _scoring(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.scoring import scoring

    return scoring(quick=options.quick)


def _advantages(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.advantages import advantages

    return advantages(quick=options.quick)


def _variants(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.side import in_worker
    from harness.benchmark.variants import pages, variants

    one = replace(setting, threads=1)
    found = in_worker(variants, one, quick=options.quick)
    return {**found, "rows": found["rows"] + pages(one, quick=options.quick)}


def _interface(setting: Setting, options: BenchmarkOptions) -> dict[str, Any]:
    from harness.benchmark.interface import interface

    return interface(quick=options.quick)


PARTS: dict[str, Callable[[Setting, BenchmarkOptions], dict[str, Any]]] = {
    "against": _against,
    "sweep": _sweep,
    "floor": _floor,
    "scaling": _scaling,
    "scoring": _scoring,
    "advantages": _advantages,
    "variants": _variants,
    "interface": _interface,
}


def _wanted(options: BenchmarkOptions) -> list[str]:
    """The parts asked for; UserError when there is none, or an unknown opponent."""
    from harness.names import did_you_mean

    if options.against not in ("", "trl"):
        raise UserError(did_you_mean("--against", options.against, ["trl"]))
    wanted = [name for name in PARTS if getattr(options, name)]
    if not wanted and not options.write:
        flags = ", ".join(f"--{name}" for name in PARTS if name != "against")
        raise UserError(f"benchmark: nothing to measure; give --against trl, {flags}, or --write FILE")
    if options.write and not options.out:
        raise UserError("--write: give --out FOLDER too, where the results are, e.g. results/benchmark")
    if "against" in wanted or "sweep" in wanted:
        # before anything long starts
        from harness.benchmark.side import trl_python

        trl_python(options.trl_python)
    return wanted


def benchmark(options: BenchmarkOptions) -> None:
    """Measure speed: against TRL, the machine's peak, and sizes. A benchmark, not a test."""
    from harness.benchmark.document import machine, save, tables_of, to_plain, write_document

    wanted = _wanted(options)
    if wanted:
        from harness.setup import prepare_task

        setting = _setting(options)
        prepare_task(setting.task)
        result: dict[str, Any] = {
            "machine": machine(),
            "setting": setting.to_json(),
            "quick": options.quick,
        }
        for name in wanted:
            found = to_plain(PARTS[name](setting, options))
            result = {**result, **{key: found[key] for key in SUMMARY if key in found}, name: found}
            if options.out:
                say(f"kept: {save(name, result, Path(options.out))}")
        if options.json:
            print_json(result)
        else:
            from harness.report.tables import to_text

            for made in tables_of(result):
                print(to_text(made, 110))
    if options.write:
        changed = write_document(Path(options.write), Path(options.out))
        say(f"{options.write}: {'updated' if changed else 'already up to date'}")


def add(app: typer.Typer) -> None:
    """Adds this command."""
    command(app, "benchmark", BenchmarkOptions)(benchmark)
