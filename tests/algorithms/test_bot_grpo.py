"""BoT-GRPO: identities I1 to I7, what reduces to GRPO and what does not, dominance, degenerate groups."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, make_batch, ragged_batches, rows_of
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.base import Batch, ConfigError, Setting
from algorithms.bot_grpo import ABLATIONS, BotGrpo, BotGrpoOptions
from algorithms.grpo import Grpo, GrpoOptions
from harness.train.reduction import Reducer

KEEP = {"degenerate": "keep", "std_eps": 0.0}
PROVIDES = frozenset({"token_rewards", "steps"})


def bot(**options: object) -> BotGrpo:
    return BotGrpo(BotGrpoOptions(**options))


def bag(batch: Batch, algorithm: BotGrpo | None = None) -> tuple[Tensor, list[list[float]]]:
    """Token rewards, and those of each row as lists."""
    rewards = (algorithm or bot()).token_rewards(batch)
    return rewards, rows_of(batch, rewards)


def test_golden_values_by_hand() -> None:
    """lambda 0.25; rows (1.25, 0.75) and (0): mu = (1 + 0) / 2; s2 = (0.75^2 + 0.25^2)/4 + 0.5^2/2 = 0.28125."""
    batch = make_batch([2, 1], [1, 0], local=[[1, -1], [0]])
    s = math.sqrt(0.28125)
    advantages = rows_of(batch, bot(std_eps=0.0).advantages(batch))
    assert advantages == [pytest.approx([0.75 / s, 0.25 / s]), pytest.approx([-0.5 / s])]


@few
@given(ragged_batches(max_groups=1))
def test_i1_mean_is_the_mean_of_rollout_means(batch: Batch) -> None:
    rewards, rows = bag(batch)
    found = bot()._bag(rewards, batch).mean[0].item()
    assert found == pytest.approx(sum(sum(r) / len(r) for r in rows) / len(rows), abs=1e-12)


@few
@given(ragged_batches(max_groups=1))
def test_i2_variance_is_between_plus_within(batch: Batch) -> None:
    rewards, rows = bag(batch)
    means = torch.tensor([sum(r) / len(r) for r in rows], dtype=torch.float64)
    within = [sum((x - m) ** 2 for x in r) / len(r) for r, m in zip(rows, means.tolist(), strict=True)]
    expected = means.var(correction=0).item() + sum(within) / len(rows)
    assert bot()._bag(rewards, batch).variance[0].item() == pytest.approx(expected, abs=1e-12)


@few
@given(ragged_batches(max_groups=2))
def test_i3_weighted_mean_zero_and_weighted_square_one(batch: Batch) -> None:
    advantages = bot(**KEEP).advantages(batch)
    per_row = torch.stack([(advantages**k).sum(-1) / batch.lengths for k in (1, 2)])
    for group in batch.group_ids.unique():
        first, second = per_row[:, batch.group_ids == group].mean(-1).tolist()
        assert first == pytest.approx(0, abs=1e-6)
        assert second == pytest.approx(1, abs=1e-6) or second == 0


@few
@given(ragged_batches(max_groups=1))
def test_i4_rollout_mean_is_grpo_of_the_mean_reward_times_kappa(batch: Batch) -> None:
    algorithm = bot(**KEEP)
    rewards, _ = bag(batch, algorithm)
    means = rewards.sum(-1) / batch.lengths
    assume(means.var(correction=0) > 1e-6)
    grpo = Grpo(GrpoOptions(std_eps=0.0)).outcome_advantages(means, batch)
    done = credited(algorithm, batch)
    kappa = algorithm.metrics(done)["kappa"]
    assert 0 <= kappa <= 1 + 1e-12
    assert torch.allclose(done.masked_advantages.sum(-1) / batch.lengths, kappa * grpo, atol=1e-6)


@few
@given(ragged_batches(max_groups=2), st.data())
def test_i5_repeating_every_token_of_a_rollout_changes_nothing(batch: Batch, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(1, 3), min_size=len(batch), max_size=len(batch)))
    local = rows_of(batch, batch.local_rewards)
    longer = [[x for x in row for _ in range(k)] for row, k in zip(local, times, strict=True)]
    repeated = make_batch(
        [len(r) for r in longer], batch.rewards.tolist(), batch.group_ids.tolist(), local=longer
    )
    before, after = (rows_of(b, bot(**KEEP).advantages(b)) for b in (batch, repeated))
    for row, other, k in zip(before, after, times, strict=True):
        assert [x for x in row for _ in range(k)] == pytest.approx(other, abs=1e-6)


@few
@given(ragged_batches(max_groups=1))
def test_i6_effective_sample_size_is_group_times_harmonic_mean_length(batch: Batch) -> None:
    weights = bot()._bag(bot().token_rewards(batch), batch).weights
    weights = weights / weights.sum()
    harmonic = len(batch) / (1 / batch.lengths.double()).sum()
    assert 1 / weights.square().sum().item() == pytest.approx(len(batch) * harmonic.item())


@few
@given(ragged_batches(max_groups=1))
def test_i7_statistics_and_loss_use_the_same_measure(batch: Batch) -> None:
    """Under seq_mean_token_mean the advantages average to 0 in the loss; under token_mean they need not."""
    done = credited(bot(**KEEP), batch)
    weights = Reducer(done).weights("seq_mean_token_mean")
    assert (weights * done.masked_advantages).sum().item() == pytest.approx(0, abs=1e-9)
    statistics = bot()._bag(bot().token_rewards(batch), batch).weights
    assert torch.allclose(weights, statistics / statistics.sum())


def test_crossed_with_the_token_mean_the_measure_does_not_match() -> None:
    done = credited(bot(**KEEP), make_batch([1, 9], [1, 0]))
    weights = Reducer(done).weights("token_mean")
    assert (weights * done.masked_advantages).sum().item() == pytest.approx(-0.8)


# --- what reduces to GRPO ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"std_ddof": "sequence_bessel"}, {"scale": "none"}, {"std_eps": 1e-4}]
)
@pytest.mark.parametrize(
    "placed",
    [
        {},
        {"global_placement": "last_token", "credit": "return_to_go"},
        {"credit": "return_to_go_mean"},
    ],
)
@few
@given(batch=ragged_batches(outcomes=(0.0, 0.3, 1.0)))
def test_outcome_only_equals_grpo_for_any_lengths(placed: dict, options: dict, batch: Batch) -> None:
    algorithm = bot(local_weight=0.0, dominance="none", **placed, **options)
    assert torch.allclose(
        algorithm.advantages(batch), Grpo(GrpoOptions(**options)).advantages(batch), atol=1e-7
    )


OUTCOME_ONLY = make_batch([5, 10, 20, 40], [1, 0, 1, 0])


@pytest.mark.parametrize(
    "placed",
    [
        {"global_placement": "last_token"},
        {"credit": "return_to_go"},
        {"global_placement": "spread", "credit": "return_to_go"},
        {"global_placement": "spread"},
        {"global_placement": "last_token", "credit": "return_to_go", "norm_order": "norm_then_credit"},
        {"std_ddof": "reliability"},
        {"token_weight": "uniform"},
    ],
)
def test_placements_that_do_not_reduce_to_grpo(placed: dict) -> None:
    algorithm = bot(local_weight=0.0, dominance="none", std_eps=0.0, **placed)
    options = GrpoOptions(std_eps=0.0, std_ddof=placed.get("std_ddof", "population"))
    grpo = Grpo(options).advantages(OUTCOME_ONLY)
    assert not torch.allclose(algorithm.advantages(OUTCOME_ONLY), grpo, atol=1e-3)


def test_last_token_with_immediate_credit_spikes_as_computed_by_hand() -> None:
    """L = 5, 10, 20, 40 and R = 1, 0, 1, 0: +3.87 on the last token of the winners, -0.26 everywhere else."""
    algorithm = bot(local_weight=0.0, dominance="none", std_eps=0.0, global_placement="last_token")
    rows = rows_of(OUTCOME_ONLY, algorithm.advantages(OUTCOME_ONLY))
    assert rows[0][-1] == pytest.approx(3.87, abs=0.005)
    assert rows[2][-1] == pytest.approx(3.87, abs=0.005)
    others = {
        round(x, 2) for i, row in enumerate(rows) for t, x in enumerate(row) if i % 2 or t < len(row) - 1
    }
    assert others == {-0.26}


def test_reliability_correction_by_hand() -> None:
    """Lengths 1 and 3: sum w^2 = 1/4 + 3/36 = 1/3, so the variance grows by 3/2 and not by 2."""
    batch = make_batch([1, 3], [1, 0])
    bags = [bot(std_ddof=d)._bag(bot().token_rewards(batch), batch) for d in ("population", "reliability")]
    assert (bags[1].variance / bags[0].variance).tolist() == pytest.approx([1.5, 1.5])


# --- the reward --------------------------------------------------------------------------------------------


def test_local_bounds() -> None:
    batch = make_batch([2, 1], [0, 0], local=[[3.0, -0.5], [0.0]])
    assert rows_of(batch, bot().local_part(batch))[0] == [0.25, -0.125]
    tanh = rows_of(batch, bot(local_bound="tanh").local_part(batch))[0]
    assert tanh == pytest.approx([0.25 * math.tanh(3), -0.25 * math.tanh(0.5)])
    free = rows_of(batch, bot(local_bound="none", dominance="none").local_part(batch))[0]
    assert free == [0.75, -0.125]


def test_centering_leaves_rollout_means_to_the_outcome() -> None:
    batch = make_batch([3, 2], [1, 0], local=[[1, 1, -1], [-1, 0]])
    rewards = bot(local_center="per_rollout").token_rewards(batch)
    assert (rewards.sum(-1) / batch.lengths).tolist() == pytest.approx([1, 0])


def test_step_mappings_by_hand() -> None:
    batch = make_batch([4, 1], [0, 0], local=[[1, 0, -1, -1], [1]], steps=[[0, 0, 1, -1], [0]])
    end = rows_of(batch, bot(step_to_token="step_end").local_part(batch))
    assert end == [[0, 0.125, -0.25, 0], [0.25]]
    spread = rows_of(batch, bot(step_to_token="spread").local_part(batch))
    assert spread == [[0.0625, 0.0625, -0.25, 0], [0.25]]


def test_unscored_tokens_can_stay_out_of_the_statistics() -> None:
    batch = make_batch([3, 1], [1, 0], local=[[1, 0, 0], [-1]])
    batch = batch.replace(scored=torch.tensor([[True, False, False], [True, False, False]]))
    algorithm = bot(unscored_tokens="exclude_from_stats", std_eps=0.0)
    bag_ = algorithm._bag(algorithm.token_rewards(batch), batch)
    assert bag_.mean.tolist() == [0.5, 0.5]  # (1.25 - 0.25) / 2
    rows = rows_of(batch, algorithm.advantages(batch))
    assert rows == [pytest.approx([1, 0.5 / 0.75, 0.5 / 0.75]), pytest.approx([-1])]


def test_empty_rows_are_not_counted_in_the_group() -> None:
    full = rows_of(make_batch([2, 1], [1, 0]), bot().advantages(make_batch([2, 1], [1, 0])))
    batch = make_batch([2, 0, 1], [1, 1, 0])
    rows = rows_of(batch, bot().advantages(batch))
    assert [rows[0], rows[2]] == full
    assert rows[1] == []


def test_separate_scope_is_grpo_plus_weighted_local() -> None:
    batch = make_batch([2, 2], [1, 0], local=[[1, -1], [1, -1]])
    algorithm = bot(normalize_scope="separate", dominance="none", std_eps=0.0)
    assert rows_of(batch, algorithm.advantages(batch)) == [
        pytest.approx([1.25, 0.75]),
        pytest.approx([-0.75, -1.25]),
    ]


@few
@given(ragged_batches(), st.floats(0.1, 10), st.floats(-3, 3))
def test_affine_invariance(batch: Batch, a: float, b: float) -> None:
    """r -> a r + b for the whole token reward: the outcome and lambda scale together."""
    before = bot(**KEEP).advantages(batch)
    algorithm = bot(local_weight=0.25 * a, dominance="none", **KEEP)
    after = algorithm.advantages(batch.replace(rewards=a * batch.rewards + b))
    assert torch.allclose(before, after, atol=1e-5)


@few
@given(ragged_batches(max_groups=3))
def test_groups_are_independent(batch: Batch) -> None:
    first = batch.group_ids == 0
    changed = batch.replace(rewards=torch.where(first, batch.rewards, batch.rewards + 3))
    algorithm = bot(**KEEP)
    assert torch.equal(algorithm.advantages(batch)[first], algorithm.advantages(changed)[first])


def test_float32_agrees_with_float64_for_a_tiny_deviation() -> None:
    batch = make_batch([3, 2], [0, 0], local=[[1e-4, 2e-4, 3e-4], [0, 1e-4]])
    single = batch.replace(rewards=batch.rewards.float(), local_rewards=batch.local_rewards.float())
    a, b = bot(degenerate="keep").advantages(batch), bot(degenerate="keep").advantages(single)
    assert b.dtype == torch.float32
    assert torch.allclose(a, b.double(), rtol=1e-4)


# --- dominance ---------------------------------------------------------------------------------------------


def setting(group_size: int = 8, low: float = 0.0, high: float = 1.0) -> Setting:
    return Setting(group_size, PROVIDES, (low, high), task="toy")


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"local_weight": 0.499}, True),
        ({"local_weight": 0.5}, False),
        ({"local_weight": 0.0624, "dominance": "sign"}, True),
        ({"local_weight": 0.0625, "dominance": "sign"}, False),
        ({"local_weight": 0.25, "local_center": "per_rollout"}, True),
        ({"local_weight": 0.26, "local_center": "per_rollout"}, False),
        ({"local_weight": 5.0, "dominance": "none"}, True),
        ({"local_weight": 5.0, "local_form": "off"}, True),
        ({"credit": "return_to_go"}, False),
        ({"credit": "return_to_go_mean"}, True),
        ({"global_placement": "last_token"}, False),
        ({"normalize_scope": "separate"}, False),
    ],
)
def test_dominance_is_checked_when_the_configuration_is_read(options: dict, fits: bool) -> None:
    if fits:
        bot(**options).check(setting())
    else:
        with pytest.raises(ConfigError, match=r"algorithm\.options\.(local_weight|dominance)"):
            bot(**options).check(setting())


def test_dominance_scales_with_the_reward_range() -> None:
    bot(local_weight=0.9).check(setting(low=-1, high=1))
    with pytest.raises(ConfigError, match="needs less than 1"):
        bot(local_weight=1.0).check(setting(low=-1, high=1))


@few
@given(ragged_batches(), st.floats(0, 0.499))
def test_pairwise_dominance_orders_every_token(batch: Batch, weight: float) -> None:
    rewards = bot(local_weight=weight).token_rewards(batch)
    won = batch.rewards == 1
    tokens = batch.completion_mask
    if won.any() and not won.all():
        assert rewards[won][tokens[won]].min() > rewards[~won][tokens[~won]].max()


@few
@given(ragged_batches(max_groups=1))
def test_sign_dominance_forbids_flips(batch: Batch) -> None:
    weight = 0.99 / (2 * len(batch))
    done = credited(bot(local_weight=weight, dominance="sign"), batch)
    assert bot().metrics(done)["frac_sign_flips"] == 0


def test_between_the_bounds_a_good_token_of_a_failure_may_flip_and_is_counted() -> None:
    batch = make_batch(
        [1] * 7 + [2] + [4] * 2,
        [1] + [0] * 9,
        [0] * 8 + [1] * 2,
        local=[[0]] * 7 + [[1, 0]] + [[0, 1, 0, 0]] * 2,
    )
    done = credited(bot(), batch)
    assert done.masked_advantages[7, 0] > 0
    assert bot().metrics(done)["frac_sign_flips"] == pytest.approx(1 / 9)


def test_lambda_zero_disables_the_check_and_unbounded_needs_none() -> None:
    bot(local_weight=0.0, credit="return_to_go").check(setting())
    with pytest.raises(ConfigError, match="cannot be dominated"):
        bot(local_bound="none")


def test_steps_are_required_by_their_mapping_only() -> None:
    without = Setting(8, frozenset({"token_rewards"}), (0, 1), task="toy")
    bot().check(without)
    with pytest.raises(ConfigError, match="has no steps"):
        bot(step_to_token="spread").check(without)
    with pytest.raises(ConfigError, match="needs token_rewards"):
        bot().check(Setting(8, frozenset(), (0, 1), task="toy"))


# --- degenerate groups -------------------------------------------------------------------------------------

NOISE = make_batch([2, 2, 1, 1], [0, 0, 1, 0], [0, 0, 1, 1], local=[[1e-3, 0], [0, -1e-3], [0], [0]])


def test_keep_rescales_noise_to_unit_variance_and_the_default_does_not() -> None:
    """Judge noise of 1e-3 in a group of failures: full-strength updates with keep, nothing by default."""
    kept = bot(degenerate="keep").advantages(NOISE)[:2].abs().max().item()
    assert kept == pytest.approx(math.sqrt(2), rel=0.01)
    assert bot().advantages(NOISE)[:2].abs().max().item() == 0
    assert bot().advantages(NOISE)[2:].abs().max().item() == pytest.approx(1, rel=1e-3)


def test_floor_and_unscaled_lie_between() -> None:
    floor = bot(degenerate="std_floor", std_floor=0.5).advantages(NOISE)
    assert floor[0, 0].item() == pytest.approx(0.25e-3 / 0.5, rel=1e-3)
    unscaled = bot(degenerate="unscaled").advantages(NOISE)
    assert unscaled[0, 0].item() == pytest.approx(0.25e-3)
    assert torch.allclose(unscaled[2:], bot().advantages(NOISE)[2:])


def test_share_of_gradient_from_groups_of_equal_outcomes() -> None:
    """Row means of |A|: sqrt(2)/2 twice in the failing group, 1 twice in the mixed one."""
    algorithm = bot(degenerate="keep")
    share = algorithm.metrics(credited(algorithm, NOISE))["gradient_share_constant_groups"]
    half = math.sqrt(2) / 2
    assert share == pytest.approx(half / (half + 1), rel=0.01)
    assert bot().metrics(credited(bot(), NOISE))["gradient_share_constant_groups"] == 0


def test_groups_are_filtered_by_the_metric_not_by_the_token_reward() -> None:
    """Local rewards give every group a spread: a filter on token rewards would refuse nothing."""
    _, rows = bag(NOISE)
    assert len({x for row in rows[:2] for x in row}) > 1
    assert bot().metrics(credited(bot(), NOISE))["frac_constant_groups"] == 0.5


# --- ablation cells ----------------------------------------------------------------------------------------

CELLS = make_batch([4, 2, 3], [1, 0, 0], local=[[1, 0.5, -1, 0], [-1, 0.2], [0.3, 0.3, 1]])


def test_every_ablation_is_a_set_of_options() -> None:
    for name, options in ABLATIONS.items():
        assert bot(**options) is not None, name


def test_off_global_is_grpo_and_its_uniform_form_is_length_weighted() -> None:
    off = bot(**ABLATIONS["off_global"]).advantages(CELLS)
    assert torch.allclose(off, Grpo().advantages(CELLS))
    algorithm = bot(**ABLATIONS["off_global_uniform"])
    found = algorithm._bag(algorithm.token_rewards(CELLS), CELLS)
    assert found.mean[0].item() == pytest.approx(4 / 9)  # the length-weighted mean is the OPO baseline
    assert found.variance[0].item() == pytest.approx(4 / 9 * 5 / 9)


def test_off_scalarised_has_the_information_without_the_place() -> None:
    rewards = bot(**ABLATIONS["off_scalarised"]).token_rewards(CELLS)
    assert rows_of(CELLS, rewards)[0] == pytest.approx([1 + 0.25 * 0.5 / 4] * 4)
    assert torch.allclose(rewards.sum(-1), bot().token_rewards(CELLS).sum(-1))


def test_token_shuffle_keeps_statistics_and_destroys_the_place() -> None:
    shuffled, plain = bot(**ABLATIONS["token_shuffle"]), bot()
    a, b = (x._bag(x.token_rewards(CELLS), CELLS) for x in (shuffled, plain))
    assert torch.allclose(a.mean, b.mean)
    assert torch.allclose(a.variance, b.variance)
    done = credited(shuffled, CELLS), credited(plain, CELLS)
    assert shuffled.metrics(done[0])["kappa"] == pytest.approx(plain.metrics(done[1])["kappa"])
    assert not torch.allclose(done[0].masked_advantages, done[1].masked_advantages)


def test_pooled_is_the_plain_z_score_of_all_tokens() -> None:
    rewards, rows = bag(CELLS)
    pool = torch.tensor([x for row in rows for x in row])
    expected = (rewards - pool.mean()) / pool.std(correction=0)
    found = bot(std_eps=0.0, **ABLATIONS["pooled"]).advantages(CELLS)
    assert torch.allclose(found, torch.where(CELLS.completion_mask, expected, 0.0), atol=1e-6)
