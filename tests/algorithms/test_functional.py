"""Shared arithmetic: golden values by hand, slow loops as oracles, and nothing under the mask."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import few, make_batch, ragged_batches
from hypothesis import given
from hypothesis import strategies as st

from algorithms import functional as F

NAN = math.nan
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


def test_masked_picks_and_stops_nan_in_value_and_gradient() -> None:
    x = torch.tensor([[1.0, NAN]], requires_grad=True)
    F.masked(x, torch.tensor([[True, False]])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0]]


def test_masked_mean_by_hand() -> None:
    x = torch.tensor([[1.0, 3.0, NAN], [5.0, NAN, NAN], [NAN, NAN, NAN]])
    assert F.masked_mean(x, MASK).tolist() == [2.0, 5.0, 0.0]


def test_last_token_skips_holes_and_empty_rows() -> None:
    mask = torch.tensor([[True, False, True, False], [False, False, False, False], [True, True, True, True]])
    assert F.last_token(mask).nonzero().tolist() == [[0, 2], [2, 3]]


def test_group_sum_uses_ids_not_positions() -> None:
    ids = torch.tensor([9, -3, 9, -3])
    assert F.group_sum(torch.tensor([1.0, 10.0, 2.0, 20.0]), ids).tolist() == [3.0, 30.0, 3.0, 30.0]


def test_group_moments_by_hand() -> None:
    """Group 0: values 1 and 4 with weights 3 and 1: mean 7/4, variance 3/4 (3/4)^2 + 1/4 (9/4)^2 = 27/16."""
    mean, variance = F.group_moments(
        torch.tensor([[1.0], [4.0], [NAN]]), torch.tensor([[3.0], [1.0], [0.0]]), torch.tensor([0, 0, 0])
    )
    assert mean.tolist() == [1.75] * 3
    assert variance.tolist() == [27 / 16] * 3


def test_group_moments_keep_a_small_variance_in_float32() -> None:
    """A one-pass E[x^2] - E[x]^2 in float32 loses this variance altogether."""
    x = torch.tensor([[1000.0], [1000.001]], dtype=torch.float32)
    _, variance = F.group_moments(x, torch.ones(2, 1), torch.tensor([0, 0]))
    spread = float(x[1] - x[0])
    assert variance[0].item() == pytest.approx(spread**2 / 4, rel=1e-9)


def test_group_relative_by_hand() -> None:
    """Rewards 1, 0, 0 : mean 1/3, population deviation sqrt(2)/3, so 2/sqrt(2) and -1/sqrt(2)."""
    a = F.group_relative(
        torch.tensor([1.0, 0.0, 0.0]).double(), torch.ones(3).bool(), torch.zeros(3).long(), eps=0
    )
    assert a.tolist() == pytest.approx([math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)])


@pytest.mark.parametrize(
    ("mode", "expected"), [("add_to_std", 0.5 + 0.1), ("add_to_var", math.sqrt(0.35)), ("floor", 0.5)]
)
def test_denominator_modes(mode: F.EpsMode, expected: float) -> None:
    assert F.denominator(torch.tensor([0.25]), 0.1, mode).item() == pytest.approx(expected)


def test_denominator_floor_acts_below_it() -> None:
    assert F.denominator(torch.tensor([0.0025]), 0.1, "floor").item() == pytest.approx(0.1)


def test_whiten_by_hand_and_weighted_by_tokens() -> None:
    """Tokens 0, 0, 3: mean 1, population variance 2."""
    x = torch.tensor([[0.0, 0.0, NAN], [3.0, NAN, NAN], [NAN, NAN, NAN]]).double()
    white = F.whiten(x, MASK, eps=0.0)
    assert white[MASK].tolist() == pytest.approx([-1 / math.sqrt(2)] * 2 + [math.sqrt(2)])
    assert F.whiten(x, MASK, eps=0.0, shift=False)[1, 0].item() == pytest.approx(1 + math.sqrt(2))


def test_whiten_of_equal_values_or_nothing_is_zero() -> None:
    x = torch.full((3, 3), 0.1)
    assert F.whiten(x, MASK).abs().max() == 0
    assert F.whiten(x, MASK & False).abs().max() == 0


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) + 0.5 - 1), ("k3+", math.exp(-0.5) + 0.5 - 1)],
)
def test_kl_estimators_by_hand(estimator: F.KlEstimator, expected: float) -> None:
    mask = torch.tensor([[True, False]])
    found = F.kl(torch.tensor([[-0.5, NAN]]), torch.tensor([[-1.0, NAN]]), mask, estimator)
    assert found.tolist() == [[pytest.approx(expected), 0.0]]


def test_straight_through_kl_has_the_gradient_of_k2() -> None:
    logprobs = torch.tensor([[-0.5]], requires_grad=True)
    F.kl(logprobs, torch.tensor([[-1.2]]), torch.tensor([[True]]), "k3+").sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(0.7)


@few
@given(st.floats(-2, 2), st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3))
def test_clip_gradient_is_zero_iff_the_move_went_too_far(log_ratio: float, advantage: float) -> None:
    """The rule that defines PPO's clip: A > 0 and rho > 1 + eps, or A < 0 and rho < 1 - eps."""
    x = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    F.ppo_clip(x.exp(), torch.tensor(advantage, dtype=torch.float64), 0.2, 0.28).backward()
    ratio = math.exp(log_ratio)
    too_far = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    assert x.grad is not None
    assert (x.grad.item() == 0) == too_far


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    ratio, advantages = torch.tensor([10.0, 10.0, 1.0]), torch.tensor([-1.0, 1.0, -1.0])
    assert F.ppo_clip(ratio, advantages, 0.2, 0.2).tolist() == pytest.approx([10.0, -1.2, 1.0])
    assert F.ppo_clip(ratio, advantages, 0.2, 0.2, 3.0).tolist() == pytest.approx([3.0, -1.2, 1.0])


def test_log_ratio_clamp_and_mask() -> None:
    mask = torch.tensor([[True, True, False]])
    found = F.log_ratio(torch.tensor([[0.0, -50.0, NAN]]), torch.tensor([[-50.0, 0.0, 1.0]]), mask, 20.0)
    assert found.tolist() == [[20.0, -20.0, 0.0]]


def test_length_adaptive_lambda_is_clamped() -> None:
    """alpha 0.05: L = 100 gives 1 - 1/5; L = 10 would give -1, and 0 tokens divide by nothing."""
    found = F.length_adaptive_lambda(torch.tensor([100, 10, 0]), 0.05)
    assert found.tolist() == pytest.approx([0.8, 0.0, 0.0])
    assert F.length_adaptive_lambda(torch.tensor([10]), 0.05, (-5.0, 1.0)).item() == pytest.approx(-1.0)
    assert F.length_adaptive_lambda(torch.tensor([5]), 1e9).item() == pytest.approx(1.0)


def test_return_to_go_by_hand_skips_masked_tokens() -> None:
    mask = torch.tensor([[True, False, True, True, False]])
    rewards = torch.tensor([[1.0, NAN, 2.0, 4.0, NAN]])
    assert F.return_to_go(rewards, mask).tolist() == [[7.0, 0.0, 6.0, 4.0, 0.0]]
    assert F.return_to_go(rewards, mask, 0.5).tolist() == [[3.0, 0.0, 4.0, 4.0, 0.0]]


def test_softmin_weights_by_hand_and_on_nothing() -> None:
    scores, present = torch.tensor([[0.0, math.log(3.0), NAN], [NAN] * 3]), MASK[[0, 2]]
    weights = F.softmin_weights(scores, present, 1.0)
    assert weights.tolist() == [[pytest.approx(0.75), pytest.approx(0.25), 0.0], [0.0, 0.0, 0.0]]


def test_binary_divergences_by_hand() -> None:
    """p = 0.5, q = 0.25: TV 0.25; KL 1/4 log(1/2) + 3/4 log(3/2)."""
    lp, lq, mask = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.25)]]), torch.tensor([[True]])
    assert F.binary_divergence(lp, lq, mask, "tv").item() == pytest.approx(0.25)
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert F.binary_divergence(lp, lq, mask, "kl").item() == pytest.approx(kl, rel=1e-6)


@few
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=6), st.lists(st.floats(0.01, 1), min_size=6, max_size=6)
)
def test_binary_divergence_never_exceeds_the_full_one(a: list[float], b: list[float]) -> None:
    """Data processing: lumping all other tokens into one can only lose divergence."""
    p = torch.tensor(a, dtype=torch.float64)
    q = torch.tensor(b[: len(a)], dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    mask = torch.tensor([[True]])
    lp, lq = p[:1, None].log(), q[:1, None].log()
    assert F.binary_divergence(lp, lq, mask, "tv") <= (p - q).abs().sum() / 2 + 1e-9
    assert F.binary_divergence(lp, lq, mask, "kl") <= (q * (q / p).log()).sum() + 1e-9


def test_binary_kl_is_finite_at_probability_one() -> None:
    mask = torch.tensor([[True, True]])
    found = F.binary_divergence(torch.tensor([[0.0, -1e-20]]), torch.tensor([[-1e-20, -0.7]]), mask, "kl")
    assert bool(torch.isfinite(found).all())
    assert found[0, 0].item() == pytest.approx(0.0, abs=1e-9)


def test_step_scores_and_ends_by_hand() -> None:
    steps = torch.tensor([[0, 0, -1, 2, 2], [-1, -1, -1, -1, -1]])
    mask = torch.tensor([[True, True, True, True, False], [True] * 5])
    scores, sizes = F.step_scores(torch.tensor([[1.0, 3.0, NAN, 5.0, NAN], [1.0] * 5]), steps, mask)
    assert scores.tolist() == [[2.0, 0.0, 5.0], [0.0, 0.0, 0.0]]
    assert sizes.tolist() == [[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert F.step_ends(steps, mask).nonzero().tolist() == [[0, 1], [0, 3]]


@few
@given(ragged_batches())
def test_shuffle_permutes_within_rows_whatever_rows_and_padding(batch) -> None:
    ids, mask = batch.completion_ids, batch.completion_mask
    shuffled = F.shuffle_tokens(batch.local_rewards, ids, mask)
    for row, own, keep in zip(shuffled, batch.local_rewards, mask, strict=True):
        assert sorted(row[keep].tolist()) == sorted(own[keep].tolist())
        assert not row[~keep].any()
    order = torch.arange(len(batch)).flip(0)
    assert torch.equal(F.shuffle_tokens(batch.local_rewards[order], ids[order], mask[order]), shuffled[order])
    wide = [torch.nn.functional.pad(x, (0, 2)) for x in (batch.local_rewards, ids, mask)]
    assert torch.equal(F.shuffle_tokens(*wide)[:, : mask.shape[1]], shuffled)


def test_shuffle_moves_values() -> None:
    batch = make_batch([20], [1.0], local=[[float(t) for t in range(20)]])
    shuffled = F.shuffle_tokens(batch.local_rewards, batch.completion_ids, batch.completion_mask)
    assert shuffled.tolist() != batch.local_rewards.tolist()


def slow_gae(rewards, values, mask, gamma, lam):
    """The definition: A_t = sum_k (gamma lambda)^k delta_{t+k} over the True tokens of each row."""
    out = [[0.0] * len(r) for r in rewards]
    for i, row in enumerate(mask):
        kept = [t for t, keep in enumerate(row) if keep]
        deltas = []
        for k, t in enumerate(kept):
            following = values[i][kept[k + 1]] if k + 1 < len(kept) else 0.0
            deltas.append(rewards[i][t] + gamma * following - values[i][t])
        for k, t in enumerate(kept):
            out[i][t] = sum((gamma * lam[i]) ** n * d for n, d in enumerate(deltas[k:]))
    return out


@few
@given(st.integers(0, 10_000), st.floats(0.5, 1.0))
def test_gae_equals_a_slow_loop_with_holes_and_garbage(seed: int, gamma: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 7, generator=generator) < 0.7
    rewards, values = (torch.randn(3, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    lam = torch.rand(3, generator=generator, dtype=torch.float64)
    garbage = torch.where(mask, values, 100.0)  # values under padding must not bootstrap into real tokens
    found = F.gae(torch.where(mask, rewards, NAN), garbage, mask, gamma=gamma, gae_lambda=lam)
    expected = slow_gae(rewards.tolist(), values.tolist(), mask.tolist(), gamma, lam.tolist())
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-9)


def test_discounted_return_equals_gae_with_lambda_one() -> None:
    batch = make_batch([4, 2], [1.0, 0.0], local=[[1, 2, 3, 4], [5, 6]])
    mask = batch.completion_mask
    slow = slow_gae(batch.local_rewards.tolist(), torch.zeros(2, 4).tolist(), mask.tolist(), 0.9, [1.0, 1.0])
    found = F.return_to_go(batch.local_rewards, mask, 0.9)
    assert torch.allclose(found, torch.tensor(slow, dtype=torch.float64))
