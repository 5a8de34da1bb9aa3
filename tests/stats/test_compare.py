from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.stats import compare
from harness.stats.speedup import Times

A, B = [0.81, 0.84, 0.79, 0.9, 0.86], [0.7, 0.78, 0.74, 0.69, 0.8]


def test_welch_and_paired_agree_with_scipy():
    found, want = compare.welch(A, B), stats.ttest_ind(A, B, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(want.confidence_interval()))
    assert found.p_value == pytest.approx(want.pvalue)
    found, other = compare.paired(A, B), stats.ttest_rel(A, B)
    assert (found.low, found.high) == pytest.approx(tuple(other.confidence_interval()))
    assert found.p_value == pytest.approx(other.pvalue)


@pytest.mark.parametrize("method", [compare.welch, compare.exact_shift, compare.probability_of_improvement])
def test_one_run_never_yields_an_interval(method):
    found = method([0.8], [0.7])
    assert (found.low, found.high) == (None, None)
    assert "fewer than 2" in found.reason


def test_identical_runs_are_not_certainty():
    for found in (compare.welch([0.6125] * 3, [0.5] * 3), compare.one_sample([0.1] * 4)):
        assert not found.has_interval
        assert "identical" in found.reason


def test_values_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        compare.welch([0.1, math.nan], [0.1, 0.2])
    with pytest.raises(ValueError, match="equal numbers"):
        compare.paired([1, 2], [1])


def test_clustered_agrees_with_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 5)
    values = rng.normal(0.5, 0.2, 8)[groups] + rng.normal(0, 0.1, 40)
    fit = sm.OLS(values, np.ones(40)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    found = compare.clustered(values, groups)
    assert found.se == pytest.approx(float(fit.bse[0]) * math.sqrt(8 / 7))
    assert found.df == 7
    assert found.estimate == pytest.approx(values.mean())
    assert not compare.clustered([1, 2, 3], ["p", "p", "p"]).has_interval


def test_singleton_clusters_are_the_plain_t_interval():
    one, other = compare.clustered(A, list("abcde")), compare.one_sample(A)
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_two_way_adds_the_problem_variance():
    rng = np.random.default_rng(1)
    a, b = rng.random((4, 12)), rng.random((5, 12))
    found = compare.two_way(a, b)
    runs = a.mean(1).var(ddof=1) / 4 + b.mean(1).var(ddof=1) / 5
    problems = (a.mean(0) - b.mean(0)).var(ddof=1) / 12
    assert found.se == pytest.approx(math.sqrt(runs + problems))
    assert found.df == pytest.approx(min(compare.welch(a.mean(1), b.mean(1)).df, 11))
    with pytest.raises(ValueError, match="same problems"):
        compare.two_way(a, b[:, :5])


def simulate_problems(rng, seeds, problems, gain=0.3, seed_sd=0.4, cell_sd=0.4, n=32):
    """Per-problem success rates [seeds, problems] of two arms, logit-normal, and their true mean gain."""
    level = rng.normal(-0.5, 1.5, problems)
    arms, truth = [], []
    for shift in (0.0, gain):
        own = rng.normal(0, 0.3, problems) * (shift > 0)
        logits = (
            level
            + own
            + shift
            + rng.normal(0, seed_sd, (seeds, 1))
            + rng.normal(0, cell_sd, (seeds, problems))
        )
        arms.append(rng.binomial(n, 1 / (1 + np.exp(-logits))) / n)
        grid = stats.norm.ppf((np.arange(200) + 0.5) / 200)
        sd = math.hypot(seed_sd, cell_sd)
        truth.append(np.mean(1 / (1 + np.exp(-(level + own + shift)[:, None] - sd * grid)), axis=1))
    return arms[1], arms[0], float(np.mean(truth[1] - truth[0]))


def test_welch_covers_this_problem_set_and_two_way_is_conservative():
    rng = np.random.default_rng(2)
    inside = {"welch": 0, "two_way": 0}
    for _ in range(400):
        a, b, truth = simulate_problems(rng, 5, 30)
        one, other = compare.welch(a.mean(1), b.mean(1)), compare.two_way(a, b)
        inside["welch"] += one.low <= truth <= one.high
        inside["two_way"] += other.low <= truth <= other.high
    assert 0.92 <= inside["welch"] / 400 <= 0.99
    assert inside["two_way"] / 400 >= inside["welch"] / 400


def test_welch_on_seed_means_covers_a_seed_effect_shared_by_all_problems():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(500):
        a, b = (rng.normal(0, 1, (8, 1)) + rng.normal(0, 0.3, (8, 30)) for _ in range(2))
        found = compare.welch(a.mean(1), b.mean(1))
        inside += found.low <= 0 <= found.high
    assert 0.93 <= inside / 500 <= 0.975


def test_exact_shift_is_the_inverted_permutation_test():
    found = compare.exact_shift(A, B)
    want = stats.permutation_test(
        (A, B), lambda x, y, axis: np.abs(x.mean(axis) - y.mean(axis)),
        vectorized=True, n_resamples=np.inf, alternative="greater",
    )  # fmt: skip
    assert found.p_value == pytest.approx(want.pvalue)
    for shift in np.linspace(-0.1, 0.3, 81):
        if min(abs(shift - found.low), abs(shift - found.high)) < 2e-3:
            continue
        p = stats.permutation_test(
            (np.array(A) - shift, B), lambda x, y, axis: np.abs(x.mean(axis) - y.mean(axis)),
            vectorized=True, n_resamples=np.inf, alternative="greater",
        ).pvalue  # fmt: skip
        assert (p >= 0.05) == (found.low < shift < found.high)
    assert compare.exact_shift(A[:3], B[:3]).low == -math.inf


def test_tost_agrees_with_statsmodels_and_wants_evidence():
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    a, b = [0.50, 0.52, 0.49, 0.51, 0.505], [0.495, 0.515, 0.5, 0.51, 0.50]
    found = compare.tost(a, b, 0.03)
    want = weightstats.ttost_ind(np.array(a), np.array(b), -0.03, 0.03, usevar="unequal")[0]
    assert found.p_value == pytest.approx(want)
    assert found.equivalent
    assert found.non_inferior
    noisy = compare.tost([0.3, 0.7, 0.5], [0.4, 0.6, 0.5], 0.03)
    assert noisy.difference.estimate == pytest.approx(0)
    assert not noisy.equivalent
    assert not compare.tost([0.5], [0.5], 0.1).equivalent
    with pytest.raises(ValueError, match="margin"):
        compare.tost(a, b, 0)


def test_holm_case_and_no_silent_nan():
    assert compare.holm([0.012, 0.03, 0.02, 0.4]) == pytest.approx([0.048, 0.06, 0.06, 0.4])
    with pytest.raises(ValueError, match="numbers from 0 to 1"):
        compare.holm([0.01, math.nan])


@pytest.fixture(scope="module")
def multitest():
    return pytest.importorskip("statsmodels.stats.multitest")


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_holm_agrees_with_statsmodels(multitest, p):
    assert compare.holm(p) == pytest.approx(list(multitest.multipletests(p, method="holm")[1]))


def test_max_t_of_one_variant_is_the_permutation_p():
    found = compare.max_t({"base": B, "x": A}, "base", resamples=20_000)
    assert found["x"] == pytest.approx(float(compare.unpaired_p(np.array(A), np.array(B))), abs=0.003)


def test_max_t_controls_the_family():
    rng = np.random.default_rng(4)
    wrong = 0
    for i in range(300):
        arms = {name: rng.normal(size=5) for name in ("base", "a", "b", "c", "d")}
        wrong += min(compare.max_t(arms, "base", resamples=199, seed=i).values()) <= 0.05
    assert wrong / 300 <= 0.09


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(0, 9), min_size=1, max_size=6)
)
@settings(deadline=None)
def test_probability_of_improvement_counts_pairs(a, b):
    want = np.mean([(x > y) + 0.5 * (x == y) for x, y in itertools.product(a, b)])
    found = compare.probability_of_improvement(a, b)
    assert found.estimate == pytest.approx(want)
    if found.has_interval:
        assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_probability_of_improvement_agrees_with_scipy():
    rng = np.random.default_rng(5)
    a, b = rng.normal(0.5, 1, 7), rng.normal(0, 1, 9)
    assert compare.probability_of_improvement(a, b).p_value == pytest.approx(stats.brunnermunzel(a, b).pvalue)


def test_iqm_drops_the_outer_quarters_and_bootstrap_needs_ten_runs():
    assert compare.iqm(np.array([0, 1, 2, 3, 4, 5, 6, 100])) == pytest.approx((2 + 3 + 4 + 5) / 4)
    scores = np.random.default_rng(6).random((12, 20))
    one, other = compare.iqm_interval(scores, seed=1), compare.iqm_interval(scores, seed=1)
    assert one == other
    assert one != compare.iqm_interval(scores, seed=2)
    assert one.low < one.estimate < one.high
    with pytest.raises(ValueError, match="needs 10"):
        compare.iqm_interval(scores[:9])


def test_exact_logrank_is_the_enumeration_of_the_logrank_statistic():
    lifelines = pytest.importorskip("lifelines.statistics")
    a, b = Times.plain([61, 69, None, 75], 80), Times.plain([41, 66, 47, 58], 80)
    times, events = np.array(a.times + b.times), np.array(a.events + b.events)

    def statistic(first):
        other = [i for i in range(8) if i not in first]
        found = lifelines.logrank_test(times[list(first)], times[other], events[list(first)], events[other])
        numerator = 0.0
        for t in np.unique(times[events]):
            at_risk = times >= t
            share = np.mean([i in first for i in np.flatnonzero(at_risk)])
            dead = events & (times == t)
            numerator += sum(i in first for i in np.flatnonzero(dead)) - dead.sum() * share
        return abs(numerator), found.test_statistic

    every = [statistic(pick)[0] for pick in itertools.combinations(range(8), 4)]
    want = np.mean(np.array(every) >= every[0] - 1e-9)
    assert compare.exact_logrank_p(a, b) == pytest.approx(want)
    assert statistic((0, 1, 2, 3))[1] > 0


def test_exact_logrank_of_separated_arms_is_the_exact_minimum():
    a, b = Times.plain([81, 82, 83, 84, 85], 100), Times.plain([41, 42, 43, 44, 45], 100)
    assert (
        compare.exact_logrank_p(a, b)
        == pytest.approx(compare.smallest_p(5, 5))
        == pytest.approx(0.0079, abs=5e-5)
    )
    asymptotic = stats.logrank(stats.CensoredData(a.times), stats.CensoredData(b.times)).pvalue
    assert asymptotic < 0.003
    assert compare.exact_logrank_p(Times.plain([None] * 3, 9), Times.plain([None] * 3, 9)) == 1.0
    assert compare.smallest_p(5, 5, paired_arms=True) == pytest.approx(0.0625)


def test_a_mean_that_is_a_multiple_of_one_problem_looks_like_one_run():
    assert compare.looks_like_one_run(0.2333, 30, 5)
    assert not compare.looks_like_one_run(0.2467, 30, 5)
    assert not compare.looks_like_one_run(0.2333, 30, 1)
