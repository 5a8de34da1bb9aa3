"""GRPO and Dr. GRPO: closed form, invariances, clipping, KL, and what went wrong elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError, Setting
from algorithms.dr_grpo import DrGrpo
from algorithms.grpo import Grpo, GrpoOptions
from harness.train.reduction import Reducer
from harness.train.toy import ToyTask, ToyTrainer


def outcome(batch: Batch, **options: object) -> list[float]:
    """The first token's advantage of each row."""
    return Grpo(GrpoOptions(**options)).advantages(batch)[:, 0].tolist()


def test_golden_values_of_two_groups() -> None:
    """Group 0: 1, 0 -> +-1. Group 1: 1, 1, 0, 0, 0: mean 0.4, deviation sqrt(0.24)."""
    batch = make_batch([2, 1, 1, 3, 1, 2, 1], [1, 0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1])
    s = math.sqrt(0.24)
    expected = [1, -1, 0.6 / s, 0.6 / s, -0.4 / s, -0.4 / s, -0.4 / s]
    assert outcome(batch, std_eps=0.0) == pytest.approx(expected)
    assert rows_of(batch, Grpo().advantages(batch))[3] == pytest.approx([0.6 / (s + 1e-6)] * 3)


def test_golden_loss_value() -> None:
    """One token each, A = +-1, ratios 1.5 (clipped to 1.2) and 0.5 (clipped to 0.8): (-1.2 + 0.8) / 2."""
    algorithm = Grpo(GrpoOptions(std_eps=0.0))
    batch = credited(algorithm, make_batch([1, 1], [1, 0]))
    logprobs = batch.old_logprobs + torch.tensor([[math.log(1.5)], [math.log(0.5)]])
    loss, _ = loss_and_gradient(algorithm, batch, logprobs)
    assert loss.item() == pytest.approx(-0.2)


@few
@given(ragged_batches(outcomes=(0.0, 0.25, 1.0)), st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale_invariance(batch: Batch, shift: float, scale: float) -> None:
    changed = batch.replace(rewards=scale * batch.rewards + shift)
    before, after = outcome(batch, std_eps=0.0), outcome(changed, std_eps=0.0)
    assert after == pytest.approx(before, abs=1e-6)


@few
@given(ragged_batches(outcomes=(0.0, 0.25, 1.0)))
def test_group_sums_are_zero_and_squares_average_to_one(batch: Batch) -> None:
    a = torch.tensor(outcome(batch, std_eps=0.0))
    for group in batch.group_ids.unique():
        own = a[batch.group_ids == group]
        assert own.sum().item() == pytest.approx(0, abs=1e-6)
        assert own.square().mean().item() == pytest.approx(1.0) or not own.any()


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, 1e6])
def test_equal_rewards_give_exactly_zero_and_no_gradient(reward: float) -> None:
    """0.1 + 0.1 + 0.1 is not 0.3 in floating point: the rounding must not be divided by the deviation."""
    algorithm = Grpo(GrpoOptions(std_eps=0.0))
    batch = credited(algorithm, make_batch([3, 1, 2], [reward] * 3))
    assert batch.advantages is not None
    assert not batch.advantages.any()
    _, gradient = loss_and_gradient(algorithm, batch, moved(batch))
    assert not gradient.any()


def test_kl_gradient_of_silent_groups_remains_unless_masked() -> None:
    for mask_kl, expected in [(False, True), (True, False)]:
        algorithm = Grpo(GrpoOptions(kl_coefficient=0.1, mask_zero_variance_kl=mask_kl))
        batch = credited(algorithm, make_batch([3, 2], [1, 1]))
        batch = batch.replace(reference_logprobs=batch.old_logprobs - 0.5)
        _, gradient = loss_and_gradient(algorithm, batch, batch.old_logprobs)
        assert bool(gradient.any()) is expected


def test_bessel_correction() -> None:
    batch = make_batch([1] * 4, [1, 0, 0, 0])
    population = torch.tensor(outcome(batch, std_eps=0.0))
    sample = torch.tensor(outcome(batch, std_eps=0.0, std_ddof="sequence_bessel"))
    assert sample.tolist() == pytest.approx((population * math.sqrt(3 / 4)).tolist())


def test_on_policy_loss_is_minus_mean_advantage_and_gradient_is_reinforce() -> None:
    algorithm = Grpo()
    batch = credited(algorithm, make_batch([3, 1, 2], [1, 0, 0]))
    loss, gradient = loss_and_gradient(algorithm, batch, batch.old_logprobs)
    weights = batch.completion_mask / batch.lengths[:, None].double() / 3
    assert loss.item() == pytest.approx(-(weights * batch.masked_advantages).sum().item(), abs=1e-12)
    assert torch.allclose(gradient, -weights * batch.masked_advantages)


def test_standard_deviation_is_the_groups_not_the_batchs() -> None:
    """Two groups of different spread must both come out at unit size (trl issue 3991: sets were swapped)."""
    batch = make_batch([1] * 4, [0.4, 0.6, 0.0, 1.0], [0, 0, 1, 1])
    assert outcome(batch, std_eps=0.0) == pytest.approx([-1, 1, -1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_close_but_unequal_rewards_keep_full_size(dtype: torch.dtype) -> None:
    """A variance floor made these advantages 100 times too small (verl issue 6348)."""
    batch = make_batch([1, 1], [0.5, 0.5 + 1e-3])
    batch = batch.replace(rewards=batch.rewards.to(dtype))
    assert outcome(batch) == pytest.approx([-1, 1], rel=1e-2)


def test_unscorable_completion_enters_no_statistic() -> None:
    """One NaN reward poisoned its whole group elsewhere (trl issues 5773, 5902)."""
    with_nan = make_batch([1, 2, 1], [1, math.nan, 0])
    assert outcome(with_nan, std_eps=0.0) == pytest.approx([1, 0, -1])
    none = make_batch([1, 1], [math.nan, math.nan])
    assert outcome(none) == [0, 0]


def test_group_ids_and_not_adjacency() -> None:
    batch = make_batch([1] * 4, [1, 5, 0, 5], [3, 8, 3, 8])
    assert outcome(batch, std_eps=0.0) == pytest.approx([1, 0, -1, 0])


def test_groups_do_not_touch_each_other() -> None:
    a = make_batch([1] * 4, [1, 0, 1, 0], [0, 0, 1, 1])
    b = a.replace(rewards=torch.tensor([1.0, 0.0, 7.0, -3.0]).double())
    assert outcome(a)[:2] == outcome(b)[:2]


def test_singleton_choices() -> None:
    batch = make_batch([2, 2], [0.7, math.nan])
    assert outcome(batch) == [0, 0]
    assert outcome(batch, singleton="raw") == [0.7, 0]
    with pytest.raises(ConfigError, match="one scorable completion"):
        outcome(batch, singleton="error")


def test_one_rollout_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"train.group_size=1: grpo .* set train.group_size to 2"):
        Grpo().check(Setting(1, frozenset(), (0, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "sdt"}, "did you mean 'std'"),
        ({"epsilon_low": -0.1}, "epsilon_low=-0.1"),
        ({"epsilon_high": math.nan}, "epsilon_high=nan"),
        ({"dual_clip": 0.5}, "dual_clip=0.5"),
        ({"aggregation": "seq_level"}, "aggregation='seq_level'"),
    ],
)
def test_bad_options_name_the_field_and_the_fix(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GrpoOptions(**options)


def test_batches_take_keyword_arguments_only() -> None:
    """Positional arguments let advantages land in the slot of the mask elsewhere (verl issue 2506)."""
    with pytest.raises(TypeError):
        Batch(torch.zeros(1, 1), torch.ones(1, 1).bool())  # type: ignore[misc]


@pytest.mark.parametrize(("updates", "acts"), [(1, False), (4, True)])
def test_clipping_acts_only_with_several_updates_a_rollout(updates: int, acts: bool) -> None:
    """With one optimizer step a rollout the ratio is 1 everywhere (verl issue 791)."""
    trainer = ToyTrainer(Grpo(), ToyTask(outcome="fraction"), learning_rate=0.5)
    batch = trainer.credit(trainer.rollout(4, 8))
    clipped = False
    for rows in torch.arange(len(batch)).chunk(updates):
        part = batch.rows(rows)
        ratio = (trainer.models.logprobs(part) - part.old_logprobs).exp()[part.completion_mask]
        clipped = clipped or bool(((ratio > 1.2) | (ratio < 0.8)).any())
        trainer.step(part)
    assert clipped is acts


def test_reference_policy_is_required_only_by_a_kl_term() -> None:
    assert "reference" not in Grpo().requires
    assert "reference" in Grpo(GrpoOptions(kl_coefficient=0.1)).requires


def test_kl_value_by_hand() -> None:
    """No advantage, k3 of d = 0.5 on both tokens: beta (e^-0.5 + 0.5 - 1)."""
    algorithm = Grpo(GrpoOptions(kl_coefficient=0.2))
    batch = credited(algorithm, make_batch([1, 1], [1, 1]))
    batch = batch.replace(reference_logprobs=batch.old_logprobs - 0.5)
    loss, _ = loss_and_gradient(algorithm, batch, batch.old_logprobs)
    assert loss.item() == pytest.approx(0.2 * (math.exp(-0.5) - 0.5))


def test_dr_grpo_by_hand() -> None:
    """A = +-0.5; lengths 3 and 1, C = 10: on-policy loss -(3 x 0.5 - 1 x 0.5) / (2 x 10)."""
    algorithm = DrGrpo()
    batch = credited(algorithm, make_batch([3, 1], [1, 0], max_completion_tokens=10))
    assert rows_of(batch, batch.masked_advantages) == [[0.5] * 3, [-0.5]]
    loss, _ = loss_and_gradient(algorithm, batch, batch.old_logprobs)
    assert loss.item() == pytest.approx(-0.05)


def test_dr_grpo_divides_by_the_constant_of_the_run_not_by_the_batch_width() -> None:
    algorithm = DrGrpo()
    losses = []
    for limit in (10, 20):
        batch = credited(algorithm, make_batch([3, 1], [1, 0], max_completion_tokens=limit))
        losses.append(loss_and_gradient(algorithm, batch, batch.old_logprobs)[0].item())
    assert losses[0] == pytest.approx(2 * losses[1])
    batch = credited(algorithm, make_batch([3, 1], [1, 0], max_completion_tokens=0))
    with pytest.raises(ValueError, match="max_completion_tokens=0"):
        Reducer(batch).weights("seq_mean_token_sum_norm")


def test_metrics_count_groups_without_signal() -> None:
    batch = credited(Grpo(), make_batch([1] * 5, [1, 0, 1, 1, 1], [0, 0, 1, 1, 1]))
    assert Grpo().metrics(batch) == {"frac_constant_groups": pytest.approx(0.5)}
