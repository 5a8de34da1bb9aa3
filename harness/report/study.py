"""The study table: what every published claim came to, read from the committed evidence alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.claims.measure import AXES
from harness.claims.rules import SUPPORTED, WORDS, number, span, win_rate
from harness.claims.schema import CONTROL, Claim, Equivalence, Factorial, Scaling, Trend, WinRate, parse_claim
from harness.claims.words import signed_limits
from harness.errors import UserError
from harness.names import did_you_mean
from harness.report.tables import FORMATS, Column, Table, render
from harness.store.reader import ARCHIVE, run_directories
from harness.store.writer import read_json

OWN_QUESTION = "our own question"
PAPER = "arXiv 2610.09804"
Pair = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """One folder of published evidence: the definition that was fixed first, and the verdict."""

    folder: Path
    claim: Claim
    scale: str
    verdict: Mapping[str, Any]

    @property
    def date(self) -> str:
        """The day it was published: the name of its folder."""
        return self.folder.name


@dataclass(frozen=True)
class StudyRow:
    """What one published claim came to, in words; `report` is the path of its report."""

    claim: str
    statement: str
    scale: str
    seeds: str
    result: tuple[str, ...]
    verdict: str
    won: str
    to_settle: str
    date: str
    report: str


def is_evidence(folder: Path) -> bool:
    """Whether a folder is one claim's published evidence."""
    return all((folder / name).is_file() for name in ("verdict.json", "claim.json", *ARCHIVE))


def evidence_below(folder: Path) -> list[Evidence]:
    """The newest evidence of each claim and scale at or below a folder: the paper's claims first."""
    newest: dict[Path, Path] = {}
    places = [folder] if is_evidence(folder) else [p.parent for p in sorted(folder.rglob("verdict.json"))]
    for place in filter(is_evidence, places):
        newest[place.parent] = max(place, newest.get(place.parent, place))
    found = []
    for place in newest.values():
        kept = read_json(place / "claim.json")
        claim = parse_claim(kept["definition"], str(place / "claim.json"))
        found.append(Evidence(place, claim, kept["scale"], read_json(place / "verdict.json")))
    return sorted(
        found,
        key=lambda e: (e.claim.source == OWN_QUESTION, e.claim.source != PAPER, e.claim.name, e.scale),
    )


def _level(level: float) -> str:
    return "" if math.isclose(level, 0.95) else f"{100 * level:.3g}%: "


def _ratio(pair: Pair, axis: str) -> list[str]:
    found = pair["speedup"].get(axis)
    if found is None:
        return []
    # null stands for an end that is open, or for no interval at all
    ends = {"low": 0.0, "high": math.inf}
    low, high = (
        ends[side] if found[side] is None and found["open_end"] in (side, "both") else found[side]
        for side in ("low", "high")
    )
    limits = f"{_level(found['level'])}{span(low, high)}"
    if found["estimate"] is None:
        exact = pair["exact"].get(axis) or {}
        reached = (
            f"{found['events'][1]}/{found['n'][1]} against {found['events'][0]}/{found['n'][0]} reached it"
        )
        low, high = exact.get("low"), exact.get("high")
        bound = span(low, math.inf if high is None else high) if low else span(0.0, high)
        return [f"no ratio: {reached}; exact {bound}"]
    what = "" if axis == "optimizer_steps" else f" in {AXES[axis]}"
    return [f"speed-up{what} {number(found['estimate'])} ({limits})"]


def _effects(pair: Pair, claim: Claim) -> list[str]:
    out = []
    for name, found in pair["effects"].items():
        won = isinstance(claim.endpoint, WinRate)
        estimate, low, high = (
            win_rate(found[key]) if won else found[key] for key in ("estimate", "low", "high")
        )
        if isinstance(claim.endpoint, Trend):
            out.append(_growth(pair, estimate, low, high))
            continue
        word = "win rate" if won else name
        sign = "+" if not won and not isinstance(claim.endpoint, Scaling) and (estimate or 0) > 0 else ""
        limits = f"{_level(found['level'])}{signed_limits(low, high)}"
        out.append(f"{word} {sign}{number(estimate)} ({limits})")
    return out


def _growth(pair: Pair, *values: float | None) -> str:
    """How the speed-up changes along a factor: a slope of its logarithm, told as a ratio."""
    estimate, low, high = (None if value is None else math.exp(value) for value in values)
    factor = pair["detail"].get("factor", "the factor")
    return f"speed-up times {number(estimate)} ({signed_limits(low, high)}) for 1 more of {factor}"


def pair_words(pair: Pair, claim: Claim) -> str:
    """One comparison in a line: who against whom, every estimate with its interval."""
    found = _ratio(pair, getattr(claim.endpoint, "axis", "optimizer_steps")) or _effects(pair, claim)
    scaling = isinstance(claim.endpoint, Scaling)
    names = pair["treatment"] if scaling else f"{pair['treatment']} vs {pair['baseline']}"
    if isinstance(claim.endpoint, Equivalence) and found:
        found = [*found, f"margin ±{number(claim.endpoint.margin)}"]
    if len(found) > 2:
        return "\n".join([f"{names}:", *found])
    return f"{names}: {', '.join(found) or pair['reason'] or 'no estimate'}"


def _is_bot(name: str, claim: Claim) -> bool:
    return any(arm.name == name and arm.algorithm == "bot_grpo" for arm in claim.arms)


def _bot_pairs(evidence: Evidence) -> list[Pair]:
    """Comparisons of a BoT-GRPO arm with another algorithm: the primary ones, or else those beside them."""
    claim = evidence.claim
    if isinstance(claim.endpoint, Trend | Scaling):
        return []
    found = [
        pair
        for pair in evidence.verdict["comparisons"]
        if _is_bot(pair["treatment"], claim) and not _is_bot(pair["baseline"], claim)
    ]
    return [pair for pair in found if pair["primary"]] or found


NOT_WON = {"reversed": "no: it lost", "refuted": "no", "inconclusive": "not shown"}


def _lost(pair: Pair) -> str:
    """Why a comparison was not won, effect by effect where they differ."""
    by_effect = pair["detail"].get("by_effect") or {}
    if len(set(by_effect.values())) > 1:
        kinds: dict[str, list[str]] = {}
        for name, verdict in by_effect.items():
            kinds.setdefault(NOT_WON.get(verdict, WORDS[verdict]), []).append(name)
        return "; ".join(f"{words} ({', '.join(names)})" for words, names in kinds.items())
    return NOT_WON.get(pair["verdict"], WORDS[pair["verdict"]])


def won_words(evidence: Evidence) -> str:
    """Whether BoT-GRPO won its comparisons with other algorithms; a dash where there is none."""
    pairs = _bot_pairs(evidence)
    if not pairs:
        return _won_cells(evidence)
    if evidence.scale == "smoke":
        return "not testable"
    wins = sum(pair["verdict"] in SUPPORTED for pair in pairs)
    if len(pairs) == 1:
        return "yes" if wins else _lost(pairs[0])
    if wins == len(pairs):
        return f"yes, {wins} of {wins}"
    reasons = dict.fromkeys(_lost(pair) for pair in pairs if pair["verdict"] not in SUPPORTED)
    return f"{wins} of {len(pairs)}; else {', '.join(reasons)}"


def _won_cells(evidence: Evidence) -> str:
    """In how many settings of a phase diagram the arm `bot_grpo` was faster, and slower."""
    path = evidence.folder / "phase.json"
    points = read_json(path)["points"] if path.is_file() else []
    own = [point["regime"] for point in points if point["arm"] == "bot_grpo"]
    if not own:
        return "–"
    faster = sum(regime in ("wins", "only it learns") for regime in own)
    slower = sum(regime in ("loses", "too late", "stuck", "collapses") for regime in own)
    return f"faster in {faster} of {len(own)} settings, slower or never there in {slower}"


def settle_words(evidence: Evidence) -> str:
    """How many seeds an arm would settle an inconclusive verdict; a dash where it is settled."""
    if evidence.verdict["verdict"] not in ("inconclusive", "mechanism_inconclusive"):
        return "–"
    pairs = [p for p in evidence.verdict["comparisons"] if p["primary"] and p["verdict"] == "inconclusive"]
    known = [p["seeds_to_settle"] for p in pairs if p["seeds_to_settle"] is not None]
    if pairs and len(known) == len(pairs):
        return f"about {max(known)} seeds an arm"
    return "another design: no number of seeds up to 1,000 would"


def verdict_words(evidence: Evidence) -> str:
    """The verdict, and by what comparisons where they differ."""
    words = WORDS[evidence.verdict["verdict"]]
    primary = [pair for pair in evidence.verdict["comparisons"] if pair["primary"]]
    kinds = dict.fromkeys(pair["verdict"] for pair in primary)
    if len(kinds) < 2:
        return words
    parts = [f"{sum(p['verdict'] == kind for p in primary)} {WORDS[kind]}" for kind in kinds]
    return f"{words} ({', '.join(parts)})"


def study_row(evidence: Evidence) -> StudyRow:
    """One claim's row."""
    claim, verdict = evidence.claim, evidence.verdict
    shown = [pair for pair in verdict["comparisons"] if pair["primary"]]
    if isinstance(claim.endpoint, Factorial):  # the second factor is half of the question
        shown += [p for p in verdict["comparisons"] if p["treatment"] == f"{claim.endpoint.factors[1]} on"]
    lines = [pair_words(pair, claim) for pair in shown]
    for pair in verdict["comparisons"]:
        if pair["treatment"].endswith(CONTROL):
            lines.append(f"A/A control, {pair_words(pair, claim)}: {WORDS[pair['verdict']]}")
    counts = sorted({len(arm["seeds"]) for arm in verdict["arms"]})
    return StudyRow(
        claim=claim.name,
        statement=claim.statement,
        scale=evidence.scale,
        seeds=f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        result=tuple(lines),
        verdict=verdict_words(evidence),
        won=won_words(evidence),
        to_settle=settle_words(evidence),
        date=evidence.date,
        report=(evidence.folder / "report.md").as_posix(),
    )


NOTES = (
    "A speed-up above 1 favours the arm named first. Intervals are 95%, or at the level given where several comparisons "
    "share one error rate (Holm). The tiny scale can pass or fail a mechanism check; it neither supports nor refutes a "
    "paper's claim.",
)


def study_table(rows: Sequence[StudyRow], name: Callable[[StudyRow], str] = lambda row: row.claim) -> Table:
    """The study table; `name` is how a claim is named, for example with a link to its report."""
    columns = (
        Column("claim", width="4.2cm"), Column("BoT-GRPO won?", width="1.9cm"),
        Column("result (95% interval)", width="5.4cm"), Column("verdict", width="2.4cm"),
        Column("what would settle it", width="2.2cm"), Column("scale, seeds an arm", width="1.7cm"),
    )  # fmt: skip
    body = [
        (
            f"{name(row)}: {row.statement}", row.won, "\n".join(row.result), row.verdict, row.to_settle,
            f"{row.scale}, {row.seeds}\n{row.date}",
        )
        for row in rows
    ]  # fmt: skip
    return Table(columns, tuple(body), "", NOTES, "study")


def is_published(folder: Path) -> bool:
    """Whether a folder holds published evidence and no run besides."""
    return folder.is_dir() and not run_directories(folder) and bool(evidence_below(folder))


def study_text(folders: Sequence[Path], form: str) -> str:
    """The study table of published evidence in a format of `harness report`; UserError for another."""
    rows = [study_row(found) for folder in folders for found in evidence_below(folder)]
    if form not in FORMATS:
        raise UserError(did_you_mean("format", form, FORMATS))
    if form == "json":
        return json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    if form == "md":
        return render(study_table(rows, lambda row: f"[{row.claim}]({row.report})"), "md")
    return render(study_table(rows), form)
