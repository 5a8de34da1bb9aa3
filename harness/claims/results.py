"""What judging a claim gives: results of arms and comparisons, and the verdict, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.claims.measure import Measured
from harness.claims.rules import finite
from harness.stats.compare import Difference
from harness.stats.speedup import SpeedupResult


@dataclass(frozen=True)
class ArmResult:
    """One arm: its runs, how many reached the threshold, the means of its final metrics.

    `reached` and `censored` are None for an endpoint without a threshold; `time` is the Kaplan-Meier
    median on each recorded axis, None where fewer than half reached.
    """

    name: str
    algorithm: str
    seeds: tuple[int, ...]
    reached: int | None
    censored: int | None
    final_compile_rate: float | None
    final: Mapping[str, float | None]
    time: Mapping[str, float | None]
    statuses: Mapping[str, int]
    measured: tuple[Measured, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; `seeds` is the list of seeds."""
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "seeds": list(self.seeds),
            "reached": self.reached,
            "censored": self.censored,
            "final_compile_rate": self.final_compile_rate,
            "final": dict(self.final),
            "time": dict(self.time),
            "statuses": dict(self.statuses),
        }


@dataclass(frozen=True)
class ComparisonResult:
    """Treatment against baseline: intervals by axis and method, the verdict, and what would settle it.

    `speedup`, `exact`, `restricted_mean` are ratios by cost axis; `effects` and `exact_effects` are
    differences by name (a metric, a Pass@k). A claim fills the ones of its endpoint.
    """

    treatment: str
    baseline: str
    primary: bool
    verdict: str
    reason: str = ""
    level: float = 0.95
    speedup: Mapping[str, SpeedupResult] = field(default_factory=dict)
    exact: Mapping[str, SpeedupResult] = field(default_factory=dict)
    restricted_mean: Mapping[str, SpeedupResult] = field(default_factory=dict)
    by_rule: Mapping[str, SpeedupResult] = field(default_factory=dict)
    effects: Mapping[str, Difference] = field(default_factory=dict)
    exact_effects: Mapping[str, Difference] = field(default_factory=dict)
    seeds_to_settle: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "treatment": self.treatment,
            "baseline": self.baseline,
            "primary": self.primary,
            "verdict": self.verdict,
            "reason": self.reason,
            "level": self.level,
            "speedup": {axis: speedup_json(found) for axis, found in self.speedup.items()},
            "exact": {axis: speedup_json(found) for axis, found in self.exact.items()},
            "restricted_mean": {axis: speedup_json(found) for axis, found in self.restricted_mean.items()},
            "by_rule": {rule: speedup_json(found) for rule, found in self.by_rule.items()},
            "effects": {name: effect_json(found) for name, found in self.effects.items()},
            "exact_effects": {name: effect_json(found) for name, found in self.exact_effects.items()},
            "seeds_to_settle": self.seeds_to_settle,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim at a scale; `verdict` is one of the names in rules.WORDS."""

    claim: str
    claim_hash: str
    scale: str
    verdict: str
    sentence: str
    arms: tuple[ArmResult, ...]
    comparisons: tuple[ComparisonResult, ...]
    run_ids: tuple[str, ...]
    notes: tuple[str, ...] = ()
    endpoint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def speedup(self) -> Mapping[str, SpeedupResult]:
        """Speed-ups by axis of the first primary comparison."""
        return self.comparisons[0].speedup if self.comparisons else {}

    def to_json(self) -> dict[str, Any]:
        """The object that `harness reproduce --json` prints, less `seconds`; unknown numbers are null."""
        return finite(
            {
                "claim": self.claim,
                "claim_hash": self.claim_hash,
                "scale": self.scale,
                "verdict": self.verdict,
                "sentence": self.sentence,
                "arms": [arm.to_json() for arm in self.arms],
                "speedup": {axis: speedup_json(found) for axis, found in self.speedup.items()},
                "comparisons": [pair.to_json() for pair in self.comparisons],
                "run_ids": list(self.run_ids),
                "notes": list(self.notes),
            }
        )


def speedup_json(found: SpeedupResult) -> dict[str, Any]:
    """A speed-up as plain data; open or absent limits are null, `open_end` tells which are open."""
    return {
        "estimate": found.estimate,
        "low": found.low if found.low else None,
        "high": found.high,
        "method": found.method,
        "n": list(found.n),
        "events": list(found.events),
        "open_end": found.open_end,
        "rule": found.rule,
        "cadence": found.cadence,
        "horizon": found.horizon,
        "level": found.level,
        "reason": found.reason,
    }


def effect_json(found: Difference) -> dict[str, Any]:
    """A difference as plain data."""
    return {
        "estimate": found.estimate,
        "low": found.low,
        "high": found.high,
        "method": found.method,
        "n": list(found.n),
        "level": found.level,
        "p_value": found.p_value,
        "reason": found.reason,
    }
