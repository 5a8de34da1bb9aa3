"""Writes what a finished claim leaves behind: verdict, tables and the learning-curve picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.claims.measure import curve, shown_metric
from harness.claims.schema import Claim, Scaling
from harness.claims.verdict import Verdict
from harness.evaluate.pair_records import PAIRS, stored_pairs
from harness.ladder.phase import CAPTIONS
from harness.report import dynamics
from harness.report.build import growth_picture
from harness.report.claim import claim_table, claim_tables
from harness.report.pair_table import pair_table
from harness.report.plots import Curve, learning_curves
from harness.report.tables import Table, render, to_text
from harness.store.reader import RunRecord
from harness.store.writer import write_atomic, write_json

if TYPE_CHECKING:
    from harness.reproduce import Plan


SUMMARY_WIDTH = 100


def summary_text(verdict: Verdict, table: Table | None = None) -> str:
    """The table and the sentence as the terminal shows them, at a fixed width."""
    sentence = "\n".join(textwrap.wrap(verdict.sentence, SUMMARY_WIDTH))
    shown = to_text(table or claim_table(verdict), SUMMARY_WIDTH)
    return "\n".join(line.rstrip() for line in f"{shown.rstrip()}\n\n{sentence}\n".split("\n"))


def write_report(plan: Plan, verdict: Verdict, runs: Sequence[RunRecord]) -> dict[str, str]:
    """Writes what a finished claim leaves behind into its results folder; see write_files."""
    return write_files(plan.claim, plan.scale, plan.out, verdict, runs)


def write_files(
    claim: Claim, scale: str, out: Path, verdict: Verdict, runs: Sequence[RunRecord]
) -> dict[str, str]:
    """Writes verdict.json, summary.txt, report.md, table.tex and pictures; their paths by what they are."""
    write_json(out / "verdict.json", verdict.to_json())
    if claim.cells:
        tables, drawn = _phase(claim, scale, out, verdict)
    else:
        tables = [claim_table(verdict), *claim_tables(verdict)]
        drawn = {**_growth(claim, out, verdict), **_curves(claim, out, verdict, runs)}
    pairs = stored_pairs(claim, scale, runs, out) if (out / PAIRS).is_file() else []
    if pairs:
        tables.append(pair_table(pairs))
    why, more = _why(claim, scale, out, verdict, runs)
    drawn |= more
    sheets = {path.stem.replace("screenshots-", "pictures "): path for path in out.glob("screenshots-*.png")}
    pictures = [*drawn.items(), *sorted(sheets.items())]
    text = "\n\n".join(
        [
            f"# {claim.name} at {scale} scale",
            claim.statement + ".",
            verdict.sentence,
            *(f"![{_alt(path)}]({path.name})" for name, path in pictures if name not in more),
            *(render(table, "md").strip() for table in tables if table.name != "runs"),
            *why,
            *(render(table, "md").strip() for table in tables if table.name == "runs"),
            *(["Notes:\n\n" + "\n".join(f"- {line}" for line in verdict.notes)] if verdict.notes else []),
            "Deviations from the paper:\n\n" + "\n".join(f"- {line}" for line in claim.deviations),
            f"Claim definition {verdict.claim_hash}, stored in claim.json before the first run.",
        ]
    )
    write_atomic(out / "summary.txt", summary_text(verdict, tables[0] if claim.cells else None).encode())
    write_atomic(out / "report.md", (text + "\n").encode())
    write_atomic(out / "table.tex", render(tables[0], "latex").encode())
    files = {"report": out / "report.md", "LaTeX table": out / "table.tex", **dict(pictures)}
    return {name: str(Path(path)) for name, path in files.items()}


def _alt(path: Path) -> str:
    """What a picture shows, for those who cannot see it."""
    words = {
        "learning-curve": "Learning curves, every seed",
        "growth": "Cost against size, every run",
        **CAPTIONS,
    }
    sheet = f"Screenshots of the last answers, {path.stem.removeprefix('screenshots-')}"
    return words.get(path.stem, sheet)


def _growth(claim: Claim, out: Path, verdict: Verdict) -> dict[str, Path]:
    """What a scaling claim is about: cost against size."""
    if not isinstance(claim.endpoint, Scaling):
        return {}
    picture = growth_picture(claim, verdict, out / "growth", ("svg", "png"))
    return {"growth": picture.file("png")} if picture else {}


def _curves(claim: Claim, out: Path, verdict: Verdict, runs: Sequence[RunRecord]) -> dict[str, Path]:
    """The learning curves, arms in the claim's order."""
    metric = shown_metric(str(verdict.endpoint["metric"]))
    order = dynamics.arms_of(claim)
    curves = []
    for run in sorted(runs, key=lambda run: order.index(run.arm)):
        steps, values = curve(run, metric)
        curves.append(Curve(run.arm, steps, values, run.seed))
    pictures = learning_curves(
        curves,
        out / "learning-curve",
        metric=f"{metric} rate on held-out prompts",
        threshold=verdict.endpoint.get("threshold"),
        formats=("svg", "png"),
    )
    return {"learning curve": pictures[-1]}


def _why(
    claim: Claim, scale: str, out: Path, verdict: Verdict, runs: Sequence[RunRecord]
) -> tuple[list[str], dict[str, Path]]:
    """The report's section on what the runs did on the way, with its picture; nothing where nothing was logged."""
    groups = dynamics.telling_groups(claim, scale, runs)
    every = [run for own in groups.values() for run in own]
    drawn = dynamics.dynamics_picture(groups, dynamics.arms_of(claim), out / "dynamics", ("png",))
    if not drawn:
        return [], {}
    pairs = dynamics.pairs_of(claim, verdict)
    lines = [line for own in groups.values() for line in dynamics.explain(pairs, own)]
    # runs of different settings share no steps to take means over
    table = "" if claim.cells else render(dynamics.dynamics_table(verdict, every), "md").strip()
    parts = [
        "## What the runs did",
        "Where arms differ in what was logged at every step. These are associations: they suggest why an arm was "
        "faster or slower, and prove no cause.",
        "\n".join(f"- {line}" for line in lines),
        f"![{dynamics.caption(groups)}]({drawn[-1].name})",
        dynamics.caption(groups),
        table,
    ]
    return [part for part in parts if part], {"dynamics": drawn[-1]}


def _phase(claim: Claim, scale: str, out: Path, verdict: Verdict) -> tuple[list[Table], dict[str, Path]]:
    """What a claim with cells has in place of learning curves: a phase diagram, its data in phase.json."""
    from harness.ladder.phase import phase_diagram, pictures, tables

    phase = phase_diagram(claim, scale, {arm.name: arm for arm in verdict.arms})
    write_json(out / "phase.json", phase.to_json())
    drawn = pictures(phase, out)
    return tables(phase), {p.stem.replace("-", " "): p for p in drawn if p.suffix == ".png"}
