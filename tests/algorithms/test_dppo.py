"""DPPO: the mask, its anchor, both surrogates, and a slow loop as oracle."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms import functional as F
from algorithms.base import Batch
from algorithms.dppo import Dppo, DppoOptions


def dppo(**options: object) -> Dppo:
    return Dppo(DppoOptions(**options))


def keep(p: float, q: float, advantage: float, **options: object) -> bool:
    """Whether the one token stays in the update."""
    values = {"divergence": "tv", "delta_low": 0.15, "delta_high": 0.15, **options}
    mask = torch.tensor([[True]])
    lp, lq = torch.tensor([[math.log(p)]]).double(), torch.tensor([[math.log(q)]]).double()
    return bool(F.divergence_mask(lp, lq, torch.tensor([[advantage]]), mask, **values))


@pytest.mark.parametrize(
    ("p", "q", "advantage", "kept"),
    [
        (0.50, 0.30, 1.0, False),  # up, too far, wants up
        (0.50, 0.30, -1.0, True),  # up, too far, wants back
        (0.30, 0.50, -1.0, False),
        (0.30, 0.50, 1.0, True),
        (0.40, 0.30, 1.0, True),  # up, near enough
        (0.30, 0.30, 1.0, True),
        (0.30, 0.50, 0.0, False),  # A = 0 takes the branch of A <= 0, without effect on the loss
        (0.50, 0.30, 0.0, True),
    ],
)
def test_mask_by_hand(p: float, q: float, advantage: float, kept: bool) -> None:
    assert keep(p, q, advantage) is kept


def test_ratio_and_probability_disagree_on_rare_tokens() -> None:
    """0.001 -> 0.003 is a ratio of 3, and nothing in probability; 0.95 -> 0.75 is a ratio of 0.79."""
    assert keep(0.003, 0.001, 1.0)
    assert not keep(0.75, 0.95, -1.0)


def test_kl_mask_by_hand() -> None:
    """p = 0.5, q = 0.25: KL = 0.1308."""
    assert keep(0.5, 0.25, 1.0, divergence="kl", delta_high=0.14)
    assert not keep(0.5, 0.25, 1.0, divergence="kl", delta_high=0.13)


@few
@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(0.05, 0.5), st.sampled_from([-1.0, 1.0]))
def test_tv_mask_is_ppos_clip_when_delta_is_q_times_epsilon(p: float, q: float, eps: float, a: float) -> None:
    ratio = p / q
    if abs(abs(ratio - 1) - eps) < 1e-6:
        return
    clipped = (a > 0 and ratio > 1 + eps) or (a < 0 and ratio < 1 - eps)
    assert keep(p, q, a, delta_low=q * eps, delta_high=q * eps) is not clipped


@few
@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.sampled_from(["tv", "kl"]))
def test_moves_back_towards_the_anchor_are_never_masked(p: float, q: float, divergence: str) -> None:
    back = -1.0 if p > q else 1.0
    assert keep(p, q, back, divergence=divergence, delta_low=0.0, delta_high=0.0)


def slow_dppo(batch: Batch, logprobs: Tensor, delta: float, cap: float) -> tuple[float, list[list[float]]]:
    """Loss and gradient of -A sg[min(rho, c)] M lp, token by token, over rows and the token limit."""
    assert batch.advantages is not None
    loss, gradient = 0.0, torch.zeros_like(batch.advantages).tolist()
    scale = len(batch) * batch.max_completion_tokens
    for i in range(len(batch)):
        for t in range(logprobs.shape[1]):
            if not batch.completion_mask[i, t]:
                continue
            lp, lq = float(logprobs[i, t]), float(batch.sampling_logprobs[i, t])
            a, p, q = float(batch.advantages[i, t]), math.exp(lp), math.exp(lq)
            far = abs(p - q) > delta
            if far and ((a > 0 and p > q) or (a <= 0 and p < q)):
                continue
            weight = min(p / q, cap)
            loss -= a * weight * lp / scale
            gradient[i][t] = -a * weight / scale
    return loss, gradient


@few
@given(ragged_batches(), st.sampled_from([0.02, 0.15]), st.sampled_from([1.05, 20.0]))
def test_equals_a_slow_loop(batch: Batch, delta: float, cap: float) -> None:
    algorithm = dppo(delta_low=delta, delta_high=delta, ratio_cap=cap)
    batch, logprobs = credited(algorithm, batch), moved(batch)
    loss, gradient = loss_and_gradient(algorithm, batch, logprobs)
    slow_loss, slow_gradient = slow_dppo(batch, logprobs.detach(), delta, cap)
    assert loss.item() == pytest.approx(slow_loss, abs=1e-9)
    assert torch.allclose(gradient, torch.tensor(slow_gradient, dtype=torch.float64), atol=1e-9)


@few
@given(ragged_batches())
def test_surrogates_have_one_gradient_and_two_values(batch: Batch) -> None:
    results = []
    for surrogate in ("detached_ratio_logp", "ratio"):
        algorithm = dppo(surrogate=surrogate, ratio_cap=1e6)
        results.append(loss_and_gradient(algorithm, credited(algorithm, batch), moved(batch)))
    assert torch.allclose(results[0][1], results[1][1], atol=1e-12)
    if results[0][1].any():
        assert results[0][0].item() != pytest.approx(results[1][0].item(), abs=1e-12)


def test_infinite_delta_is_truncated_importance_sampling() -> None:
    algorithm = dppo(delta_low=math.inf, delta_high=math.inf, ratio_cap=2.0)
    batch = credited(algorithm, make_batch([1, 1], [1, 0], max_completion_tokens=1))
    step = torch.tensor([[math.log(5.0)], [math.log(0.5)]])
    _, gradient = loss_and_gradient(algorithm, batch, batch.old_logprobs + step)
    assert gradient[:, 0].tolist() == pytest.approx([-0.5 * 2.0 / 2, 0.5 * 0.5 / 2])


def test_the_anchor_is_the_rollout_policy() -> None:
    """Recomputed log-probs as anchor are a different algorithm, by name."""
    batch = make_batch([2, 2], [1, 0])
    batch = batch.replace(sampling_logprobs=batch.old_logprobs - 0.2)
    losses = {
        anchor: loss_and_gradient(dppo(anchor=anchor), credited(dppo(), batch), batch.old_logprobs)[0].item()
        for anchor in ("rollout", "trainer_old")
    }
    assert losses["rollout"] != pytest.approx(losses["trainer_old"])


def test_defaults_follow_the_divergence() -> None:
    p, q = 0.5, 0.38  # TV 0.12, KL 0.03
    batch = make_batch([1, 1], [1, 0])
    q_logprob = torch.full((2, 1), math.log(q), dtype=torch.float64)
    batch = batch.replace(sampling_logprobs=q_logprob, old_logprobs=q_logprob)
    for divergence, delta in [("tv", 0.15), ("kl", 0.05)]:
        given_, default = dppo(divergence=divergence, delta_high=delta), dppo(divergence=divergence)
        for factor in (p / q, 0.8 / q):
            results = [
                loss_and_gradient(x, credited(x, batch), q_logprob + math.log(factor))[1]
                for x in (given_, default)
            ]
            assert torch.equal(results[0], results[1])
            assert bool(results[0][0].any()) is (factor == p / q)


def test_advantages_are_dr_grpos() -> None:
    batch = make_batch([2, 1], [1, 0])
    assert dppo().advantages(batch)[:, 0].tolist() == [0.5, -0.5]
