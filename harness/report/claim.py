"""The tables of a verdict: what each arm did, and the speed-ups with their intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from harness.claims.cost import Prices, break_even
from harness.claims.measure import AXES, SIDE_METRICS, metric_of, shown_metric, total
from harness.claims.rules import WORDS, number, span
from harness.claims.verdict import ArmResult, Verdict
from harness.claims.words import signed_span
from harness.report.tables import Cell, Column, Table
from harness.stats.speedup import SpeedupResult

HEADINGS = {
    "compile_raw": "parses",
    "on_task": "on task",
    "mean_tokens": "mean tokens",
    "truncated": "truncated",
    "unique_share": "unique",
}
WIDEST = 3
"""With more arms than this, a claim's table has them in rows."""
MATTER = (
    "reached",
    "optimizer steps",
    "generated tokens",
    "training seconds",
    "on task",
    "mean tokens",
    "unique",
)
OF_A_THRESHOLD = frozenset({"reached", "censored", "reached at", "between", "remark"})
UNITS = {"judge_usd": "US$", "train_seconds": "s"}


def _right(name: str) -> Column:
    return Column(name, "right")


def amount(value: float | None) -> str:
    """A cost in a cell: three significant digits, large counts as k or M."""
    if value is None or not math.isfinite(value):
        return number(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{number(value / (1e3 if unit == 'k' else size))}{unit}"
    return number(value)


def _horizon(arm: ArmResult, axis: str) -> str:
    """What stands in place of a median that was not reached: more than the cost at the horizon."""
    ends = [
        m.crossings[axis].time for m in arm.measured if axis in m.crossings and not m.crossings[axis].event
    ]
    return f">{amount(min(ends))}" if ends else "–"


def _spent(arm: ArmResult, axis: str) -> str:
    """The median of what the runs of an arm had spent at their end."""
    spent = [s for m in arm.measured if (s := total(m.run, axis)) is not None]
    return amount(statistics.median(spent)) if spent else "–"


def arm_table(verdict: Verdict) -> Table:
    """One row an arm: seeds reached and censored, median time on each axis, final metrics."""
    axes = [axis for axis in AXES if any(axis in arm.time for arm in verdict.arms)]
    scaling = verdict.endpoint.get("kind") == "scaling"
    if scaling:
        axes = [str(verdict.endpoint[name]) for name in ("size", "metric")]
    metric = shown_metric(str(verdict.endpoint.get("metric", "compile")))
    side = [name for name in SIDE_METRICS if any(arm.final.get(name) is not None for arm in verdict.arms)]
    columns = [Column("arm"), _right("reached"), _right("censored")]
    columns += [_right(AXES[axis]) for axis in axes]
    columns += [_right(f"final {metric}"), *(_right(HEADINGS.get(name, name)) for name in side)]
    rows: list[tuple[Cell, ...]] = []
    for arm in verdict.arms:
        reached = None if arm.reached is None else f"{arm.reached}/{len(arm.seeds)}"
        row: list[Cell] = [arm.name, reached, arm.censored]
        if scaling:
            row += [_spent(arm, axis) for axis in axes]
        else:
            row += [
                amount(t) if (t := arm.time.get(axis)) is not None else _horizon(arm, axis) for axis in axes
            ]
        row += [arm.final.get(metric), *(arm.final.get(name) for name in side)]
        rows.append(tuple(row))
    threshold = verdict.endpoint.get("threshold")
    goal = "F"
    if isinstance(threshold, float):
        goal = f"Cost to {metric} {threshold:.0%} (median over seeds) and f"
    elif scaling:
        goal = "Cost of a whole run (median over seeds) and f"
    notes = [_status_note(arm) for arm in verdict.arms if set(arm.statuses) - {"completed"}]
    caption = f"{goal}inal metrics (mean over seeds)"
    return _without_empty(Table(tuple(columns), tuple(rows), caption, tuple(notes), "arms"))


def _without_empty(table: Table) -> Table:
    """The table without those columns on reaching a threshold that are empty, as where a claim has none."""
    kept = [
        i
        for i, column in enumerate(table.columns)
        if column.name not in OF_A_THRESHOLD or any(row[i] not in (None, "") for row in table.rows)
    ]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _status_note(arm: ArmResult) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(arm.statuses.items()))
    return f"{arm.name}: {counts}; all of them count."


def interval(found: SpeedupResult | None) -> str:
    """An interval in a cell, or why there is none."""
    if found is None:
        return "–"
    return span(found.low, found.high) if found.has_interval else f"none: {found.reason}"


def speedup_table(verdict: Verdict) -> Table:
    """One row for each comparison and axis: estimate, interval, exact check, runs and events."""
    columns = (
        Column("comparison"), Column("cost axis"), _right("speed-up"), Column("interval (AFT-t)"),
        Column("interval (exact)"), _right("n"), _right("events"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for pair in verdict.comparisons:
        for axis, found in pair.speedup.items():
            rows.append(
                (
                    f"{pair.treatment} vs {pair.baseline}", AXES[axis], found.estimate, interval(found),
                    interval(pair.exact.get(axis)), _pair(found.n), _pair(found.events),
                )
            )  # fmt: skip
    return Table(
        columns, tuple(rows), "Speed-up: baseline cost over treatment cost", _notes(verdict), "speedups"
    )


def _pair(values: tuple[int, int]) -> str:
    return f"{values[1]} vs {values[0]}"


def _notes(verdict: Verdict) -> tuple[str, ...]:
    out = []
    for pair in verdict.comparisons:
        main = pair.speedup.get("optimizer_steps")
        if main is None:
            continue
        words = f"{pair.treatment} vs {pair.baseline}: {100 * pair.level:.3g}% intervals; rule {main.rule}, "
        words += f"evaluated every {main.cadence:g} optimizer steps, confirmable up to step {main.horizon:g}"
        others = [
            f"{rule} {number(found.estimate)} ({interval(found)})"
            for rule, found in pair.by_rule.items()
            if found.estimate is not None
        ]
        words += f"; by rule: {', '.join(others)}" if others else ""
        mean = pair.restricted_mean.get("optimizer_steps")
        if mean is not None and mean.estimate is not None:
            words += f"; restricted-mean ratio (another estimand) {number(mean.estimate)} ({interval(mean)})"
        p_value = pair.detail.get("exact_logrank_p")
        words += f"; exact log-rank p {number(p_value)}" if p_value is not None else ""
        bracket = pair.detail.get("interval_censored") or {}
        if bracket:
            limits = (
                span(bracket["low"], bracket["high"]) if bracket["high"] is not None else bracket["reason"]
            )
            words += f"; with interval-censored times {limits}"
        out.append(words + ".")
    return tuple(out)


def effect_table(verdict: Verdict) -> Table:
    """One row for each comparison of final values: difference, interval, exact check, runs."""
    columns = (
        Column("comparison"), Column("effect"), _right("difference"), Column("interval (t)"),
        Column("interval (exact)"), _right("level"), _right("n"), Column("verdict"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for pair in verdict.comparisons:
        for name, found in pair.effects.items():
            exact = pair.exact_effects.get(name)
            rows.append(
                (
                    f"{pair.treatment} vs {pair.baseline}", name, found.estimate, signed_span(found),
                    signed_span(exact) if exact else None, f"{100 * found.level:.3g}%", _pair(found.n),
                    WORDS[pair.detail.get("by_effect", {}).get(name, pair.verdict)],
                )
            )  # fmt: skip
    return Table(columns, tuple(rows), "Differences: treatment minus baseline", (), "effects")


def cost_table(verdict: Verdict, prices: Prices | None = None) -> Table:
    """What each comparison saves on the way to the threshold, and the break-even price of a judged completion.

    Only for verdicts that are decided on another axis than optimizer steps.
    """
    columns = (
        Column("comparison"), _right("generated tokens saved"), _right("training seconds saved"),
        _right("completions judged"), _right("break-even, tokens each"), _right("break-even, US$ each"), Column("remark"),
    )  # fmt: skip
    arms = {arm.name: arm for arm in verdict.arms}
    rows: list[tuple[Cell, ...]] = []
    for pair in verdict.comparisons:
        if verdict.endpoint.get("axis", "optimizer_steps") == "optimizer_steps" or not pair.speedup:
            continue
        found = break_even(arms[pair.baseline], arms[pair.treatment], prices)
        rows.append(
            (
                f"{pair.treatment} vs {pair.baseline}", found.saved_tokens, found.saved_seconds,
                found.judged_completions, found.tokens, found.usd, found.reason,
            )
        )  # fmt: skip
    note = "A judged completion that costs more than the break-even eats up the saving; negative: nothing is saved."
    return Table(columns, tuple(rows), "Break-even price of the local reward", (note,), "cost")


def claim_tables(verdict: Verdict) -> list[Table]:
    """The tables of a verdict, in the order they are shown; those without a row are left out."""
    makers = (arm_table, speedup_table, cost_table, effect_table, run_table)
    found = [make(verdict) for make in makers]
    return [table for table in found if table.rows]


def _arms_in_rows(verdict: Verdict, arms: Table) -> Table:
    """The claim's table where its arms are too many for columns: one row each, the quantities that matter most."""
    kept = [
        i for i, c in enumerate(arms.columns) if i == 0 or c.name in MATTER or c.name.startswith("final ")
    ]
    names = {
        "optimizer steps": "steps", "generated tokens": "tokens", "training seconds": "seconds", "mean tokens": "length",
    }  # fmt: skip
    columns = [
        replace(arms.columns[i], name=names.get(arms.columns[i].name, arms.columns[i].name)) for i in kept
    ]
    rows = tuple(tuple(row[i] for i in kept) for row in arms.rows)
    caption = f"{verdict.claim} at the {verdict.scale} scale: {WORDS[verdict.verdict]}. {arms.caption}"
    return Table(tuple(columns), rows, caption, (*arms.notes, *_notes(verdict)), "claim")


def claim_table(verdict: Verdict) -> Table:
    """A verdict in one table: the cost to the threshold on each axis with its speed-up, then final metrics.

    The speed-up columns are those of the first primary comparison; `speedup_table` holds all.
    """
    arms = arm_table(verdict)
    if len(verdict.arms) > WIDEST:
        return _arms_in_rows(verdict, arms)
    pair = next((p for p in verdict.comparisons if p.speedup), None)
    axes = {AXES[axis]: axis for axis in AXES}
    rows: list[tuple[Cell, ...]] = []
    for i, column in enumerate(arms.columns[1:], start=1):
        axis = axes.get(column.name)
        found = pair.speedup.get(axis) if pair and axis else None
        extra: tuple[Cell, ...] = (None, None, None)
        if pair and axis and found:
            extra = (found.estimate, interval(found), interval(pair.exact.get(axis)))
        rows.append((column.name, *(row[i] for row in arms.rows), *extra))
    if pair is None:
        rows = [row[:-3] for row in rows]
    level = f"{100 * pair.level:.3g}%" if pair else "95%"
    columns = (
        Column("quantity"), *(_right(arm.name) for arm in verdict.arms),
        _right("speed-up"), Column(f"{level} (AFT-t)"), Column(f"{level} (exact)"),
    )  # fmt: skip
    if pair is None:
        columns = columns[:-3]
    caption = f"{verdict.claim} at the {verdict.scale} scale: {WORDS[verdict.verdict]}. {arms.caption}"
    return Table(columns, tuple(rows), caption, (*arms.notes, *_notes(verdict)), "claim")


def run_table(verdict: Verdict) -> Table:
    """One row for each run, unreached, failed and diverged ones included."""
    metric = shown_metric(str(verdict.endpoint.get("metric", "compile")))
    columns = (
        Column("arm"), _right("seed"), Column("status"), _right("reached at"), Column("between"),
        _right(f"last {metric}"), Column("remark"), Column("run"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for arm in verdict.arms:
        for m in arm.measured:
            found = m.crossings.get("optimizer_steps")
            last = metric_of(m.run.evals[-1], metric) if m.run.evals else None
            at = None if found is None else f"{found.time:.1f}" if found.event else f">{found.time:.0f}"
            between = f"{found.lower:.0f} to {found.upper:.0f}" if found and found.event else None
            rows.append(
                (
                    arm.name,
                    m.run.seed,
                    m.run.status,
                    at,
                    between,
                    last,
                    found.note if found else "",
                    m.run.run_id,
                )
            )
    return _without_empty(Table(columns, tuple(rows), "Every run", (), "runs"))
