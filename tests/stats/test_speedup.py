from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.stats.censored import DegenerateFit, fit_lognormal
from harness.stats.inversion import exact_inversion, exact_p_value, paired_p, unpaired_p
from harness.stats.simulate import simulate_times
from harness.stats.speedup import (
    Times,
    aft_t,
    bootstrap_ratio,
    log_ratio_t,
    restricted_mean_ratio,
)
from harness.stats.survival import kaplan_meier, restricted_mean
from harness.stats.threshold import crossing

GRPO = Times.plain([78, None, 91, None, 88], 100)
BOT = Times.plain([41, 47, 44, 39, 50], 100)


class TwoArms:
    """The fit of a baseline (0) and a faster arm (1), by name."""

    def __init__(self, low, high, arm):
        fit = fit_lognormal(low, high, np.column_stack([np.ones(len(arm)), arm]))
        self.mu, self.delta = fit.coefficients
        self.delta_se = fit.standard_errors[1]
        self.sigma = fit.sigma


def lifelines_fit(a: Times, b: Times):
    pandas = pytest.importorskip("pandas")
    lifelines = pytest.importorskip("lifelines")
    frame = pandas.DataFrame(
        {"t": a.times + b.times, "d": a.events + b.events, "x": [0] * len(a) + [1] * len(b)}
    )
    return lifelines.LogNormalAFTFitter().fit(frame, "t", "d")


def test_aft_agrees_with_lifelines_under_censoring():
    y = [*np.log(GRPO.times), *np.log(BOT.times)]
    high = [v if d else math.inf for v, d in zip(y, GRPO.events + BOT.events, strict=True)]
    fit = TwoArms(np.array(y), np.array(high), np.repeat([0, 1], 5))
    other = lifelines_fit(GRPO, BOT)
    assert fit.delta == pytest.approx(other.params_["mu_", "x"], abs=1e-4)
    assert fit.mu == pytest.approx(other.params_["mu_", "Intercept"], abs=1e-4)
    assert fit.sigma == pytest.approx(math.exp(other.params_["sigma_", "Intercept"]), rel=1e-3)
    assert fit.delta_se == pytest.approx(other.standard_errors_["mu_", "x"], rel=1e-2)


def test_aft_agrees_with_lifelines_on_interval_censored_times():
    pandas = pytest.importorskip("pandas")
    lifelines = pytest.importorskip("lifelines")
    low = np.array([55.0, 60, 70, 80, 35, 40, 45, 30])
    high = np.array([60.0, 65, 75, math.inf, 40, 45, 50, 35])
    x = np.repeat([0, 1], 4)
    fit = TwoArms(np.log(low), np.log(high), x)
    other = lifelines.LogNormalAFTFitter().fit_interval_censoring(
        pandas.DataFrame({"low": low, "high": high, "x": x}), "low", "high"
    )
    assert fit.delta == pytest.approx(other.params_["mu_", "x"], abs=1e-3)
    assert fit.delta_se == pytest.approx(other.standard_errors_["mu_", "x"], rel=2e-2)


def test_without_censoring_the_interval_is_the_pooled_t_interval():
    a, b = Times.plain([61, 69, 73, 79, 66], 1e9), Times.plain([57, 65, 71, 60, 50], 1e9)
    found = aft_t(a, b)
    want = stats.ttest_ind(np.log(a.times), np.log(b.times)).confidence_interval()
    assert (found.low, found.high) == pytest.approx((math.exp(want.low), math.exp(want.high)), rel=1e-6)
    assert found.estimate == pytest.approx(math.exp(np.log(a.times).mean() - np.log(b.times).mean()))
    assert found.p_value == pytest.approx(stats.ttest_ind(np.log(a.times), np.log(b.times)).pvalue, rel=1e-5)


def test_t_correction_is_as_specified():
    found = aft_t(GRPO, BOT)
    fit = TwoArms(
        np.log([*GRPO.times, *BOT.times]),
        np.array([math.log(t) if d else math.inf for t, d in zip(
            GRPO.times + BOT.times, GRPO.events + BOT.events, strict=True)]),
        np.repeat([0, 1], 5),
    )  # fmt: skip
    half = stats.t.ppf(0.975, 8 - 2) * fit.delta_se * math.sqrt(10 / 8)
    assert found.low == pytest.approx(math.exp(-fit.delta - half))
    assert found.high == pytest.approx(math.exp(-fit.delta + half))
    assert (found.n, found.events) == ((5, 5), (3, 5))


def test_left_censored_times_pull_the_estimate_up():
    late = crossing([5, 10, 15, 20], [0.1, 0.9, 0.9, 0.9], threshold=0.8)
    early = crossing([5, 10, 15, 20], [0.9, 0.9, 0.9, 0.9], threshold=0.8)
    base = Times.plain([20, 30, 25], 100)
    found = aft_t(base, Times.of([late, early, late]))
    exact_times = Times.plain([late.time, early.time, late.time], 100)
    assert found.estimate > aft_t(base, exact_times).estimate
    assert aft_t(base, Times.of([late, early, late]), interval_censored=True).has_interval


@pytest.mark.parametrize(
    ("baseline", "treatment", "words"),
    [
        (Times.plain([50], 100), Times.plain([30], 100), "fewer than 2"),
        (Times.plain([None] * 5, 100), BOT, "no event"),
        (Times.plain([80, None, None], 100), Times.plain([50, None, None], 100), "at least three"),
        (Times.plain([50] * 3, 100), Times.plain([30] * 3, 100), "identical"),
    ],
)
def test_no_interval_where_none_can_be_given(baseline, treatment, words):
    found = aft_t(baseline, treatment)
    assert (found.low, found.high) == (None, None)
    assert words in found.reason


def test_one_run_never_yields_an_interval():
    one, other = Times.plain([75], 100), Times.plain([40], 100)
    for method in (aft_t, exact_inversion, restricted_mean_ratio, log_ratio_t):
        found = method(one, other)
        assert not found.has_interval, method.__name__
    assert aft_t(one, other).estimate == pytest.approx(75 / 40)


def test_an_arm_without_events_gets_a_bound_by_the_exact_method():
    found = exact_inversion(Times.plain([None] * 5, 100), BOT)
    assert found.open_end == "high"
    assert found.high == math.inf
    # r is rejected as long as at least four of the five rescaled times stay below the horizon
    assert found.low == pytest.approx(100 / sorted(BOT.times)[3], rel=1e-3)


def test_degenerate_likelihood_is_an_error_not_a_number():
    with pytest.raises(DegenerateFit):
        TwoArms(np.log([50.0, 50, 40, 40]), np.log([50.0, 50, 40, 40]), np.array([0, 0, 1, 1]))


@given(st.integers(3, 6), st.floats(0.5, 3), st.integers(0, 10_000), st.floats(0.2, 5))
@settings(max_examples=30, deadline=None)
def test_scale_equivariance(n, ratio, seed, factor):
    a, b = simulate_times(n, ratio, np.random.default_rng(seed), censored=0.2)

    def scaled(arm: Times, by: float) -> Times:
        return Times(tuple(t * by for t in arm.times), arm.events, horizon=arm.horizon * by)

    for method in (aft_t, exact_inversion, restricted_mean_ratio):
        one, other = method(a, b), method(scaled(a, factor), scaled(b, factor))
        assert one.has_interval == other.has_interval
        if one.has_interval:
            assert (other.low, other.high) == pytest.approx((one.low, one.high), rel=1e-3)


@given(st.integers(4, 6), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_swapping_arms_inverts_the_interval(n, seed):
    a, b = simulate_times(n, 1.4, np.random.default_rng(seed), censored=0.1)
    for method in (aft_t, exact_inversion):
        one, other = method(a, b), method(b, a)
        if one.has_interval and one.low > 0 and one.high < math.inf:
            assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low), rel=2e-3)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 5), (5, 5)])
def test_unpaired_p_is_scipys_exact_permutation_p(n, m):
    rng = np.random.default_rng(n * 10 + m)
    a, b = rng.normal(0.6, 1, n), rng.normal(0, 1, m)
    want = stats.permutation_test(
        (a, b), lambda x, y, axis: np.abs(x.mean(axis) - y.mean(axis)),
        vectorized=True, n_resamples=np.inf, alternative="greater",
    ).pvalue  # fmt: skip
    assert unpaired_p(a, b) == pytest.approx(want)


def test_paired_p_is_the_sign_enumeration():
    a, b = np.array([1.0, 2.5, 0.3, 1.9]), np.array([0.4, 1.9, 0.5, 0.2])
    d = a - b
    every = [abs(np.dot(signs, d)) for signs in itertools.product((1, -1), repeat=4)]
    want = np.mean([value >= abs(d.sum()) - 1e-12 for value in every])
    assert paired_p(a, b) == pytest.approx(want)


def test_inversion_keeps_exactly_the_ratios_that_are_not_rejected():
    a, b = Times.plain([61, 69, 73, 79, None], 80), Times.plain([47, 65, 51, 40, 58], 80)
    found = exact_inversion(a, b)
    for ratio in np.exp(np.linspace(math.log(0.6), math.log(3), 400)):
        if abs(math.log(ratio / found.low)) < 0.01 or abs(math.log(ratio / min(found.high, 1e9))) < 0.01:
            continue
        assert (exact_p_value(a, b, ratio) >= 0.05) == (found.low < ratio < found.high)


def test_recensoring_cuts_both_arms_alike():
    """At r = 2 the horizon 100 stays for the baseline; the treatment's 60 becomes 120 and is cut to 100."""
    a, b = Times.plain([90, None, 95, 80], 100), Times.plain([60, 40, 45, 30], 100)
    want = unpaired_p(np.log([90, 100, 95, 80]), np.log([100, 80, 90, 60]))
    assert exact_p_value(a, b, 2.0) == pytest.approx(want)
    want = unpaired_p(np.log([50, 50, 50, 50]), np.log([30, 20, 22.5, 15]))
    assert exact_p_value(a, b, 0.5) == pytest.approx(want)


@pytest.mark.parametrize(
    ("n", "paired", "informative"), [(3, False, False), (4, False, True), (5, True, False), (6, True, True)]
)
def test_smallest_informative_sizes(n, paired, informative):
    a = Times.plain([100 + i for i in range(n)], 1e9)
    b = Times.plain([10 + i / 10 for i in range(n)], 1e9)
    found = exact_inversion(a, b, paired=paired)
    assert (found.open_end is None) == informative
    if not informative:
        assert found.open_end == "both"


def test_restricted_mean_takes_one_common_horizon():
    found = restricted_mean_ratio(GRPO, BOT)
    assert restricted_mean(GRPO, 100)[0] == pytest.approx(91.4)
    assert restricted_mean(BOT, 100)[0] == pytest.approx(44.2)
    assert found.estimate == pytest.approx(91.4 / 44.2)
    assert found.low < 2.068 < found.high


def test_restricted_mean_error_is_that_of_a_mean():
    times = [78, 100, 91, 100, 88]
    _, variance = restricted_mean(GRPO, 100)
    assert variance == pytest.approx(np.var(times, ddof=1) / 5)


def test_survival_agrees_with_lifelines_under_mixed_censoring():
    lifelines = pytest.importorskip("lifelines")
    from lifelines.utils import restricted_mean_survival_time

    times, events = (12.0, 20, 20, 31, 45, 45, 60), (True, True, False, True, False, True, False)
    arm = Times(times, events, horizon=60)
    fitter = lifelines.KaplanMeierFitter().fit(times, events)
    curve = kaplan_meier(arm)
    for time, survival in zip(curve.times, curve.survival, strict=True):
        assert survival == pytest.approx(float(fitter.predict(time)))
    assert curve.median() == pytest.approx(fitter.median_survival_time_)
    assert restricted_mean(arm, 60)[0] == pytest.approx(restricted_mean_survival_time(fitter, 60), rel=1e-6)


def test_median_is_unknown_when_fewer_than_half_reached():
    assert kaplan_meier(Times.plain([70, None, None], 80)).median() is None
    assert kaplan_meier(Times.plain([70, 75, None], 80)).median() == 75


def test_paired_t_case():
    a = Times.plain(list(np.exp(np.array([0.55, 0.64, 0.71]))), 1e9)
    found = log_ratio_t(a, Times.plain([1, 1, 1], 1e9), paired=True)
    assert found.estimate == pytest.approx(1.8839, abs=5e-5)
    assert (found.low, found.high) == pytest.approx((1.5436, 2.2992), abs=5e-5)


def test_t_refuses_censored_runs_and_bootstrap_refuses_few():
    assert "censored" in log_ratio_t(GRPO, BOT).reason
    with pytest.raises(ValueError, match="needs 10"):
        bootstrap_ratio(BOT, BOT)
    many = Times.plain(list(range(40, 52)), 1e9)
    assert (
        bootstrap_ratio(many, many).low
        == bootstrap_ratio(many, many).low
        < 1
        < bootstrap_ratio(many, many).high
    )


def test_times_refuse_what_has_no_logarithm():
    with pytest.raises(ValueError, match="positive"):
        Times((0.0,), (True,))
    curve = ([1, 2, 3], [0.1, 0.9, 0.9])
    found = [crossing(*curve, threshold=0.8, rule=rule) for rule in ("raw", "sustained")]
    with pytest.raises(ValueError, match="different rules"):
        Times.of(found)


def test_large_samples_use_a_repeatable_sample_of_splits():
    rng = np.random.default_rng(3)
    a, b = simulate_times(12, 1.5, rng)
    one, other = exact_inversion(a, b), exact_inversion(a, b)
    assert one == other
    assert "stand in" in one.reason
    reference = aft_t(a, b)
    assert one.low == pytest.approx(reference.low, rel=0.05)


def test_interval_censored_times_within_one_gap_have_no_spread_to_fit():
    def arm(values):
        return Times(
            tuple(values), (True,) * len(values), tuple(5 * (v // 5) for v in values),
            tuple(5 * (v // 5) + 5 for v in values), (False,) * len(values),
        )  # fmt: skip

    found = aft_t(arm([61.0, 62, 63]), arm([41.0, 42, 43]), interval_censored=True)
    assert "within one gap" in found.reason
    assert not found.has_interval
    wide = aft_t(arm([61.0, 68, 73]), arm([41.0, 42, 53]), interval_censored=True)
    assert wide.has_interval
    assert wide.high < 10
