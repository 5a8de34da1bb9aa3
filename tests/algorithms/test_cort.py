"""CoRT: bounded weights of mean one, conservation, signs, and when it is GRPO."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, make_batch, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError, Setting
from algorithms.cort import Cort, CortOptions
from algorithms.grpo import Grpo
from harness.train.toy import ToyTask, ToyTrainer

WEIGHTINGS = ["one_plus_tanh", "softmax_clip", "centered"]


def cort(**options: object) -> Cort:
    return Cort(CortOptions(**options))


def replayed(batch: Batch, seed: int = 3, size: float = 1.0) -> Batch:
    noise = torch.randn(batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed)).double()
    return batch.replace(replay_logprobs=batch.old_logprobs - size * noise)


def differing(*differences: list[float]) -> Batch:
    """One row of reward 1 and one of 0, with the given log-prob differences."""
    batch = make_batch([len(d) for d in differences], [1, 0][: len(differences)])
    d = torch.zeros_like(batch.old_logprobs)
    for i, row in enumerate(differences):
        d[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return batch.replace(replay_logprobs=batch.old_logprobs - d)


def weights(batch: Batch, **options: object) -> list[list[float]]:
    a = Grpo().advantages(batch)[:, 0]
    return rows_of(batch, cort(**options).weights(batch, a))


def test_golden_weights() -> None:
    batch = differing([1.0, -1.0], [0.0])
    t = math.tanh(1.0) / 2
    assert weights(batch)[0] == pytest.approx([1 + t, 1 - t])
    e = math.exp(0.5), math.exp(-0.5)
    assert weights(batch, weighting="softmax_clip")[0] == pytest.approx([2 * x / sum(e) for x in e])
    assert weights(batch, weighting="centered", k=0.8)[0] == pytest.approx([1.4, 0.6])
    assert weights(batch)[1] == [1]


def test_golden_advantages() -> None:
    batch = differing([1.0, -1.0], [0.0])
    t = math.tanh(1.0) / 2
    rows = rows_of(batch, cort(std_eps=0.0, mix=0.5).advantages(batch))
    assert rows == [pytest.approx([1 + t / 2, 1 - t / 2]), pytest.approx([-1])]


@few
@given(batch=ragged_batches(), seed=st.integers(0, 99), size=st.sampled_from([0.1, 1.0, 20.0]))
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_conservation_signs_and_bounds(weighting: str, batch: Batch, seed: int, size: float) -> None:
    batch = replayed(batch, seed, size)
    algorithm = cort(weighting=weighting, tau=0.7)
    advantages, grpo = algorithm.advantages(batch), Grpo().advantages(batch)
    assert torch.allclose(advantages.sum(-1), grpo.sum(-1), atol=1e-6)
    assert (advantages * grpo >= 0).all()
    assert not advantages[grpo == 0].any()
    low, high = {
        "one_plus_tanh": (0.5 / 1.5, 1.5 / 0.5),
        "softmax_clip": (math.exp(-1 / 0.7), math.exp(1 / 0.7)),
        "centered": (0.0, 2.0),
    }[weighting]
    for row in rows_of(batch, algorithm.weights(batch, grpo[:, 0])):
        assert min(row) >= low - 1e-9
        assert max(row) <= high + 1e-9
        assert sum(row) / len(row) == pytest.approx(1)


@few
@given(ragged_batches())
def test_reduces_to_grpo(batch: Batch) -> None:
    grpo = Grpo().advantages(batch)
    constant = batch.replace(replay_logprobs=batch.old_logprobs - 0.7)
    same = batch.replace(replay_logprobs=batch.old_logprobs)
    for weighting in WEIGHTINGS:
        for case in (constant, same):
            assert torch.allclose(cort(weighting=weighting).advantages(case), grpo, atol=1e-9)
        unmixed = cort(weighting=weighting, mix=0.0)
        assert torch.allclose(unmixed.advantages(replayed(batch)), grpo, atol=1e-9)


@pytest.mark.parametrize(
    ("weighting", "invariant"), [("softmax_clip", True), ("centered", True), ("one_plus_tanh", False)]
)
def test_adding_a_constant_to_the_differences(weighting: str, invariant: bool) -> None:
    a = weights(differing([0.1, -0.2, 0.05], [0.0]), weighting=weighting)
    b = weights(differing([0.2, -0.1, 0.15], [0.0]), weighting=weighting)
    assert (a[0] == pytest.approx(b[0], abs=1e-9)) is invariant


def test_difference_options() -> None:
    batch = differing([0.2, -0.2, 0.0], [0.0])
    assert weights(batch, diff="abs")[0][0] == pytest.approx(weights(batch, diff="abs")[0][1])
    relu = weights(batch, diff="relu")[0]
    assert relu[1] == pytest.approx(relu[2])
    assert weights(batch, dead_zone=0.3)[0] == pytest.approx([1, 1, 1])
    scaled = weights(batch, scale_d="per_response_max")[0]
    assert scaled == pytest.approx(weights(differing([1.0, -1.0, 0.0], [0.0]))[0])
    deviation = math.sqrt(0.08 / 3)
    by_std = weights(batch, scale_d="per_response_std")[0]
    assert by_std == pytest.approx(weights(differing([0.2 / deviation, -0.2 / deviation, 0.0], [0.0]))[0])


def test_negative_mode_moves_blame_only() -> None:
    batch = differing([1.0, -1.0], [1.0, -1.0])
    same, inverted = (rows_of(batch, cort(negative_mode=m).advantages(batch)) for m in ("same", "inverted"))
    assert same[0] == inverted[0]
    assert same[1] == pytest.approx(inverted[1][::-1])
    assert abs(same[1][0]) > abs(same[1][1])


def test_sum_one_needs_a_sum_over_tokens() -> None:
    with pytest.raises(ConfigError, match="already divide by the length"):
        CortOptions(total="sum_one")
    algorithm = cort(total="sum_one", aggregation="seq_mean_token_sum")
    batch = replayed(make_batch([4, 2], [1, 0]))
    assert algorithm.advantages(batch).sum(-1).tolist() == pytest.approx([1, -1], rel=1e-5)


@pytest.mark.parametrize("c", [0.0, 1.0, -0.5])
def test_bounds_that_allow_negative_weights_are_refused(c: float) -> None:
    with pytest.raises(ConfigError, match=r"options\.c="):
        CortOptions(c=c)


def test_a_task_without_a_rubric_is_refused() -> None:
    """A rubric that only the judge sees leaves the difference undefined."""
    with pytest.raises(ConfigError, match="cort needs rubric"):
        Cort().check(Setting(8, frozenset({"token_rewards"}), (0, 1), task="toy"))


def test_one_forward_a_rollout_is_paid_and_weights_do_not_train() -> None:
    trainer = ToyTrainer(Cort(), ToyTask())
    batch = trainer.credit(trainer.rollout(2, 4))
    assert trainer.models.calls == {"logprobs": 1}
    assert batch.replay_logprobs is not None
    assert not batch.replay_logprobs.requires_grad


def test_the_replay_sees_the_same_tokens_under_the_other_prompt() -> None:
    """The toy's rubric favours right tokens at even positions by half a logit: d > 0 exactly there."""
    trainer = ToyTrainer(Cort(), ToyTask())
    batch = trainer.credit(trainer.rollout(4, 8))
    assert batch.replay_logprobs is not None
    d = (batch.old_logprobs - batch.replay_logprobs).nan_to_num()
    right = batch.completion_ids == trainer.task.targets()[batch.prompt_ids[:, 0], : d.shape[1]]
    even = (torch.arange(d.shape[1]) % 2 == 0)[None]
    assert ((d > 1e-9) == (right & even & batch.completion_mask)).all()
    assert Cort().metrics(credited(Cort(), batch))["rubric_difference"] > 0
