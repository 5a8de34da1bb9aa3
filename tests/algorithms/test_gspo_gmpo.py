"""Ratios of whole completions: GSPO in both forms, GMPO."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches
from hypothesis import given

from algorithms.base import Batch, ConfigError, Setting
from algorithms.bot_grpo import BotGrpo
from algorithms.gmpo import Gmpo, GmpoOptions
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.gspo import Gspo, GspoOptions

WIDE = {"epsilon_low": 0.9, "epsilon_high": 9.0}


def gspo(**options: object) -> Gspo:
    return Gspo(GspoOptions(**options))


def test_sequence_ratio_by_hand() -> None:
    """Log-ratios 0.2 and 0.4 over two tokens: s = e^0.3, clipped to 1.25; the loser moved by -0.1."""
    algorithm = gspo(epsilon_low=0.2, epsilon_high=0.25, std_eps=0.0)
    batch = credited(algorithm, make_batch([2, 1], [1, 0]))
    logprobs = batch.old_logprobs + torch.tensor([[0.2, 0.4], [-0.1, 0.0]])
    loss, gradient = loss_and_gradient(algorithm, batch, logprobs)
    assert loss.item() == pytest.approx((-1.25 + math.exp(-0.1)) / 2)
    assert gradient[0].tolist() == [0, 0]  # the whole completion is clipped
    assert gradient[1, 0].item() == pytest.approx(math.exp(-0.1) / 2)


@few
@given(ragged_batches())
def test_both_forms_agree_for_outcome_advantages(batch: Batch) -> None:
    """Same value and same gradient, clipped or not (equations 11 and 18 of the paper)."""
    for clip in ({}, WIDE):
        results = []
        for form in ("sequence", "token"):
            algorithm = gspo(form=form, **clip)
            results.append(loss_and_gradient(algorithm, credited(algorithm, batch), moved(batch)))
        assert results[0][0].item() == pytest.approx(results[1][0].item(), abs=1e-10)
        assert torch.allclose(results[0][1], results[1][1], atol=1e-10)


def slow_gspo_token(
    batch: Batch, logprobs: torch.Tensor, low: float, high: float
) -> tuple[float, list[list[float]]]:
    """Loss and gradient token by token: value s_i, derivative A s_i unless clipped, over L_i and rows."""
    assert batch.advantages is not None
    rows, loss = len(batch), 0.0
    gradient = torch.zeros_like(batch.advantages).tolist()
    for i in range(rows):
        kept = [t for t in range(logprobs.shape[1]) if batch.completion_mask[i, t]]
        x = sum(float(logprobs[i, t] - batch.old_logprobs[i, t]) for t in kept) / len(kept)
        s = math.exp(x)
        for t in kept:
            a = float(batch.advantages[i, t])
            clipped = min(max(s, 1 - low), 1 + high)
            loss -= min(s * a, clipped * a) / len(kept) / rows
            if s * a <= clipped * a:
                gradient[i][t] = -a * s / len(kept) / rows
    return loss, gradient


@few
@given(ragged_batches(max_groups=2))
def test_token_form_with_token_advantages_equals_a_slow_loop(batch: Batch) -> None:
    algorithm = gspo(form="token", advantage="bot", epsilon_low=0.05, epsilon_high=0.05)
    batch, logprobs = credited(algorithm, batch), moved(batch)
    assert torch.equal(batch.masked_advantages, BotGrpo().advantages(batch))
    loss, gradient = loss_and_gradient(algorithm, batch, logprobs)
    slow_loss, slow_gradient = slow_gspo_token(batch, logprobs.detach(), 0.05, 0.05)
    assert loss.item() == pytest.approx(slow_loss, abs=1e-9)
    assert torch.allclose(gradient, torch.tensor(slow_gradient, dtype=torch.float64), atol=1e-9)


def test_token_advantages_are_refused_by_the_sequence_form() -> None:
    """Elsewhere they are averaged away without a word."""
    setting = Setting(8, frozenset({"token_rewards"}), (0, 1), task="toy")
    with pytest.raises(ConfigError, match=r"form='sequence'.*set algorithm.options.form='token'"):
        gspo(advantage="bot").check(setting)
    gspo(advantage="bot", form="token").check(setting)
    with pytest.raises(ConfigError, match="needs token_rewards"):
        gspo(advantage="bot", form="token").check(Setting(8, frozenset(), (0, 1), task="toy"))
    batch = make_batch([2, 1], [1, 0], local=[[1, -1], [0]])
    batch = batch.replace(advantages=BotGrpo().advantages(batch))
    for algorithm in (gspo(), Gmpo()):
        with pytest.raises(ValueError, match="loses token advantages"):
            algorithm.loss(batch.old_logprobs, batch)


@few
@given(ragged_batches())
def test_on_policy_gradient_is_that_of_grpo(batch: Batch) -> None:
    expected = loss_and_gradient(Grpo(), credited(Grpo(), batch), batch.old_logprobs)[1]
    for algorithm in (gspo(), gspo(form="token"), Gmpo()):
        found = loss_and_gradient(algorithm, credited(algorithm, batch), batch.old_logprobs)[1]
        assert torch.allclose(found, expected, atol=1e-10)


def test_one_token_completions_make_gspo_grpo() -> None:
    batch = make_batch([1, 1, 1], [1, 0, 0])
    same = {"epsilon_low": 0.2, "epsilon_high": 0.2}
    a, b = (loss_and_gradient(x, credited(x, batch), moved(batch)) for x in (gspo(**same), Grpo()))
    assert a[0].item() == pytest.approx(b[0].item())
    assert torch.allclose(a[1], b[1])


def test_repeating_the_log_ratios_does_not_change_the_ratio() -> None:
    losses = []
    for k in (1, 3):
        batch = credited(gspo(**WIDE), make_batch([2 * k, 1], [1, 0]))
        step = torch.zeros_like(batch.old_logprobs)
        step[0, : 2 * k] = torch.tensor([0.2, -0.5] * k)
        losses.append(loss_and_gradient(gspo(**WIDE), batch, batch.old_logprobs + step)[0].item())
    assert losses[0] == pytest.approx(losses[1])


def test_the_sequence_loss_is_one_number_a_completion() -> None:
    """A [B, 1] loss against the token mask weighed completions by length elsewhere (trl issue 3823)."""
    batch = credited(gspo(), make_batch([1, 9], [1, 0]))
    term = gspo().policy_loss(batch.old_logprobs, batch)
    assert term.aggregation == "seq_level"
    assert term.per_token.shape == (2,)


def test_padding_does_not_enter_the_mean_log_ratio() -> None:
    """The ratio was centred before masking elsewhere (Soup issue 723)."""
    batch = credited(gspo(), make_batch([1, 4], [1, 0]))
    garbage = torch.where(batch.completion_mask, batch.old_logprobs, 50.0)
    a = loss_and_gradient(gspo(), batch, garbage)[0]
    assert a.item() == pytest.approx(loss_and_gradient(gspo(), batch, batch.old_logprobs)[0].item())


def test_default_clip_is_the_papers_small_one() -> None:
    """GRPO's 0.2 leaves GSPO unclipped: mean log-ratios are a few 1e-3."""
    options = GspoOptions()
    assert (options.epsilon_low, options.epsilon_high) == (3e-4, 4e-4)
    assert GrpoOptions().epsilon_low == 0.2


# --- GMPO --------------------------------------------------------------------------------------------------


def test_gmpo_by_hand() -> None:
    """A > 0 cuts only from above: log-ratios 1 and -1 become 0.4 and -1; A < 0 only from below: 1 and -0.4."""
    algorithm = Gmpo(GmpoOptions(std_eps=0.0))
    batch = credited(algorithm, make_batch([2, 2], [1, 0]))
    step = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    loss, gradient = loss_and_gradient(algorithm, batch, batch.old_logprobs + step)
    up, down = math.exp(-0.3), math.exp(0.3)
    assert loss.item() == pytest.approx((-up + down) / 2)
    assert gradient.tolist() == [
        pytest.approx([0, -up / 4]),
        pytest.approx([down / 4, 0]),
    ]


@few
@given(ragged_batches())
def test_gmpo_without_clip_is_gspo_without_clip(batch: Batch) -> None:
    gmpo, wide = Gmpo(GmpoOptions(epsilon_low=50, epsilon_high=50)), gspo(epsilon_low=1.0, epsilon_high=1e9)
    a, b = (loss_and_gradient(x, credited(x, batch), moved(batch)) for x in (gmpo, wide))
    assert a[0].item() == pytest.approx(b[0].item(), abs=1e-9)
    assert torch.allclose(a[1], b[1], atol=1e-9)


def test_gmpo_on_one_token_is_ppo_with_exponential_bounds() -> None:
    batch = make_batch([1, 1, 1], [1, 0, 0])
    ppo = Grpo(GrpoOptions(epsilon_low=1 - math.exp(-0.4), epsilon_high=math.exp(0.4) - 1))
    for size in (0.2, 1.0):
        a, b = (loss_and_gradient(x, credited(x, batch), moved(batch, size)) for x in (Gmpo(), ppo))
        assert a[0].item() == pytest.approx(b[0].item())
        assert torch.allclose(a[1], b[1])


def test_gmpo_at_zero_advantage_is_silent() -> None:
    """The branch at A = 0 differs between codes; the loss is 0 in each."""
    batch = credited(Gmpo(), make_batch([2, 2], [1, 1]))
    loss, gradient = loss_and_gradient(Gmpo(), batch, moved(batch, 2.0))
    assert loss.item() == 0
    assert not gradient.any()
