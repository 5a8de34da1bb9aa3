"""The generated React problems: pure, disjoint, right when right, broken when edited."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks.base import Answer
from tasks.react import generate
from tasks.react.task import ReactTask


@pytest.fixture(scope="module")
def task():
    checker = ReactTask()
    yield checker
    checker.close()


def _rate(task: ReactTask, rate: float, count: int = 300) -> float:
    examples = [generate.example("train", i) for i in range(count)]
    answers = []
    for i, problem in enumerate(examples):
        rng = generate.rng_for(9, i)
        code = generate.corrupt(generate.reference_component(problem, rng), rng, rate)
        answers.append(Answer(generate.answer_text(code)))
    return sum(score.correct for score in task.score(examples, answers)) / count


def test_example_is_the_same_in_another_process() -> None:
    code = "from tasks.react.generate import example; print([repr(example('test', i)) for i in range(5)])"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str([repr(generate.example("test", i)) for i in range(5)])


def test_splits_share_neither_names_nor_combinations() -> None:
    problems = {
        s: [generate.example(s, i).reference for i in range(generate.size(s))] for s in generate.SPLITS
    }
    for key in ("name", "features"):
        seen = {
            s: {str(sorted(p[key])) if key == "features" else p[key] for p in problems[s]} for s in problems
        }
        assert not seen["train"] & seen["test"]
        assert len(seen["test"]) > 10


def test_problems_do_not_repeat_within_a_split() -> None:
    prompts = [generate.example("test", i).prompt for i in range(generate.size("test"))]
    assert len({frozenset(p.replace(",", "").split()) for p in prompts}) == len(prompts)
    assert generate.example("test", generate.size("test")).prompt == prompts[0]


def test_every_word_of_a_held_out_problem_is_trained() -> None:
    words = {s: set() for s in generate.SPLITS}
    for split in generate.SPLITS:
        for i in range(generate.size(split)):
            words[split] |= set(generate.example(split, i).reference["features"])
    assert words["test"] == words["train"] == set(generate.FEATURES)


def test_variants_say_more_or_less_than_the_prompt() -> None:
    problem = generate.example("train", 3)
    feature = problem.reference["features"][0]
    assert feature not in problem.variants["without_rubric"]
    assert problem.reference["name"] in problem.variants["without_rubric"]
    for name in ("privileged", "hint_1", "hint_2"):
        assert problem.variants[name].startswith(problem.prompt)
        assert len(problem.variants[name]) > len(problem.prompt)


def test_reference_components_compile_and_have_every_feature(task: ReactTask) -> None:
    examples = [generate.example(split, i) for split in generate.SPLITS for i in range(200)]
    answers = [Answer(generate.right_answer(e, generate.rng_for(5, i))) for i, e in enumerate(examples)]
    scores = task.score(examples, answers)
    assert all(score.correct and score.metrics["on_task"] == 1 for score in scores)
    assert len({answer.text for answer in answers}) > 390


def test_text_patterns_agree_with_the_checker(task: ReactTask) -> None:
    problem = generate.example("train", 0)
    code = generate.reference_component(problem, generate.rng_for(5, 0))
    for feature, pattern in generate.FEATURES.items():
        other = generate.Example("x", "x", {"name": problem.reference["name"], "features": (feature,)})
        [score] = task.score([other], [Answer(generate.answer_text(code))])
        assert bool(pattern.search(code)) == bool(score.metrics["on_task"])


def test_more_edits_break_more_components(task: ReactTask) -> None:
    assert _rate(task, 0.0) == 1
    few, many = _rate(task, 0.03), _rate(task, 0.1)
    assert 0.1 < few < 0.6
    assert many < 0.1


def test_unknown_split_and_negative_index_are_named() -> None:
    with pytest.raises(ValueError, match="'dev'"):
        generate.example("dev", 0)
    with pytest.raises(ValueError, match="-1"):
        generate.example("train", -1)
