"""What a judge is asked and what it says; one protocol for scripted judges and model APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

Status = Literal["ok", "failed", "over_budget"]


class JudgeError(ValueError):
    """A judge that cannot be set up; one line that names the option, its value and the fix."""


@dataclass(frozen=True)
class RubricItem:
    """One thing an answer should have, and how much it counts."""

    name: str
    description: str
    weight: float = 1.0


@dataclass(frozen=True)
class RubricRequest:
    """An answer to score against a rubric; `rendered` is what a reader sees of it, where that is known."""

    problem: str
    answer: str
    rubric: tuple[RubricItem, ...]
    rendered: str = ""


@dataclass(frozen=True)
class StepRequest:
    """An answer whose steps are scored one by one."""

    problem: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class PairRequest:
    """Two answers to one problem, as PNG screenshots; `first` is shown first."""

    problem: str
    first: bytes
    second: bytes


@dataclass(frozen=True)
class Usage:
    """What one judgement cost: calls made now, tokens and US dollars; all 0 when it came from the cache."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class Comment:
    """A remark on a passage, quoted literally from the answer, valued in [-1, 1]."""

    quote: str
    value: float
    text: str


@dataclass(frozen=True)
class Judgement:
    """A rubric score in [0, 1] with its items; None with the reason when the judge failed.

    `flags` names what looks like an attempt to talk to the judge; it never changes the score.
    """

    score: float | None
    items: dict[str, float] = field(default_factory=dict)
    comments: tuple[Comment, ...] = ()
    status: Status = "ok"
    reason: str = ""
    flags: tuple[str, ...] = ()
    usage: Usage = Usage()


@dataclass(frozen=True)
class StepJudgement:
    """A score in [-1, 1] for each step; None with the reason when the judge failed."""

    scores: tuple[float, ...] | None
    status: Status = "ok"
    reason: str = ""
    flags: tuple[str, ...] = ()
    usage: Usage = Usage()


@dataclass(frozen=True)
class Preference:
    """Which of two was preferred; None with the reason when the judge failed."""

    winner: Literal["first", "second", "tie"] | None
    status: Status = "ok"
    reason: str = ""
    usage: Usage = Usage()


@runtime_checkable
class Judge(Protocol):
    """Judges in batches, in order; a judgement that fails is returned as such, never raised."""

    name: ClassVar[str]

    def rubric(self, requests: Sequence[RubricRequest]) -> list[Judgement]:
        """Scores answers against rubrics."""
        ...

    def steps(self, requests: Sequence[StepRequest]) -> list[StepJudgement]:
        """Scores the steps of answers."""
        ...

    def compare(self, requests: Sequence[PairRequest]) -> list[Preference]:
        """Says which of two screenshots is the better answer."""
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


def weighted_score(rubric: Sequence[RubricItem], items: dict[str, float]) -> float:
    """Mean of the item scores by weight; an item without a score counts 0; an empty rubric gives 1."""
    total = sum(item.weight for item in rubric)
    return sum(item.weight * items.get(item.name, 0.0) for item in rubric) / total if total else 1.0
