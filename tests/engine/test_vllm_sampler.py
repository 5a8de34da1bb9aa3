"""The vLLM sampler on the shipped React model: its log-probs, its streams, its weights, and a probe that sees.

Run with `-m vllm` where vLLM is installed. With CREDITBENCH_REQUIRE_VLLM=1 a missing vLLM fails.
"""

from __future__ import annotations

import pytest
import torch

from harness.spec import ModelSpec, SamplerSpec
from harness.train.load import load_codec, load_policy
from harness.train.policy import completion_logprobs
from harness.train.sampler import left_pad
from harness.train.vllm_sampler import VllmSampler, WeightSyncError

pytestmark = pytest.mark.vllm
MODEL = ModelSpec(name="react-tiny")
BLOCK = 128
"""Tokens of a block of vLLM's CPU cache: a shorter prefix is never reused, so nothing in it can be stale."""


@pytest.fixture(scope="module")
def policy():
    """The model and its codec."""
    return load_policy(MODEL, 0)[0], load_codec(MODEL)


@pytest.fixture(scope="module")
def shared_engine(policy, vllm_installed):
    """One engine for all tests of this file."""
    sampler = VllmSampler(*policy, SamplerSpec(name="vllm"))
    yield sampler
    sampler.close()


@pytest.fixture
def sampler(shared_engine, policy):
    """The engine with the shipped weights, which are put back afterwards."""
    model, _ = policy
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shared_engine.refresh(0)
    yield shared_engine
    model.load_state_dict(before)


def prompts(codec, count: int = 4) -> list[list[int]]:
    """Prompts with a long part in common, whose whole blocks the engine may reuse."""
    common = codec.encode("Write a React component that shows a list of products with a price. ") * 20
    common = common[: 2 * BLOCK + 20]
    return [common + codec.encode(f"It is called Part{i}.") for i in range(count)]


def draw(sampler, codec, counts=(4, 4, 4, 4), max_tokens=48, temperature=1.0):
    streams = [("test", i, k) for i, count in enumerate(counts) for k in range(count)]
    return sampler.sample(
        prompts(codec), list(counts), streams, max_tokens=max_tokens, temperature=temperature
    )


def trainers_logprobs(policy, found, counts=(4, 4, 4, 4), temperature=1.0):
    model, codec = policy
    owners = [p for p, count in zip(prompts(codec), counts, strict=True) for _ in range(count)]
    with torch.no_grad():
        return completion_logprobs(
            model, *left_pad(owners, codec.pad_id), found.ids, found.mask, temperature=temperature
        )


def disturb(model, seed: int = 1) -> None:
    """A large step: every weight moves by a twentieth of its tensor's spread."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.05 * parameter.std() * noise)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_the_trainers(sampler, policy, temperature):
    found = draw(sampler, policy[1], temperature=temperature)
    gap = (found.logprobs - trainers_logprobs(policy, found, temperature=temperature))[found.mask].abs()
    assert found.mask.sum() > 200
    assert gap.max() < 1e-3
    assert sampler.probed["largest"] < 1e-3


def test_end_token_is_kept_with_its_logprob_and_truncation_flagged(sampler, policy):
    codec = policy[1]
    found = draw(sampler, codec, counts=(16, 16, 16, 16), max_tokens=96)
    ours = trainers_logprobs(policy, found, counts=(16, 16, 16, 16))
    assert 0 < int(found.truncated.sum()) < 64
    for row in range(64):
        length = int(found.mask[row].sum())
        tokens = found.ids[row, :length].tolist()
        assert (tokens[-1] in codec.eos_ids) == (not found.truncated[row])
        assert not set(tokens[:-1]) & set(codec.eos_ids)
        assert found.logprobs[row, length - 1] < 0
        assert abs(found.logprobs[row, length - 1] - ours[row, length - 1]) < 1e-3
        if found.truncated[row]:
            assert length == 96


def test_completions_of_a_group_differ(sampler, policy):
    found = draw(sampler, policy[1], counts=(16, 1, 1, 1))
    assert len({tuple(row.tolist()) for row in found.ids[:16]}) > 12


def test_same_address_gives_the_same_completion_in_any_batch(sampler, policy):
    codec = policy[1]
    together = draw(sampler, codec)
    alone = sampler.sample([prompts(codec)[2]], [1], [("test", 2, 3)], max_tokens=48, temperature=1.0)
    row, length = 2 * 4 + 3, int(alone.mask.sum())
    assert alone.ids[0, :length].tolist() == together.ids[row, :length].tolist()
    assert int(together.mask[row].sum()) == length
    assert torch.equal(draw(sampler, codec).logprobs, together.logprobs)


def test_more_prompts_than_fit_one_forward_pass(sampler, policy):
    """Prompts without anything in common, of more tokens than the engine computes at once."""
    codec = policy[1]
    generator = torch.Generator().manual_seed(0)
    long = torch.randint(5, 300, (48, 400), generator=generator).tolist()
    streams = [("many", i) for i in range(48)]
    together = sampler.sample(long, [1] * 48, streams, max_tokens=4, temperature=1.0)
    last = sampler.sample(long[-1:], [1], streams[-1:], max_tokens=4, temperature=1.0)
    length = int(last.mask.sum())
    assert last.ids[0, :length].tolist() == together.ids[-1, :length].tolist()
    assert codec.pad_id not in together.ids[together.mask]


def test_new_weights_are_used_behind_a_long_common_prefix(sampler, policy):
    model, codec = policy
    before = draw(sampler, codec)
    disturb(model)
    sampler.refresh(7)
    after = draw(sampler, codec)
    assert (before.version, after.version) == (0, 7)
    assert (trainers_logprobs(policy, before) - before.logprobs)[before.mask].abs().max() > 0.1
    assert (trainers_logprobs(policy, after) - after.logprobs)[after.mask].abs().max() < 1e-3


def test_weights_go_over_once_for_several_updates(sampler, policy, monkeypatch):
    sent = []
    send = sampler.transfer.send_weights
    monkeypatch.setattr(sampler.transfer, "send_weights", lambda: (sent.append(1), send()))
    for version in (1, 2, 3):
        sampler.refresh(version)
    draw(sampler, policy[1], max_tokens=4)
    draw(sampler, policy[1], max_tokens=4)
    assert len(sent) == 1


def test_probe_sees_keys_and_values_of_older_weights(sampler, policy, monkeypatch):
    model, codec = policy
    draw(sampler, codec)
    monkeypatch.setattr(sampler, "_forget_prefixes", lambda: None)
    disturb(model)
    sampler.refresh(1)
    with pytest.raises(WeightSyncError, match=r"weights of optimizer step 1 .* largest difference"):
        draw(sampler, codec)


def test_probe_sees_weights_that_never_arrived(sampler, policy, monkeypatch):
    model, codec = policy
    draw(sampler, codec)
    monkeypatch.setattr(sampler.transfer, "send_weights", lambda: None)
    disturb(model)
    sampler.refresh(1)
    with pytest.raises(WeightSyncError, match=r"sampler\.probe_limit=0\.001"):
        draw(sampler, codec)


def test_probe_fails_on_a_number_that_is_none(sampler, policy):
    model, codec = policy
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    sampler.refresh(1)
    with pytest.raises((WeightSyncError, ValueError)):
        draw(sampler, codec)


def test_prompts_that_do_not_fit_are_refused(sampler, policy):
    from harness.errors import UserError

    with pytest.raises(UserError, match="lower it by"):
        draw(sampler, policy[1], max_tokens=sampler.room)


def test_wrong_number_of_streams_is_refused(sampler):
    with pytest.raises(ValueError, match="streams: 1 addresses for 2"):
        sampler.sample([[5]], [2], [("x",)], max_tokens=2, temperature=1.0)
