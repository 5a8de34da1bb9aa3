"""Normal forms, and the second opinion with its process that can hang, crash or be absent."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.aime.math_grader import gold_text, grade_math
from tasks.aime.normal_form import possible_values, same_value, text_form
from tasks.aime.second_opinion import OpinionUnavailable, SecondOpinion

STUB = """
import json, sys, time
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["answer"] == "hang":
        time.sleep(600)
    if request["answer"] == "crash":
        sys.exit(3)
    print("correct" if request["answer"] == request["gold"] else "wrong", flush=True)
"""


@pytest.fixture
def opinion():
    found = SecondOpinion(deadline_seconds=0.3, command=[sys.executable, "-c", STUB])
    yield found
    found.close()


def never(answer, gold):
    raise AssertionError("normal forms should have decided this")


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("\\dfrac{7}{9}", "\\frac{7}{9}", True),
        ("\\frac79", "\\frac{7}{9}", True),
        ("7/9", "\\frac{7}{9}", True),
        ("14/18", "\\frac{7}{9}", True),
        ("0.5", "\\frac12", True),
        ("\\frac{7}{8}", "\\frac{7}{9}", False),
        ("62\\%", "0.62", True),
        ("62\\%", "62", True),
        ("62\\%", "6.2", False),
        ("3\\frac{1}{2}", "3.5", True),
        ("-3\\frac{1}{2}", "-\\frac{7}{2}", True),
        ("31 \\text{ cm}", "31", True),
        ("48", "48^\\circ", True),
        ("\\$6", "6", True),
        ("10{,}500", "10,\\!500", True),
        ("5:15 \\text{ p.m.}", "\\text{5:15 p.m.}", True),
        ("x=7", "7", True),
        ("\\text{C}", "C", True),
        ("8\\pi", "8 \\pi", True),
        ("3b-2", "3b - 2", True),
        ("2\\sqrt{3}", "\\sqrt{12}", None),
        ("a", "b", None),
        ("(1,2)", "(1, 2)", True),
        ("9^{9^{9}}", "5", None),
        ("1" * 1001, "1", None),
    ],
)
def test_what_normal_forms_decide(answer, gold, expected):
    assert same_value(answer, gold) is expected


def test_a_percentage_may_mean_two_values():
    assert possible_values("35\\%") == {Fraction(35), Fraction(7, 20)}
    assert possible_values("x") == set()


@given(st.fractions(-999, 999, max_denominator=999), st.fractions(-999, 999, max_denominator=999))
def test_fractions_decide_exactly(a, b):
    latex = f"{'-' if a < 0 else ''}\\dfrac{{{abs(a.numerator)}}}{{{a.denominator}}}"
    assert same_value(latex, f"{b.numerator}/{b.denominator}") is (a == b)


@given(st.text(max_size=80))
def test_text_form_settles(text):
    same_value(text, text)
    assert isinstance(text_form(text), str)


def test_math_mode_uses_normal_forms_first_and_asks_only_then(opinion):
    assert grade_math("\\boxed{\\dfrac{5}{9}}", "\\frac{5}{9}", never).status == "correct"
    assert grade_math("\\boxed{5}", "6", never).status == "wrong"
    assert grade_math("no box", "6", never).status == "no_box"
    asked = grade_math("\\boxed{\\sqrt{2}}", "\\sqrt{8}", opinion.ask)
    assert (asked.status, asked.second_opinion) == ("wrong", "wrong")
    always = grade_math("\\boxed{0.5}", "\\frac12", opinion.ask, ask_always=True)
    assert (always.status, always.second_opinion) == ("correct", "wrong")
    assert opinion.counts == {"wrong": 2}


@pytest.mark.parametrize("gold", ["", "  ", "\x0crac{5}{9}", "a\tb", None, True, [1]])
def test_math_mode_refuses_a_gold_it_cannot_read(gold):
    found = grade_math("\\boxed{5}", gold, never)
    assert (found.status, found.correct) == ("gold_unparsable", None)


def test_numbers_are_golds_too():
    assert [gold_text(v) for v in (5, 5.0, 0.5, "\\frac12")] == ["5", "5", "0.5", "\\frac12"]


def test_a_hanging_expression_is_killed_counted_and_costs_no_other_verdict(opinion):
    start = time.monotonic()
    found = grade_math("\\boxed{hang}", "\\pi", opinion.ask)
    assert time.monotonic() - start < 3
    assert (found.status, found.correct, found.second_opinion) == ("grader_timeout", False, "timeout")
    assert opinion.ask("a", "a") == "correct"
    assert opinion.counts == {"timeout": 1, "correct": 1}


def test_a_crash_is_no_verdict_and_the_next_question_gets_one(opinion):
    assert opinion.ask("crash", "a") == "crashed"
    assert grade_math("\\boxed{crash}", "\\pi", opinion.ask).status == "grader_timeout"
    assert opinion.ask("b", "a") == "wrong"


def test_threads_lose_no_opinion(opinion):
    questions = [("hang" if i == 13 else str(i % 3), str(i % 2)) for i in range(60)]
    barrier = threading.Barrier(6)
    with ThreadPoolExecutor(6, initializer=barrier.wait) as pool:
        found = list(pool.map(lambda q: opinion.ask(*q), questions))
    expected = ["timeout" if a == "hang" else "correct" if a == g else "wrong" for a, g in questions]
    assert found == expected
    assert sum(opinion.counts.values()) == len(questions)


def test_closing_ends_the_process_and_asking_starts_another(opinion):
    assert opinion.ask("a", "a") == "correct"
    process = opinion._child.process
    opinion.close()
    assert process.poll() is not None
    assert opinion.ask("a", "a") == "correct"


def test_a_process_that_does_not_start_is_explained():
    with pytest.raises(OpinionUnavailable, match="check the installation"):
        SecondOpinion(command=[sys.executable, "-c", "raise SystemExit(1)"]).ask("1", "1")
    with pytest.raises(OpinionUnavailable, match="did not start"):
        SecondOpinion(command=[sys.executable, "-c", "print('hello', flush=True)"]).ask("1", "1")


def test_a_missing_library_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OpinionUnavailable, match=r"pip install 'creditbench\[eval\]'"):
        SecondOpinion().ask("1", "1")


@pytest.mark.lmeval
def test_math_verify_decides_what_normal_forms_cannot():
    opinion = SecondOpinion(deadline_seconds=5.0)
    try:
        assert opinion.ask("9", "9") == "correct"
        assert grade_math("\\boxed{2\\sqrt{3}}", "\\sqrt{12}", opinion.ask).correct is True
        assert grade_math("\\boxed{4b-2}", "2(2b-1)", opinion.ask).correct is True
        assert grade_math("\\boxed{2\\sqrt{3}}", "\\sqrt{11}", opinion.ask).correct is False
        start = time.monotonic()
        found = grade_math("\\boxed{9^{9^{9^{9}}}}", "\\sqrt{7}", opinion.ask)
        assert (found.status, found.correct) == ("grader_timeout", False)
        assert time.monotonic() - start < 6
        with ThreadPoolExecutor(4) as pool:
            verdicts = list(pool.map(lambda i: opinion.ask(f"\\frac{{{i}}}{{7}}", f"{i}/7"), range(20)))
        assert verdicts == ["correct"] * 20
    finally:
        opinion.close()
