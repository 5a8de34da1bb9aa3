"""The contract between a task and the harness: examples, answers, scores, tasks, recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable


@dataclass(frozen=True)
class Example:
    """One problem: its prompt, what the grader needs, and named variants of the prompt.

    `variants` holds other wordings of the same problem that some algorithms ask for:
    `without_rubric` (CoRT replays the answer under it), `privileged` (BPCO's critic reads it),
    `hint_1`, `hint_2`, ... (SAGE). A missing variant means that the task does not offer it. `shots` are solved
    problems (prompt, answer) shown before every wording: earlier turns of a chat, plain text without a template.
    """

    id: str
    prompt: str
    reference: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    shots: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Answer:
    """One completion as text, without special tokens; `finished` is False when the token limit cut it."""

    text: str
    finished: bool = True


@dataclass(frozen=True)
class Span:
    """A located piece of evidence: code points [start, end) of the answer, a value in [-1, 1], its source."""

    start: int
    end: int
    value: float
    source: str


@dataclass(frozen=True)
class Diagnostic:
    """One message of a checker, located in code points of the answer."""

    source: str
    code: str
    message: str
    start: int
    end: int


@dataclass(frozen=True)
class Score:
    """What a task says about one answer.

    `outcome` lies in the task's `outcome_range` and is what is trained on; `correct` is the metric that
    shaping never touches; `spans` locate evidence; `steps` cut the answer into code-point ranges;
    `metrics` are logged and averaged (numbers and booleans by name).
    """

    outcome: float
    correct: bool
    spans: tuple[Span, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    status: str = ""


@dataclass(frozen=True)
class LocalReward:
    """The local reward of one answer: values in [-1, 1] on code-point ranges, and one on the end token.

    Where ranges overlap, the value of largest magnitude counts (the negative one at a tie); text under
    no range is unscored and gets 0.
    """

    spans: tuple[Span, ...] = ()
    end_token: float = 0.0


Recipe = Callable[[Answer, Score], LocalReward]
"""A named way of turning a score into a local reward; see the `recipes` attribute of each task."""


@runtime_checkable
class Task(Protocol):
    """Problems with a grader; `score` may use processes of its own, which `close` ends.

    `provides` names what algorithms may require: `token_rewards`, `steps`, `rubric` (the variant
    `without_rubric`), `privileged_prompt`, `hints`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    outcome_range: ClassVar[tuple[float, float]]
    primary_metric: ClassVar[str]
    provides: ClassVar[frozenset[str]]
    recipes: ClassVar[Mapping[str, Recipe]]
    default_recipe: ClassVar[str]

    def example(self, split: str, index: int) -> Example:
        """The example number `index` (0-based) of `train` or `test`; a pure function of its arguments."""
        ...

    def size(self, split: str) -> int | None:
        """Number of examples of a split, or None when they are generated without end."""
        ...

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        """One score for each answer, in order; a bad answer is scored, never raised."""
        ...

    def close(self) -> None:
        """Ends helper processes."""
        ...


T = TypeVar("T", bound=type)
TASKS: dict[str, type] = {}


def register(task: T) -> T:
    """Class decorator that makes a task known under its `name`; ValueError when the name is taken."""
    name = task.name  # type: ignore[attr-defined]
    known = TASKS.setdefault(name, task)
    if known.__qualname__ != task.__qualname__:
        raise ValueError(f"task name {name!r} is taken by {known.__qualname__}: choose another name")
    return task
