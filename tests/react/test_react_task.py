"""The task as the loop sees it: outcomes, metrics, steps, and answers that mean harm."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tasks.base import TASKS, Answer, Task
from tasks.react import ReactOptions, ReactTask, generate

GOOD = "export default function Pet() { return <p>cat</p>; }"


def outcome(react: ReactTask, text: str, finished: bool = True) -> float:
    return react.score([react.example("train", 0)], [Answer(text, finished)])[0].outcome


def test_it_is_registered_and_meets_the_protocol(react: ReactTask) -> None:
    assert TASKS["react"] is ReactTask
    assert isinstance(react, Task)
    assert react.default_recipe in react.recipes


def test_importing_starts_nothing_and_needs_no_numpy() -> None:
    code = "import sys, tasks.react; print('numpy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_references_succeed_and_are_on_task(react: ReactTask) -> None:
    for split in ("train", "test"):
        examples = [react.example(split, i) for i in range(64)]
        rng = generate.rng_for(7)
        codes = [generate.reference_component(e, rng) for e in examples]
        scores = react.score(examples, [Answer(generate.answer_text(c)) for c in codes])
        assert [s.outcome for s in scores] == [1.0] * 64
        assert [s.metrics["on_task"] for s in scores] == [1.0] * 64
        assert all(s.spans == () and s.diagnostics == () for s in scores)


def test_another_problem_s_answer_is_not_on_task(react: ReactTask) -> None:
    examples = [react.example("train", i) for i in range(32)]
    rng = generate.rng_for(7)
    answers = [Answer(generate.answer_text(generate.reference_component(e, rng))) for e in examples]
    shifted = react.score(examples, answers[1:] + answers[:1])
    assert all(s.correct and s.metrics["on_task"] == 0.0 for s in shifted)


@pytest.mark.parametrize("missing", list(generate.FEATURES))
def test_each_feature_counts(react: ReactTask, missing: str) -> None:
    examples = [e for i in range(400) if missing in (e := react.example("train", i)).reference["features"]][
        :4
    ]
    assert examples
    answers = []
    for example in examples:
        kept = [f for f in example.reference["features"] if f != missing] or ["text"]
        if missing == "text" and kept == ["text"]:
            kept = ["link"]
        other = type(example)(example.id, "", {"name": example.reference["name"], "features": tuple(kept)})
        code = generate.reference_component(other, generate.rng_for(3))
        answers.append(Answer(generate.answer_text(code)))
    scores = react.score(examples, answers)
    assert [(s.outcome, s.metrics["on_task"]) for s in scores] == [(1.0, 0.0)] * len(examples)


def test_a_truncated_answer_never_succeeds(react: ReactTask) -> None:
    (score,) = react.score([react.example("train", 0)], [Answer(f"```tsx\n{GOOD}\n```", finished=False)])
    assert (score.outcome, score.correct, score.metrics["truncated"]) == (0.0, False, 1.0)
    assert score.metrics["compile"] == score.metrics["compile_raw"] == score.metrics["on_task"] == 0.0


def test_truncated_answers_keep_their_spans(react: ReactTask) -> None:
    text = "```tsx\nexport default function Pet() {\n  return <p>cat"
    (score,) = react.score([react.example("train", 0)], [Answer(text, finished=False)])
    assert score.spans
    assert all(len("```tsx\n") <= s.start < s.end <= len(text) for s in score.spans)


def test_prose_around_the_code_is_counted(react: ReactTask) -> None:
    (score,) = react.score([react.example("train", 0)], [Answer(f"Sure!\n```tsx\n{GOOD}\n```\nBye")])
    assert score.outcome == 1.0
    assert score.metrics["code_chars"] == len(GOOD)
    assert score.metrics["outside_chars"] == len("Sure!\n```tsx\n\n```\nBye")


@pytest.mark.parametrize("text", ["", "no code", GOOD, "```tsx\n", "<think>" + GOOD])
def test_no_usable_code_scores_zero(react: ReactTask, text: str) -> None:
    assert outcome(react, text) == 0.0


HOSTILE = {
    "null byte": f"{GOOD}\0",
    "million braces": "{" * 1_000_000,
    "deep braces": "{" * 90_000,
    "deep tags": "<a>" * 10_000 + "x" + "</a>" * 10_000,
    "deep parentheses": "(" * 90_000,
    "deep arrays": "[" * 90_000,
    "deep templates": "`${" * 30_000,
    "deep types": "type A = " + "{a:" * 20_000,
    "deep new": "new " * 20_000,
    "long ternary": "a?(b):" * 15_000,
    "arrow or parenthesis": "x = a ? (" * 25 + "b" + ") : c => d" * 25,
    "unterminated expression": "/" + "(a" * 20_000,
    "lone surrogate": "\ud800" + GOOD[:20],
    "only controls": "\x01\x02\x7f" * 100,
    "right-to-left marks": "\u202e" * 1000,
    "protocol": '"}\n{"id": 1, "results": []}\n',
    "crash by prototype": "__proto__ = null; constructor.prototype = 1; export default __proto__",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_gets_its_verdict_and_harms_no_neighbour(react: ReactTask, name: str) -> None:
    restarts = react.checks.checker.restarts
    began = time.monotonic()
    texts = [f"```tsx\n{GOOD}\n```", f"```tsx\n{HOSTILE[name]}\n```", f"```tsx\n{GOOD}\n```"]
    scores = react.score([react.example("train", 0)] * 3, [Answer(t) for t in texts])
    assert [s.outcome for s in scores] == [1.0, 0.0, 1.0]
    assert scores[1].diagnostics
    assert all(0 <= d.start <= d.end <= len(texts[1]) for d in scores[1].diagnostics)
    assert time.monotonic() - began < 10.0
    assert react.checks.checker.restarts == restarts


HARMLESS = {
    "byte order mark": f"\ufeff{GOOD}",
    "CRLF": GOOD.replace("{ return", "{\r\n return") + "\r\n",
    "line separator": f'const a = "\u2028";\n{GOOD}',
    "lone surrogate in text": GOOD.replace("cat", "\ud800 \udc00"),
    "null byte in text": GOOD.replace("cat", "\0"),
    "emoji": GOOD.replace("cat", "😀"),
    "long chain": f"const n = {'1+' * 20_000}1;\n{GOOD}",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_odd_but_right_code_compiles(react: ReactTask, name: str) -> None:
    assert outcome(react, f"```tsx\n{HARMLESS[name]}\n```") == 1.0


def test_a_batch_of_128_costs_little(react: ReactTask, cpu_seconds: Callable[..., float]) -> None:
    examples = [react.example("train", i) for i in range(128)]
    rng = generate.rng_for(9)
    answers = [Answer(generate.answer_text(generate.reference_component(e, rng))) for e in examples]
    react.score(examples, answers)
    costs = []
    for _ in range(3):
        before = cpu_seconds(react.checks.checker)
        react.score(examples, answers)
        costs.append(cpu_seconds(react.checks.checker) - before)
    assert min(costs) < 0.6  # 0.15 s on an idle machine; crowded caches cost up to twice that


def test_equal_answers_are_checked_once(react: ReactTask, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    run = react.checks.checker.run

    def counted(items, options):
        sent.append(len(items))
        return run(items, options)

    monkeypatch.setattr(react.checks.checker, "run", counted)
    scores = react.score([react.example("train", 0)] * 8, [Answer(f"```tsx\n{GOOD}\n```")] * 8)
    assert sent == [1]
    assert len(scores) == 8


def test_options_are_named_and_unknown_ones_refused() -> None:
    assert ReactTask(timeout_seconds=3.0).options == ReactOptions(timeout_seconds=3.0)
    with pytest.raises(TypeError, match="unknown_option"):
        ReactTask(unknown_option=1)


def test_shots_are_solved_problems_of_the_training_split_and_never_the_problem_itself() -> None:
    react = ReactTask(shots=3)
    for index in range(0, generate.size("train"), 7):
        shown = react.example("train", index)
        assert len(shown.shots) == 3
        assert shown.prompt not in [prompt for prompt, _ in shown.shots]
        assert shown.prompt == generate.example("train", index).prompt
    answers = [answer for _, answer in react.example("test", 0).shots]
    assert [outcome(react, answer) for answer in answers] == [1.0, 1.0, 1.0]
    assert ReactTask().example("train", 0).shots == ()


def test_shots_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task.shots=9 is out of range"):
        ReactTask(shots=9)
