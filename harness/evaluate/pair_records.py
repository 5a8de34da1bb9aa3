"""Judged pairs of a claim's runs as records (`pairs.jsonl`), and what they say of its win rates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path

from harness.claims.rules import number
from harness.claims.schema import Claim, WinRate
from harness.errors import UserError
from harness.evaluate.win_rate import win_rate
from harness.store.reader import RunRecord, read_lines
from harness.store.writer import write_atomic

PAIRS = "pairs.jsonl"
Cell = tuple[str, str, int]
"""Treatment, baseline and seed: the pairs of two runs."""


@dataclass(frozen=True)
class PairRecord:
    """One judged pair: the treatment's score (1 won, 0 lost, 1/2 tied; None if not judged), and by whom.

    `agreed` says whether both orders gave the same answer; `optimizer_steps` are those of the checkpoints
    of treatment and baseline. `judge_calls` and `judge_usd` are what both orders together cost: 0 where no
    judge was needed (a missing or an equal picture), where a script judged, or from a cache.
    """

    treatment: str
    baseline: str
    seed: int
    prompt_id: str
    score: float | None
    agreed: bool
    status: str
    judge: str
    optimizer_steps: tuple[int, int]
    judge_calls: int = 0
    judge_usd: float = 0.0

    @property
    def cell(self) -> Cell:
        """The runs that it is a pair of."""
        return self.treatment, self.baseline, self.seed


def read_pairs(path: Path) -> list[PairRecord]:
    """The pairs of a file, none where it is absent; UserError for a line that is not one."""
    problems: list[str] = []
    rows = read_lines(path, problems)
    names = {field.name for field in fields(PairRecord)}
    needed = {field.name for field in fields(PairRecord) if field.default is MISSING}
    if problems or any(not needed <= set(row) <= names for row in rows):
        reason = problems[0] if problems else "a line lacks a field, or has one too many"
        raise UserError(f"{path}: {reason}: delete the file, and the same command judges the pairs again")
    return [PairRecord(**{**row, "optimizer_steps": tuple(row["optimizer_steps"])}) for row in rows]


def write_pairs(path: Path, pairs: Iterable[PairRecord]) -> None:
    """Writes all pairs at once, so that a crash never leaves half a cell."""
    lines = [json.dumps(asdict(pair), ensure_ascii=False, allow_nan=False) + "\n" for pair in pairs]
    write_atomic(path, "".join(lines).encode())


def run_of(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> dict[tuple[str, int], RunRecord]:
    """The runs by arm and by the seed that they share with the runs they are paired with."""
    offsets = {arm.name: arm.seed_offset for arm in claim.arms_at(scale)}
    return {(run.arm, run.seed - offsets.get(run.arm, 0)): run for run in runs}


def cells(claim: Claim, scale: str, runs: Sequence[RunRecord]) -> list[Cell]:
    """Every comparison at every seed of which there is a run, seed by seed."""
    seeds = sorted({seed for _, seed in run_of(claim, scale, runs)})
    return [(pair.treatment, pair.baseline, s) for s in seeds for pair in claim.comparisons_at(scale)]


def end_steps(runs: Mapping[tuple[str, int], RunRecord], cell: Cell) -> tuple[int, int]:
    """The optimizer steps that both runs of a cell ended at; -1 where there is none."""
    ends = [runs.get((arm, cell[2])) for arm in cell[:2]]
    first, second = (int(run.evals[-1]["optimizer_step"]) if run and run.evals else -1 for run in ends)
    return first, second


def current_pairs(
    pairs: Sequence[PairRecord], runs: Mapping[tuple[str, int], RunRecord], judge: str
) -> list[PairRecord]:
    """The pairs by one judge that are of the runs as they are now."""
    return [p for p in pairs if p.judge == judge and p.optimizer_steps == end_steps(runs, p.cell)]


def folder_of_pairs(runs: Sequence[RunRecord]) -> Path | None:
    """The folder above some runs (or their evidence) that holds judged pairs."""
    above = list(runs[0].path.resolve().parents)[:4] if runs else []
    return next((folder for folder in above if (folder / PAIRS).is_file()), None)


def stored_pairs(
    claim: Claim, scale: str, runs: Sequence[RunRecord], folder: Path | None = None
) -> list[PairRecord]:
    """The pairs of the runs as they are now, by the judge asked last; from a folder above them by default."""
    place = folder or folder_of_pairs(runs)
    kept = read_pairs(place / PAIRS) if place else []
    return current_pairs(kept, run_of(claim, scale, runs), kept[-1].judge) if kept else []


def stored_win_rates(
    claim: Claim, scale: str, runs: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """The runs with the win rates kept in a folder above them, by the judge asked last, and their notes."""
    if folder_of_pairs(runs) is None:
        return list(runs), []
    pairs = stored_pairs(claim, scale, runs)
    return with_win_rates(claim, scale, runs, pairs), pair_notes(claim, scale, pairs)


def with_win_rates(
    claim: Claim, scale: str, runs: Sequence[RunRecord], pairs: Sequence[PairRecord]
) -> list[RunRecord]:
    """The runs with the win rates of their pairs among the metrics of their last evaluation."""
    assert isinstance(claim.endpoint, WinRate)
    scores: dict[Cell, list[float]] = {}
    for pair in pairs:
        if pair.score is not None:
            scores.setdefault(pair.cell, []).append(pair.score)
    treated = run_of(claim, scale, runs)
    rates: dict[int, dict[str, float]] = {}
    for (treatment, baseline, seed), found in scores.items():
        run = treated.get((treatment, seed))
        if run is not None and run.evals:
            metric = claim.endpoint.metric.format(baseline=baseline)
            rates.setdefault(id(run), {})[metric] = sum(found) / len(found)
    return [_with_metrics(run, rates[id(run)]) if id(run) in rates else run for run in runs]


def _with_metrics(run: RunRecord, metrics: Mapping[str, float]) -> RunRecord:
    last = run.evals[-1]
    return replace(
        run, evals=[*run.evals[:-1], {**last, "metrics": {**(last.get("metrics") or {}), **metrics}}]
    )


def pair_notes(claim: Claim, scale: str, pairs: Sequence[PairRecord]) -> list[str]:
    """A line for each comparison: its win rate over all pairs with the clustered interval, and who judged."""
    judge = pairs[-1].judge if pairs else ""
    notes = []
    for comparison in claim.comparisons_at(scale):
        names = (comparison.treatment, comparison.baseline)
        own = [pair for pair in pairs if pair.cell[:2] == names]
        if not own:
            notes.append(f"{names[0]} against {names[1]}: no pair was judged")
            continue
        found = win_rate(own, judge=judge)
        if found.estimate is None:
            notes.append(f"{names[0]} against {names[1]}: {found.reason}, {found.failed} failed")
            continue
        limits = (
            f"none: {found.reason}" if found.low is None else f"{number(found.low)} to {number(found.high)}"
        )
        notes.append(
            f"{names[0]} against {names[1]}: win rate {number(found.estimate)} (95% {limits}, clustered by prompt "
            f"and seed; {found.pairs} pairs, {found.ties:.0%} ties, {found.disagreed:.0%} decided by the order shown, "
            f"{found.failed} not judged)"
        )
    if pairs:
        how = win_rate(pairs, judge=judge).note
        notes.append(f"pair judge: {judge}" + (f", {how}" if how else ""))
    return notes
