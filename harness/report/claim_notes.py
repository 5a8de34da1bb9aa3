"""A claim's method in Markdown, from its definition alone: what is measured, between whom, by which rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.claims.measure import AXES
from harness.claims.rules import number
from harness.claims.schema import (
    Arm,
    Claim,
    Equivalence,
    Factorial,
    FinalDifference,
    PassAtKDifference,
    Scaling,
    TimeToThreshold,
    Trend,
    WinRate,
)
from harness.report.tables import Column, Table, markdown_escape, to_markdown


def _threshold(endpoint: Any) -> str:
    return (
        f"{endpoint.metric} reaches {endpoint.threshold:.0%} on held-out prompts (read off an {endpoint.rule} fit once "
        f"{endpoint.sustain} evaluations in a row are above)"
    )


def _time(endpoint: TimeToThreshold) -> str:
    return (
        f"The cost, in {AXES[endpoint.axis]}, at which {_threshold(endpoint)}; ratio baseline over treatment."
    )


def _last(endpoint: FinalDifference | Equivalence) -> str:
    when = (
        f"the mean of the last {endpoint.last} evaluations" if endpoint.last > 1 else "at the last evaluation"
    )
    if endpoint.at_equal:
        return f"once both arms have spent equally much ({AXES[endpoint.at_equal]})"
    return when


def _metric(metric: str) -> str:
    part, slash, whole = metric.partition("/")
    return f"{part} as a share of {whole}" if slash else metric


def _final(endpoint: FinalDifference) -> str:
    return f"Difference of {_metric(endpoint.metric)}, {_last(endpoint)}; treatment minus baseline."


def _equivalence(endpoint: Equivalence) -> str:
    return (
        f"Whether the difference of {_metric(endpoint.metric)}, {_last(endpoint)}, lies within "
        f"±{number(endpoint.margin)} (two one-sided tests, so the 90% interval)."
    )


def _passk(endpoint: PassAtKDifference) -> str:
    ks = ", ".join(map(str, endpoint.k))
    return f"Difference of Pass@k of {endpoint.metric} at the end, for k = {ks}, named before the first run."


def _win(endpoint: WinRate) -> str:
    return "Share of pairs in which a judge prefers the treatment; each pair is shown in both orders, ties count half."


def _factorial(endpoint: Factorial) -> str:
    one, two = endpoint.factors
    return f"Main effects of {one} and {two}, and their interaction, on the steps at which {_threshold(endpoint)}."


def _scaling(endpoint: Scaling) -> str:
    size, cost = AXES[endpoint.size], AXES[endpoint.metric]
    return (
        f"The exponent b in {cost} = a × ({size})^b; the claim is b = {endpoint.exponent:g}, "
        f"within ±{number(endpoint.margin)}."
    )


def _trend(endpoint: Trend) -> str:
    def words(slope: Any) -> str:
        cells = ", ".join(slope.cells)
        direction = "rises" if slope.sign > 0 else "falls"
        return f"{slope.treatment}'s speed-up {direction} with {slope.factor} (over {cells})"

    asked = "; ".join(words(slope) for slope in endpoint.slopes if slope.primary)
    return f"How the speed-up over the baseline, to where {_threshold(endpoint)}, changes along a factor: {asked}."


ENDPOINTS: Mapping[type, Callable[[Any], str]] = {
    TimeToThreshold: _time,
    FinalDifference: _final,
    Equivalence: _equivalence,
    PassAtKDifference: _passk,
    WinRate: _win,
    Factorial: _factorial,
    Scaling: _scaling,
    Trend: _trend,
}


def endpoint_words(endpoint: Any) -> str:
    """What is measured, in a sentence."""
    return ENDPOINTS[type(endpoint)](endpoint)


def rule_words(claim: Claim) -> str:
    """What decides, and what would count for and against."""
    out = []
    pairs = [pair for pair in claim.comparisons if pair.primary]
    if pairs:
        out.append("Decided by " + ", ".join(f"{p.treatment} vs {p.baseline}" for p in pairs) + ".")
    elif not isinstance(claim.endpoint, Trend | Scaling | Factorial):
        out.append(f"Decided by every other arm against {claim.baseline}.")
    if isinstance(claim.endpoint, Factorial):
        out.append(f"Decided by the main effect of {claim.endpoint.factors[0]}.")
    if isinstance(claim.endpoint, TimeToThreshold | Factorial):
        out.append(f"A speed-up below {number(claim.smallest_effect)} counts as none.")
    elif isinstance(claim.endpoint, FinalDifference | PassAtKDifference | WinRate):
        out.append(f"A difference below {number(claim.smallest_effect)} counts as none.")
    if claim.published.value is not None:
        out.append(f"Published: {number(claim.published.value)} ({claim.published.reading}).")
    else:
        out.append(f"Published: {claim.published.reading}.")
    if claim.secondary:
        out.append("Beside it, never deciding: " + " ".join(endpoint_words(e) for e in claim.secondary))
    return " ".join(out)


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
    )


def _own(arm: Arm) -> dict[str, Any]:
    """What an arm has of its own."""
    own: dict[str, Any] = {**arm.options, **arm.train, **arm.task_options}
    if arm.recipe:
        own["recipe"] = arm.recipe
    if arm.model:
        own["model"] = arm.model
    if arm.horizon_fraction != 1:
        own["share of the steps"] = arm.horizon_fraction
    return own


def _own_words(claim: Claim, arm: Arm) -> str:
    """An arm's own settings; those that some scales add are named with these scales."""
    base = _own(arm)
    added: dict[str, list[str]] = {}
    for scale in claim.scales:
        here = next((a for a in claim.arms_at(scale) if a.name == arm.name), None)
        more = {k: v for k, v in _own(here).items() if base.get(k) != v} if here else {}
        if more:
            added.setdefault(_settings(more), []).append(scale)
    return "; ".join(
        filter(None, [_settings(base), *(f"at {', '.join(s)}: {words}" for words, s in added.items())])
    )


def arms_table(claim: Claim) -> Table:
    """The arms that are more than an algorithm as it is."""
    columns = (Column("arm"), Column("algorithm"), Column("its own settings"))
    rows = [(arm.name, arm.algorithm, _own_words(claim, arm) or None) for arm in claim.arms]
    return Table(columns, tuple(row for row in rows if row[2] or row[0] != row[1]), "", (), "arms")


def _arms_words(claim: Claim) -> str:
    found = arms_table(claim)
    shown = {row[0] for row in found.rows}
    rest = ", ".join(arm.name for arm in claim.arms if arm.name not in shown)
    table = to_markdown(found).strip() if found.rows else ""
    plain = f"Arms that are algorithms as they are: {rest}." if rest else ""
    return "\n\n".join(filter(None, [table, plain]))


def _of_arms(claim: Claim, scale: str, words: Callable[[Mapping[str, Any]], str]) -> str:
    """A setting of most arms, and that of the others by name."""
    common = claim.scale(scale).train
    out = [words(common)]
    if not claim.cells:
        for arm in claim.arms_at(scale):
            own = words({**common, **arm.train})
            if own != out[0]:
                out.append(f"{arm.name} {own}")
    return "; ".join(out)


def scales_table(claim: Claim) -> Table:
    """What each scale runs."""
    columns = (
        Column("scale"), Column("model"), Column("task"), Column("optimizer steps", "right"),
        Column("prompts × answers a step"), Column("learning rate"), Column("evaluated"), Column("seeds an arm", "right"),
    )  # fmt: skip
    rows = []
    for name, scale in claim.scales.items():
        models = list(dict.fromkeys(arm.model or scale.model for arm in claim.arms_at(name)))
        rows.append(
            (
                name, " and ".join(models), scale.task, scale.horizon,
                _of_arms(claim, name, lambda t: f"{t.get('prompts_per_step', '?')} × {t.get('group_size', '?')}"),
                _of_arms(claim, name, lambda t: f"{t.get('learning_rate', float('nan')):g}"),
                f"{scale.eval_prompts} prompts every {scale.eval_every} steps",
                len(claim.seeds(scale=name)),
            )
        )  # fmt: skip
    return Table(columns, tuple(rows), "", (), "scales")


def cell_words(claim: Claim) -> str:
    """The settings in which a claim with cells compares its arms; empty for others."""
    if not claim.cells:
        return ""
    return f"Settings ({len(claim.cells)}): " + ", ".join(cell.name for cell in claim.cells) + "."


def claim_notes(claim: Claim) -> str:
    """The method of one claim in Markdown: statement, endpoint, rule, arms, scales, deviations."""
    parts = [
        f"**Statement** ({markdown_escape(claim.source)}): {markdown_escape(claim.statement)}.",
        f"**Measured.** {endpoint_words(claim.endpoint)}",
        f"**Rule.** {rule_words(claim)}",
        _arms_words(claim),
        cell_words(claim),
        to_markdown(scales_table(claim)).strip(),
        "Where it departs from the source:\n\n" + "\n".join(f"- {line}" for line in claim.deviations),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
