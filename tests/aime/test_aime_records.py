"""Grading answers from anywhere: rows, summaries, flags, and records that are at fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.aime import AimeTask


@pytest.fixture
def task():
    found = AimeTask()
    yield found
    found.close()


def run(task, records, ks=None):
    rows = list(task.score_records(records))
    return rows, task.summarise(rows, ks)


def box(value):
    return f"so \\boxed{{{value}}}"


def test_one_and_several_responses(task):
    rows, summary = run(
        task,
        [
            {"id": "a", "response": box(29), "gold": "029"},
            {"id": 2, "responses": [box(5), "none", box(6)], "gold": 5},
            json.dumps({"id": "c", "response": "<think>" + box(5), "gold": 5, "finish_reason": "length"}),
        ],
    )
    assert [rows[0][key] for key in ("id", "correct", "status", "extracted")] == ["a", True, "correct", "29"]
    assert rows[1]["correct"] == [True, False, False]
    assert rows[1]["status"] == ["correct", "no_box", "wrong"]
    assert rows[1]["extracted"] == ["5", None, "6"]
    assert (rows[2]["correct"], rows[2]["status"], rows[2]["extracted"]) == (False, "truncated", None)
    assert {row["grader_version"] for row in rows} == {task.grader_version}
    assert summary["problems"] == 3
    assert summary["graded"] == 5
    assert summary["accuracy"] == pytest.approx(2 / 5)
    assert summary["avg_at_n"] == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert summary["problem_counts"] == {"a": [1, 1], "2": [3, 1], "c": [1, 0]}
    assert "n differs between problems" in summary["flags"]
    json.dumps([rows, summary], allow_nan=False)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("[1]", "a record is an object"),
        (7, "a record is an object"),
        ({"id": "a", "gold": 5}, "either response"),
        ({"id": "a", "response": "x", "responses": ["x"], "gold": 5}, "either response"),
        ({"id": "a", "responses": [], "gold": 5}, "at least one"),
        ({"id": "a", "responses": "text", "gold": 5}, "must be a list"),
        ({"id": "a", "responses": [3], "gold": 5}, "must be text, not int"),
        ({"id": "a", "response": "x"}, "gold is missing"),
        ({"id": ["a"], "response": "x", "gold": 5}, "id must be"),
        ({"id": "a", "responses": ["x", "y"], "gold": 5, "finish_reason": ["stop"]}, "1 entries for 2"),
        ({"id": "a", "response": "x", "gold": 5, "finish_reason": 1}, "finish_reason must be"),
        ({"id": "a", "response": "x", "gold": 5, "requested_n": 0}, "requested_n=0"),
    ],
)
def test_a_bad_record_is_a_row_with_an_error_and_the_rest_goes_on(task, record, words):
    rows, summary = run(task, [record, {"id": "b", "response": box(5), "gold": 5}])
    assert words in rows[0]["error"]
    assert rows[0]["error"].startswith("record 1: ")
    assert rows[1]["correct"] is True
    assert summary["errors"] == 1
    assert summary["accuracy"] == 1.0
    assert any("could not be graded" in flag for flag in summary["flags"])


@given(
    st.lists(
        st.one_of(
            st.text(max_size=20),
            st.dictionaries(
                st.sampled_from(["id", "response", "responses", "gold", "finish_reason", "requested_n"]),
                st.one_of(
                    st.none(),
                    st.text(max_size=9),
                    st.integers(),
                    st.floats(),
                    st.lists(st.text(max_size=5), max_size=3),
                ),
            ),
        ),
        max_size=6,
    )
)
def test_any_records_give_one_row_each_and_a_summary(records):
    task = AimeTask()
    rows, summary = run(task, records)
    assert len(rows) == len(records)
    assert summary["errors"] == sum("error" in row for row in rows)
    json.dumps(rows)


def test_a_line_that_its_reader_refused_keeps_its_error(task):
    rows, summary = run(task, [{"id": None, "line": 3, "error": "line 3 is not JSON"}])
    assert rows == [{"id": None, "line": 3, "error": "line 3 is not JSON"}]
    assert summary["errors"] == 1


def test_a_record_without_an_id_is_known_by_its_place(task):
    rows, _ = run(task, [{"response": box(5), "gold": 5}, {"id": None, "response": box(5), "gold": 5}])
    assert [row["id"] for row in rows] == [1, 2]


def test_missing_samples_shrink_n_and_are_flagged(task):
    responses = [f"{i} {box(5 if i < 3 else 6)}" for i in range(6)] + [None] * 10
    rows, summary = run(task, [{"id": "p", "responses": responses, "gold": 5}], ks=[1])
    assert (rows[0]["n"], rows[0]["missing"]) == (6, 10)
    assert rows[0]["status"].count("missing") == 10
    assert summary["pass_at_k"]["1"] == 0.5  # counting them as failures would say 0.1875
    assert summary["missing"] == 10
    assert any(flag.startswith("10 missing") for flag in summary["flags"])
    rows, summary = run(task, [{"id": "p", "responses": responses[:6], "gold": 5, "requested_n": 16}])
    assert (rows[0]["n"], rows[0]["missing"], summary["missing"]) == (6, 10, 10)


def test_identical_samples_count_once(task):
    rows, summary = run(
        task,
        [{"id": "p1", "responses": [box(5)] * 8, "gold": 5}],
        ks=[1, 8],
    )
    assert (rows[0]["flag"], rows[0]["effective_n"]) == ("duplicate_samples", 1)
    assert summary["pass_at_k"] == {"1": 1.0, "8": None}
    assert "k=8 exceeds n=1" in summary["refused"]["8"]
    assert any("duplicate_samples" in flag for flag in summary["flags"])


def test_all_repeats_are_scored(task):
    responses = [f"try {i}: {box(9 if i else 1)}" for i in range(4)]
    rows, summary = run(task, [{"id": "p", "responses": responses, "gold": 9}])
    assert rows[0]["correct"] == [False, True, True, True]
    assert summary["graded"] == len(responses)
    assert summary["avg_at_n"] == 0.75
    assert summary["pass_at_k"]["4"] == 1.0


def test_samples_of_one_problem_may_come_in_several_records(task):
    records = [{"id": "p", "response": f"{i} {box(i % 2)}", "gold": 1} for i in range(4)]
    _, summary = run(task, records, ks=[1, 2, 5])
    assert summary["problem_counts"] == {"p": [4, 2]}
    assert summary["pass_at_k"]["2"] == pytest.approx(5 / 6)
    assert summary["pass_at_k"]["5"] is None
    assert "k=5 exceeds n=4" in summary["refused"]["5"]


def test_truncation_is_shown_beside_accuracy(task):
    records = [
        {"id": i, "response": box(1) if i < 9 else box(2), "gold": 1, "finish_reason": "stop"}
        for i in range(18)
    ]
    records += [
        {"id": i, "response": "on and on", "gold": 1, "finish_reason": "length"} for i in range(18, 30)
    ]
    _, summary = run(task, records)
    assert summary["accuracy"] == pytest.approx(0.3)
    assert summary["truncation_rate"] == pytest.approx(0.4)
    assert summary["accuracy_on_completed"] == pytest.approx(0.5)
    assert any("cut by the token limit" in flag for flag in summary["flags"])


def test_a_high_share_without_a_box_is_flagged(task):
    _, summary = run(task, [{"id": i, "response": "the answer is 5", "gold": 5} for i in range(4)])
    assert summary["no_box_rate"] == 1.0
    assert any("without a box" in flag for flag in summary["flags"])


def test_an_unparsable_gold_is_not_counted_as_failure(task):
    rows, summary = run(
        task,
        [
            {"id": "a", "response": "\\boxed{\\frac{5}{9}}", "gold": "\\frac{5}{9}"},
            {"id": "b", "response": box(1), "gold": 1},
        ],
    )
    assert (rows[0]["correct"], rows[0]["status"]) == (None, "gold_unparsable")
    assert summary["accuracy"] == 1.0
    assert summary["problem_counts"] == {"b": [1, 1]}
    assert any("unparsable gold" in flag for flag in summary["flags"])


def test_majority_beside_pass_at_k(task):
    responses = [f"{i} {box(v)}" for i, v in enumerate([5, 5, 6, 7])]
    _, summary = run(task, [{"id": "p", "responses": responses, "gold": 5}], ks=[1, 4])
    assert summary["maj_at_k"] == {"1": 0.5, "4": 1.0}


def test_nothing_to_grade(task):
    assert run(task, [])[1]["accuracy"] is None


def test_second_opinions_give_a_rate_of_disagreement(monkeypatch):
    monkeypatch.setattr("tasks.aime.second_opinion.SecondOpinion.check", lambda self: None)
    task = AimeTask(second_opinion=True)
    monkeypatch.setattr(task._opinion, "ask", lambda answer, gold: "correct" if answer == gold else "wrong")
    rows, summary = run(
        task,
        [
            {"id": "a", "response": box("5"), "gold": "5"},
            {"id": "b", "response": box("007"), "gold": "007"},
            {"id": "c", "responses": [box(1), "none"], "gold": "2"},
        ],
    )
    assert [row["second_opinion"] for row in rows] == ["correct", "wrong", ["wrong", None]]
    assert summary["second_opinion"] == {"asked": 3, "disagreements": 1, "rate": pytest.approx(1 / 3)}
