"""Measures a user's own task and says, with the figures, what the ladder suggests for it, or that nothing does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.base import Batch
from harness.claims.rules import finite, number, span
from harness.credit.measure import Bench, Lot, Measured, credited, measure, named_algorithms
from harness.credit.quality import Segments, cosine
from harness.report.tables import Table, table
from harness.stats.power import runs_for_shift
from harness.stats.rates import wilson

__all__ = ["Advice", "Facts", "advise", "findings"]

FINDINGS = Path(__file__).parent / "ladder" / "findings.json"
ARMS: Mapping[str, str] = {
    "grpo": "grpo",
    "bot_grpo": "bot_grpo",
    "bot_keep": "bot_grpo:degenerate=keep",
    "pure": "pure",
    "grpo_process": "grpo_process",
}
"""Arms of the ladder that advice is given on, as algorithms with their options."""
Gain = tuple[float, float, float]
"""An estimate and its limits."""
NOTHING = "no evidence either way"
EFFECT, SPREAD, STEPS = 1.25, 0.15, 100
NEAR_OCTAVES, NEAR_DECADES = 1.5, 2.0
RESOLVED_LEAST = 20


@dataclass(frozen=True)
class Facts:
    """What was measured on the task at its start; shares lie between 0 and 1, lengths are in tokens."""

    answers: int
    groups: int
    successes: int
    all_fail_groups: float
    all_pass_groups: float
    mean_tokens: float
    mean_steps: float
    truncated: float
    unique: float
    fractional: bool
    scored_tokens: float
    kappa: float | None
    sign_flips: float | None
    local_predicts: float | None
    local_cosine: float | None
    local_noise: float | None
    resolved_segments: int

    @property
    def success(self) -> float:
        """Success rate."""
        return self.successes / self.answers

    @property
    def success_interval(self) -> tuple[float, float]:
        """Its 95% limits (Wilson)."""
        return wilson(self.successes, self.answers)


@dataclass(frozen=True)
class Near:
    """The cell of the ladder most like the task, and how far it is."""

    cell: str
    factors: Mapping[str, float]
    octaves: float
    decades: float
    regimes: Mapping[str, Mapping[str, Any]]

    @property
    def close(self) -> bool:
        """Whether the ladder was run near enough to speak of this task."""
        return self.octaves <= NEAR_OCTAVES and self.decades <= NEAR_DECADES


@dataclass(frozen=True)
class Advice:
    """The facts, what each algorithm's credit is worth here, the ladder's word, and the conclusion in words."""

    task: str
    model: str
    facts: Facts
    quality: list[dict[str, Any]]
    gains: Mapping[str, Gain]
    near: Near | None
    verdicts: Mapping[str, str]
    sentences: list[str]
    cost: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return finite(asdict(self))


def findings(path: Path = FINDINGS) -> dict[str, Any] | None:
    """What the ladder found (phase.json of the claim credit-ladder); None where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


# --- the facts ---------------------------------------------------------------------------------------------


def facts_of(lot: Lot, truth: Segments | None, bench: Bench) -> Facts:
    """The facts of a lot of answers, with what true credit adds to them."""
    batch = lot.batch
    groups = batch.group_ids.unique()
    right = [batch.correct[batch.group_ids == g].double().mean().item() for g in groups]
    algorithm = named_algorithms([ARMS["bot_keep"]])[ARMS["bot_keep"]]
    metrics: dict[str, float] = {}
    if "token_rewards" in bench.setting.provides:
        metrics = algorithm.metrics(credited(algorithm, batch, bench.models))
    texts = {(prompt, tuple(tokens)) for prompt, tokens in zip(lot.prompts, lot.tokens, strict=True)}
    values = batch.rewards.unique()
    steps = batch.step_ids.amax(-1).double() + 1
    agreement, noise, resolved = _local_against(batch, truth)
    return Facts(
        answers=len(batch),
        groups=len(groups),
        successes=int(batch.correct.sum()),
        all_fail_groups=float(np.mean([r == 0 for r in right])),
        all_pass_groups=float(np.mean([r == 1 for r in right])),
        mean_tokens=float(batch.lengths.double().mean()),
        mean_steps=float(steps[steps > 0].mean()) if bool((steps > 0).any()) else 0.0,
        truncated=float(batch.truncated.double().mean()),
        unique=len(texts) / len(batch),
        fractional=len(values) > 2,
        scored_tokens=float((batch.scored & batch.completion_mask).sum() / batch.completion_mask.sum()),
        kappa=metrics.get("kappa"),
        sign_flips=metrics.get("frac_sign_flips"),
        local_predicts=_local_predicts(batch),
        local_cosine=agreement,
        local_noise=noise,
        resolved_segments=resolved,
    )


def _local_predicts(batch: Batch) -> float | None:
    """Probability that the mean local reward of a success exceeds that of a failure of the same prompt.

    0.5 is no better than chance, ties count half; None where no group holds both.
    """
    mask = batch.completion_mask
    mean = (batch.local_rewards.double().where(mask, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)).cpu().numpy()
    right, groups = batch.correct.cpu().numpy(), batch.group_ids.cpu().numpy()
    wins = pairs = 0.0
    for group in np.unique(groups):
        good, bad = mean[(groups == group) & right], mean[(groups == group) & ~right]
        difference = good[:, None] - bad[None, :]
        wins += float((difference > 0).sum() + 0.5 * (difference == 0).sum())
        pairs += difference.size
    return wins / pairs if pairs else None


def _local_against(batch: Batch, truth: Segments | None) -> tuple[float | None, float | None, int]:
    """Cosine of the local reward with true credit, the share of resolved segments whose sign it misses, their number."""
    if truth is None:
        return None, None, 0
    mask = batch.completion_mask
    local = batch.local_rewards.double().where(mask, 0.0).cpu().numpy()
    found = truth.means(local)
    keep = (np.abs(truth.credit) > np.maximum(2 * truth.error, 1e-12)) & (found != 0)
    w = truth.size
    norm = float((w * found**2).sum()) * float((w * (truth.credit**2 - truth.error**2)).sum())
    agreement = float((w * found * truth.credit).sum()) / math.sqrt(norm) if norm > 0 else None
    if not keep.any():
        return agreement, None, 0
    wrong = np.sign(found[keep]) != np.sign(truth.credit[keep])
    return agreement, float(np.average(wrong, weights=w[keep])), int(keep.sum())


# --- what differs from GRPO ----------------------------------------------------------------------------------


def gains_over_grpo(found: Measured) -> dict[str, Gain]:
    """Cosine of each algorithm minus GRPO's on the same answers, with a 95% jackknife interval over prompts.

    An algorithm that gives no credit at all agrees by 0.
    """
    from scipy.stats import t as student

    truth = found.truth
    if truth is None:
        return {}
    rows = {name: truth.means(a) for name, a in found.advantages.items()}
    groups = np.unique(truth.group)
    out: dict[str, Gain] = {}
    for name, a in rows.items():
        if name == "grpo" or len(groups) < 3:
            continue
        values = []
        for left in (None, *groups):
            keep = np.ones(len(truth.group), dtype=bool) if left is None else truth.group != left
            pair = [cosine(b, truth, keep) if b[keep].any() else 0.0 for b in (a, rows["grpo"])]
            if pair[0] is not None and pair[1] is not None:
                values.append(pair[0] - pair[1])
        if len(values) < len(groups) + 1:
            continue
        n, rest = len(groups), np.array(values[1:])
        half = float(student.ppf(0.975, n - 1)) * math.sqrt(
            (n - 1) / n * float(((rest - rest.mean()) ** 2).sum())
        )
        out[name] = (values[0], values[0] - half, values[0] + half)
    return out


# --- the ladder ----------------------------------------------------------------------------------------------


def nearest(facts: Facts, ladder: Mapping[str, Any] | None) -> Near | None:
    """The cell of the ladder nearest in length, start and noise, among those of the task's kind of outcome."""
    if not ladder:
        return None
    kind = "fraction" if facts.fractional else "all_right"
    length = facts.mean_steps or facts.mean_tokens
    low = max(facts.success, facts.success_interval[0], 1e-6)
    noise = facts.local_noise if facts.local_noise is not None else 0.0
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for point in ladder["points"]:
        options = point["task_options"]
        if options.get("outcome") == kind and options.get("family", "independent") == "independent":
            cells.setdefault(point["cell"], []).append(point)
    best: tuple[float, Near] | None = None
    for name, points in cells.items():
        factors = points[0]["factors"]
        octaves = abs(math.log2(max(1.0, length)) - factors["log2_steps"])
        decades = abs(math.log10(low) - factors["log10_start"]) if kind == "all_right" else 0.0
        distance = octaves + decades / 2 + 5 * abs(noise - factors["noise"])
        near = Near(name, factors, octaves, decades, {p["arm"]: p for p in points})
        if best is None or distance < best[0]:
            best = distance, near
    return best[1] if best else None


def farmed_arms(ladder: Mapping[str, Any] | None) -> list[str]:
    """Arms that collapsed with a hack flag where the local reward can be farmed."""
    points = ladder["points"] if ladder else ()
    return [
        f"{p['arm']} flagged in {percent(p['hacked'])} of runs"
        for p in points
        if p["task_options"].get("family") == "hackable" and p["hacked"]
    ]


def verdict_of(arm: str, gain: Gain | None, near: Near | None) -> str:
    """`for`, `against` or `no evidence either way`: credit here and the nearest cell of the ladder must agree."""
    here = 0
    if gain is not None:
        here = 1 if gain[1] > 0 else -1 if gain[2] < 0 else 0
    point = near.regimes.get(arm) if near is not None and near.close else None
    there = 0
    if point is not None:
        better, worse = ("wins", "only it learns"), ("loses", "too late", "stuck", "collapses")
        there = (point["regime"] in better) - (point["regime"] in worse)
    if here > 0 and there > 0:
        return "for"
    if here < 0 and there < 0:
        return "against"
    return NOTHING


def advise(
    bench: Bench, *, task: str, model: str, samples: int, continuations: int, most: int, seed: int = 0,
    ladder: Mapping[str, Any] | None = None,
) -> Advice:  # fmt: skip
    """Measures `samples` answers and, by Monte Carlo, their true credit; then compares with the ladder."""
    groups = max(1, samples // bench.setting.group_size)
    found = measure(
        bench, [ARMS[arm] for arm in ARMS], prompts=groups, samples=continuations, most=most, seed=seed,
    )  # fmt: skip
    facts = facts_of(found.lot, found.truth, bench)
    by_label = {label: arm for arm, label in ARMS.items()}
    gains = {by_label[label]: gain for label, gain in gains_over_grpo(found).items()}
    near = nearest(facts, ladder)
    farmed = farmed_arms(ladder)
    verdicts = {arm: verdict_of(arm, gains.get(arm), near) for arm in ARMS if arm != "grpo"}
    quality = [{**q.to_json(), "algorithm": by_label[q.algorithm]} for q in found.qualities]
    cost = {**found.cost.as_dict(), **confirmation(facts)}
    sentences = [
        *start_words(facts),
        *credit_words(facts, quality, gains),
        *ladder_words(facts, near),
        *conclusion(verdicts, near, gains, facts, farmed),
    ]
    sentences.append(cost_words(cost))
    return Advice(task, model, facts, quality, gains, near, verdicts, sentences, cost)


def confirmation(facts: Facts) -> dict[str, float]:
    """What it takes to settle a speed-up of EFFECT against GRPO at a spread of SPREAD between seeds."""
    seeds = runs_for_shift(math.log(EFFECT), SPREAD) or 1000
    return {
        "seeds_an_arm": seeds,
        "runs": 2 * seeds,
        "tokens_to_confirm": round(2 * seeds * STEPS * 128 * facts.mean_tokens),
    }


# --- the words -----------------------------------------------------------------------------------------------


def percent(value: float) -> str:
    """A share in words."""
    return f"{100 * value:.3g}%"


def start_words(f: Facts) -> list[str]:
    """Where the task starts."""
    low, high = f.success_interval
    dead = f.all_fail_groups + f.all_pass_groups
    out = [
        f"{f.successes} of {f.answers} answers are right ({percent(f.success)}, 95% {percent(low)} to {percent(high)}). "
        f"{percent(f.all_fail_groups)} of {f.groups} groups have no right answer and {percent(f.all_pass_groups)} no "
        f"wrong one: {percent(dead)} of the groups tell an outcome-only algorithm nothing where outcomes are all or nothing.",
        f"An answer has {number(f.mean_tokens)} tokens"
        + (f" in {number(f.mean_steps)} steps" if f.mean_steps else "")
        + f"; {percent(f.truncated)} are cut off, {percent(f.unique)} differ.",
    ]
    if f.scored_tokens == 0:
        out.append("The local reward scores no token of these answers: token credit has nothing to place.")
    else:
        words = f"The local reward scores {percent(f.scored_tokens)} of the tokens"
        if f.local_predicts is not None:
            words += f"; a right answer's mean beats a wrong one's in {percent(f.local_predicts)} of pairs (50% is chance)"
        if f.kappa is not None:
            words += f"; at weight 0.25 the outcome keeps {percent(f.kappa)} of its usual step (kappa)"
        if f.sign_flips is not None:
            words += f", and {percent(f.sign_flips)} of tokens would get credit against their outcome"
        out.append(words + ".")
    return out


def credit_words(f: Facts, quality: Sequence[Mapping[str, Any]], gains: Mapping[str, Gain]) -> list[str]:
    """How well advantages agree with true credit here."""
    known = [q for q in quality if q["cosine"] is not None]
    if not known:
        return ["True credit cannot be told from chance here: too few continuations changed the outcome."]
    parts = []
    for q in known:
        interval = (
            f" ({span_signed(q['cosine_low'], q['cosine_high'])})" if q["cosine_low"] is not None else ""
        )
        parts.append(f"{q['algorithm']} {q['cosine']:.2f}{interval}")
    out = [f"Agreement of token advantages with true credit (cosine, 1 is perfect): {', '.join(parts)}."]
    if f.local_noise is not None and f.resolved_segments >= RESOLVED_LEAST:
        out.append(
            f"On {f.resolved_segments} stretches whose true credit is clear, the local reward has the wrong sign in "
            f"{percent(f.local_noise)}."
        )
    return out


def span_signed(low: float, high: float) -> str:
    """An interval that may hold both signs."""
    return f"{low:.2f} to {high:.2f}"


def ladder_words(f: Facts, near: Near | None) -> list[str]:
    """What the ladder saw nearest to this task."""
    if near is None:
        return [
            "The ladder has no results for this kind of outcome here; run harness reproduce --claim credit-ladder."
        ]
    where = (
        f"The ladder's nearest cell is {near.cell} (H = {near.factors['steps']:g}, start success "
        f"{near.factors['start_success']:.2g}, local noise {near.factors['noise']:g})"
    )
    if not near.close:
        return [
            f"{where}, {near.octaves:.1f} doublings of length and {near.decades:.1f} decades of success away: too far "
            "to speak of this task."
        ]
    parts = []
    for arm, p in near.regimes.items():
        if arm in ARMS:
            ratio = (
                f" {number(p['estimate'])} ({span(p['low'], p['high'])})"
                if p["estimate"] and p["low"]
                else ""
            )
            parts.append(f"{arm}{ratio} {p['regime']}")
    return [f"{where}; against GRPO there: {'; '.join(parts)}."]


def conclusion(
    verdicts: Mapping[str, str], near: Near | None, gains: Mapping[str, Gain], f: Facts, farmed: Sequence[str]
) -> list[str]:
    """What follows for the choice of an algorithm and recipe."""
    out = []
    for kind in ("for", "against"):
        arms = [arm for arm, verdict in verdicts.items() if verdict == kind]
        if arms:
            figures = ", ".join(
                f"{arm} (agreement {gains[arm][0]:+.2f} over GRPO, 95% {span_signed(*gains[arm][1:])})"
                for arm in arms
            )
            out.append(
                f"Conclusion: evidence {kind} {figures}: credit here and the nearest cell of the ladder agree."
            )
    rest = [arm for arm, verdict in verdicts.items() if verdict == NOTHING]
    if out and rest:
        out.append(f"On {', '.join(rest)}: {NOTHING}.")
    if not out:
        reasons = []
        if not gains:
            reasons.append("true credit could not be compared")
        elif all(low <= 0 <= high for _, low, high in gains.values()):
            reasons.append("no algorithm's agreement with true credit differs clearly from GRPO's")
        else:
            clear = [f"{arm} {gain[0]:+.2f}" for arm, gain in gains.items() if not gain[1] <= 0 <= gain[2]]
            reasons.append(
                f"agreement differs from GRPO's ({', '.join(clear)}), but the ladder does not say that this pays here"
            )
        if near is None or not near.close:
            reasons.append("no cell of the ladder is near")
        out.append(
            f"Conclusion: {NOTHING} ({'; '.join(reasons)}). Start with GRPO and confirm any change by a claim of your own."
        )
    if f.all_fail_groups > 0.5 and f.scored_tokens:
        seen = f" (on the ladder's hackable task: {', '.join(farmed)})" if farmed else ""
        out.append(
            "Most groups have no success, so an algorithm that keeps the local reward there (bot_grpo with "
            "degenerate=keep) is driven by it alone: it can learn where GRPO cannot, and it will farm a local reward "
            f"that can be farmed{seen}. Watch length, truncation and variety (flag_hacked)."
        )
    return out


def cost_words(cost: Mapping[str, float]) -> str:
    """What this cost and what a confirmation would."""
    took = "True credit is exact here."
    if cost["continuations"]:
        took = (
            f"True credit took {cost['continuations']:,.0f} continuations, {cost['generated_tokens']:,.0f} tokens and "
            f"{cost['seconds']:.0f} s."
        )
    tokens = cost["tokens_to_confirm"] / 1e6
    return (
        f"{took} To settle a speed-up of {EFFECT:g} against GRPO at a spread of {SPREAD:g} between seeds (log scale; "
        f"measure your own with five GRPO runs) takes {cost['seeds_an_arm']:.0f} seeds an arm: {cost['runs']:.0f} runs, "
        f"about {tokens:.3g} million generated tokens at {STEPS} steps of 16 x 8 answers."
    )


def advice_table(advice: Advice) -> Table:
    """One row an algorithm: its agreement with true credit here, and what the ladder says."""
    rows = []
    for q in advice.quality:
        arm = q["algorithm"]
        gain = advice.gains.get(arm)
        point = advice.near.regimes.get(arm) if advice.near else None
        rows.append(
            (
                arm, q["cosine"], None if q["cosine_low"] is None else span_signed(q["cosine_low"], q["cosine_high"]),
                q["sign_agreement"], q["variance_explained"], q["snr"],
                None if gain is None else f"{gain[0]:+.2f} ({span_signed(*gain[1:])})",
                None if point is None else point["regime"], advice.verdicts.get(arm, "baseline"),
            )
        )  # fmt: skip
    return table(
        ("algorithm", "agreement", "95%", "signs", "explained", "SNR", "over GRPO", "ladder", "evidence"), rows,
        caption=f"{advice.task} with {advice.model}: token advantages against true credit", name="advice",
    )  # fmt: skip
