"""Generated problems: exact chains, disjoint splits, pure functions, faults that are faults."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.aime.generate import LEVELS, RUBRIC, TEST_SIZE, corrupt_chain, example, reference_chain

LEVEL = st.sampled_from(LEVELS)
INDEX = st.integers(0, TEST_SIZE - 1)
SPLIT = st.sampled_from(["train", "test"])


def follow(question: str) -> int:
    """Solves a question from its words alone, independently of the generator."""
    start, *operations = question.removesuffix(".").split("; ")
    value = Fraction(start.removeprefix("Start "))
    for operation in operations:
        verb, number = operation.rsplit(" ", 1)
        operand = Fraction(number)
        value = {
            "add": value + operand,
            "minus": value - operand,
            "times": value * operand,
            "divide by": value / operand,
            "take": value * operand,
        }[verb]
        assert value.denominator == 1
        assert 0 <= value <= 999
    return int(value)


@settings(deadline=None)  # the first draw of a test split builds it
@given(SPLIT, INDEX, LEVEL)
def test_the_answer_and_every_step_follow_from_the_question(split, index, level):
    problem = example(split, index, level=level)
    question = problem.variants["without_rubric"].strip()
    assert problem.prompt == f"{question} {RUBRIC}\n"
    assert follow(question) == problem.reference["answer"]
    chain = reference_chain(problem)
    assert chain.endswith(f"\\boxed{{{problem.reference['answer']}}}")
    for left, right in re.findall(r"Step \d: (\S+)=(\d+)\.", chain):
        a, symbol, b = re.fullmatch(r"(\d+)([-+*/])(\d+(?:/\d+)?)", left).groups()
        a, b = Fraction(a), Fraction(b)
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[symbol] == int(right)
    assert problem == example(split, index, level=level)


@settings(deadline=None)  # the first draw of a test split builds it
@given(SPLIT, INDEX, LEVEL)
def test_variants_reveal_what_they_should(split, index, level):
    problem = example(split, index, level=level)
    answer = str(problem.reference["answer"])
    assert RUBRIC not in problem.variants["without_rubric"]
    assert problem.variants["privileged"].endswith(f"Result {answer}.\n")
    assert problem.reference["steps"][0] in problem.variants["hint_1"]
    assert problem.variants["hint_2"].endswith(f"Hint: {', '.join(problem.reference['steps'][:-1])}.\n")


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_no_problem_and_the_test_split_repeats_none(level):
    test = {example("test", i, level=level).prompt for i in range(TEST_SIZE)}
    train = {example("train", i, level=level).prompt for i in range(3000)}
    assert len(test) == TEST_SIZE
    assert len(train) > 2600
    assert not test & train


def test_higher_levels_are_longer_and_use_every_operation():
    lengths = [sum(len(reference_chain(example("train", i, level=n))) for i in range(200)) for n in LEVELS]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == len(LEVELS)
    words = " ".join(example("train", i, level=5).prompt for i in range(200))
    for word in ("add ", "minus ", "times ", "divide by ", "take "):
        assert words.count(word) >= 40, word


@given(st.integers(0, 10**6), INDEX, LEVEL)
def test_a_corrupted_chain_differs_and_stays_text(seed, index, level):
    chain = reference_chain(example("train", index, level=level))
    rng = random.Random(seed)
    for _ in range(4):
        corrupted = corrupt_chain(chain, rng)
        assert corrupted != chain
        chain = corrupted


def test_most_corruptions_spoil_the_boxed_answer():
    rng = random.Random(0)
    spoilt = 0
    for index in range(400):
        chain = reference_chain(example("train", index, level=3))
        spoilt += not corrupt_chain(chain, rng).endswith(chain.rsplit("\n", 1)[1])
    assert 0.5 < spoilt / 400 < 0.95


@pytest.mark.parametrize("text", ["", "x", "no equation here"])
def test_corruption_of_other_text_does_not_fail(text):
    assert len(corrupt_chain(text, random.Random(0))) == max(0, len(text) - 1)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="level=9"):
        example("train", 0, level=9)
    with pytest.raises(ValueError, match="split='dev'"):
        example("dev", 0)
    with pytest.raises(IndexError, match=f"index={TEST_SIZE}"):
        example("test", TEST_SIZE)
