"""PPO, BPCO and the critic: bounds, targets, length-adaptive GAE, warm-up, the privileged prompt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from algorithm_batches import credited, few, make_batch, ragged_batches, rows_of
from hypothesis import given
from hypothesis import strategies as st

from algorithms.base import Batch, ConfigError, Setting
from algorithms.bpco import PARTS_OFF, Bpco, BpcoOptions
from algorithms.critic import bound_values, clipped_value_loss
from algorithms.ppo import Ppo, PpoOptions
from harness.train.reduction import Reducer
from harness.train.toy import ToyTask, ToyTrainer, gather

PLAIN: dict[str, Any] = {"kl_coefficient": 0.0, "adv_whiten": False}
AS_PPO = {
    "trust_region": "ppo",
    "lambda_mode": "fixed",
    "value_target": "td_lambda",
    "adv_whiten": True,
    "value_bound": "none",
    "kl_coefficient": 0.05,
    "value_clip": 0.2,
    "value_coefficient": 0.1,
    "critic_warmup": 0,
    "aggregation": "token_mean",
}


def ppo(**options: object) -> Ppo:
    return Ppo(PpoOptions(**{**PLAIN, **options}))


def bpco(**options: object) -> Bpco:
    return Bpco(BpcoOptions(**options))


def valued(batch: Batch, values: list[list[float]] | float) -> Batch:
    """The batch with values, and garbage under the mask."""
    out = torch.full(batch.completion_mask.shape, 100.0, dtype=torch.float64)
    for i, n in enumerate(batch.lengths.tolist()):
        out[i, :n] = values if isinstance(values, float) else torch.tensor(values[i], dtype=torch.float64)
    return batch.replace(values=out)


def trainer(algorithm: Ppo, **task: Any) -> ToyTrainer:
    return ToyTrainer(algorithm, ToyTask(**task))


# --- advantages --------------------------------------------------------------------------------------------


def test_golden_gae() -> None:
    """R = 1, V = (0.5, 0.2), lambda 0.5: delta = (-0.3, 0.8), A = (-0.3 + 0.4, 0.8)."""
    batch = valued(make_batch([2], [1]), [[0.5, 0.2]])
    assert rows_of(batch, ppo(gae_lambda=0.5).advantages(batch))[0] == pytest.approx([0.1, 0.8])


@few
@given(ragged_batches(), st.integers(0, 99))
def test_lambda_one_is_reward_minus_value_and_lambda_zero_is_the_td_error(batch: Batch, seed: int) -> None:
    values = torch.rand(batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed)).double()
    batch = batch.replace(values=torch.where(batch.completion_mask, values, 100.0))
    monte_carlo = ppo(gae_lambda=1.0).advantages(batch)
    expected = torch.where(batch.completion_mask, batch.rewards[:, None] - values, 0.0)
    assert torch.allclose(monte_carlo, expected)
    assert monte_carlo.abs().max() <= 1 + 1e-9  # V and R in [0, 1]
    for row, v, reward in zip(
        rows_of(batch, ppo(gae_lambda=0.0).advantages(batch)),
        rows_of(batch, values),
        batch.rewards,
        strict=True,
    ):
        assert row == pytest.approx([b - a for a, b in zip(v, [*v[1:], float(reward)], strict=True)])


def test_constant_value_and_terminal_reward_by_hand() -> None:
    """A = (R - V) lambda^(L - t)."""
    batch = valued(make_batch([3], [1]), 0.4)
    assert rows_of(batch, ppo(gae_lambda=0.5).advantages(batch))[0] == pytest.approx([0.15, 0.3, 0.6])


def test_perfect_critic_leaves_nothing() -> None:
    batch = valued(make_batch([3, 2], [1, 0]), [[1.0] * 3, [0.0] * 2])
    assert not ppo().advantages(batch).any()


def test_deltas_telescope_to_reward_minus_first_value() -> None:
    batch = valued(make_batch([4], [1]), [[0.3, 0.9, 0.1, 0.5]])
    assert ppo(gae_lambda=0.0).advantages(batch).sum().item() == pytest.approx(1 - 0.3)


def test_observation_tokens_are_skipped_and_the_reward_waits_for_the_last_trainable_token() -> None:
    """Elsewhere the terminal reward landed on an observation, or values there bootstrapped (verl 2337, miles 1827)."""
    mask = torch.tensor([[True, False, True, False]])
    batch = make_batch([4], [1]).replace(
        completion_mask=mask, values=torch.tensor([[0.5, 9.0, 0.2, 9.0]]).double()
    )
    assert ppo(gae_lambda=0.5).advantages(batch).tolist() == [[pytest.approx(0.1), 0, pytest.approx(0.8), 0]]


def test_length_adaptive_lambda_by_hand() -> None:
    """alpha 0.4, L = 5: lambda = 1 - 1/2; L = 2: 1 - 1/0.8 < 0, clamped to the TD error."""
    batch = valued(make_batch([5, 2], [1, 1]), 0.0)
    rows = rows_of(batch, bpco().advantages(batch))
    assert rows[0] == pytest.approx([0.0625, 0.125, 0.25, 0.5, 1])
    assert rows[1] == pytest.approx([0, 1])
    unclamped = rows_of(batch, bpco(alpha=1e9).advantages(batch))
    assert unclamped[1] == pytest.approx([1, 1])


def test_small_alpha_blinds_early_tokens_of_short_answers() -> None:
    """At toy lengths alpha = 0.05 (VAPO's) credits the last token only: a slow start, not a bug."""
    batch = valued(make_batch([4], [1]), 0.0)
    assert rows_of(batch, bpco(alpha=0.05).advantages(batch))[0] == [0, 0, 0, 1]


def test_bpco_does_not_whiten_and_ppo_does() -> None:
    batch = valued(make_batch([3, 2], [1, 0]), 0.3)
    assert bpco(alpha=1e9).advantages(batch)[0].tolist() == pytest.approx([0.7] * 3)
    white = ppo(adv_whiten=True).advantages(batch)[batch.completion_mask]
    assert white.mean().item() == pytest.approx(0, abs=1e-9)
    assert white.var(correction=0).item() == pytest.approx(1, rel=1e-6)


def test_kl_and_missing_end_in_the_reward() -> None:
    batch = make_batch([2, 2], [1, 1], truncated=torch.tensor([False, True]))
    batch = valued(batch.replace(reference_logprobs=batch.old_logprobs - 0.5), 0.0)
    rows = rows_of(batch, ppo(kl_coefficient=0.1, missing_end_penalty=0.6).token_rewards(batch))
    assert rows == [pytest.approx([-0.05, 0.95]), pytest.approx([-0.05, 0.35])]


# --- targets and value loss --------------------------------------------------------------------------------


def test_targets_by_hand() -> None:
    batch = valued(make_batch([2], [1]), [[0.5, 0.2]])
    assert rows_of(batch, bpco().value_targets(batch))[0] == [1, 1]
    assert rows_of(batch, ppo(gae_lambda=0.5).value_targets(batch))[0] == pytest.approx([0.6, 1.0])


def test_monte_carlo_targets_do_not_depend_on_values() -> None:
    batch = make_batch([3, 2], [1, 0])
    a, b = (bpco().value_targets(valued(batch, v)) for v in (0.0, 0.9))
    assert torch.equal(a[batch.completion_mask], b[batch.completion_mask])


def test_unscorable_completions_teach_neither_policy_nor_critic() -> None:
    batch = valued(make_batch([2, 2], [1, math.nan]), 0.4)
    assert not bpco().advantages(batch)[1].any()
    assert rows_of(batch, bpco().value_targets(batch))[1] == [0.4, 0.4]


def test_value_loss_by_hand() -> None:
    """V 0.9, old 0.3, target 1, clip 0.2: the clipped value 0.5 is worse, so (0.5)^2 / 2 counts."""
    args = [torch.tensor([[x]]) for x in (0.9, 0.3, 1.0)]
    assert clipped_value_loss(*args, 0.2).item() == pytest.approx(0.125)
    assert clipped_value_loss(*args, None).item() == pytest.approx(0.005)


@few
@given(st.floats(-1e6, 1e6), st.floats(-5, 5), st.floats(0.1, 10))
def test_bounded_values_stay_in_the_range(raw: float, low: float, width: float) -> None:
    for bound in ("clamp", "atan", "sigmoid", "tanh"):
        value = bound_values(torch.tensor([[raw]], dtype=torch.float64), bound, low, low + width).item()
        assert low - 1e-9 <= value <= low + width + 1e-9


def test_bounds_by_hand() -> None:
    raw = torch.tensor([[1.0]], dtype=torch.float64)
    assert bound_values(raw, "atan", 0, 1).item() == pytest.approx(0.75)
    assert bound_values(raw, "tanh", -1, 1).item() == pytest.approx(math.tanh(1))
    assert bound_values(raw, "sigmoid", 0, 2).item() == pytest.approx(2 / (1 + math.exp(-1)))
    assert bound_values(3 * raw, "clamp", 0, 1).item() == 1
    assert bound_values(3 * raw, "none", 0, 1).item() == 3
    for bound in ("atan", "tanh", "sigmoid"):
        assert bound_values(0 * raw, bound, 0, 1).item() == 0.5


def test_clamp_keeps_its_gradient_in_the_loss_and_bounds_the_advantage() -> None:
    """A clamp in the loss would silence a critic outside the range for good."""
    algorithm = bpco(value_bound="clamp", value_clip=None)
    bench = trainer(algorithm)
    assert algorithm.critic is not None
    with torch.no_grad():
        algorithm.critic.head.bias.fill_(5.0)
    batch = bench.credit(bench.rollout(2, 1))
    assert batch.values is not None
    assert batch.values[batch.completion_mask].tolist() == [1.0] * int(batch.lengths.sum())
    terms = algorithm.loss(gather(bench.policy, batch.prompt_ids, batch), batch)
    Reducer(batch).value(terms, torch.arange(len(batch))).backward()
    assert algorithm.critic.head.bias.grad is not None
    assert algorithm.critic.head.bias.grad.item() > 0


# --- the whole ---------------------------------------------------------------------------------------------


def test_bpco_with_every_part_switched_off_is_ppo() -> None:
    found = []
    for algorithm in (ppo(kl_coefficient=0.05, adv_whiten=True), bpco(**AS_PPO)):
        bench = trainer(algorithm)
        batch = bench.credit(bench.rollout(3, 2))
        assert batch.advantages is not None
        found.append((batch.advantages, bench.step(batch), bench.policy.table.detach().clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert torch.equal(found[0][2], found[1][2])


def test_each_part_can_be_switched_off_and_matters() -> None:
    """Values off-centre, a policy that has moved: every part changes the loss or its gradient."""

    def result(**options: object) -> torch.Tensor:
        algorithm = bpco(critic_warmup=0, **options)
        bench = trainer(algorithm, horizon=5, limit=8, outcome="fraction")
        assert algorithm.critic is not None
        with torch.no_grad():
            algorithm.critic.head.weight.fill_(0.7)
        batch = bench.credit(bench.rollout(4, 2))
        with torch.no_grad():
            bench.policy.table.add_(
                torch.randn(bench.policy.table.shape, generator=torch.Generator().manual_seed(0))
            )
        bench.gradients(batch, [torch.arange(len(batch))])
        gradients = [bench.policy.table.grad, *(p.grad for p in algorithm.critic.parameters())]
        return torch.cat([g.flatten() for g in gradients if g is not None])

    whole = result()
    for name, options in PARTS_OFF.items():
        assert not torch.allclose(result(**options), whole, atol=1e-9), name


def test_the_trust_region_is_anchored_at_the_sampler() -> None:
    """BPCO runs in bypass mode: recomputed old log-probs play no part; PPO's clip uses them."""
    batch = valued(make_batch([2, 2], [1, 0]), 0.5)
    elsewhere = torch.where(batch.completion_mask, batch.old_logprobs - 0.7, torch.nan)
    for algorithm, name in [(bpco(), "sampling_logprobs"), (ppo(), "old_logprobs")]:
        plain = credited(algorithm, batch)
        losses = {
            changed: algorithm._policy_loss(batch.old_logprobs, plain.replace(**{changed: elsewhere}))
            for changed in ("old_logprobs", "sampling_logprobs")
        }
        unchanged = algorithm._policy_loss(batch.old_logprobs, plain)
        differs = {k: not torch.equal(v.nan_to_num(), unchanged.nan_to_num()) for k, v in losses.items()}
        assert differs == {k: k == name for k in losses}


def test_warm_up_counts_rollouts_and_trains_the_critic_only() -> None:
    algorithm = bpco(critic_warmup=2)
    bench = trainer(algorithm)
    moved = []
    for _ in range(4):
        before = bench.policy.table.detach().clone()
        bench.step(bench.credit(bench.rollout(4, 2)))
        moved.append(not torch.equal(before, bench.policy.table))
    assert moved == [False, False, True, True]
    assert algorithm.critic is not None
    assert bool(algorithm.critic.head.bias.any())


def test_the_policy_never_sees_the_privileged_prompt() -> None:
    """Identical completions and log-probs; only the critic's backbone reads the other wording."""
    logprobs = []
    for prompt in ("plain", "privileged"):
        algorithm = bpco(critic_prompt=prompt)
        bench = trainer(algorithm)
        batch = bench.credit(bench.rollout(3, 2))
        assert algorithm.critic is not None
        assert algorithm.critic.variant == (None if prompt == "plain" else "privileged")
        logprobs.append((batch.completion_ids, batch.old_logprobs.nan_to_num(), batch.prompt_ids))
    for a, b in zip(*logprobs, strict=True):
        assert torch.equal(a, b)


def test_values_belong_to_the_state_before_the_token() -> None:
    """Changing the last token must not change its own value (VAGEN issues 8 and 33)."""
    algorithm = bpco()
    bench = trainer(algorithm)
    assert algorithm.critic is not None
    with torch.no_grad():
        algorithm.critic.head.weight.fill_(1.0)
    batch = bench.rollout(2, 2)
    values = algorithm.critic.values(batch)
    last = (batch.lengths - 1)[:, None]
    other = batch.completion_ids.scatter(1, last, (batch.completion_ids.gather(1, last) + 1) % 4)
    changed = algorithm.critic.values(batch.replace(completion_ids=other))
    assert torch.equal(values, changed)
    first = batch.completion_ids.clone()
    first[:, 0] = (first[:, 0] + 1) % 4
    longer = batch.lengths > 1
    assert not torch.equal(
        algorithm.critic.values(batch.replace(completion_ids=first))[longer], values[longer]
    )


def test_extra_forwards_go_through_the_metered_facade() -> None:
    bench = trainer(bpco())
    bench.step(bench.credit(bench.rollout(3, 2)))
    assert bench.models.calls == {"hidden_states": 2}  # values, and the loss of one micro-batch
    bench = trainer(Ppo())
    bench.credit(bench.rollout(3, 2))
    assert bench.models.calls == {"reference_logprobs": 1, "hidden_states": 1}


def test_the_critics_learning_rate_is_its_own() -> None:
    (group,) = trainer(bpco()).algorithm.param_groups()
    assert group["lr_scale"] == 5.0


def test_bad_settings_name_the_field_and_the_fix() -> None:
    boundless = Setting(1, frozenset(), (0.0, math.inf), task="toy")
    with pytest.raises(ConfigError, match=r"value_bound='atan'.*set algorithm.options.value_bound='none'"):
        Bpco().check(boundless)
    Ppo().check(boundless)
    with pytest.raises(ConfigError, match="offers no privileged prompt"):
        bpco(critic_prompt="privileged").check(Setting(1, frozenset(), (0, 1), task="toy"))
    with pytest.raises(ConfigError, match=r"gae_lambda=1\.5"):
        PpoOptions(gae_lambda=1.5)
    with pytest.raises(ValueError, match="setup"):
        Ppo().param_groups()


def test_groups_are_not_needed() -> None:
    Bpco().check(Setting(1, frozenset(), (0, 1), task="toy"))


def test_metrics_explain_the_returns() -> None:
    algorithm = bpco()
    batch = valued(make_batch([1, 1], [1, 0]), [[1.0], [0.0]])
    batch = credited(algorithm, batch.replace(returns=algorithm.value_targets(batch)))
    assert algorithm.metrics(batch) == {"value_mean": 0.5, "explained_variance": 1.0, "critic_warmup": 1.0}
