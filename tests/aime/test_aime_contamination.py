"""The partial-prompt probe on completers that have, and have not, seen the problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.aime.contamination import contamination_probe, probe_summary, rouge_l
from tasks.aime.problems import Problem

PROBLEMS = [
    Problem("a", "Find the sum of all positive integers n below ten that are odd.", "25"),
    Problem("b", "How many ways are there to seat five people at a round table?", "24"),
]


def memorised(prompts):
    found = []
    for prompt in prompts:
        problem = next(p for p in PROBLEMS if p.problem.startswith(prompt))
        found.append(problem.problem[len(prompt) :] + f" The answer is {problem.answer}.")
    return found


def test_a_model_that_has_seen_the_problems_is_found_out():
    rows = contamination_probe(PROBLEMS, memorised, (0.4, 0.8))
    assert len(rows) == 4
    assert probe_summary(rows) == {
        "0.4": {"n": 2, "exact": 1.0, "rouge_l": 1.0, "answered": 1.0},
        "0.8": {"n": 2, "exact": 1.0, "rouge_l": 1.0, "answered": 1.0},
    }


def test_a_model_that_has_not_is_not():
    rows = contamination_probe(
        PROBLEMS, lambda prompts: ["I cannot say what comes next"] * len(prompts), (0.5,)
    )
    summary = probe_summary(rows)["0.5"]
    assert summary["exact"] == summary["answered"] == 0.0
    assert summary["rouge_l"] < 0.2


def test_nothing_of_the_rest_reaches_the_model():
    seen = []

    def record(prompts):
        seen.extend(prompts)
        return [""] * len(prompts)

    contamination_probe(PROBLEMS, record, (0.6,))
    for prompt, problem in zip(seen, PROBLEMS, strict=True):
        assert problem.problem.startswith(prompt)
        assert len(prompt.split()) == round(len(problem.problem.split()) * 0.6)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0])
def test_fractions_are_checked(fraction):
    with pytest.raises(ValueError, match="fractions"):
        contamination_probe(PROBLEMS, memorised, (fraction,))


def test_problems_of_one_word_are_left_out():
    assert contamination_probe([Problem("x", "Solve!", "1")], memorised) == []


def test_rouge_by_hand():
    assert rouge_l("the cat sat", "the cat sat") == 1.0
    assert rouge_l("the dog sat down", "the cat sat") == pytest.approx(2 / 3)
    assert rouge_l("", "a") == 0.0
    assert rouge_l("a", "") == 0.0


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_rouge_is_the_longest_common_subsequence(left, right):
    from itertools import combinations

    def has(words, part):
        rest = iter(words)
        return all(word in rest for word in part)

    longest = max(n for n in range(len(right) + 1) for part in combinations(right, n) if has(left, part))
    assert rouge_l(" ".join(left), " ".join(right)) == pytest.approx(longest / len(right))
