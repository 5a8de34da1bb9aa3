"""Gathers runs into sections of a report: one for each claim, scale and definition, one for loose runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.claims.results import Verdict
from harness.claims.rules import WORDS
from harness.claims.schema import Claim, claim_names, load_claim, parse_claim
from harness.claims.verdict import judge
from harness.errors import UserError
from harness.evaluate.pair_records import PairRecord, folder_of_pairs, stored_pairs, stored_win_rates
from harness.ladder.phase import Phase, phase_diagram
from harness.ladder.phase import tables as phase_tables
from harness.report import dynamics
from harness.report.claim import claim_table, claim_tables
from harness.report.compare import compare_runs
from harness.report.pair_table import pair_table
from harness.report.tables import Cell, Table, table
from harness.store.reader import RunRecord, load_runs, read_lines


@dataclass(frozen=True)
class Section:
    """One part of a report; `verdict` and `claim` are None for runs that belong to no claim."""

    title: str
    runs: tuple[RunRecord, ...]
    tables: tuple[Table, ...]
    details: tuple[Table, ...]
    warnings: tuple[str, ...] = ()
    verdict: Verdict | None = None
    claim: Claim | None = None
    samples: tuple[Mapping[str, str], ...] = field(default=())
    why: tuple[str, ...] = ()
    sheets: tuple[Path, ...] = ()
    phase: Phase | None = None

    @property
    def verdict_words(self) -> str:
        """The verdict in words, capitalised; empty without a claim."""
        if self.verdict is None:
            return ""
        words = WORDS[self.verdict.verdict]
        return words[:1].upper() + words[1:]


def _stored_claim(run: RunRecord) -> Claim | None:
    """The definition kept above a run (claim.json), when it is the one that the run was made under."""
    for folder in list(run.path.resolve().parents)[:4]:
        path = folder / "claim.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            claim = parse_claim(found["definition"], str(path))
            return claim if claim.hash(run.claim.get("scale")) == run.claim.get("hash") else None
    return None


def claim_of(run: RunRecord) -> Claim:
    """The claim that a run belongs to, as it was defined before the run; UserError when it is nowhere."""
    name, scale = str(run.claim.get("name")), str(run.claim.get("scale"))
    stored = _stored_claim(run)
    if stored is not None:
        return stored
    if name in claim_names():
        claim = load_claim(name)
        if scale in claim.scales and run.claim.get("hash") in (None, claim.hash(scale)):
            return claim
    raise UserError(
        f"run {run.run_id} was made under a definition of claim {name!r} ({run.claim.get('hash')}) that is neither "
        "beside it in claim.json nor the present one: add the folder's claim.json"
    )


def _settings(runs: Sequence[RunRecord]) -> Table:
    """Every setting that some run states: one column if all agree, else the values by arm."""
    flat: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for key, value in _flatten(run.spec):
            if not key.startswith("seeds."):
                flat.setdefault(key, {}).setdefault(run.arm, set()).add(value)
    arms = list(dict.fromkeys(run.arm for run in runs))
    rows: list[tuple[Cell, ...]] = []
    for key, by_arm in sorted(flat.items()):
        cells = [", ".join(sorted(by_arm.get(arm, ()))) for arm in arms]
        same = len(set(cells)) == 1
        rows.append((key, cells[0] if same else None, *([None] * len(arms) if same else cells)))
    caption = "Settings and hyper-parameters"
    if all(row[1] is not None for row in rows):
        return table(("setting", "every arm"), [row[:2] for row in rows], caption=caption, name="settings")
    return table(("setting", "every arm", *arms), rows, caption=caption, name="settings")


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def _versions(runs: Sequence[RunRecord]) -> Table:
    """Versions and machines that the runs were made with; more than one value is shown as such."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for group in ("versions", "machine"):
            for key, value in _flatten(run.manifest.get(group) or {}):
                found.setdefault(key, set()).add(value)
    rows = [(key, ", ".join(sorted(values))) for key, values in sorted(found.items())]
    return table(("what", "version"), rows, caption="Versions", name="versions")


def mix_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Words on what makes runs of one section hard to compare: tasks, graders, models, evaluation sizes."""
    out = []
    checks = {
        "tasks": lambda r: json.dumps((r.spec.get("task") or {}).get("name", "unknown")),
        "grader versions": lambda r: json.dumps(
            (r.manifest.get("versions") or {}).get("grader", "unrecorded")
        ),
        "evaluation sizes": lambda r: ", ".join(sorted({str(row.get("n")) for row in r.evals if "n" in row})),
    }
    for what, key in checks.items():
        values = sorted({value for run in runs if (value := key(run))})
        if len(values) > 1:
            out.append(f"runs differ in {what}: {' | '.join(values)}; their figures may not be comparable")
    return out


def samples_of(runs: Sequence[RunRecord], limit: int = 2) -> tuple[Mapping[str, str], ...]:
    """A few answers of each arm, where a run folder holds `samples.jsonl` (`text`, and optionally `comment`).

    The last lines of the first run of each arm are taken.
    """
    out: list[Mapping[str, str]] = []
    seen: set[str] = set()
    for run in runs:
        rows = read_lines(run.path / "samples.jsonl", [])
        if run.arm in seen or not rows:
            continue
        seen.add(run.arm)
        for row in rows[-limit:]:
            step = row.get("optimizer_step", "?")
            out.append(
                {
                    "title": f"{run.arm} seed {run.seed}, optimizer step {step}",
                    "text": str(row.get("text", "")),
                    "comment": str(row.get("comment", "")),
                }
            )
    return tuple(out)


def claim_section(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> Section:
    """What a report says of a claim's runs at a scale."""
    notes: list[str] = []
    pairs: list[PairRecord] = []
    sheets: list[Path] = []
    if claim.endpoint.kind == "win_rate":
        pairs, place = stored_pairs(claim, scale, runs), folder_of_pairs(runs)
        sheets = sorted(place.glob("screenshots-*.png")) if place else []
        runs, notes = stored_win_rates(claim, scale, runs)
    verdict = judge(claim, scale, runs)
    groups = dynamics.telling_groups(claim, scale, runs)
    named = dynamics.pairs_of(claim, verdict)
    phase = None
    if claim.cells:
        # a row for each run of each setting would be hundreds; the manifests and Parquet tables hold them
        phase = phase_diagram(claim, scale, {arm.name: arm for arm in verdict.arms})
        tables = phase_tables(phase)
    else:
        tables = [
            replace(claim_table(verdict), notes=()),
            *(t for t in claim_tables(verdict) if t.name != "arms"),
            *([pair_table(pairs)] if pairs else []),
            dynamics.dynamics_table(verdict, runs),
        ]
    return Section(
        title=f"{claim.name} at the {scale} scale",
        runs=tuple(runs),
        tables=tuple(t for t in tables if t.rows),
        details=tuple(t for t in (_settings(runs), _versions(runs)) if t.rows),
        why=tuple(line for own in groups.values() for line in dynamics.explain(named, own)),
        sheets=tuple(sheets[:1]),
        warnings=(*mix_warnings(runs), *verdict.notes, *notes),
        verdict=verdict,
        claim=claim,
        samples=samples_of(runs),
        phase=phase,
    )


def sections_of(paths: Sequence[Path | str]) -> list[Section]:
    """The sections of a report on folders of runs; UserError when there is no run or a definition is lost.

    Runs of two definitions of one claim become two sections, never one.
    """
    runs = [run for path in paths for run in load_runs(Path(path))]
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    loose: list[RunRecord] = []
    for run in runs:
        if run.claim.get("name"):
            key = (str(run.claim["name"]), str(run.claim.get("scale")), str(run.claim.get("hash")))
            groups.setdefault(key, []).append(run)
        else:
            loose.append(run)
    out = [claim_section(claim_of(found[0]), scale, found) for (_, scale, _), found in sorted(groups.items())]
    if loose:
        by_arm: dict[str, list[RunRecord]] = {}
        for run in loose:
            by_arm.setdefault(run.arm, []).append(run)
        out.append(
            Section(
                title="Runs outside any claim", runs=tuple(loose), tables=tuple(compare_runs(by_arm)),
                details=tuple(t for t in (_settings(loose), _versions(loose)) if t.rows),
                warnings=(*mix_warnings(loose), *(p for run in loose for p in run.problems)),
            )
        )  # fmt: skip
    return out
