"""Writes what a finished claim leaves behind: verdict, tables and the learning-curve picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.claims.measure import curve, shown_metric
from harness.claims.verdict import Verdict
from harness.report.claim import claim_table, claim_tables
from harness.report.plots import Curve, learning_curves
from harness.report.tables import render, to_text
from harness.store.reader import RunRecord
from harness.store.writer import write_atomic, write_json

if TYPE_CHECKING:
    from harness.reproduce import Plan


SUMMARY_WIDTH = 100


def summary_text(verdict: Verdict) -> str:
    """The table and the sentence as the terminal shows them, at a fixed width."""
    sentence = "\n".join(textwrap.wrap(verdict.sentence, SUMMARY_WIDTH))
    return f"{to_text(claim_table(verdict), SUMMARY_WIDTH).rstrip()}\n\n{sentence}\n"


def write_report(plan: Plan, verdict: Verdict, runs: Sequence[RunRecord]) -> dict[str, str]:
    """Writes verdict.json, summary.txt, report.md, table.tex and the learning curves; their paths by what they are."""
    out = plan.out
    write_json(out / "verdict.json", verdict.to_json())
    if plan.claim.cells:
        return _write_phase(plan, verdict)
    tables = [claim_table(verdict), *claim_tables(verdict)]
    metric = shown_metric(str(verdict.endpoint["metric"]))
    curves = []
    for run in runs:
        steps, values = curve(run, metric)
        curves.append(Curve(run.arm, steps, values, run.seed))
    pictures = learning_curves(
        curves,
        out / "learning-curve",
        metric=f"{metric} rate on held-out prompts",
        threshold=verdict.endpoint.get("threshold"),
        formats=("svg", "png"),
    )
    deviations = "".join(f"- {line}\n" for line in plan.claim.deviations)
    sheets = sorted(out.glob("screenshots-*.png"))
    text = "\n\n".join(
        [
            f"# {plan.claim.name} at {plan.scale} scale",
            plan.claim.statement + ".",
            verdict.sentence,
            *(render(table, "md") for table in tables),
            *(["Notes:\n\n" + "".join(f"- {line}\n" for line in verdict.notes)] if verdict.notes else []),
            f"![Learning curves]({pictures[0].name})",
            *(f"![Screenshots of the last answers, {path.stem}]({path.name})" for path in sheets),
            "Deviations from the paper:\n\n" + deviations,
            f"Claim definition {verdict.claim_hash}, stored in claim.json before the first run.",
        ]
    )
    write_atomic(out / "summary.txt", summary_text(verdict).encode())
    write_atomic(out / "report.md", (text + "\n").encode())
    write_atomic(out / "table.tex", render(tables[0], "latex").encode())
    files = {"report": out / "report.md", "learning curve": pictures[-1], "LaTeX table": out / "table.tex"}
    files |= {path.stem.replace("screenshots-", "pictures "): path for path in sheets}
    return {name: str(Path(path)) for name, path in files.items()}


def _write_phase(plan: Plan, verdict: Verdict) -> dict[str, str]:
    """What a claim with cells leaves behind: a phase diagram in place of learning curves."""
    from harness.ladder.phase import phase_diagram, pictures, tables

    out = plan.out
    phase = phase_diagram(plan.claim, plan.scale, {arm.name: arm for arm in verdict.arms})
    write_json(out / "phase.json", phase.to_json())
    drawn = pictures(phase, out)
    shown = tables(phase)
    images = [path for path in drawn if path.suffix == ".svg"]
    text = "\n\n".join(
        [
            f"# {plan.claim.name} at {plan.scale} scale",
            plan.claim.statement + ".",
            verdict.sentence,
            *(f"![{path.stem}]({path.name})" for path in images),
            *(render(found, "md") for found in shown),
            "What was done:\n\n" + "".join(f"- {line}\n" for line in plan.claim.deviations),
            f"Claim definition {verdict.claim_hash}, stored in claim.json before the first run.",
        ]
    )
    write_atomic(out / "report.md", (text + "\n").encode())
    found = {"report": out / "report.md", "phase data": out / "phase.json"}
    found |= {path.stem.replace("-", " "): path for path in drawn if path.suffix == ".png"}
    return {name: str(path) for name, path in found.items()}
