"""Credit quality as a table."""

from __future__ import annotations

from harness.credit.measure import FLIPPED, Measured
from harness.report.tables import Table, table

__all__ = ["quality_table"]


def quality_table(found: Measured) -> Table:
    """One row an algorithm: agreement of its advantages with the true credit of the same answers."""
    rows = []
    for q in found.qualities:
        interval = None if q.cosine_low is None else f"{q.cosine_low:.2f} to {q.cosine_high:.2f}"
        bias = None if q.degraded_bias is None else round(q.degraded_bias, 9)
        rows.append(
            (
                q.algorithm, q.cosine, interval, q.sign_agreement, q.variance_explained, q.nonzero, q.snr,
                q.degraded_cosine, bias,
            )
        )  # fmt: skip
    share = f"{100 * FLIPPED:.0f}%"
    cost = found.cost
    spent = (
        f"true credit from {cost.continuations:,} continuations of {cost.prefixes:,} prefixes: {cost.tokens:,} tokens, "
        f"{cost.seconds:.0f} s"
        if cost.continuations
        else "true credit is exact"
    )
    notes = (
        f"{len(found.lot.answers)} answers; {spent}",
        "agreement is the cosine over tokens, corrected for the error of the true credit; SNR that of one group's gradient",
        f"flipped: local rewards with {share} of their signs flipped; bias is the mean change of the advantages, relative",
        "critics are untrained here; algorithms that only sample otherwise equal GRPO on given answers",
    )
    heads = (
        "algorithm", "agreement", "95%", "signs", "explained", "non-zero", "SNR", "agreement flipped", "bias flipped",
    )  # fmt: skip
    return table(heads, rows, caption="Token advantages against true credit", notes=notes, name="quality")
