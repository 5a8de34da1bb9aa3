"""Recipes: bounds for any score, and that the safe ones do not pay for what models did to the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import Answer, Diagnostic, LocalReward, Score, Span
from tasks.react import ReactTask
from tasks.react.recipes import DEFAULT_RECIPE, RECIPES, SAFE_RECIPES, character_values
from tasks.react.spans import error_spans

GOOD = "export default function Pet() {\n  return (\n    <p>cat</p>\n  );\n}"
BROKEN = "export default function Pet() {\n  return (\n    <p>cat<p>;\n  );\n}"
BLAMED = [name for name in SAFE_RECIPES if name != "none"]


def fenced(code: str, finished: bool = True) -> Answer:
    return Answer(f"```tsx\n{code}\n```", finished)


def local_of(react: ReactTask, recipe: str, answer: Answer) -> tuple[list[float], float, Score]:
    (score,) = react.score([react.example("train", 0)], [answer])
    local = RECIPES[recipe](answer, score)
    return character_values(local, len(answer.text)), local.end_token, score


def failing(
    length: int, places: list[tuple[int, int]], finished: bool, source: str, text: str = ""
) -> tuple[Answer, Score]:
    diagnostics = tuple(Diagnostic(source, "c", "m", s, min(length, s + n)) for s, n in places)
    steps = ((0, length),) if length else ()
    answer = Answer(text or "x" * length, finished)
    score = Score(0.0, False, error_spans(diagnostics), steps, {}, diagnostics)
    return answer, score


SCORES = st.integers(1, 60).flatmap(
    lambda length: st.builds(
        failing,
        st.just(length),
        st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, 9)), max_size=4),
        st.booleans(),
        st.sampled_from(["typescript", "esbuild", "imports", "component", "extract", "checker"]),
    )
)


@pytest.mark.parametrize("name", RECIPES)
@given(pair=SCORES)
def test_values_stay_in_bounds(name: str, pair: tuple[Answer, Score]) -> None:
    answer, score = pair
    local = RECIPES[name](answer, score)
    assert all(-1.0 <= span.value <= 1.0 for span in local.spans)
    assert all(0 <= span.start <= span.end <= len(answer.text) for span in local.spans)
    assert -1.0 <= local.end_token <= 1.0


@pytest.mark.parametrize("name", SAFE_RECIPES)
@given(pair=SCORES)
def test_no_part_of_a_failure_is_rewarded(name: str, pair: tuple[Answer, Score]) -> None:
    answer, score = pair
    local = RECIPES[name](answer, score)
    assert max([*character_values(local, len(answer.text)), local.end_token]) <= 0.0


@pytest.mark.parametrize("name", BLAMED)
@given(pair=SCORES)
def test_an_answer_without_an_end_is_bad_everywhere(name: str, pair: tuple[Answer, Score]) -> None:
    answer, score = Answer(pair[0].text, finished=False), pair[1]
    local = RECIPES[name](answer, score)
    assert character_values(local, len(answer.text)) == [-1.0] * len(answer.text)
    assert local.end_token == -1.0


def test_first_error_to_end_by_hand() -> None:
    answer, score = failing(6, [(2, 1)], True, "typescript", text="ab;d;f")
    local = RECIPES["first_error_to_end"](answer, score)
    assert character_values(local, 6) == [0.0, 0.0, -1.0, -1.0, -1.0, -1.0]
    assert local.end_token == 0.0


def test_error_window_by_hand() -> None:
    answer, score = failing(40, [(20, 1), (30, 1)], True, "typescript")
    local = RECIPES["error_window"](answer, score)
    assert character_values(local, 40) == [0.0] * 8 + [-1.0] * 18 + [0.0] * 14


def test_error_spans_by_hand() -> None:
    answer, score = failing(6, [(4, 1), (1, 2)], True, "typescript")
    local = RECIPES["error_spans"](answer, score)
    assert character_values(local, 6) == [0.0, -1.0, -1.0, 0.0, -0.5, 0.0]


def test_centred_by_hand() -> None:
    # values 0 -1 -1, end 0: mean -1/2
    answer, score = failing(3, [(1, 1)], True, "typescript", text="a;;")
    local = RECIPES["first_error_to_end_centred"](answer, score)
    assert [*character_values(local, 3), local.end_token] == [0.5, -0.5, -0.5, 0.5]


def test_a_success_is_left_alone(react: ReactTask) -> None:
    for name in RECIPES:
        values, end, score = local_of(react, name, fenced(GOOD))
        assert score.correct
        if name != "well_formed":
            assert {*values, end} == {0.0}


@pytest.mark.parametrize("name", BLAMED)
def test_running_on_does_not_pay(react: ReactTask, name: str) -> None:
    before, end_before, _ = local_of(react, name, fenced(BROKEN))
    for more in ("\nconst a = 1;" * 20, "\n<p>cat</p>" * 20, " {}" * 50):
        after, end_after, _ = local_of(react, name, fenced(BROKEN + more))
        shared = len("```tsx\n") + len(BROKEN)
        assert all(a <= b for a, b in zip(after[:shared], before[:shared], strict=True))
        assert max(after[shared:]) < 0.0
        assert sum(after) < sum(before)
        assert sum(after) / len(after) < sum(before) / len(before)
        assert end_after <= end_before


def test_running_on_past_a_missing_end_does_not_pay(react: ReactTask) -> None:
    """Running on makes the end token neutral, and costs at least as much on what was added."""
    cut = GOOD[: GOOD.index("</p>")]
    before, end_before, _ = local_of(react, DEFAULT_RECIPE, fenced(cut))
    assert end_before == -1.0
    for more in (";;", " }}", "\nconst a = 1;"):
        after, end_after, _ = local_of(react, DEFAULT_RECIPE, fenced(cut + more))
        assert sum(after) + end_after <= sum(before) + end_before


@pytest.mark.parametrize("name", BLAMED)
def test_stopping_on_a_valid_prefix_does_not_pay(react: ReactTask, name: str) -> None:
    """At every place where this right answer could be left off, the choice to end there is punished.

    Not so within the head of an arrow function: the parser has not seen yet that it is one.
    """
    code = 'import { useState } from "react";\n' + GOOD
    cuts = [code[:i] for i in range(len(code))]
    scores = react.score([react.example("train", 0)] * len(cuts), [fenced(cut) for cut in cuts])
    whole, end_whole, _ = local_of(react, name, fenced(code))
    for cut, score in zip(cuts, scores, strict=True):
        local = RECIPES[name](fenced(cut), score)
        assert not score.correct
        assert local.end_token == -1.0 < end_whole
        values = character_values(local, len(fenced(cut).text))
        assert sum(values) < 0.0
        assert all(a <= b for a, b in zip(values[: 7 + len(cut)], whole, strict=False))


@pytest.mark.parametrize(
    "code",
    [
        "export default function Blog() ",
        "export default function Blog();",
        "export default 42;",
        "",
        "// to do",
        "export default function Blog() { return null; }",
        "const a = <p>cat</p>;",
    ],
)
def test_what_parses_but_is_no_component_is_bad_everywhere(react: ReactTask, code: str) -> None:
    values, end, score = local_of(react, DEFAULT_RECIPE, fenced(code))
    assert score.metrics["compile_raw"] == 1.0
    assert score.outcome == 0.0
    assert {*values, end} == {-1.0}


@pytest.mark.parametrize("name", BLAMED)
def test_filler_does_not_pay(react: ReactTask, name: str) -> None:
    plain, _, _ = local_of(react, name, fenced(BROKEN))
    for filler in ("// nice\n" * 30, "const a = 1;\n", "type T = 1;\n" * 9, '<img alt=" alt=" />;\n'):
        filled, _, score = local_of(react, name, fenced(filler + BROKEN))
        assert not score.correct
        assert sum(filled) <= sum(plain)


def test_the_ablations_do_break_the_rules_they_are_kept_for(react: ReactTask) -> None:
    plain, _, _ = local_of(react, "well_formed", fenced(BROKEN))
    filled, _, _ = local_of(react, "well_formed", fenced("const a = 1;\n" * 20 + BROKEN))
    assert sum(filled) > sum(plain)
    assert max(local_of(react, "first_error_to_end_centred", fenced(BROKEN))[0]) > 0.0
    assert local_of(react, "first_error_to_end_end_penalised", fenced(BROKEN))[1] == -1.0
    assert local_of(react, "first_error_to_end", fenced(BROKEN))[1] == 0.0
    short, _, _ = local_of(react, "error_spans", fenced(BROKEN))
    long, _, _ = local_of(react, "error_spans", fenced(BROKEN + "\n" * 400))
    assert sum(long) / len(long) > sum(short) / len(short)


@given(
    st.integers(0, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([-1.0, -0.5, 0.5, 1.0])),
                max_size=5,
            ),
        )
    )
)
def test_overlaps_take_the_largest_magnitude(case: tuple[int, list[tuple[int, int, float]]]) -> None:
    length, triples = case
    spans = tuple(Span(s, e, v, "x") for s, e, v in triples)
    values = character_values(LocalReward(spans), length)
    for i in range(length):
        here = [s.value for s in spans if s.start <= i < s.end]
        assert values[i] == (max(here, key=lambda v: (abs(v), -v)) if here else 0.0)
