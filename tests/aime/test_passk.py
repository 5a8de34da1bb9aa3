"""Pass@k and maj@k against enumeration and exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.passk import average_at_n, default_ks, majority_at_k, mean_pass_at_k, pass_at_k


def exact(n, c, k):
    return 1 - Fraction(math.comb(n - c, k), math.comb(n, k))


@pytest.mark.parametrize("n", range(1, 9))
def test_every_small_case_agrees_with_enumeration(n):
    for c in range(n + 1):
        right = [i < c for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(right, k))
            share = sum(any(s) for s in subsets) / len(subsets)
            assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-14)


@given(st.integers(1, 10_000), st.data())
def test_stable_up_to_ten_thousand(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), abs=1e-11)


def test_known_values():
    assert pass_at_k(2000, 1, 1000) == 0.5
    assert pass_at_k(8, 1, 8) == 1.0  # resampling with replacement would say 0.6564
    assert pass_at_k(8, 2, 4) == pytest.approx(1 - 15 / 70)  # 1 - (1 - c/n)^k would say 0.684
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4, rel=1e-10)
    assert pass_at_k(10_000, 5_000, 5_000) == pytest.approx(1.0)
    assert pass_at_k(5, 0, 5) == 0.0


@given(st.integers(0, 60), st.data())
def test_more_draws_than_samples_are_refused(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(n + 1, n + 50))
    with pytest.raises(ValueError, match=f"n={n}"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"[ck]="):
        pass_at_k(n, c, k)


def test_means_are_over_problems_each_with_its_own_n():
    counts = {"a": (4, 2), "b": (16, 0), "c": (2, 2)}
    assert mean_pass_at_k(counts, 2) == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert average_at_n(counts) == pytest.approx((0.5 + 0 + 1) / 3)
    with pytest.raises(ValueError, match="k=4 exceeds n=2 of problem 'c'"):
        mean_pass_at_k(counts, 4)
    with pytest.raises(ValueError, match="no problems"):
        mean_pass_at_k({}, 1)


def test_problem_counts_in_place_of_sample_counts_are_refused():
    counts = {str(i): (1, int(i < 12)) for i in range(60)}
    assert average_at_n(counts) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="k=10 exceeds n=1"):
        mean_pass_at_k(counts, 10)


def vote(subset):
    """Credit of one draw: the leaders share it."""
    votes = {}
    for label, good in subset:
        if label is not None:
            key = "right" if good else label
            votes[key] = votes.get(key, 0) + 1
    leaders = [key for key in votes if votes[key] == max(votes.values())]
    return Fraction(leaders.count("right"), len(leaders)) if leaders else Fraction(0)


@given(
    st.lists(
        st.sampled_from([("7", True), ("07", True), ("8", False), ("9", False), (None, False)]),
        min_size=1,
        max_size=7,
    ),
    st.data(),
)
def test_majority_agrees_with_enumeration(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    subsets = list(itertools.combinations(samples, k))
    expected = sum((vote(s) for s in subsets), Fraction(0)) / len(subsets)
    labels, good = zip(*samples, strict=True)
    assert majority_at_k(labels, good, k) == pytest.approx(float(expected), abs=1e-12)


def test_majority_of_all_samples_by_hand():
    assert majority_at_k(["7", "7", "8"], [True, True, False], 3) == 1.0
    assert majority_at_k(["7", "8", "8"], [True, False, False], 3) == 0.0
    assert majority_at_k(["7", "8", "9", None], [True, False, False, False], 4) == pytest.approx(1 / 3)
    assert majority_at_k([None, None], [False, False], 1) == 0.0
    with pytest.raises(ValueError, match="maj@k needs"):
        majority_at_k(["7"], [True], 2)


def test_majority_of_many_samples_is_quick_and_right():
    votes = [str(i % 9) for i in range(64)]
    found = majority_at_k(votes, [v == "0" for v in votes], 64)
    assert found == 1.0  # 0 has 8 votes, the others 7
    assert 0 < majority_at_k(votes, [v == "1" for v in votes], 8) < 0.2


def test_default_grid():
    assert default_ks(0) == []
    assert default_ks(1) == [1]
    assert default_ks(12) == [1, 2, 4, 8]
    assert default_ks(16) == [1, 2, 4, 8, 16]
