"""Win rate of one run's answers over another's, with an interval clustered by prompt and by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.stats.compare import Difference, clustered


@dataclass(frozen=True)
class WinRateResult:
    """Share of pairs won, ties counted half; limits are None where none can be given (`reason`).

    `disagreed` is the share of pairs whose winner depended on the order they were shown in; `failed` counts
    pairs that the judge gave no word on, which are left out.
    """

    estimate: float | None
    low: float | None
    high: float | None
    pairs: int
    ties: float | None
    disagreed: float | None
    failed: int
    method: str
    reason: str
    note: str


def _two_way(
    scores: Sequence[float], prompts: Sequence[Any], seeds: Sequence[Any], level: float
) -> Difference:
    """Variance by prompts plus by seeds minus by cells; source: Cameron, Gelbach and Miller 2011.

    Never less than by either alone, which the difference can be in small samples. Degrees of freedom: the
    smaller number of clusters - 1. One seed only, or one prompt: the clusters of the other.
    """
    from scipy.stats import t

    cells = [f"{prompt}\n{seed}" for prompt, seed in zip(prompts, seeds, strict=True)]
    ways = [clustered(scores, labels, level=level) for labels in (prompts, seeds)]
    usable = [way for way in ways if way.n[0] > 1]
    if len(usable) < 2:
        return usable[0] if usable else ways[0]
    parts = [(way.se or 0.0) ** 2 for way in (*ways, clustered(scores, cells, level=level))]
    variance = max(parts[0] + parts[1] - parts[2], parts[0], parts[1])
    found = replace(
        ways[0], method="two_way_clustered_t", low=None, high=None, p_value=None, df=None, se=None
    )
    if variance == 0.0:
        return replace(found, reason="no spread between clusters")
    assert found.estimate is not None
    half = float(t.ppf(0.5 + level / 2, min(way.n[0] for way in ways) - 1)) * math.sqrt(variance)
    return replace(found, low=found.estimate - half, high=found.estimate + half)


def win_rate(results: Sequence[Any], *, judge: str, level: float = 0.95) -> WinRateResult:
    """Summary of pair results (`prompt_id`, `seed`, `score`, `agreed`); limits are cut to [0, 1]."""
    known = [r for r in results if r.score is not None]
    note = "judged by rules on the pictures (ink and colours), not by a model" if judge == "scripted" else ""
    failed = len(results) - len(known)
    if not known:
        return WinRateResult(None, None, None, 0, None, None, failed, "none", "no pair was judged", note)
    scores = [float(r.score) for r in known]
    found = _two_way(scores, [r.prompt_id for r in known], [r.seed for r in known], level)
    return WinRateResult(
        estimate=found.estimate,
        low=None if found.low is None else max(0.0, found.low),
        high=None if found.high is None else min(1.0, found.high),
        pairs=len(known),
        ties=sum(s == 0.5 for s in scores) / len(known),
        disagreed=sum(not r.agreed for r in known) / len(known),
        failed=failed,
        method=found.method,
        reason=found.reason,
        note=note,
    )
