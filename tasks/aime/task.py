"""The AIME task: competition problems by year, any problem file, or generated ladders with worked chains."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, ClassVar

from tasks.aime import generate, records
from tasks.aime.extract import find_answer
from tasks.aime.grader import GRADER_VERSION, Grade, grade, parse_number
from tasks.aime.judges import StepItem, StepJudge, StepVerdict, load_judge
from tasks.aime.math_grader import MATH_GRADER_VERSION, grade_math
from tasks.aime.normal_form import text_form
from tasks.aime.problems import DataError, Problem, load_problems, split_by_date
from tasks.aime.recipes import DEFAULT_RECIPE, RECIPES
from tasks.aime.second_opinion import SecondOpinion
from tasks.aime.steps import SPLITS, split_steps
from tasks.base import Answer, Example, Recipe, Score, Span, register

__all__ = ["AimeOptions", "AimeTask"]

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class AimeOptions:
    """Options of the AIME task.

    `source` is trained on, `test_source` is tested on ("" : the test split of generated problems, else
    `source`): `generated`, a set of problems.HUB_SETS, `hub:owner/name@revision:split`, or a JSONL file.
    `level` is that of generated problems. `answers` is `integer`, or `math` for golds of other kinds.
    `released_from` (YYYY-MM-DD) tests only on problems released on that day or later. `judge` (with
    `judge_options`) scores steps, see judges.load_judge; `steps` says how they are cut. `second_opinion`
    also asks math-verify about every answer and records what it says; it needs the extra `eval`, and so does
    training with `math`.
    """

    source: str = "generated"
    level: int = 2
    test_source: str = ""
    answers: str = "integer"
    released_from: str = ""
    manifest: str = ""
    judge: str = "arithmetic"
    judge_options: Mapping[str, Any] = field(default_factory=dict)
    steps: str = "auto"
    instruction: str = INSTRUCTION
    phrase_fallback: bool = False
    second_opinion: bool = False
    opinion_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.answers not in ("integer", "math"):
            raise ValueError(f"answers={self.answers!r}: choose integer or math")
        if self.level not in generate.LEVELS:
            raise ValueError(f"level={self.level!r}: choose one of {', '.join(map(str, generate.LEVELS))}")
        if self.steps not in SPLITS:
            raise ValueError(f"steps={self.steps!r}: choose one of {', '.join(SPLITS)}")


def _bounded(value: float) -> float:
    return max(-1.0, min(1.0, value))


@register
class AimeTask:
    """Problems with one right answer; the outcome is 1 when the boxed answer is right, else 0."""

    name: ClassVar[str] = "aime"
    summary: ClassVar[str] = (
        "Competition mathematics with integer answers: AIME by year, files, generated ladders"
    )
    outcome_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    primary_metric: ClassVar[str] = "correct"
    provides: ClassVar[frozenset[str]] = frozenset(
        {"token_rewards", "steps", "rubric", "privileged_prompt", "hints"}
    )
    recipes: ClassVar[Mapping[str, Recipe]] = RECIPES
    default_recipe: ClassVar[str] = DEFAULT_RECIPE
    Options: ClassVar[type] = AimeOptions
    summary_in_output: ClassVar[bool] = True

    def __init__(
        self, options: AimeOptions | None = None, *, step_judge: StepJudge | None = None, **changes: Any
    ) -> None:
        self.options = replace(options or AimeOptions(), **changes)
        self.step_judge = step_judge or load_judge(self.options.judge, **self.options.judge_options)
        self._opinion = SecondOpinion(self.options.opinion_seconds)
        if self.options.second_opinion:
            self._opinion.check()
        if self.options.source != "generated":
            # these problems come without hints, so an algorithm that needs them is refused before it starts
            self.provides = AimeTask.provides - {"hints"}  # type: ignore[misc]

    @property
    def grader_version(self) -> str:
        """Version of the grading rule, kept with every verdict."""
        return MATH_GRADER_VERSION if self.options.answers == "math" else GRADER_VERSION

    @functools.cached_property
    def _tested(self) -> list[Problem]:
        options = self.options
        source = options.test_source or options.source
        problems = load_problems(
            source,
            integers=options.answers == "integer",
            manifest="" if options.test_source else options.manifest,
        )
        if options.released_from:
            _, problems = split_by_date(problems, date.fromisoformat(options.released_from))
            if not problems:
                raise DataError(
                    f"released_from={options.released_from!r}: no problem of {source!r} is that new"
                )
        return problems

    @functools.cached_property
    def _trained(self) -> list[Problem]:
        options = self.options
        if not options.test_source:
            raise DataError(
                f"source={options.source!r} would be both trained on and tested on: set test_source, for "
                "example aime-2025"
            )
        integers = options.answers == "integer"
        found = load_problems(options.source, integers=integers, manifest=options.manifest)
        tested = [] if options.test_source == "generated" else self._tested
        held_out = {" ".join(p.problem.split()) for p in tested}
        kept = [p for p in found if " ".join(p.problem.split()) not in held_out]
        if not kept:
            raise DataError(
                f"source={options.source!r}: every problem is also in test_source; choose another"
            )
        return kept

    def _generated(self, split: str) -> bool:
        test_is_file = split == "test" and self.options.test_source not in ("", "generated")
        test_is_generated = split == "test" and self.options.test_source == "generated"
        return test_is_generated or (self.options.source == "generated" and not test_is_file)

    def example(self, split: str, index: int) -> Example:
        """Example number `index` of `train` or `test`; files are read at the first call."""
        if split not in ("train", "test"):
            raise ValueError(f"split={split!r} is unknown: choose train or test")
        if self._generated(split):
            return generate.example(split, index, level=self.options.level)
        problems = self._tested if split == "test" else self._trained
        problem = problems[index % len(problems)] if split == "train" else problems[index]
        return Example(
            id=problem.id,
            prompt=f"{problem.problem}\n\n{self.options.instruction}",
            reference={"answer": problem.answer, "level": problem.level},
            variants={
                "without_rubric": problem.problem,
                "privileged": f"{problem.problem}\n\n{self.options.instruction}\n\n"
                f"(Reference answer: {problem.answer})",
            },
        )

    def size(self, split: str) -> int | None:
        """Number of examples of a split; None for generated training problems, which never end."""
        if self._generated(split):
            return generate.TEST_SIZE if split == "test" else None
        return len(self._tested if split == "test" else self._trained)

    def _ask(self, answer: str, gold: str) -> str:
        return self._opinion.ask(answer, gold) if self._opinion.available else "unavailable"

    def grade(self, response: str, gold: object, finish_reason: str | None = None) -> Grade:
        """The verdict of this task's grader on one response."""
        options = self.options
        if options.answers == "math":
            return grade_math(
                response,
                gold,
                self._ask,
                finish_reason=finish_reason,
                phrase_fallback=options.phrase_fallback,
                ask_always=options.second_opinion,
            )
        found = grade(response, gold, finish_reason=finish_reason, phrase_fallback=options.phrase_fallback)
        if options.second_opinion and found.extracted is not None:
            return replace(found, second_opinion=self._opinion.ask(found.extracted, str(gold)))
        return found

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        """Outcome 1 for a right boxed answer, else 0; the judge's word on each step as spans.

        OpinionUnavailable in math mode without math-verify: right answers would be punished.
        """
        if self.options.answers == "math":
            self._opinion.check()
        steps = [split_steps(answer.text, self.options.steps) for answer in answers]
        problems = [example.variants.get("without_rubric", example.prompt) for example in examples]
        items = [StepItem(p, a.text, s) for p, a, s in zip(problems, answers, steps, strict=True)]
        verdicts = self.step_judge.judge(items) if self.step_judge else [[] for _ in items]
        return [
            self._score(example, answer, item.steps, said)
            for example, answer, item, said in zip(examples, answers, items, verdicts, strict=True)
        ]

    def _score(
        self,
        example: Example,
        answer: Answer,
        steps: tuple[tuple[int, int], ...],
        said: Sequence[StepVerdict],
    ) -> Score:
        verdict = self.grade(answer.text, example.reference["answer"], None if answer.finished else "length")
        correct = verdict.correct is True
        source = self.step_judge.name if self.step_judge else ""
        spans = tuple(
            Span(start, end, _bounded(v.value), source)
            for (start, end), v in zip(steps, said, strict=False)
            if v.value is not None
        )
        boxed = verdict.source == "box"
        metrics = {
            "correct": float(correct),
            "boxed": float(boxed),
            "truncated": float(not answer.finished),
            "format": float(boxed and answer.finished),
            "steps": float(len(steps)),
            "steps_judged": float(len(spans)),
            "step_validity": sum(s.value > 0 for s in spans) / len(spans) if spans else 0.0,
        }
        return Score(
            outcome=float(correct),
            correct=correct,
            spans=spans,
            steps=steps,
            metrics=metrics,
            diagnostics=tuple(d for v in said for d in v.diagnostics),
            status=verdict.status,
        )

    def vote(self, answer: Answer) -> str | None:
        """What an answer votes for in a majority: its integer, else what its box holds; None without one."""
        found = find_answer(
            answer.text,
            finish_reason=None if answer.finished else "length",
            phrase_fallback=self.options.phrase_fallback,
        )
        if found.text is None:
            return None
        number = parse_number(found.text)
        return text_form(found.text) if number is None else str(number)

    def score_records(self, records_in: Iterable[object]) -> Iterator[dict[str, Any]]:
        """Grades answers from anywhere; see records.score_records."""
        return records.score_records(records_in, self.grade, self.grader_version)

    def summarise(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int] | None = None) -> dict[str, Any]:
        """Accuracy, Pass@k and rates of such rows; see records.summarise."""
        return records.summarise(rows, self.grader_version, ks)

    def close(self) -> None:
        """Ends the judge and the process of the second opinion."""
        self._opinion.close()
        if self.step_judge:
            self.step_judge.close()
