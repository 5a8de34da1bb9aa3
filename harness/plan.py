"""What a claim would take: seeds for direction and size from a pilot's spread, runs, tokens, hours, dollars."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.claims.arms import arm_results
from harness.claims.cost import Prices
from harness.claims.measure import arm_times, total
from harness.claims.results import ArmResult
from harness.claims.rules import finite, number
from harness.claims.schema import Claim, Equivalence, PassAtKDifference, TimeToThreshold
from harness.errors import UserError
from harness.memory import CardAnswer, answer
from harness.models import PRESETS
from harness.models.source import shape_of
from harness.report.tables import Cell, Table, table
from harness.spec import RunSpec, apply_settings, parse_run
from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.compare import smallest_p
from harness.stats.power import runs_for_equivalence, runs_for_shift, runs_for_width
from harness.stats.speedup import Times, log_bounds
from harness.store.reader import RunRecord

__all__ = ["ClaimPlan", "Prices", "Spread", "plan", "plan_table", "sigma_range"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """SD of one arm's log times (or final values) with its 95% range, and where it comes from."""

    sigma: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class ClaimPlan:
    """Seeds an arm for each question at the central, lower and upper spread (None: more than 1000)."""

    claim: str
    scale: str
    spread: Spread | None
    seeds: Mapping[str, tuple[int | None, int | None, int | None]]
    planned: int
    smallest_p: float
    runs: int
    per_run: Mapping[str, float | None]
    totals: Mapping[str, float | None]
    answers: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        spread = None if self.spread is None else vars(self.spread)
        return finite({**vars(self), "spread": spread, "seeds": {k: list(v) for k, v in self.seeds.items()}})


def sigma_range(sigma: float, df: int) -> tuple[float, float]:
    """95% range of a standard deviation estimated with `df` degrees of freedom (chi-squared)."""
    from scipy.stats import chi2

    tail = (1 - CONFIDENCE) / 2
    return sigma * math.sqrt(df / chi2.ppf(1 - tail, df)), sigma * math.sqrt(df / chi2.ppf(tail, df))


def _pilot_times(arms: Mapping[str, ArmResult]) -> tuple[float, int] | None:
    """Log-SD pooled over the pilot's arms by a censored fit with one mean an arm, and its df."""
    usable: list[Times] = []
    for arm in arms.values():
        times = arm_times(arm.measured)
        if times is not None and times.n_events >= 1 and len(times) >= 2:
            usable.append(times)
    events = sum(t.n_events for t in usable)
    df = events - len(usable)
    if df < 1:
        return None
    bounds = [log_bounds(t) for t in usable]
    low, high = (np.concatenate([b[i] for b in bounds]) for i in (0, 1))
    x = np.repeat(np.eye(len(usable)), [len(t) for t in usable], axis=0)
    try:
        fit = fit_lognormal(low, high, x)
    except DegenerateFit:
        return None
    return fit.sigma * math.sqrt(events / df), df


def _pilot_values(arms: Mapping[str, ArmResult]) -> tuple[float, int] | None:
    """SD of final values pooled over the pilot's arms, and its df."""
    groups = [[m.value for m in arm.measured if m.value is not None] for arm in arms.values()]
    squares = [(float(np.var(g, ddof=1)) * (len(g) - 1), len(g) - 1) for g in groups if len(g) > 1]
    df = sum(d for _, d in squares)
    return (math.sqrt(sum(s for s, _ in squares) / df), df) if df else None


def spread_of(claim: Claim, arms: Mapping[str, ArmResult], sigma: float | None) -> Spread | None:
    """The spread to plan with: given, or from the pilot; blinded, as arms have a mean each."""
    if sigma is not None:
        if not (math.isfinite(sigma) and sigma > 0):
            raise UserError(f"sigma={sigma}: give the log-SD between seeds, above 0")
        return Spread(sigma, sigma, sigma, "given")
    timed = hasattr(claim.endpoint, "threshold")
    found = _pilot_times(arms) if timed else _pilot_values(arms)
    if found is None or found[0] == 0:
        return None
    low, high = sigma_range(*found)
    runs = sum(len(arm.seeds) for arm in arms.values())
    return Spread(found[0], low, high, f"pilot of {runs} runs")


def _questions(claim: Claim) -> dict[str, Any]:
    """What can be asked, and the function of sigma that gives the seeds an arm for it."""
    published, least = claim.published.value, claim.smallest_effect
    if isinstance(claim.endpoint, Equivalence):
        margin = claim.endpoint.margin
        return {f"equivalence within +-{margin:g}": lambda s: runs_for_equivalence(margin, s)}
    if not hasattr(claim.endpoint, "threshold"):
        effect = published or 2 * least
        out = {f"a difference of {effect:g}": lambda s: runs_for_shift(effect, s)}
        out[f"no gain of {least:g} if there is none"] = lambda s: runs_for_shift(least, s)
        return out
    ratio = published or 1.5
    out = {f"direction if the ratio is {ratio:g}": lambda s: runs_for_shift(math.log(ratio), s)}
    out["direction if the ratio is 1.3"] = lambda s: runs_for_shift(math.log(1.3), s)
    out[f"no gain of {least:g} if there is none"] = lambda s: runs_for_shift(math.log(least), s)
    out[f"size (upper/lower {claim.size_width:g})"] = lambda s: runs_for_width(s, claim.size_width)
    return out


def _per_run(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """Mean cost of a pilot run on each axis that it recorded."""
    out: dict[str, float | None] = {}
    for axis in ("completions", "generated_tokens", "train_seconds", "judge_calls", "judge_usd"):
        found = [value for run in runs if (value := total(run, axis)) is not None]
        out[axis] = float(np.mean(found)) if found else None
    return out


def _answers(claim: Claim, planned: int, seeds: Mapping[str, Sequence[int | None]], p: float) -> list[str]:
    """Plain words on what the planned number of seeds can and cannot show."""
    out = []
    for question, (central, _, worst) in seeds.items():
        if central is None:
            out.append(f"{question}: cannot be answered with up to 1000 seeds an arm at this spread")
        elif worst is not None and worst <= planned:
            out.append(f"{question}: {planned} seeds an arm are enough, also at the upper end of the spread")
        elif central <= planned:
            out.append(
                f"{question}: {planned} seeds an arm are enough at the central spread, not at its upper end"
            )
        else:
            out.append(f"{question}: {planned} seeds an arm are too few; {central} are needed")
    family = sum(pair.primary for pair in claim.comparisons) or 1
    if isinstance(claim.endpoint, PassAtKDifference):
        family *= len(claim.endpoint.k)
    if p >= 0.05 / family:
        out.append(
            f"the exact check cannot reject with {planned} seeds an arm: its smallest p is {number(p)}, "
            f"and {number(0.05 / family)} is needed"
        )
    if isinstance(claim.endpoint, TimeToThreshold) and claim.published.value is not None:
        out.append(
            f"no number of seeds shows 'at least {claim.published.value:g}' if the truth is exactly that; the "
            "plan asks for the direction and for a tight interval around it"
        )
    return out


def plan(
    claim: Claim,
    scale: str,
    pilot: Sequence[RunRecord] = (),
    *,
    sigma: float | None = None,
    seeds: int | None = None,
    prices: Prices | None = None,
) -> ClaimPlan:
    """What the claim would take at a scale, from pilot runs (or a given log-SD between seeds).

    The spread is estimated with a mean of its own for each arm, so that planning does not look at the
    difference. Costs are the pilot's means a run; without a pilot only completions are known.
    """
    prices = prices or Prices()
    chosen = claim.scale(scale)
    planned = seeds or chosen.seeds or claim.default_seeds
    arms = arm_results(
        claim, scale, [run for run in pilot if run.arm in {a.name for a in claim.arms_at(scale)}]
    )
    spread = spread_of(claim, arms, sigma)
    needed: dict[str, tuple[int | None, int | None, int | None]] = {}
    if spread is not None:
        for question, seeds_for in _questions(claim).items():
            needed[question] = (seeds_for(spread.sigma), seeds_for(spread.low), seeds_for(spread.high))
    count = planned * len(claim.arms_at(scale))
    per_run = _per_run(pilot)
    if per_run["completions"] is None:
        per_run["completions"] = claim.completions_a_seed(scale) / len(claim.arms_at(scale))
    totals = {axis: None if value is None else value * count for axis, value in per_run.items()}
    hours, tokens = totals["train_seconds"], totals["generated_tokens"]
    totals["hours"] = None if hours is None else hours / 3600
    priced = [
        None if hours is None else hours / 3600 * prices.gpu_hour_usd,
        None if tokens is None else tokens / 1e6 * prices.million_tokens_usd,
        totals["judge_usd"],
    ]
    totals["usd"] = sum(p for p in priced if p) or None
    p = smallest_p(planned, planned, paired_arms=claim.paired)
    notes = (
        [] if spread is not None else ["no spread: give --sigma or a pilot with two or more seeds that reach"]
    )
    return ClaimPlan(
        claim.name, scale, spread, needed, planned, p, count, per_run, totals,
        tuple(_answers(claim, planned, needed, p)), tuple(notes),
    )  # fmt: skip


def plan_table(found: ClaimPlan) -> Table:
    """The plan as one table, the plain answers as its notes."""

    def seeds(value: int | None) -> Cell:
        return ">1000" if value is None else value

    rows: list[tuple[Cell, ...]] = [
        (question, seeds(central), seeds(low), seeds(high))
        for question, (central, low, high) in found.seeds.items()
    ]
    spread = found.spread
    words = (
        "no spread known"
        if spread is None
        else (
            f"SD between seeds {number(spread.sigma)} (95% {number(spread.low)} to {number(spread.high)}, {spread.source})"
        )
    )
    totals = ", ".join(
        f"{name.replace('_', ' ')} {number(value)}" for name, value in found.totals.items() if value
    )
    return table(
        ("question (80% power, two-sided 5%)", "seeds an arm", "at the low spread", "at the high spread"),
        rows,
        caption=f"Plan of {found.claim} at {found.scale} scale: {found.runs} runs, {found.planned} seeds an arm; {words}",
        notes=(*found.answers, f"smallest exact p {number(found.smallest_p)}; in all {totals}", *found.notes),
        name="plan",
    )  # fmt: skip


def claim_specs(name: str, scale: str, settings: Sequence[str] = ()) -> dict[str, RunSpec]:
    """One run of each arm of a claim at a scale, with settings changed."""
    from harness.claims.schema import load_claim
    from harness.reproduce import run_spec

    claim = load_claim(name)
    found = {arm.name: run_spec(claim, scale, arm, claim.first_seed) for arm in claim.arms_at(scale)}
    return {
        arm: parse_run(apply_settings(spec.model_dump(mode="json"), settings)) for arm, spec in found.items()
    }


def model_specs(model: str, algorithms: str, settings: Sequence[str] = ()) -> dict[str, RunSpec]:
    """One run of each named algorithm (or of `all`) on a model, with its preset's settings, then the given ones."""
    from harness.registry import algorithms as registered

    names = sorted(registered()) if algorithms == "all" else [a for a in algorithms.split(",") if a]
    preset = PRESETS.get(model)
    own = [f"{key}={json.dumps(value)}" for key, value in (preset.settings if preset else {}).items()]
    return {
        name: parse_run(
            apply_settings({"algorithm": {"name": name}, "model": {"name": model}}, [*own, *settings])
        )
        for name in names
    }


def preset_note(model: str) -> str:
    """The settings that `model_specs` adds, as options of `harness train`; "" where there are none."""
    preset = PRESETS.get(model)
    own = [f"--set {key}={json.dumps(value)}" for key, value in (preset.settings if preset else {}).items()]
    return f"with the preset's settings, to be given to harness train: {' '.join(own)}" if own else ""


def memory_answers(
    specs: Mapping[str, RunSpec], cards: Sequence[float], prompt_tokens: int
) -> list[CardAnswer]:
    """What each run takes of each card (GiB); UserError for a model whose sizes are not known here."""
    from harness.train.build import build_algorithm

    found = []
    for name, spec in specs.items():
        shape = shape_of(spec.model.name)
        if shape is None:
            raise UserError(
                f"model.name={spec.model.name!r}: its sizes are not known without loading it; name a preset, or a "
                "folder with its config.json"
            )
        requires = build_algorithm(spec).requires
        for card in sorted(cards):
            one = answer(shape, spec, requires, card, prompt_tokens)
            found.append(replace(one, plan=replace(one.plan, algorithm=name)))
    return found
