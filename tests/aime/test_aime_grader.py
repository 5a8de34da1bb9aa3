"""The integer grader: published faults of other graders, rewritten, and properties."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.aime.extract import MAX_ANSWER_CHARS, find_answer
from tasks.aime.grader import GRADER_VERSION, STATUSES, grade, parse_gold, parse_integer

GOLD = 118


def verdict(response, gold=GOLD, **options):
    found = grade(response, gold, **options)
    assert found.status in STATUSES
    return found.status, found.extracted


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("The sum comes to \\boxed{29}.", "029"),
        ("\\boxed{006}", 6),
        ("\\boxed{000}", "0"),
        ("\\boxed{000}", 0),
        ("\\boxed{29}", 29.0),
        ("\\boxed{-3}", "-3"),
    ],
)
def test_padded_numbers_are_compared_as_integers(response, gold):
    assert grade(response, gold).correct is True


@pytest.mark.parametrize(
    "box",
    [
        r"\boxed{118}",
        r"\boxed{{118}}",
        r"\boxed{\text{118}}",
        r"\boxed{\mathbf{118}}",
        r"\boxed{\texttt{118}}",
        r"\boxed{\color{red}{118}}",
        r"\boxed{\textcolor{blue}{118}}",
        r"\boxed{\Large 118}",
        r"\boxed{\num{118}}",
        r"\boxed{\textbf{(118) }}",
        r"\boxed{ 118 }",
        r"\boxed{$118$}",
        r"\boxed{\(118\)}",
        r"\boxed{118.}",
        r"\boxed{118.00}",
        r"\boxed{+118}",
        r"\boxed{\,118\,}",
        r"\boxed{\left(118\right)}",
        r"\boxed{\boxed{118}}",
        r"\boxed {118}",
        r"\boxed 118",
        r"\fbox{118}",
        r"\framebox[2cm]{118}",
        r"\\boxed{118}",
        "\\boxed{１１８}",
        "＼boxed｛118｝",
        "\\boxed{𝟏𝟏𝟖}",
        "\\boxed{118\u200b}",
        r"\boxed{\$118}",
        r"\boxed{118 \text{ cm}}",
        r"\boxed{118\text{ square units}}",
        r"\boxed{118 \mathrm{cm}^2}",
        r"\boxed{118 cm}",
        r"\boxed{118^\circ}",
        r"\boxed{118^{\circ}}",
        "\\boxed{118°}",
        r"\boxed{118\%}",
        r"\boxed{n = 118}",
        r"\boxed{m+n=118}",
        r"\boxed{S_{20}=118}",
        r"\boxed{\text{Answer: }118}",
    ],
)
def test_writings_of_one_integer(box):
    assert verdict(f"Hence {box}.") == ("correct", "118")


@pytest.mark.parametrize(
    "box",
    [
        r"\boxed{118, 811}",
        r"\boxed{118 \text{ or } 811}",
        r"\boxed{118 or 119}",
        r"\boxed{1 1 8}",
        r"\boxed{236/2}",
        r"\boxed{\frac{236}{2}}",
        r"\boxed{2x=118}",
        r"\boxed{x-1=118}",
        r"\boxed{118x}",
        r"\boxed{118!}",
        r"\boxed{118.5}",
        r"\boxed{118...}",
        r"\boxed{\approx 118}",
        r"\boxed{118 \pmod{1000}}",
        r"\boxed{118 \text{ thousand}}",
        r"\boxed{\{118\}}",
        r"\boxed{[118]}",
        r"\boxed{|118|}",
        "\\boxed{11⁸}",
        r"\boxed{\text{one hundred}}",
        r"\boxed{-118}",
        r"\boxed{__import__('os')}",
    ],
)
def test_what_is_not_that_one_integer_is_wrong(box):
    found = grade(f"Hence {box}.", GOLD)
    assert (found.status, found.correct) == ("wrong", False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"73,205", 73205),
        (r"73\,205", 73205),
        (r"73{,}205", 73205),
        (r"73{\,}205", 73205),
        (r"73,\!205", 73205),
        (r"73\;205", 73205),
        ("73\u2009205", 73205),
        (r"1,073,205", 1073205),
        (r"7,32", None),
        (r"73,2055", None),
        (r"7320,5", None),
        (r"0,732", None),
        (r"73 205", None),
        (r"1,073\,205", None),
        ("\u2212118", -118),
        ("٤٢", 42),
        ("", None),
        ("-", None),
        ("1" * 61, None),
    ],
)
def test_grouping_is_strict(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Either \\boxed{34} or \\boxed{43}", ("wrong", "43")),
        ("At first \\boxed{43}; mended: \\boxed{34}", ("correct", "34")),
        ("\\boxed{43, 34}", ("wrong", "43, 34")),
        ("Mean is \\boxed{34}. Check: 3+4=7 and $y=8$.", ("correct", "34")),
        ("\\boxed{34}" + " and so on" * 80, ("correct", "34")),
        ("\\boxed{34}, as asked in \\boxed{}", ("correct", "34")),
        ("Hence \\boxed{34", ("unbalanced", None)),
        ("Hence \\boxed{3{4}", ("unbalanced", None)),
        ("Hence \\boxed{34\\}", ("unbalanced", None)),
        ("\\boxed{}", ("no_box", None)),
        ("Therefore the answer is 34.", ("no_box", None)),
        ("", ("no_box", None)),
        ("Answer: 8 seems off.\nAnswer: 34", ("correct", "34")),
        ("**Final Answer:** $34$", ("correct", "34")),
        ("Answer: 34\nI box \\boxed{43}", ("wrong", "43")),
        ("hence \\boxed{\\frac{7}{9}}", ("wrong", "\\frac{7}{9}")),
    ],
)
def test_which_answer_counts(response, expected):
    assert verdict(response, "34") == expected


@pytest.mark.parametrize("box", [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{7**7**7**7}", r"\boxed{2^{100000}}"])
def test_an_expression_beyond_bounds_is_counted_apart_and_costs_nothing(box):
    start = time.process_time()
    found = grade(f"so {box}", GOLD)
    assert (found.status, found.correct) == ("grader_timeout", False)
    assert time.process_time() - start < 0.5


def test_prose_counts_only_on_request_and_says_so():
    found = grade("First the answer is 9, no: the answer is 34.", 34, phrase_fallback=True)
    assert (found.correct, found.source) == (True, "phrase")
    assert grade("Answer: 34", 34).source == "answer_line"
    assert grade("\\boxed{34}", 34).source == "box"


@pytest.mark.parametrize(
    ("response", "finish_reason", "expected"),
    [
        ("<think>maybe \\boxed{71}, though I must check", "length", "truncated"),
        ("<think>maybe \\boxed{71}, though I must check", None, "truncated"),
        ("maybe \\boxed{71}, though I must check", "length", "truncated"),
        ("maybe \\boxed{71}, though", "max_tokens", "truncated"),
        ("<think>\\boxed{71}</think> so", "stop", "no_box"),
        ("<think>\\boxed{17}</think> so \\boxed{71}", "stop", "correct"),
        ("\\boxed{17} so </think> \\boxed{71}", "length", "correct"),
        ("<think>a</think><think>\\boxed{71}", "stop", "truncated"),
        ("<think>a</think>\\boxed{17}<think>b</think>\\boxed{71}", None, "correct"),
        ("<think>a</think> it is \\boxed{7", "length", "truncated"),
        ("[THINK]a[/THINK]\\boxed{71}", None, "correct"),
        ("<Thinking>a</Thinking>\\boxed{71}", None, "correct"),
        ("<reasoning>\\boxed{71}", None, "truncated"),
    ],
)
def test_thoughts_hold_no_final_answer(response, finish_reason, expected):
    found = grade(response, "71", finish_reason=finish_reason)
    assert found.status == expected
    assert found.correct is (expected == "correct")


@pytest.mark.parametrize(
    "gold", ["\\frac{5}{9}", "\x0crac{5}{9}", "\\boxed", "", None, True, [5], "5\t", "abc", float("nan")]
)
def test_a_gold_that_cannot_be_read_is_refused_not_scored(gold):
    found = grade("\\boxed{5}", gold)
    assert (found.status, found.correct) == ("gold_unparsable", None)


def test_a_decimal_gold_asks_for_that_decimal():
    assert grade("\\boxed{62\\%}", "0.62").correct is False
    assert grade("\\boxed{62\\%}", "62").correct is True
    assert grade("\\boxed{62.50}", "62.5").correct is True
    assert parse_gold("62.50") == Fraction(125, 2)


PINNED = ("aime-integer-1", "25962769e1b56d61")


def test_a_verdict_that_changes_needs_a_new_version():
    """The verdicts on a fixed suite, as a digest: bump GRADER_VERSION, then pin the new pair here."""
    parts = [
        "118",
        "1,180",
        "11 8",
        "{118}",
        "\\text{118}",
        "118.0",
        "118.5",
        "118 \\text{ m}",
        "n=118",
        "118/1",
        "x",
        "9^{9^9}",
    ]
    frames = [
        "\\boxed{%s}",
        "<think>\\boxed{%s}",
        "<think>a</think>\\boxed{%s}",
        "\\boxed{1} \\boxed{%s",
        "Answer: %s",
        "so %s",
    ]
    verdicts = [
        (frame, part, gold, reason, verdict(frame.replace("%s", part), gold, finish_reason=reason))
        for frame in frames
        for part in parts
        for gold in ("118", 1180, "0.5", "q")
        for reason in (None, "length")
    ]
    digest = hashlib.sha256(repr(verdicts).encode()).hexdigest()[:16]
    assert (GRADER_VERSION, digest) == PINNED


def test_numpy_integers_are_golds():
    assert grade("\\boxed{5}", np.int64(5)).correct is True


@given(st.integers(0, 999), st.integers(0, 999))
def test_every_pair_of_aime_answers(gold, answer):
    found = grade(f"so it is \\boxed{{{answer:03d}}}.", f"{gold:03d}")
    assert found.correct is (gold == answer)
    assert found.extracted == str(answer)


@given(st.text(), st.one_of(st.text(), st.integers(), st.none()))
def test_any_text_gets_a_verdict(response, gold):
    found = grade(response, gold, finish_reason=None, phrase_fallback=True)
    assert found.status in STATUSES
    assert (found.correct is None) == (found.status == "gold_unparsable")
    assert found.correct in (None, found.status == "correct")


@given(st.text(alphabet="\\boxed{}[]()$ 0123456789,.%=<>/think", max_size=200))
def test_text_made_of_marks_gets_a_verdict(response):
    assert grade(response, 5).status in STATUSES


HOSTILE = {
    "open boxes": "\\boxed{" * 100_000,
    "nested boxes": "\\boxed{" * 50_000 + "}" * 50_000,
    "bare boxes": "\\boxed" * 100_000,
    "thoughts": "<think>" * 60_000,
    "backslashes": "\\" * 400_000,
    "answer lines": "Answer: " * 60_000,
    "blank lines": "\n" * 200_000 + "x",
    "stars": "* " * 150_000,
    "digits": "\\boxed{" + "9" * 900 + "}",
    "groups": "\\boxed{" + "1," * 450 + "}",
    "names": "\\boxed{" + "\\a" * 95 + "=}",
    "sums of names": "\\boxed{" + "+".join(["\\" + "a" * 30] * 6) + "}",
    "parentheses": "\\boxed{" + "(" * 99 + ")" * 99 + "}",
    "spaces": "\\boxed" + " " * 200_000,
    "brackets": "\\boxed[" * 60_000,
    "phrases": "the answer is " * 30_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_little(name):
    start = time.process_time()
    assert grade(HOSTILE[name], 5, phrase_fallback=True).correct is False
    assert time.process_time() - start < 2.0


def test_a_box_that_is_too_long_holds_no_answer():
    padding = "\\text{ }" * (MAX_ANSWER_CHARS // 8 + 1)
    assert find_answer(f"\\boxed{{{padding}5}}").status == "unbalanced"


def test_threads_change_no_verdict():
    cases = [(f"so \\boxed{{{i}}}", i if i % 3 else i + 1) for i in range(600)]
    expected = [grade(text, gold) for text, gold in cases]
    barrier = threading.Barrier(8)

    def work(case):
        return grade(*case)

    def start():
        barrier.wait()

    with ThreadPoolExecutor(8, initializer=start) as pool:
        found = list(pool.map(work, cases))
    assert found == expected
    assert sum(g.correct for g in found) == 400
