"""Builds a report on folders of runs as Markdown, LaTeX, HTML or JSON, with its pictures."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.claims.designs import growth_points
from harness.claims.measure import AXES, arm_times, curve, final_value, shown_metric, total
from harness.claims.results import Verdict
from harness.claims.rules import finite
from harness.claims.schema import Claim, PassAtKDifference, Scaling
from harness.errors import UserError
from harness.ladder.phase import CAPTIONS, pictures
from harness.names import did_you_mean
from harness.report import dynamics, plots
from harness.report.sections import Section, sections_of
from harness.report.tables import latex_escape, markdown_escape, render, to_json
from harness.stats.speedup import SpeedupResult
from harness.stats.survival import kaplan_meier
from harness.store.reader import RunRecord
from tasks.passk import pass_at_k

FORMATS = ("md", "latex", "html", "json")
SUFFIX = {"md": "md", "latex": "tex", "html": "html", "json": "json"}
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """A picture's files by suffix, and its caption, which also tells in words what it shows."""

    name: str
    caption: str
    files: tuple[Path, ...]

    def file(self, suffix: str) -> Path:
        """The file of one format; the only one of a picture that has no other."""
        return next((path for path in self.files if path.suffix == f".{suffix}"), self.files[0])


def _in_order(section: Section) -> list[RunRecord]:
    """The section's runs arm by arm as the claim lists them, so that an arm looks alike in every picture."""
    names = (
        [arm.name for arm in section.verdict.arms]
        if section.verdict
        else sorted({r.arm for r in section.runs})
    )
    return sorted(section.runs, key=lambda run: names.index(run.arm))


def _learning(section: Section, stem: Path, formats: Sequence[str]) -> Picture:
    metric, threshold = "outcome", None
    if section.verdict is not None:
        metric = shown_metric(str(section.verdict.endpoint.get("metric", "compile")))
        threshold = section.verdict.endpoint.get("threshold")
    elif any(curve(run, "compile")[0] for run in section.runs):
        metric = "compile"
    curves = []
    for run in _in_order(section):
        x, y = curve(run, metric)
        curves.append(plots.Curve(run.arm, x, y, run.seed, run.status))
    files = plots.learning_curves(curves, stem, metric=metric, threshold=threshold, formats=formats)
    seeds = f"{len(section.runs)} runs"
    return Picture(
        "learning",
        f"{metric} over optimizer steps, {seeds}: each run thin, the median of each arm bold.",
        tuple(files),
    )


def _survival(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.verdict is not None
    curves = {}
    for arm in section.verdict.arms:
        times = arm_times(arm.measured)
        if times is not None and arm.reached is not None:
            found = kaplan_meier(times)
            curves[arm.name] = (
                found.times,
                found.survival,
                list(zip(times.times, times.events, strict=True)),
            )
    if not curves:
        return None
    files = plots.survival_curves(curves, stem, formats=formats)
    return Picture(
        "survival",
        "Kaplan-Meier curves: share of runs still below the threshold; open marks are censored.",
        tuple(files),
    )


def _bar(label: str, found: SpeedupResult, *, hollow: bool = False) -> plots.Bar | None:
    if found.low is None or found.high is None or found.open_end == "both":
        return None
    return plots.Bar(label, found.estimate, found.low, found.high, hollow)


def _forest(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.verdict is not None
    from harness.claims.measure import AXES

    bars: list[plots.Bar | None] = []
    several = sum(bool(pair.speedup) for pair in section.verdict.comparisons) > 1
    for pair in section.verdict.comparisons:
        for axis, found in pair.speedup.items():
            label = f"{pair.treatment} vs {pair.baseline}, {AXES[axis]}" if several else AXES[axis]
            bars.append(_bar(label, found))
            if axis in pair.exact:
                bars.append(_bar(f"{label} (exact)", pair.exact[axis], hollow=True))
    drawn = [bar for bar in bars if bar is not None]
    caption = (
        "Speed-up with its interval on every cost axis; filled AFT-t, hollow exact; arrows are open ends."
    )
    if drawn:
        return Picture("forest", caption, tuple(plots.forest(drawn, stem, formats=formats)))
    effects = [
        plots.Bar(f"{pair.treatment} vs {pair.baseline}, {name}", found.estimate, found.low, found.high)
        for pair in section.verdict.comparisons
        for name, found in pair.effects.items()
        if found.low is not None and found.high is not None
    ]
    if not effects:
        return None
    files = plots.forest(effects, stem, null=0.0, xlabel="difference", logarithmic=False, formats=formats)
    return Picture("forest", "Differences, treatment minus baseline, with their intervals.", tuple(files))


def _frontier(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.verdict is not None
    metric = shown_metric(str(section.verdict.endpoint.get("metric", "compile")))
    points: dict[str, list[tuple[float, float]]] = {}
    for run in _in_order(section):
        cost, value = total(run, "generated_tokens"), final_value(run, metric)
        if cost is not None and value is not None:
            points.setdefault(run.arm, []).append((cost, value))
    if not points:
        return None
    files = plots.frontier(points, stem, xlabel="generated tokens", ylabel=f"final {metric}", formats=formats)
    return Picture(
        "frontier",
        f"Cost frontier: final {metric} against generated tokens; large marks are medians.",
        tuple(files),
    )


def _growth(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.verdict is not None
    assert section.claim is not None
    if not isinstance(section.claim.endpoint, Scaling):
        return None
    return growth_picture(section.claim, section.verdict, stem, formats)


def growth_picture(claim: Claim, verdict: Verdict, stem: Path, formats: Sequence[str]) -> Picture | None:
    """Cost against size of a scaling claim's runs; None where no run recorded both."""
    endpoint = claim.endpoint
    assert isinstance(endpoint, Scaling)
    found = growth_points(claim, verdict.scale, {arm.name: arm for arm in verdict.arms})
    laws = {pair.treatment: pair.effects["exponent"].estimate for pair in verdict.comparisons if pair.effects}
    if not found:
        return None
    size, cost = AXES[endpoint.size], AXES[endpoint.metric]
    files = plots.growth(
        {name: (points, laws.get(name)) for name, points in found.items()},
        stem,
        xlabel=f"{size} of a run",
        ylabel=f"{cost} of a run",
        formats=formats,
    )
    return Picture(
        "growth", f"{cost} against {size}, every run, and the power law of each algorithm.", tuple(files)
    )


def _phase(section: Section, folder: Path, key: str, formats: Sequence[str]) -> list[Picture]:
    """What a claim with cells has in place of curves, which would be dozens: a map of them, and slices through it."""
    assert section.phase is not None
    files = pictures(section.phase, folder, prefix=f"{key}-", formats=formats)
    return [
        Picture(name, f"{caption}.", tuple(path for path in files if path.stem == f"{key}-{name}"))
        for name, caption in CAPTIONS.items()
    ]


def _passk(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.claim is not None
    if not isinstance(section.claim.endpoint, PassAtKDifference):
        return None
    values: dict[str, tuple[Sequence[int], list[list[float]]]] = {}
    for run in _in_order(section):
        table = (run.evals[-1].get("problems") if run.evals else None) or {}
        fewest = min((n for n, _ in table.values()), default=0)
        ks = [k for k in section.claim.endpoint.k if k <= fewest]
        if ks:
            mean = [sum(pass_at_k(n, c, k) for n, c in table.values()) / len(table) for k in ks]
            values.setdefault(run.arm, (ks, []))[1].append(mean)
    if not values:
        return None
    return Picture(
        "passk",
        "Pass@k of every run and the mean of each arm.",
        tuple(plots.pass_curves(values, stem, formats=formats)),
    )


def _dynamics(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    assert section.verdict is not None
    assert section.claim is not None
    groups = dynamics.telling_groups(section.claim, section.verdict.scale, section.runs)
    files = dynamics.dynamics_picture(groups, dynamics.arms_of(section.claim), stem, formats)
    return Picture("dynamics", dynamics.caption(groups), tuple(files)) if files else None


def _sheet(section: Section, stem: Path, formats: Sequence[str]) -> Picture | None:
    """The screenshots that the pairs were judged by, of the first seed."""
    if not section.sheets:
        return None
    target = stem.with_suffix(".png")
    shutil.copyfile(section.sheets[0], target)
    caption = "Screenshots of the last answers to the prompts that most arms answered, one seed."
    return Picture("screenshots", caption, (target,))


def pictures_of(section: Section, folder: Path, key: str, formats: Sequence[str]) -> list[Picture]:
    """The pictures of a section, written below `folder` with names that begin with `key`."""
    if section.claim is not None and section.claim.cells:
        found = _phase(section, folder, key, formats)
        told = _dynamics(section, folder / f"{key}-dynamics", formats)
        return [*found, told] if told else found
    found = [_learning(section, folder / f"{key}-learning", formats)]
    if section.verdict is not None:
        makers = {"survival": _survival, "forest": _forest, "frontier": _frontier, "passk": _passk}
        makers["growth"] = _growth
        makers |= {"dynamics": _dynamics, "screenshots": _sheet}
        for name, make in makers.items():
            picture = make(section, folder / f"{key}-{name}", formats)
            if picture is not None:
                found.append(picture)
    return found


def to_markdown(sections: Sequence[Section], pictures: Sequence[Sequence[Picture]], base: Path) -> str:
    """The report as Markdown with its pictures beside it."""
    parts = ["# Report"]
    for section, shown in zip(sections, pictures, strict=True):
        parts.append(f"## {section.title}")
        if section.claim is not None:
            parts.append(section.claim.statement + ".")
        if section.verdict is not None:
            parts.append(f"**{section.verdict_words}.** {section.verdict.sentence}")
        parts += [f"Note: {markdown_escape(warning)}" for warning in section.warnings]
        parts += [render(found, "md").strip() for found in section.tables]
        parts += [f"{WHY}\n\n" + "\n".join(f"- {line}" for line in section.why)] if section.why else []
        parts += [f"![{p.caption}]({p.file('svg').relative_to(base).as_posix()})" for p in shown]
        parts += [render(found, "md").strip() for found in section.details]
        if section.claim is not None and section.claim.deviations:
            parts.append(
                "Deviations from the paper:\n\n" + "\n".join(f"- {d}" for d in section.claim.deviations)
            )
    return "\n\n".join(parts) + "\n"


WHY = "What the runs did, where arms differ in what was logged at every step; these are associations and prove no cause:"
PREAMBLE = r"""\documentclass[a4paper,10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\setlength{\tabcolsep}{3pt}
\begin{document}
"""


def to_latex(sections: Sequence[Section], pictures: Sequence[Sequence[Picture]], base: Path) -> str:
    """The report as a LaTeX document; needs booktabs and graphicx."""
    parts = [PREAMBLE]
    for section, shown in zip(sections, pictures, strict=True):
        parts.append(rf"\section{{{latex_escape(section.title)}}}")
        if section.claim is not None:
            parts.append(latex_escape(section.claim.statement) + ".\n")
        if section.verdict is not None:
            parts.append(
                rf"\textbf{{{latex_escape(section.verdict_words)}.}} {latex_escape(section.verdict.sentence)}"
                + "\n"
            )
        parts += [latex_escape(f"Note: {warning}") + "\n" for warning in section.warnings]
        if section.why:
            lines = "\n".join(rf"\item {latex_escape(line)}" for line in section.why)
            parts.append(f"{WHY}\n\\begin{{itemize}}\n{lines}\n\\end{{itemize}}\n")
        parts += [_fitted(render(found, "latex")) for found in (*section.tables, *section.details)]
        for picture in shown:
            path = picture.file("pdf").relative_to(base).as_posix()
            parts.append(
                "\\begin{figure}\n\\centering\n" + rf"\includegraphics[width=0.8\linewidth]{{{path}}}"
                + "\n" + rf"\caption{{{latex_escape(picture.caption)}}}" + "\n\\end{figure}\n"
            )  # fmt: skip
        if section.claim is not None and section.claim.deviations:
            items = "\n".join(rf"\item {latex_escape(d)}" for d in section.claim.deviations)
            parts.append(f"Deviations from the paper:\n\\begin{{itemize}}\n{items}\n\\end{{itemize}}\n")
        parts.append("\\clearpage\n")
    return "\n".join(parts) + "\\end{document}\n"


def _fitted(latex: str) -> str:
    """A table no wider than the text: shrunk where it is too wide, never enlarged."""
    begin, end = latex.index(r"\begin{tabular}"), latex.index(r"\end{tabular}") + len(r"\end{tabular}")
    body = latex[begin:end]
    box = rf"\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{%{chr(10)}{body}}}"
    return latex[:begin] + box + latex[end:]


def to_html(sections: Sequence[Section], pictures: Sequence[Sequence[Picture]]) -> str:
    """The report as one self-contained page: no file or address beside it is needed."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    def svg(picture: Picture, prefix: str) -> Markup:
        file = picture.file("svg")
        if file.suffix == ".png":
            data = base64.b64encode(file.read_bytes()).decode()
            return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.caption, data)
        text = file.read_text(encoding="utf-8")
        text = text[text.index("<svg") :]
        # ids are made unique, as several pictures share the page; the caption labels the figure
        text = (
            text.replace('id="', f'id="{prefix}-')
            .replace("url(#", f"url(#{prefix}-")
            .replace('href="#', f'href="#{prefix}-')
        )
        return Markup(
            text.replace(
                "<svg ", '<svg role="img" aria-label="' + str(Markup.escape(picture.caption)) + '" ', 1
            )
        )

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    shown = []
    for number, (section, own) in enumerate(zip(sections, pictures, strict=True), start=1):
        shown.append(
            {
                "key": number,
                "title": section.title,
                "statement": section.claim.statement + "." if section.claim else "",
                "verdict": section.verdict_words,
                "sentence": section.verdict.sentence if section.verdict else "",
                "why": section.why,
                "warnings": section.warnings,
                "tables": [Markup(_unique(render(t, "html"), t.name, number)) for t in section.tables],
                "details": [Markup(_unique(render(t, "html"), t.name, number)) for t in section.details],
                "pictures": [{"svg": svg(p, f"s{number}-{p.name}"), "caption": p.caption} for p in own],
                "deviations": section.claim.deviations if section.claim else (),
                "samples": section.samples,
            }
        )
    return environment.get_template("report.html.j2").render(
        title=_title(sections),
        sections=shown,
        runs=sum(len(s.runs) for s in sections),
        version=harness.__version__,
        why=WHY,
    )


def _unique(markup: str, name: str, number: int) -> str:
    return markup.replace(f'<table id="{name}">', f'<table id="{name}-{number}">', 1)


def _title(sections: Sequence[Section]) -> str:
    return sections[0].title if len(sections) == 1 else "Credit-assignment runs"


def to_data(sections: Sequence[Section]) -> dict[str, Any]:
    """The report as plain data: for each section its verdict, tables and warnings."""
    out: list[Mapping[str, Any]] = [
        {
            "title": section.title,
            "verdict": section.verdict.to_json() if section.verdict else None,
            "tables": [to_json(found) for found in (*section.tables, *section.details)],
            "warnings": list(section.warnings),
            "what_the_runs_did": list(section.why),
            "deviations": list(section.claim.deviations) if section.claim else [],
            "run_ids": [run.run_id for run in section.runs],
        }
        for section in sections
    ]
    return finite({"version": harness.__version__, "sections": out})


def report(paths: Sequence[Path | str], form: str = "md", out: Path | str | None = None) -> Path:
    """Writes a report on run or results folders; returns its main file.

    `form` is one of FORMATS. `out` is a folder, by default `report` in the first path; pictures lie in
    `pictures/` below it (none beside HTML, which holds its own, nor JSON). UserError for an unknown
    format, an empty folder, or runs whose claim definition is lost.
    """
    if form not in FORMATS:
        raise UserError(did_you_mean("format", form, FORMATS))
    if not paths:
        raise UserError("give at least one folder of runs")
    sections = sections_of(paths)
    target = Path(out) if out is not None else Path(paths[0]) / "report"
    target.mkdir(parents=True, exist_ok=True)
    main = target / f"report.{SUFFIX[form]}"
    if form == "json":
        text = json.dumps(to_data(sections), indent=2, ensure_ascii=False) + "\n"
    elif form == "html":
        with tempfile.TemporaryDirectory() as scratch:
            drawn = [
                pictures_of(s, Path(scratch), f"s{i}", ("svg",)) for i, s in enumerate(sections, start=1)
            ]
            text = to_html(sections, drawn)
    else:
        formats = ("svg",) if form == "md" else ("pdf",)
        drawn = [
            pictures_of(s, target / "pictures", f"s{i}", formats) for i, s in enumerate(sections, start=1)
        ]
        text = (to_markdown if form == "md" else to_latex)(sections, drawn, target)
    main.write_text(text, encoding="utf-8")
    return main
