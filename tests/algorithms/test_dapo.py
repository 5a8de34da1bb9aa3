"""DAPO: higher clip, dynamic sampling by the metric, soft overlong shaping, filtering."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError, Group
from algorithms.dapo import Dapo, DapoOptions, soft_overlong
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.gspo import Gspo
from harness.train.reduction import Reducer
from harness.train.toy import ToyTask, ToyTrainer

PLAIN = {"overlong_cache_share": 0.0}


def group(*correct: bool, outcomes: tuple[float, ...] | None = None) -> Group:
    return Group(outcomes or tuple(map(float, correct)), correct, tuple(False for _ in correct))


def test_overlong_by_hand() -> None:
    """Limit 20, cache 5: 0 at 15, -0.4 at 17, -1 at 20 and above."""
    found = soft_overlong(torch.tensor([3, 15, 17, 20, 25]), 20, 5)
    assert found.tolist() == pytest.approx([0, 0, -0.4, -1, -1])


@few
@given(st.integers(2, 500), st.data())
def test_overlong_is_continuous_and_falls(limit: int, data: st.DataObject) -> None:
    cache = data.draw(st.integers(1, limit))
    penalty = soft_overlong(torch.arange(limit + 2), limit, cache)
    steps = penalty.diff()
    assert (steps <= 0).all()
    assert steps.min() >= -1 / cache - 1e-9
    assert penalty[limit - cache] == 0
    assert penalty[limit] == -1


def test_golden_advantages_with_shaping() -> None:
    """Limit 10, cache 2, penalty 0.5 of a range of 1: lengths 10 and 9 lose 0.5 and 0.25."""
    batch = make_batch([10, 9, 1], [1, 1, 0], max_completion_tokens=10)
    rewards = torch.tensor([0.5, 0.75, 0.0], dtype=torch.float64)
    assert Dapo().shaped_rewards(batch).tolist() == rewards.tolist()
    expected = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)
    assert Dapo().advantages(batch)[:, 0].tolist() == pytest.approx(expected.tolist())
    assert Dapo().metrics(credited(Dapo(), batch))["overlong_penalty"] == pytest.approx(-0.25)


def test_penalty_of_the_paper_for_rewards_of_plus_minus_one() -> None:
    batch = make_batch([10, 1], [1, -1], max_completion_tokens=10, reward_range=(-1.0, 1.0))
    assert Dapo().shaped_rewards(batch).tolist() == [0.0, -1.0]


@pytest.mark.parametrize(
    ("correct", "kept"),
    [((True, False), True), ((True, True), False), ((False, False), False), ((False,), True)],
)
def test_a_prompt_is_kept_iff_some_but_not_all_are_right(correct: tuple[bool, ...], kept: bool) -> None:
    assert Dapo().accept(group(*correct)) is kept
    assert Dapo(DapoOptions(dynamic_sampling=False)).accept(group(*correct)) is True


def test_the_filter_reads_the_metric_not_the_shaped_outcome() -> None:
    """A length penalty gives all-wrong groups a spread: by outcome they would pass."""
    assert not Dapo().accept(group(False, False, outcomes=(0.0, -0.3)))


@few
@given(ragged_batches(max_groups=3))
def test_kept_groups_have_a_spread_and_filtering_again_changes_nothing(batch: Batch) -> None:
    groups = [tuple((batch.rewards[batch.group_ids == g] > 0).tolist()) for g in batch.group_ids.unique()]
    kept = [g for g in groups if Dapo().accept(group(*g))]
    assert all(0 < sum(g) < len(g) for g in kept)
    assert [g for g in kept if Dapo().accept(group(*g))] == kept


@few
@given(st.lists(st.integers(2, 6), min_size=1, max_size=1), st.data())
def test_equals_grpo_with_equal_clips_and_lengths(length: list[int], data: st.DataObject) -> None:
    rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4))
    batch = make_batch(length * 4, rewards)
    dapo, grpo = Dapo(DapoOptions(epsilon_high=0.2, **PLAIN)), Grpo()
    logprobs = moved(batch)
    a, b = (loss_and_gradient(x, credited(x, batch), logprobs) for x in (dapo, grpo))
    assert a[0].item() == pytest.approx(b[0].item(), abs=1e-9)
    assert torch.allclose(a[1], b[1], atol=1e-9)


@few
@given(st.floats(-0.6, 0.6))
def test_higher_clip_acts_only_between_the_two_bounds_for_positive_advantages(log_ratio: float) -> None:
    batch = make_batch([1, 1], [1, 0])
    high, low = (Dapo(DapoOptions(epsilon_high=e, **PLAIN)) for e in (0.28, 0.2))
    logprobs = batch.old_logprobs + log_ratio
    a, b = (loss_and_gradient(x, credited(x, batch), logprobs)[1] for x in (high, low))
    between = 0.2 < math.exp(log_ratio) - 1 < 0.28
    assert (a[0, 0] != b[0, 0]) == between
    assert a[1, 0] == b[1, 0]


def test_filtering_cut_completions_changes_the_denominator_too() -> None:
    algorithm = Dapo(DapoOptions(overlong_filter=True))
    batch = make_batch([2, 4], [1, 0], truncated=torch.tensor([False, True]), max_completion_tokens=4)
    batch = credited(algorithm, batch)
    assert batch.masked_advantages[1, 0].item() == pytest.approx(-1, rel=1e-4)  # statistics before the filter
    keep = algorithm.select(batch)
    assert keep is not None
    assert keep.tolist() == [True, False]
    weights = Reducer(batch.rows(keep.nonzero()[:, 0])).weights("token_mean")
    assert weights.sum().item() == pytest.approx(1)
    assert algorithm.shaped_rewards(batch).tolist() == [1, 0]
    assert Dapo().select(batch) is None


def test_refill_is_bounded_and_paid_for() -> None:
    """A task that is always solved has no group with signal: sampling must stop (DAPO issue 22)."""
    trainer = ToyTrainer(Dapo(), ToyTask(start_logit=20.0))
    batch = trainer.rollout(prompts=2, group_size=4, refills=3)
    assert trainer.completions == 4 * 2 * 4
    assert len(batch) == 8


def test_others_do_not_inherit_the_length_penalty() -> None:
    """A GSPO script elsewhere silently kept DAPO's penalty (verl issue 4809)."""
    batch = make_batch([10, 1, 1], [1, 1, 0], max_completion_tokens=10)
    a = Gspo().advantages(batch)[:, 0]
    assert a[0] == a[1]
    assert rows_of(batch, Dapo().advantages(batch))[0][0] < rows_of(batch, Dapo().advantages(batch))[1][0]


def test_defaults_and_bad_options() -> None:
    options = DapoOptions()
    assert (options.epsilon_low, options.epsilon_high, options.kl_coefficient) == (0.2, 0.28, 0.0)
    assert options.aggregation == "token_mean"
    assert GrpoOptions().aggregation == "seq_mean_token_mean"
    with pytest.raises(ConfigError, match=r"overlong_cache_share=1\.5"):
        DapoOptions(overlong_cache_share=1.5)
