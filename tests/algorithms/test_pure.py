"""PURE: soft and strict minimum, both published baselines, verifiable reward, edge cases."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError
from algorithms.pure import PUBLISHED, Pure, PureOptions

PRM_ONLY = {"vr_coefficient": 0.0, "kl_coefficient": 0.0}


def pure(**options: object) -> Pure:
    return Pure(PureOptions(**{"kl_coefficient": 0.0, **options}))


def steps_batch(*scores: list[float], tokens: int = 1, rewards: list[float] | None = None) -> Batch:
    """One row a list of step scores, each step of `tokens` tokens."""
    local = [[s for s in row for _ in range(tokens)] for row in scores]
    steps = [[j for j in range(len(row)) for _ in range(tokens)] for row in scores]
    rewards = [0.0] * len(scores) if rewards is None else rewards
    return make_batch([len(row) for row in local], rewards, local=local, steps=steps)


def transformed(batch: Batch, **options: object) -> list[list[float]]:
    return rows_of(batch, pure(**options).process_rewards(batch))


def test_softmin_by_hand() -> None:
    """Temperature 1, scores 0 and log 3: weights 3/4 and 1/4."""
    batch = steps_batch([0.0, math.log(3) / 2])
    expected = [0.0, math.log(3) / 2 * 1 / (1 + math.sqrt(3))]
    assert transformed(batch, temperature=1.0)[0] == pytest.approx(expected)


def test_scores_are_token_means_and_sit_on_step_ends() -> None:
    batch = make_batch([3, 1], [0, 0], local=[[1.0, 0.0, -1.0], [0.5]], steps=[[0, 0, 1], [0]])
    assert transformed(batch, transform="sum") == [[0.0, 0.5, -1.0], [0.5]]


@few
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6), st.floats(0.05, 5))
def test_the_total_lies_between_minimum_and_mean(scores: list[float], temperature: float) -> None:
    total = sum(transformed(steps_batch(scores), temperature=temperature)[0])
    assert min(scores) - 1e-9 <= total <= sum(scores) / len(scores) + 1e-9


def test_temperature_limits() -> None:
    scores = [0.9, -0.3, 0.4]
    assert sum(transformed(steps_batch(scores), temperature=1e-3)[0]) == pytest.approx(-0.3, abs=1e-6)
    assert sum(transformed(steps_batch(scores), temperature=1e6)[0]) == pytest.approx(1 / 3, abs=1e-4)


def test_constant_scores_and_single_steps_keep_their_score() -> None:
    assert sum(transformed(steps_batch([0.4, 0.4, 0.4]))[0]) == pytest.approx(0.4)
    assert transformed(steps_batch([-0.7]))[0] == pytest.approx([-0.7])


@few
@given(st.permutations([0.9, -0.3, 0.4, 0.1]))
def test_softmin_follows_permuted_steps(scores: list[float]) -> None:
    by_score = dict(zip(scores, transformed(steps_batch(scores))[0], strict=True))
    reference = dict(
        zip([0.9, -0.3, 0.4, 0.1], transformed(steps_batch([0.9, -0.3, 0.4, 0.1]))[0], strict=True)
    )
    assert by_score == pytest.approx(reference)


def returns(batch: Batch, **options: object) -> list[float]:
    """Step return at each token, without baseline, of the first row."""
    rewards = transformed(batch, **options)[0]
    return [sum(rewards[t:]) for t in range(len(rewards))]


def test_strict_minimum_return_by_hand_and_after_the_worst_step_no_blame() -> None:
    batch = steps_batch([0.5, -0.8, 0.3, 0.6])
    assert returns(batch, transform="strict_min") == pytest.approx([-0.8, -0.8, 0.3, 0.6])
    soft = returns(batch, temperature=0.02)
    assert soft == pytest.approx([-0.8, -0.8, 0, 0], abs=1e-3)


def test_strict_minimum_of_good_steps_is_positive() -> None:
    """Elsewhere tokens that end no step count as reward 0, and no return ever exceeds it."""
    batch = steps_batch([0.5, 0.9], [0.7, 0.2], tokens=3)
    assert returns(batch, transform="strict_min") == pytest.approx([0.5] * 3 + [0.9] * 3)


@few
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6))
def test_strict_minimum_return_never_falls(scores: list[float]) -> None:
    found = returns(steps_batch(scores), transform="strict_min")
    assert all(b >= a - 1e-9 for a, b in pairwise(found))


def test_discounted_sum_and_gaps_in_step_ids() -> None:
    assert returns(steps_batch([1.0, 1.0, 1.0]), transform="sum", gamma=0.5) == pytest.approx([1.75, 1.5, 1])
    batch = make_batch([3, 1], [0, 0], local=[[0.5, 0.1, 0.9], [0]], steps=[[0, 2, 5], [1]])
    assert returns(batch, transform="strict_min") == pytest.approx([0.1, 0.1, 0.9])


def test_golden_advantages_of_the_default_baseline() -> None:
    """One-step rows of 2 and 3 tokens, scores 0.6 and -0.3, no outcome.

    b_0 = -0.3 / 3 = -0.1, so 0.6 + 0.1 x 2 = 0.8; b_1 = 0.6 / 2 = 0.3, so -0.3 - 0.3 x 3 = -1.2.
    """
    batch = make_batch([2, 3], [0, 0], local=[[0.6] * 2, [-0.3] * 3], steps=[[0] * 2, [0] * 3])
    rows = rows_of(batch, pure(**PRM_ONLY).advantages(batch))
    assert rows == [pytest.approx([0.8, 0.8]), pytest.approx([-1.2] * 3)]


def test_golden_advantages_of_the_padded_and_valid_return_baselines() -> None:
    """Returns 0.6, 0.6 and -0.3 x 3; b_0 = -0.9/3, b_1 = 1.2/3 over the padded width 3 or 1.2/2 over its tokens."""
    batch = make_batch([2, 3], [0, 0], local=[[0.6] * 2, [-0.3] * 3], steps=[[0] * 2, [0] * 3])
    padded = rows_of(batch, pure(baseline="loo_return_padded", **PRM_ONLY).advantages(batch))
    assert padded == [pytest.approx([0.9] * 2), pytest.approx([-0.7] * 3)]
    valid = rows_of(batch, pure(baseline="loo_return_valid", **PRM_ONLY).advantages(batch))
    assert valid == [pytest.approx([0.9] * 2), pytest.approx([-0.9] * 3)]


def test_padded_baseline_depends_on_the_longest_answer_and_the_valid_one_does_not() -> None:
    """In the released verl branch A changes when another row is padded further."""
    short = make_batch([2, 3], [0, 0], local=[[0.6] * 2, [-0.3] * 3], steps=[[0] * 2, [0] * 3])
    wide = short.replace(
        **{
            name: torch.nn.functional.pad(getattr(short, name), (0, 4))
            for name in ("completion_ids", "completion_mask", "local_rewards", "scored", "old_logprobs")
        },
        step_ids=torch.nn.functional.pad(short.step_ids, (0, 4), value=-1),
    )
    for baseline, same in [("loo_return_padded", False), ("loo_return_valid", True)]:
        algorithm = pure(baseline=baseline, **PRM_ONLY)
        a, b = rows_of(short, algorithm.advantages(short)), rows_of(wide, algorithm.advantages(wide))
        assert (a[1] == pytest.approx(b[1])) is same


def test_identical_rollouts_have_no_total_advantage() -> None:
    """The baseline per token times the step's tokens cancels the total; inner tokens may keep some."""
    batch = steps_batch([0.5, -0.8, 0.3], [0.5, -0.8, 0.3], tokens=2)
    rows = rows_of(batch, pure(**PRM_ONLY).advantages(batch))
    assert rows[0][0] == pytest.approx(0, abs=1e-9)
    assert abs(rows[0][2]) > 1e-3


def test_per_step_baseline_rewards_more_separators_and_the_token_baseline_does_not() -> None:
    """Splitting the same text into more steps must not pay (PURE issue 2: a cause of reward hacking)."""
    totals = {}
    for baseline in ("loo_per_step", "loo_per_token_reward"):
        values = []
        for cuts in ([0, 0, 0, 0], [0, 1, 2, 3]):
            batch = make_batch([4, 4], [0, 0], local=[[-0.5] * 4] * 2, steps=[cuts, [0, 0, 1, 1]])
            values.append(pure(baseline=baseline, **PRM_ONLY).advantages(batch)[0, 0].item())
        totals[baseline] = values[1] - values[0]
    assert totals["loo_per_step"] > 0.5
    assert totals["loo_per_token_reward"] == pytest.approx(0, abs=1e-9)


def test_outcome_only_is_rloo_at_the_end_spread_back() -> None:
    batch = make_batch([2, 1, 3], [1, 0, 0], steps=[[-1] * 2, [-1], [-1] * 3])
    rows = rows_of(batch, pure().advantages(batch))
    assert rows == [pytest.approx([1, 1]), pytest.approx([-0.5]), pytest.approx([-0.5] * 3)]


def test_a_constant_offset_of_the_outcome_does_not_matter() -> None:
    """One branch labels solved/unsolved 0/-1, the other 1/0."""
    a = steps_batch([0.5], [0.1], rewards=[1, 0])
    b = a.replace(rewards=a.rewards - 1, reward_range=(-1.0, 0.0))
    assert torch.equal(pure().advantages(a), pure().advantages(b))


def test_missing_outcomes_are_left_out() -> None:
    batch = make_batch([1, 1, 1], [1, math.nan, 0], steps=[[-1]] * 3)
    assert rows_of(batch, pure().advantages(batch)) == [[1], [0], [-1]]


def test_outcome_in_the_return() -> None:
    batch = make_batch([2, 2], [1, 0], steps=[[-1] * 2] * 2)
    rows = rows_of(batch, pure(baseline="loo_return_valid", vr_mix="in_return").advantages(batch))
    assert rows == [[1, 1], [-1, -1]]


def test_no_steps_give_zeros_and_no_nan() -> None:
    batch = make_batch([3, 2], [0, 0], local=[[1, 1, 1], [1, 1]], steps=[[-1] * 3, [-1] * 2])
    for options in ({}, {"transform": "strict_min"}, {"transform": "mean"}, {"transform": "sum"}):
        assert not pure(**PRM_ONLY, **options).advantages(batch).any()
        assert pure().metrics(batch)["steps_per_completion"] == 0


def test_kl_is_taken_off_the_reward() -> None:
    algorithm = pure(kl_coefficient=0.1)
    batch = make_batch([2, 2], [1, 1], steps=[[-1] * 2] * 2)
    batch = batch.replace(reference_logprobs=batch.old_logprobs - 0.5)
    assert rows_of(batch, algorithm.advantages(batch))[0] == pytest.approx([-0.1, -0.05])
    assert "reference" in algorithm.requires


def test_whitening_and_separator_options() -> None:
    batch = steps_batch([0.5, -0.8], [0.3, 0.9], tokens=2, rewards=[1, 0])
    white = pure(adv_whiten=True).advantages(batch)[batch.completion_mask]
    assert white.mean().item() == pytest.approx(0, abs=1e-9)
    assert white.var(correction=0).item() == pytest.approx(1, rel=1e-6)
    masked = rows_of(batch, pure(mask_separator=True).advantages(batch))
    plain = rows_of(batch, pure().advantages(batch))
    assert masked[0] == [plain[0][0], 0, plain[0][2], 0]


def test_a_terminal_reward_sits_on_the_last_real_token_not_on_padding() -> None:
    batch = make_batch([1, 4], [1, 0], steps=[[-1], [-1] * 4])
    assert rows_of(batch, pure().advantages(batch)) == [[1], [-1] * 4]


def test_runaway_completions_are_left_out_of_the_update() -> None:
    batch = credited(pure(), steps_batch([0.5], [-0.5], rewards=[1, 0]))
    jump = batch.old_logprobs + torch.tensor([[0.1], [3.0]])
    assert loss_and_gradient(pure(), batch, jump)[1].nonzero().tolist() == [[0, 0]]
    unguarded = loss_and_gradient(pure(ratio_guard=None), batch, jump)[1]
    assert unguarded.nonzero().tolist() == [[0, 0], [1, 0]]


@few
@given(ragged_batches())
def test_published_forms_are_finite_and_differ(batch: Batch) -> None:
    found = [pure(**{**options, "kl_coefficient": 0.0}).advantages(batch) for options in PUBLISHED.values()]
    assert all(bool(torch.isfinite(a).all()) for a in found)


def test_bad_temperature() -> None:
    with pytest.raises(ConfigError, match="temperature=0"):
        PureOptions(temperature=0.0)
