"""The one place that divides losses: values by hand, and the same gradients for any split and order."""

from __future__ import annotations

import pytest
import torch
from algorithm_batches import few, make_batch, moved, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.base import Batch, LossTerm
from algorithms.bot_grpo import BotGrpo
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation
from harness.errors import UserError
from harness.train.reduction import AGGREGATIONS, Reducer

BATCH = make_batch([2, 1, 4], [1, 0, 0], [0, 0, 0], max_completion_tokens=8)
PER_TOKEN = torch.arange(12, dtype=torch.float64).reshape(3, 4)  # rows 0 1 | 4 | 8 9 10 11
PER_TOKEN_AGGREGATIONS = sorted(set(AGGREGATIONS) - {"seq_level"})


def reduce(aggregation: str, batch: Batch, per_token: Tensor, **options: str) -> float:
    reducer = Reducer(batch, **options)  # type: ignore[arg-type]
    return reducer.value({"x": LossTerm(per_token, aggregation)}, torch.arange(len(batch))).item()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("seq_mean_token_mean", (0.5 + 4 + 9.5) / 3),
        ("token_mean", (1 + 4 + 38) / 7),
        ("seq_mean_token_sum", (1 + 4 + 38) / 3),
        ("seq_mean_token_sum_norm", (1 + 4 + 38) / 3 / 8),
    ],
)
def test_values_by_hand(aggregation: str, expected: float) -> None:
    """Names were confused elsewhere: a mean per sequence is not a mean over tokens (verl 957, 1233; trl 3187)."""
    assert reduce(aggregation, BATCH, PER_TOKEN) == pytest.approx(expected)


def test_sequence_level_by_hand() -> None:
    assert reduce("seq_level", BATCH, torch.tensor([1.0, 2.0, 6.0])) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # P = {row 0}: token mean 0.5. N = {row 1, row 2}: (4 + 38) / 5.
        ("balanced", 0.5 / 3 + 8.4 * 2 / 3),
        ("balanced_batch", 0.5 / 3 + 8.4 * 2 / 3),
        ("balanced_tokens", 0.5 / 3 + 8.4 * 2 / 3),
        ("balanced_count_zero", 0.5 / 3 + 8.4 * 2 / 3),
    ],
)
def test_balanced_by_hand(aggregation: str, expected: float) -> None:
    batch = BATCH.replace(advantages=Grpo().advantages(BATCH))
    assert reduce(aggregation, batch, PER_TOKEN) == pytest.approx(expected)


def test_balanced_treatment_of_zero_advantages() -> None:
    advantages = torch.tensor([[1.0], [0.0], [-1.0]]).double().expand(3, 4)
    batch = BATCH.replace(advantages=advantages)
    assert reduce("balanced", batch, PER_TOKEN) == pytest.approx(0.5 / 2 + 9.5 / 2)
    assert reduce("balanced_count_zero", batch, PER_TOKEN) == pytest.approx(0.5 / 3 + 9.5 / 3)


def test_balanced_tokens_splits_a_completion_of_both_signs() -> None:
    """Row 0 has one token of each sign: |P| = 1/2, |N| = 1/2 + 1 + 1."""
    advantages = torch.tensor([[1.0, -1, 0, 0], [-1, 0, 0, 0], [-1, -1, -1, -1]]).double()
    batch = BATCH.replace(advantages=advantages)
    positive, negative = 0.0, (1 + 4 + 38) / 6
    assert reduce("balanced_tokens", batch, PER_TOKEN) == pytest.approx(positive / 6 + negative * 5 / 6)


def test_balanced_value_with_one_advantage_per_sign_equals_the_sequence_mean() -> None:
    """At ratio 1 with unequal lengths the balanced value is the sequence mean's, the token mean's is not."""
    batch = make_batch([1, 2, 6], [1, 0, 0])
    batch = batch.replace(advantages=Grpo().advantages(batch))
    per_token = -batch.masked_advantages
    sequence = reduce("seq_mean_token_mean", batch, per_token)
    assert reduce("balanced", batch, per_token) == pytest.approx(sequence, abs=1e-9)
    assert abs(reduce("token_mean", batch, per_token) - sequence) > 0.1


def test_all_of_one_sign_is_the_token_mean() -> None:
    batch = BATCH.replace(advantages=torch.ones(3, 4).double())
    assert reduce("balanced", batch, PER_TOKEN) == pytest.approx(reduce("token_mean", batch, PER_TOKEN))


def test_equal_lengths_make_the_means_coincide() -> None:
    batch = make_batch([4, 4, 4], [1, 0, 0], max_completion_tokens=4)
    batch = batch.replace(advantages=Grpo().advantages(batch))
    names = ["seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm"]
    values = [reduce(name, batch, PER_TOKEN) for name in names]
    assert values == pytest.approx([values[0]] * 3)
    negative = -batch.masked_advantages
    assert reduce("balanced", batch, negative) == pytest.approx(
        reduce("token_mean", batch, negative), abs=1e-9
    )


def test_empty_rows_are_dropped_or_counted() -> None:
    """TRL averages over all rows, a masked one adding 0; verl without a batch size over the others."""
    batch = make_batch([2, 0], [1, 0])
    assert reduce("seq_mean_token_mean", batch, PER_TOKEN[:2, :2]) == pytest.approx(0.5)
    assert reduce("seq_mean_token_mean", batch, PER_TOKEN[:2, :2], empty_rows="count") == pytest.approx(0.25)
    assert reduce("seq_level", batch, torch.tensor([3.0, torch.nan])) == pytest.approx(3.0)


def test_nothing_to_train_on_is_zero_with_zero_gradient() -> None:
    batch = make_batch([0, 0], [1, 0])
    per_token = torch.full((2, 1), torch.nan, requires_grad=True)
    loss = Reducer(batch).value({"x": LossTerm(per_token)}, torch.arange(2))
    loss.backward()
    assert loss.item() == 0
    assert per_token.grad is not None
    assert not per_token.grad.any()


def test_masked_nan_reaches_neither_value_nor_gradient() -> None:
    per_token = torch.where(BATCH.completion_mask, PER_TOKEN, torch.nan).requires_grad_()
    loss = Reducer(BATCH).value({"x": LossTerm(per_token)}, torch.arange(3))
    loss.backward()
    assert loss.item() == pytest.approx((0.5 + 4 + 9.5) / 3)
    assert per_token.grad is not None
    assert bool(torch.isfinite(per_token.grad).all())


def test_terms_add_with_their_weights() -> None:
    terms = {
        "a": LossTerm(PER_TOKEN, "token_mean", 2.0),
        "b": LossTerm(PER_TOKEN, "seq_mean_token_sum", -1.0),
    }
    reducer, rows = Reducer(BATCH), torch.arange(3)
    assert reducer.value(terms, rows).item() == pytest.approx(2 * 43 / 7 - 43 / 3)
    assert {k: v.item() for k, v in reducer.values(terms, rows).items()} == pytest.approx(
        {"a": 43 / 7, "b": 43 / 3}
    )


def test_unknown_aggregation_and_wrong_shape_say_what_to_do() -> None:
    with pytest.raises(UserError, match=r"unknown aggregation 'token_men': did you mean 'token_mean'"):
        Reducer(BATCH).weights("token_men")
    with pytest.raises(ValueError, match=r"loss term 'x' has shape \(3,\)"):
        reduce("token_mean", BATCH, torch.zeros(3))
    with pytest.raises(ValueError, match="seq_level"):
        reduce("seq_level", BATCH, PER_TOKEN)


def test_every_named_aggregation_exists() -> None:
    assert set(Aggregation.__args__) | {"seq_level"} == set(AGGREGATIONS)  # type: ignore[attr-defined]


@few
@given(batch=ragged_batches(), seed=st.integers(0, 99), size=st.integers(1, 4))
@pytest.mark.parametrize("aggregation", PER_TOKEN_AGGREGATIONS)
def test_any_split_and_order_gives_the_same_loss_and_gradients(
    aggregation: str, batch: Batch, seed: int, size: int
) -> None:
    """Also trimmed micro-batches, and groups that a split tears apart (verl 3741, 6957; trl 6024)."""
    algorithm = Grpo(GrpoOptions(aggregation=aggregation))  # type: ignore[arg-type]
    batch = batch.replace(advantages=BotGrpo().advantages(batch))
    logprobs, reducer = moved(batch), Reducer(batch)
    rows = torch.arange(len(batch))
    whole = reducer.value(algorithm.loss(logprobs, batch), rows)
    (expected,) = torch.autograd.grad(whole, logprobs)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    total, gradient = 0.0, torch.zeros_like(expected)
    for part in order.split(size):
        small = batch.rows(part).trim()
        width = small.completion_mask.shape[1]
        value = reducer.value(algorithm.loss(logprobs[part][:, :width], small), part)
        total += value.item()
        gradient += torch.autograd.grad(value, logprobs)[0]
    assert total == pytest.approx(whole.item(), abs=1e-10)
    assert torch.allclose(gradient, expected, atol=1e-7)


def test_denominators_count_what_selection_left() -> None:
    """A denominator that still counted filtered tokens shrank the loss elsewhere (trl issue 6369)."""
    kept = BATCH.rows(torch.tensor([0, 1]))
    assert reduce("token_mean", kept, PER_TOKEN[:2]) == pytest.approx(5 / 3)
