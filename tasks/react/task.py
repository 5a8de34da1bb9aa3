"""The React task: generated prompts, checks by TypeScript, esbuild and rendering, located errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tasks.base import Answer, Diagnostic, Example, Recipe, Score, Span, register
from tasks.react.checks import (
    ALLOWED_IMPORTS,
    LEVELS,
    Checked,
    Checks,
    features_shown,
    meets_task,
    on_task,
)
from tasks.react.extract import Extraction, extract
from tasks.react.noise import Noise, degrade
from tasks.react.recipes import DEFAULT_RECIPE, RECIPES, character_values
from tasks.react.rubric import rubric_evidence
from tasks.react.spans import error_spans, line_steps

if TYPE_CHECKING:
    from tasks.judges import Judgement
    from tasks.react.judging import ReactJudge

OUTCOME_LEVELS = ("compile", "renders", "non_blank", "task", "judged")


@dataclass(frozen=True)
class ReactOptions:
    """Options of the React task; `node` names a Node >= 20.19, `browser` a Chromium, times are in seconds.

    `outcome_level` is the level that an answer must reach to count as a success; `levels` names more levels
    to check and log (`types`, `lint`, `renders`, `non_blank`, `task`, `pixels`), which costs time and changes no reward.
    `shots` solved problems stand before every prompt, for models that do not know the format.
    `judge` names a judge of content (see tasks.judges) and `judge_options` its options; an answer is
    `judged` a success from a score of `judge_threshold` on. Where the judge fails, the answer counts by
    `compile` alone and its status is `judge_failed`.
    """

    outcome_level: str = "compile"
    levels: tuple[str, ...] = ()
    shots: int = 0
    judge: str = ""
    judge_options: Mapping[str, Any] = field(default_factory=dict)
    judge_threshold: float = 0.75
    noise: Noise = field(default_factory=Noise)
    node: str | None = None
    browser: str | None = None
    timeout_seconds: float = 30.0
    allowed_imports: tuple[str, ...] = ALLOWED_IMPORTS

    def __post_init__(self) -> None:
        if self.outcome_level not in OUTCOME_LEVELS:
            known = ", ".join(OUTCOME_LEVELS)
            raise ValueError(f"task.outcome_level={self.outcome_level!r} is unknown: use one of {known}")
        for level in self.levels:
            if level not in LEVELS:
                known = ", ".join(LEVELS)
                raise ValueError(f"task.levels={level!r} is unknown: use any of {known}")
        if not 0 <= self.shots <= 8:
            raise ValueError(f"task.shots={self.shots} is out of range: use 0 to 8")
        if self.outcome_level == "judged" and not self.judge:
            raise ValueError(
                "task.outcome_level='judged' needs a judge: set task.judge, for example to scripted"
            )
        if isinstance(self.noise, Mapping):
            object.__setattr__(self, "noise", Noise(**self.noise))

    @property
    def checked_levels(self) -> frozenset[str]:
        """All levels that are checked; a judge is shown what is rendered."""
        return frozenset(self.levels) | {self.outcome_level} | ({"renders"} if self.judge else frozenset())


@register
class ReactTask:
    """Writes React components; the outcome is 1 for a finished answer that compiles, else 0."""

    name: ClassVar[str] = "react"
    summary: ClassVar[str] = "React components, checked by the TypeScript parser, esbuild and rendering"
    outcome_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    primary_metric: ClassVar[str] = "compile"
    provides: ClassVar[frozenset[str]] = frozenset(
        {"token_rewards", "steps", "rubric", "privileged_prompt", "hints"}
    )
    recipes: Mapping[str, Recipe] = RECIPES
    default_recipe: ClassVar[str] = DEFAULT_RECIPE
    Options: ClassVar[type] = ReactOptions

    def __init__(self, options: ReactOptions | None = None, **changes: Any) -> None:
        self.options = replace(options or ReactOptions(), **changes)
        if self.options.noise.active:
            noise = self.options.noise
            self.recipes = {name: degrade(r, noise, character_values) for name, r in RECIPES.items()}
        self.checks = Checks(
            self.options.node,
            timeout_seconds=self.options.timeout_seconds,
            allowed_imports=self.options.allowed_imports,
            browser=self.options.browser,
        )
        self.judge = self._make_judge()

    def _make_judge(self) -> ReactJudge | None:
        if not self.options.judge:
            return None
        from tasks.react.judging import ReactJudge

        return ReactJudge(self.options.judge, self.options.judge_options)

    def example(self, split: str, index: int) -> Example:
        """Example number `index` of `train` or `test`."""
        from tasks.react import generate

        return generate.with_shots(generate.example(split, index), self.options.shots)

    def size(self, split: str) -> int | None:
        """Number of different problems of a split."""
        from tasks.react import generate

        return generate.size(split)

    def check(
        self,
        answers: Sequence[str],
        *,
        bare: bool = False,
        levels: Sequence[str] | None = None,
        props: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Checked]:
        """Extracts and checks answers in one batch; with `bare` each is code without a fence."""
        found = [Extraction(a, 0, len(a)) if bare else extract(a) for a in answers]
        return self.checks.run(found, self.options.checked_levels if levels is None else levels, props)

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        """Outcome 1 for a finished answer that reaches `outcome_level`, else 0; errors as spans."""
        checked = self.check([a.text for a in answers])
        words: Sequence[Judgement | None] = [None] * len(checked)
        if self.judge is not None:
            words = self.judge.judge_all(examples, checked)
        rows = zip(examples, answers, checked, words, strict=True)
        return [self._score(example, answer, c, word) for example, answer, c, word in rows]

    def _score(self, example: Example, answer: Answer, checked: Checked, word: Judgement | None) -> Score:
        code = checked.extraction
        found, missing = self._evidence(example, checked, word)
        diagnostics = checked.diagnostics + missing
        reached = self._reached(example, checked, word)
        success = answer.finished and reached[self.options.outcome_level]
        metrics = {name: float(answer.finished and value) for name, value in reached.items()}
        metrics |= {
            "extracted": float(checked.extracted),
            "compile_raw": float(checked.syntax and answer.finished),
            "on_task": float(answer.finished and checked.compile and on_task(example.reference, checked)),
            "code_chars": float(len(code.code or "")),
            "outside_chars": float(len(answer.text) - len(code.code or "")),
            "truncated": float(not answer.finished),
        }
        return Score(
            outcome=float(success),
            correct=success,
            spans=error_spans(diagnostics) + found,
            steps=line_steps(code.code, code.start) if code.code else (),
            metrics=metrics | self._content_metrics(example, checked, word),
            diagnostics=diagnostics,
            status=checked.failure or ("judge_failed" if word is not None and word.score is None else ""),
        )

    def _evidence(
        self, example: Example, checked: Checked, word: Judgement | None
    ) -> tuple[tuple[Span, ...], tuple[Diagnostic, ...]]:
        """Spans of rubric items and of the judge's remarks, and diagnostics of what is missing."""
        found: tuple[Span, ...] = ()
        missing: tuple[Diagnostic, ...] = ()
        # what does not compile is judged by its errors alone, whatever else is checked
        if "task" in self.options.checked_levels and checked.compile:
            found, missing = rubric_evidence(example.reference, checked)
        if word is not None:
            from tasks.react.judging import comment_spans

            found += comment_spans(word, checked)
        return found, missing

    @staticmethod
    def _content_metrics(example: Example, checked: Checked, word: Judgement | None) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if checked.rendered is not None:
            shown = features_shown(example.reference, checked).values()
            metrics["features"] = sum(shown) / len(shown) if shown else 1.0
        if word is not None:
            from tasks.react.judging import judge_metrics

            metrics |= judge_metrics(word)
        return metrics

    def _reached(self, example: Example, checked: Checked, word: Judgement | None) -> dict[str, bool]:
        """The levels that were checked, each only with those below it."""
        reached = {"compile": checked.compile}
        if checked.types is not None:
            reached["types"] = checked.compile and checked.types
        if checked.lint is not None:
            reached["lint"] = checked.compile and checked.lint
        if checked.rendered is not None:
            reached["renders"] = checked.compile and bool(checked.renders)
            reached["non_blank"] = reached["renders"] and not checked.blank
            reached["task"] = reached["non_blank"] and meets_task(example.reference, checked)
        if checked.pixels is not None:
            reached["pixels"] = checked.compile and checked.pixels
        if word is not None:
            passed = word.score is None or word.score >= self.options.judge_threshold
            reached["judged"] = checked.compile and passed
        return reached

    def score_records(self, records: Iterable[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """One row for each record of `harness score`; see tasks.react.records."""
        from tasks.react import records as module

        return module.score_records(self, records, **options)

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Rates over the rows of `score_records`."""
        from tasks.react import records as module

        return module.summarise(rows)

    def close(self) -> None:
        """Ends the helper processes."""
        self.checks.close()
        if self.judge is not None:
            self.judge.close()
