"""What judging pairs of screenshots took: a row a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evaluate.pair_records import PairRecord
from harness.report.tables import Column, Table


def pair_table(pairs: Sequence[PairRecord]) -> Table:
    """Pairs, how many needed no judge, calls, US dollars, and pairs that no word was had on.

    Each pair that needs a judge is shown twice, once in each order.
    """
    columns = (
        Column("comparison"), Column("judge"), Column("pairs", "right"), Column("ties", "right"),
        Column("decided by the order", "right"), Column("not judged", "right"), Column("judge calls", "right"),
        Column("judge US dollars", "right"),
    )  # fmt: skip
    rows = []
    for names in dict.fromkeys(pair.cell[:2] for pair in pairs):
        own = [pair for pair in pairs if pair.cell[:2] == names]
        rows.append(
            (
                f"{names[0]} vs {names[1]}", own[0].judge, len(own), sum(p.score == 0.5 for p in own),
                sum(p.score is not None and not p.agreed for p in own), sum(p.score is None for p in own),
                sum(p.judge_calls for p in own), sum(p.judge_usd for p in own),
            )
        )  # fmt: skip
    note = "Calls to a paid model; a script, a cache, a missing or an equal picture takes none."
    return Table(columns, tuple(rows), "What judging the pairs took", (note,), "pairs")
