"""CPPO's pruning, lambda-GRPO's length preference, Balanced Aggregation."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.balanced_aggregation import BalancedAggregation, BalancedAggregationOptions
from algorithms.base import Batch
from algorithms.cppo import Cppo, CppoOptions
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.lambda_grpo import LambdaGrpo, LambdaGrpoOptions
from harness.train.reduction import Reducer
from harness.train.toy import ToyModels, ToyPolicy, ToyTask


def cppo(**options: object) -> Cppo:
    return Cppo(CppoOptions(**options))


def kept(algorithm: Cppo, batch: Batch) -> list[int]:
    return algorithm.select(credited(algorithm, batch)).nonzero()[:, 0].tolist()


def lambda_grpo(batch: Batch, **options: object) -> tuple[LambdaGrpo, Batch]:
    algorithm = LambdaGrpo(LambdaGrpoOptions(**options))
    batch = algorithm.prepare(batch, ToyModels(ToyPolicy(ToyTask())))
    return algorithm, credited(algorithm, batch)


# --- CPPO --------------------------------------------------------------------------------------------------

SPREAD = make_batch([1] * 8, [1, 0.9, 0.1, 0, 0.5, 0.6, 0.4, 0.5], [0, 0, 0, 0, 1, 1, 1, 1])


def test_pruning_keeps_the_largest_advantages_of_each_group_in_order() -> None:
    assert kept(cppo(), SPREAD) == [0, 3, 5, 6]
    assert kept(cppo(prune="largest"), SPREAD) == [1, 2, 4, 7]


def test_pruning_over_the_batch_lets_prompts_vanish() -> None:
    """Both released codes rank over the batch: a prompt of small advantages disappears."""
    options = {"prune_scope": "batch", "scale": "none"}
    assert kept(cppo(**options), SPREAD) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("size", "share", "count"),
    [(16, 0.9375, 1), (10, 0.9, 1), (20, 0.9, 2), (10, 0.7, 3), (8, 0.99, 1), (8, 0.0, 8), (5, 0.5, 2)],
)
def test_number_kept_is_the_floor_and_means_kept_not_pruned(size: int, share: float, count: int) -> None:
    """10 (1 - 0.9) is 0.9999999999999998; and the two released codes pass k with opposite meaning."""
    batch = make_batch([1] * size, [float(i) for i in range(size)])
    assert len(kept(cppo(prune_share=share), batch)) == count


@few
@given(ragged_batches(outcomes=(0.0, 0.3, 1.0)), st.sampled_from(["smallest", "largest", "random"]))
def test_pruning_does_not_depend_on_row_order_and_statistics_come_first(batch: Batch, prune: str) -> None:
    algorithm = cppo(prune=prune)
    done = credited(algorithm, batch)
    assert torch.equal(done.masked_advantages, Grpo().advantages(batch))
    order = torch.arange(len(batch)).flip(0)
    assert torch.equal(algorithm.select(done.rows(order)), algorithm.select(done)[order])


def test_ties_are_broken_by_content() -> None:
    batch = make_batch([3] * 4, [1, 0, 1, 0])
    one, other = kept(cppo(), batch), kept(cppo(), batch.rows(torch.tensor([2, 1, 0, 3])))
    contents = [batch.completion_ids[i].tolist() for i in one]
    reordered = batch.rows(torch.tensor([2, 1, 0, 3]))
    assert sorted(contents) == sorted(reordered.completion_ids[i].tolist() for i in other)


def test_denominators_count_survivors_and_pruned_rows_have_no_gradient() -> None:
    algorithm = cppo()
    batch = credited(algorithm, SPREAD)
    rows = algorithm.select(batch).nonzero()[:, 0]
    small = batch.rows(rows)
    assert Reducer(small).weights("seq_mean_token_mean").sum().item() == pytest.approx(1)
    assert Reducer(small).weights("seq_mean_token_mean")[0, 0].item() == pytest.approx(1 / 4)


def test_scores_of_token_advantages() -> None:
    advantages = torch.tensor([[1.0, -1.0], [0.6, 0.6]], dtype=torch.float64)
    batch = make_batch([2, 2], [1, 0]).replace(advantages=advantages)
    assert cppo(score="mean_abs").select(batch).tolist() == [True, False]
    assert cppo(score="abs_mean").select(batch).tolist() == [False, True]


# --- lambda-GRPO -------------------------------------------------------------------------------------------


def test_row_weights_by_hand() -> None:
    """Lengths 1 and 3: z = -1, 1; h = 0.9, 1.1; lambda 2: softmax of 0.81 and 1.21, times 2."""
    algorithm, batch = lambda_grpo(make_batch([1, 3], [1, 0]), lambda_start=2.0, std_eps=0.0)
    e = math.exp(0.81), math.exp(1.21)
    assert algorithm.row_weights(batch).tolist() == pytest.approx([2 * x / sum(e) for x in e])
    term = algorithm.policy_loss(batch.old_logprobs, batch)
    assert term.per_token[0, 0].item() == pytest.approx(-2 * e[0] / sum(e), rel=1e-5)
    assert term.aggregation == "token_mean"


@few
@given(ragged_batches(), st.floats(-3, 3))
def test_row_weights_sum_to_the_group_size(batch: Batch, power: float) -> None:
    algorithm, batch = lambda_grpo(batch, lambda_start=power)
    weights = algorithm.row_weights(batch).detach()
    for group in batch.group_ids.unique():
        own = batch.group_ids == group
        assert weights[own].sum().item() == pytest.approx(int(own.sum()))


@few
@given(ragged_batches())
def test_lambda_zero_or_equal_lengths_are_the_token_mean(batch: Batch) -> None:
    plain = Grpo(GrpoOptions(aggregation="token_mean"))
    equal = make_batch([3] * len(batch), batch.rewards.tolist(), batch.group_ids.tolist())
    for case, power in [(batch, 0.0), (equal, 1.7)]:
        algorithm, done = lambda_grpo(case, lambda_start=power)
        a = loss_and_gradient(algorithm, done, moved(case))
        b = loss_and_gradient(plain, credited(plain, case), moved(case))
        assert a[0].item() == pytest.approx(b[0].item(), abs=1e-9)
        assert torch.allclose(a[1], b[1], atol=1e-9)


def test_large_r_stays_finite() -> None:
    """h = 1 + r z turns negative one deviation below the mean, and a fractional power of it is NaN."""
    algorithm, batch = lambda_grpo(make_batch([1, 1, 1, 9], [1, 0, 0, 0]), r=2.0, lambda_start=0.5)
    assert bool(torch.isfinite(algorithm.row_weights(batch)).all())
    short, batch = lambda_grpo(make_batch([9, 9, 9, 1], [1, 0, 0, 0]), r=2.0, lambda_start=0.5)
    assert bool(torch.isfinite(short.row_weights(batch)).all())
    assert batch.extras["length_score"].min().item() == pytest.approx(0.05)


def preference_gradient(algorithm: LambdaGrpo, batch: Batch, parts: list[Tensor]) -> float:
    reducer = Reducer(batch)
    algorithm.preference.grad = None
    for rows in parts:
        part = batch.rows(rows).trim()
        reducer.value(algorithm.loss(part.old_logprobs.nan_to_num(), part), rows).backward()
    assert algorithm.preference.grad is not None
    return algorithm.preference.grad.item()


def test_lambda_learns_and_a_torn_group_gives_the_same_gradient() -> None:
    """The loss of a few rows must still see the lengths of the whole group."""
    algorithm, batch = lambda_grpo(make_batch([1, 3, 2, 5], [1, 0, 0, 0]), lambda_start=0.5)
    whole = preference_gradient(algorithm, batch, [torch.arange(4)])
    split = preference_gradient(
        algorithm, batch, [torch.tensor([3]), torch.tensor([0, 2]), torch.tensor([1])]
    )
    assert abs(whole) > 1e-4
    assert split == pytest.approx(whole, rel=1e-5)


def test_a_fixed_lambda_is_no_parameter() -> None:
    algorithm, batch = lambda_grpo(make_batch([1, 3], [1, 0]), learnable=False, lambda_start=1.0)
    assert algorithm.param_groups() == []
    assert not algorithm.row_weights(batch).requires_grad
    (group,) = LambdaGrpo().param_groups()
    assert group["weight_decay"] == 0


# --- Balanced Aggregation ----------------------------------------------------------------------------------


def test_balanced_loss_by_hand() -> None:
    """P: 1 token, A = sqrt 2. N: 2 + 6 tokens, A = -1/sqrt 2. On policy: -(1/3 sqrt 2) + 2/3 / sqrt 2 = 0."""
    algorithm = BalancedAggregation(BalancedAggregationOptions(std_eps=0.0))
    batch = credited(algorithm, make_batch([1, 2, 6], [1, 0, 0]))
    loss, gradient = loss_and_gradient(algorithm, batch, batch.old_logprobs)
    assert loss.item() == pytest.approx(0, abs=1e-9)
    assert gradient[0, 0].item() == pytest.approx(-math.sqrt(2) / 3)
    assert gradient[2].tolist() == pytest.approx([2 / 3 / 8 / math.sqrt(2)] * 6)


def test_balanced_kl_is_averaged_over_tokens() -> None:
    """Signs have no meaning for KL: it must not be dropped where A = 0."""
    algorithm = BalancedAggregation(BalancedAggregationOptions(kl_coefficient=0.1))
    batch = make_batch([2, 2], [1, 1])
    batch = credited(algorithm, batch.replace(reference_logprobs=batch.old_logprobs - 0.5))
    assert algorithm.loss(batch.old_logprobs, batch)["kl"].aggregation == "token_mean"
