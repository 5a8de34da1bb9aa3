"""The React task: generated prompts, static checks by TypeScript and esbuild, located errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tasks.base import Answer, Diagnostic, Example, Recipe, Score, register
from tasks.react.extract import Extraction, extract
from tasks.react.recipes import DEFAULT_RECIPE, RECIPES
from tasks.react.spans import error_spans, line_steps, locate
from tasks.react.worker import NodeWorker

ALLOWED_IMPORTS = ("react", "react/jsx-runtime", "react/jsx-dev-runtime", "react-dom")
MAX_CODE_CHARS = 100_000

FEATURE_TESTS: Mapping[str, Callable[[set[str], set[str]], bool]] = {
    "heading": lambda tags, calls: not tags.isdisjoint({"h1", "h2", "h3", "h4", "h5", "h6"}),
    "text": lambda tags, calls: "p" in tags,
    "list": lambda tags, calls: "ul" in tags or "ol" in tags,
    "button": lambda tags, calls: "button" in tags,
    "input": lambda tags, calls: "input" in tags,
    "image": lambda tags, calls: "img" in tags,
    "link": lambda tags, calls: "a" in tags,
    "counter": lambda tags, calls: "useState" in calls,
}
"""What shows that a component has a feature: its JSX tags and the names it calls, from the AST."""


@dataclass(frozen=True)
class ReactOptions:
    """Options of the React task; `node` names a Node >= 20.19, times are in seconds."""

    node: str | None = None
    timeout_seconds: float = 30.0
    allowed_imports: tuple[str, ...] = ALLOWED_IMPORTS


@dataclass(frozen=True)
class Checked:
    """One answer with what the checker said about its code; `result` is None when there was no code."""

    extraction: Extraction
    result: Mapping[str, Any] | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def syntax(self) -> bool:
        return self.result is not None and bool(self.result.get("syntax"))

    @property
    def compile(self) -> bool:
        return self.result is not None and bool(self.result.get("compile"))


def _failure_report(result: Mapping[str, Any], code: str) -> list[dict[str, Any]]:
    """A checker that died or hung on a source, as a report on all of it."""
    length = len(code.encode("utf-16-le", "surrogatepass")) // 2
    return [
        {
            "source": "checker",
            "code": result["failure"],
            "message": result["message"],
            "start": 0,
            "length": length,
        }
    ]


@register
class ReactTask:
    """Writes React components; the outcome is 1 for a finished answer that compiles, else 0."""

    name: ClassVar[str] = "react"
    summary: ClassVar[str] = "React components, checked by the TypeScript parser and esbuild"
    outcome_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    primary_metric: ClassVar[str] = "compile"
    provides: ClassVar[frozenset[str]] = frozenset(
        {"token_rewards", "steps", "rubric", "privileged_prompt", "hints"}
    )
    recipes: ClassVar[Mapping[str, Recipe]] = RECIPES
    default_recipe: ClassVar[str] = DEFAULT_RECIPE
    Options: ClassVar[type] = ReactOptions

    def __init__(self, options: ReactOptions | None = None, **changes: Any) -> None:
        self.options = replace(options or ReactOptions(), **changes)
        self._worker = NodeWorker(self.options.node, batch_seconds=self.options.timeout_seconds)

    def example(self, split: str, index: int) -> Example:
        """Example number `index` of `train` or `test`."""
        from tasks.react import generate

        return generate.example(split, index)

    def size(self, split: str) -> int | None:
        """Number of different problems of a split."""
        from tasks.react import generate

        return generate.size(split)

    def check(self, answers: Sequence[str], *, bare: bool = False) -> list[Checked]:
        """Extracts and checks answers in one batch; with `bare` each is code without a fence."""
        found = [Extraction(a, 0, len(a)) if bare else extract(a) for a in answers]
        codes = {x.code: None for x in found if x.code is not None and len(x.code) <= MAX_CODE_CHARS}
        options = {"imports": self.options.allowed_imports, "facts": True, "js": False}
        results = dict(zip(codes, self._worker.run(list(codes), options), strict=True))
        return [self._checked(x, results) for x in found]

    @staticmethod
    def _checked(found: Extraction, results: Mapping[str, Mapping[str, Any]]) -> Checked:
        if found.code is None:
            return Checked(found, None, (Diagnostic("extract", "no_code", found.reason, 0, 0),))
        result = results.get(found.code)
        if result is None:
            message = f"longer than {MAX_CODE_CHARS} characters"
            result = {"failure": "too_long", "message": message}
        reports = _failure_report(result, found.code) if "failure" in result else result["diagnostics"]
        return Checked(found, result, locate(found.code, found.start, reports))

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> list[Score]:
        """Outcome 1 for a finished answer that compiles, else 0; errors as spans, code lines as steps."""
        checked = self.check([a.text for a in answers])
        return [self._score(e, a, c) for e, a, c in zip(examples, answers, checked, strict=True)]

    def _score(self, example: Example, answer: Answer, checked: Checked) -> Score:
        code, compiles = checked.extraction, checked.compile
        correct = compiles and answer.finished
        metrics = {
            "extracted": float(code.code is not None),
            "compile_raw": float(checked.syntax and answer.finished),
            "compile": float(correct),
            "on_task": float(correct and on_task(example.reference, checked.result or {})),
            "code_chars": float(len(code.code or "")),
            "outside_chars": float(len(answer.text) - len(code.code or "")),
            "truncated": float(not answer.finished),
        }
        return Score(
            outcome=float(correct),
            correct=correct,
            spans=error_spans(checked.diagnostics),
            steps=line_steps(code.code, code.start) if code.code else (),
            metrics=metrics,
            diagnostics=checked.diagnostics,
            status="" if checked.result is None else str(checked.result.get("failure", "")),
        )

    def close(self) -> None:
        """Ends the checker process."""
        self._worker.close()


def on_task(reference: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a component has the name and every feature that its prompt asked for."""
    component, facts = result.get("component"), result.get("facts")
    if not component or not facts or component["name"] != reference.get("name"):
        return False
    tags, calls = set(facts["tags"]), set(facts["calls"])
    return all(FEATURE_TESTS[feature](tags, calls) for feature in reference.get("features", ()))
