"""Characters to tokens: text and ranges agree for any bytes, rewards land on the tokens they name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import build_tokenizer

from harness.train.alignment import TextAligner, local_to_tokens, steps_to_tokens
from tasks.base import LocalReward, Span

TOKENIZER = build_tokenizer()
ALIGNER = TextAligner(TOKENIZER)


@given(st.text(max_size=40))
def test_round_trip_of_any_text(text):
    text = text.encode("utf-8", "ignore").decode()
    ids = TOKENIZER(text)["input_ids"]
    decoded, ranges = ALIGNER.decode(ids)
    assert decoded == text
    assert all(start <= end <= len(text) for start, end in ranges)
    covered = {i for start, end in ranges for i in range(start, end)}
    assert covered == set(range(len(text)))


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=30))
def test_any_ids_decode_like_the_tokenizer(ids):
    decoded, ranges = ALIGNER.decode(ids)
    assert decoded == TOKENIZER.decode(ids, skip_special_tokens=True)
    assert len(ranges) == len(ids)
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(ranges))


def test_bytes_of_one_character_share_its_range():
    ids = TOKENIZER("é🎉")["input_ids"]
    text, ranges = ALIGNER.decode(ids)
    assert text == "é🎉"
    party = [tuple(r) for r in ranges if r[1] == 2]
    assert len(party) >= 1
    assert all(r == (1, 2) for r in party)


def test_special_tokens_are_empty_text():
    text, ranges = ALIGNER.decode([0, TOKENIZER.convert_tokens_to_ids("a"), 1])
    assert text == "a"
    assert ranges.tolist() == [[0, 0], [0, 1], [1, 1]]


def test_local_reward_by_hand():
    ranges = np.array([[0, 2], [2, 3], [3, 6], [6, 6]])
    spans = (Span(0, 3, 0.5, "a"), Span(2, 4, -0.5, "b"), Span(5, 6, -1.0, "c"))
    rewards, scored = local_to_tokens(LocalReward(spans, end_token=-0.25), ranges, has_end_token=True)
    # token 1 is under +0.5 and -0.5: a tie goes to the negative; token 2 is under -0.5 and -1.0
    assert rewards.tolist() == [0.5, -0.5, -1.0, -0.25]
    assert scored.tolist() == [True, True, True, True]


def test_order_of_spans_does_not_matter():
    ranges = np.array([[0, 1], [1, 2], [2, 3]])
    spans = (Span(0, 2, -0.5, "a"), Span(1, 3, 0.5, "b"), Span(0, 3, 0.25, "c"))
    forward, _ = local_to_tokens(LocalReward(spans), ranges, has_end_token=False)
    backward, _ = local_to_tokens(LocalReward(spans[::-1]), ranges, has_end_token=False)
    assert forward.tolist() == backward.tolist() == [-0.5, -0.5, 0.5]


def test_unscored_tokens_get_zero_and_truncated_answers_have_no_end_token():
    ranges = np.array([[0, 1], [1, 2]])
    rewards, scored = local_to_tokens(LocalReward((), end_token=-1.0), ranges, has_end_token=False)
    assert rewards.tolist() == [0.0, 0.0]
    assert not scored.any()


def test_steps_by_first_overlap():
    ranges = np.array([[0, 2], [2, 5], [5, 6], [6, 6]])
    assert steps_to_tokens([(0, 3), (3, 5)], ranges).tolist() == [0, 0, -1, -1]


def test_tokenizer_that_is_not_byte_level_is_refused():
    class Other:
        backend_tokenizer = None

    with pytest.raises(ValueError, match="not byte-level"):
        TextAligner(Other())


@given(
    st.lists(
        st.sampled_from([i for i in range(len(TOKENIZER)) if ALIGNER.decode([i])[0].isascii()]), max_size=30
    )
)
def test_plain_text_has_the_ranges_that_it_has_before_a_wide_character(ids):
    accent = TOKENIZER("é")["input_ids"]
    text, ranges = ALIGNER.decode(ids)
    longer, more = ALIGNER.decode([*ids, *accent])
    assert longer == text + "é"
    assert ranges.dtype == more.dtype
    assert ranges.tolist() == more[: len(ids)].tolist()
