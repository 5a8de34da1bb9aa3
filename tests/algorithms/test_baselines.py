"""RLOO, REINFORCE++ and GRPO with process supervision."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError, Setting
from algorithms.dr_grpo import DrGrpo
from algorithms.grpo import Grpo
from algorithms.grpo_process import GrpoProcess, GrpoProcessOptions
from algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusOptions
from algorithms.rloo import Rloo, RlooOptions


def rloo(**options: object) -> Rloo:
    return Rloo(RlooOptions(**{"kl_coefficient": 0.0, **options}))


def rpp(**options: object) -> ReinforcePlusPlus:
    return ReinforcePlusPlus(ReinforcePlusPlusOptions(**{"kl_coefficient": 0.0, **options}))


def process(**options: object) -> GrpoProcess:
    return GrpoProcess(GrpoProcessOptions(**{"std_eps": 0.0, **options}))


# --- RLOO --------------------------------------------------------------------------------------------------


def test_rloo_by_hand() -> None:
    batch = make_batch([2, 1, 1], [1, 0, 0.5])
    assert rows_of(batch, rloo().advantages(batch)) == [
        pytest.approx([0.75] * 2),
        pytest.approx([-0.75]),
        pytest.approx([0], abs=1e-12),
    ]


@few
@given(ragged_batches(outcomes=(0.0, 0.3, 1.0)))
def test_rloo_is_dr_grpo_times_g_over_g_minus_one_and_sums_to_zero(batch: Batch) -> None:
    a, dr = rloo().advantages(batch)[:, 0], DrGrpo().advantages(batch)[:, 0]
    for group in batch.group_ids.unique():
        own = batch.group_ids == group
        n = int(own.sum())
        assert torch.allclose(a[own], dr[own] * n / (n - 1))
        assert a[own].sum().item() == pytest.approx(0, abs=1e-9)


def test_two_completions_get_plus_and_minus_their_difference() -> None:
    assert rloo().advantages(make_batch([1, 1], [0.9, 0.2]))[:, 0].tolist() == pytest.approx([0.7, -0.7])


def test_agreeing_siblings_do_not_explode() -> None:
    """A leave-one-out deviation divides by 0 when the others agree (NeMo-RL issue 1518)."""
    a = rloo().advantages(make_batch([1] * 4, [1, 0, 0, 0]))
    assert a.abs().max().item() == pytest.approx(1)


def test_kl_enters_before_the_baseline_and_rewards_are_clipped_before_that() -> None:
    """The order differs between frameworks (OpenRLHF issue 515): R - beta sum k1, then leave one out."""
    batch = make_batch([2, 1], [5, 0])
    batch = batch.replace(reference_logprobs=batch.old_logprobs - 0.5)
    a = rloo(kl_coefficient=0.1, reward_clip=1.0).advantages(batch)[:, 0].tolist()
    assert a == pytest.approx([(1 - 0.1) - (0 - 0.05), -0.95])


def test_normalised_advantages_have_unit_sample_deviation() -> None:
    a = rloo(normalize=True).advantages(make_batch([1] * 4, [1, 0, 3, 0], [0, 0, 1, 1]))[:, 0]
    assert a.std().item() == pytest.approx(1, rel=1e-3)


def test_ratio_of_the_completion_is_a_product_of_token_ratios() -> None:
    """Log-ratios 0.05 and 0.1: e^0.15 is below 1.2; GSPO's mean would give e^0.075."""
    batch = credited(rloo(), make_batch([2, 1], [1, 0]))
    loss, gradient = loss_and_gradient(
        rloo(), batch, batch.old_logprobs + torch.tensor([[0.05, 0.1], [0, 0]])
    )
    assert loss.item() == pytest.approx((-math.exp(0.15) + 1) / 2)
    assert gradient[0].tolist() == pytest.approx([-math.exp(0.15) / 2] * 2)


def test_surrogates_agree_on_policy_up_to_their_measure() -> None:
    batch = credited(rloo(), make_batch([2, 2], [1, 0]))
    sequence, reinforce, token = (
        loss_and_gradient(rloo(surrogate=s), batch, batch.old_logprobs)[1]
        for s in ("sequence", "reinforce", "token")
    )
    assert torch.allclose(sequence, reinforce)
    assert torch.allclose(sequence, 2 * token)


# --- REINFORCE++ -------------------------------------------------------------------------------------------


def test_whitening_is_weighted_by_tokens() -> None:
    """Lengths 3 and 1, R 1 and 0: mean 3/4, variance 3/16."""
    batch = make_batch([3, 1], [1, 0])
    rows = rows_of(batch, rpp().advantages(batch))
    s = math.sqrt(3 / 16)
    assert rows == [pytest.approx([0.25 / s] * 3, rel=1e-6), pytest.approx([-0.75 / s], rel=1e-6)]


@few
@given(ragged_batches(outcomes=(0.0, 0.3, 1.0)), st.floats(0.1, 5), st.floats(-3, 3))
def test_batch_moments_and_affine_invariance(batch: Batch, scale: float, shift: float) -> None:
    a = rpp().advantages(batch)
    tokens = a[batch.completion_mask]
    if tokens.any():
        assert tokens.mean().item() == pytest.approx(0, abs=1e-9)
        assert tokens.var(correction=0).item() == pytest.approx(1, rel=1e-5)
    other = rpp().advantages(batch.replace(rewards=scale * batch.rewards + shift))
    # the guard 1e-8 is added to the variance of either scale, so only the centred returns are invariant
    returns = batch.rewards[:, None].expand_as(a)[batch.completion_mask]
    variance = returns.var(correction=0)
    guarded = scale * ((variance + 1e-8) / (scale**2 * variance + 1e-8)).sqrt()
    assert torch.allclose(guarded * a, other, rtol=0, atol=1e-9)


def test_statistics_are_the_batchs_not_the_groups() -> None:
    """A `reinforce++` elsewhere normalised per group and was GRPO (axolotl issue 3731)."""
    batch = make_batch([1] * 4, [1, 1, 0, 0], [0, 0, 1, 1])
    assert rpp().advantages(batch)[:, 0].tolist() == pytest.approx([1, 1, -1, -1])
    assert not Grpo().advantages(batch).any()
    assert not rpp(baseline="group_mean").advantages(batch).any()


def test_group_mean_variant_masks_padding_and_puts_kl_in_the_loss() -> None:
    """A mask was missing there elsewhere (verl issue 1527)."""
    algorithm = rpp(baseline="group_mean", kl_coefficient=0.1)
    batch = make_batch([1, 3], [1, 0])
    batch = credited(algorithm, batch.replace(reference_logprobs=batch.old_logprobs - 0.5))
    assert not batch.advantages[0, 1:].any()  # type: ignore[index]
    terms = algorithm.loss(batch.old_logprobs, batch)
    assert rows_of(batch, terms["kl"].per_token) == [[pytest.approx(0.125)], [pytest.approx(0.125)] * 3]
    with pytest.raises(ConfigError, match="baseline='group_mean' of one completion"):
        algorithm.check(Setting(1, frozenset(), (0, 1)))
    rpp().check(Setting(1, frozenset(), (0, 1)))


def test_kl_in_the_reward_and_discount() -> None:
    batch = make_batch([2, 1], [1, 0])
    batch = batch.replace(reference_logprobs=batch.old_logprobs - 0.5)
    returns = torch.tensor([0.5 * 0.95 - 0.05, 0.95, -0.05], dtype=torch.float64)
    expected = (returns - returns.mean()) / returns.std(correction=0)
    found = rpp(kl_coefficient=0.1, gamma=0.5).advantages(batch)[batch.completion_mask]
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


# --- GRPO with process supervision -------------------------------------------------------------------------


def test_process_golden_values() -> None:
    """Step rewards 1, 0 + R=1 and 0 + R=0: pool (1, 1, 0), mean 2/3, deviation sqrt(2)/3, summed from t on."""
    batch = make_batch([4, 2], [1, 0], local=[[1, 1, 0, 0], [0, 0]], steps=[[0, 0, 1, 1], [0, 0]])
    up, down = 1 / math.sqrt(2), -math.sqrt(2)
    rows = rows_of(batch, process().advantages(batch))
    assert rows == [pytest.approx([2 * up, 2 * up, up, up]), pytest.approx([down] * 2)]


@few
@given(ragged_batches())
def test_one_step_a_completion_is_outcome_grpo(batch: Batch) -> None:
    batch = batch.replace(
        step_ids=torch.where(batch.completion_mask, 0, -1), local_rewards=0 * batch.local_rewards
    )
    assert torch.allclose(GrpoProcess().advantages(batch), Grpo().advantages(batch), atol=1e-9)
    none = batch.replace(step_ids=torch.full_like(batch.step_ids, -1))
    assert torch.allclose(GrpoProcess().advantages(none), Grpo().advantages(none), atol=1e-9)


def test_normalising_before_summing_ramps_with_the_steps_left() -> None:
    """Why BoT-GRPO credits at once: three steps of reward 0 in the losing answer add up to -3 means."""
    batch = make_batch([3, 1], [0, 1], steps=[[0, 1, 2], [0]])
    rows = rows_of(batch, process().advantages(batch))
    assert rows[0] == pytest.approx([3 * rows[0][2], 2 * rows[0][2], rows[0][2]])


def test_the_last_step_reaches_the_end_and_bessel_counts_steps() -> None:
    batch = make_batch([3, 1], [1, 0], local=[[0, 0, 0], [0]], steps=[[0, -1, -1], [0]])
    rows = rows_of(batch, process().advantages(batch))
    assert rows == [pytest.approx([1] * 3), pytest.approx([-1])]
    sample = rows_of(batch, process(std_ddof="sequence_bessel").advantages(batch))
    assert sample[0] == pytest.approx([math.sqrt(0.5)] * 3)


def test_process_weights() -> None:
    batch = make_batch([1, 1], [1, 0], local=[[-1], [1]])
    assert not process(step_weight=0.5).advantages(batch).any()
    assert process(outcome_weight=0.0).advantages(batch)[:, 0].tolist() == pytest.approx([-1, 1])


def test_process_loss_is_grpos() -> None:
    batch = make_batch([2, 2], [1, 0])
    a, b = (loss_and_gradient(x, credited(x, batch), moved(batch)) for x in (GrpoProcess(), Grpo()))
    assert a[0].item() == pytest.approx(b[0].item())
