"""Steps cover an answer without overlap, in code points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.aime.steps import SPLITS, split_steps


def pieces(text, split="auto"):
    return [text[a:b] for a, b in split_steps(text, split)]


def test_lines_and_paragraphs():
    assert pieces("Step 1: 1+1=2.\nStep 2: 2+2=4.\n\\boxed{4}\n") == [
        "Step 1: 1+1=2.",
        "Step 2: 2+2=4.",
        "\\boxed{4}",
    ]
    assert pieces("First\nline.\n\n  Second.\n \n\nThird.") == ["First\nline.", "Second.", "Third."]
    assert pieces("a\n\nb\nc", "line") == ["a", "b", "c"]
    assert pieces("a\nb", "paragraph") == ["a\nb"]
    assert pieces("") == []
    assert pieces(" \n\n ") == []


def test_positions_are_code_points():
    text = "🙂 π=3\nэто 2+2=4"
    assert [(text[a:b]) for a, b in split_steps(text)] == ["🙂 π=3", "это 2+2=4"]
    assert split_steps(text)[1] == (6, 15)


def test_a_display_is_not_cut():
    text = "So\n\n\\[ a\n\n= b \\]\n\nand then\n\n$$ c\n\n= d $$"
    assert pieces(text) == ["So", "\\[ a\n\n= b \\]", "and then", "$$ c\n\n= d $$"]


def test_a_display_that_never_closes_cuts_as_usual():
    assert pieces("\\[ a\n\nb\n\nc") == ["\\[ a", "b", "c"]


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="split='sentence'"):
        split_steps("a", "sentence")


@given(st.text(alphabet="a1 \n\t\\[]$`=é🙂", max_size=120), st.sampled_from(SPLITS))
def test_steps_are_ordered_disjoint_and_cover_everything(text, split):
    covered, last = [], 0
    for start, end in split_steps(text, split):
        assert last <= start < end <= len(text)
        assert not text[last:start].strip()
        covered.append(text[start:end])
        last = end
    assert not text[last:].strip()
    assert all(piece.strip() == piece for piece in covered)
