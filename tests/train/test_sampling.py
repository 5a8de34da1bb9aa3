"""Sampling: log-probs equal the trainer's, streams do not depend on the batch, the law is the policy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import build_model

from harness.train.decoders import FusedDecoder, TransformersDecoder, decoder_for
from harness.train.policy import completion_logprobs, join, micro_batches
from harness.train.sampler import NativeSampler, draw, join_completions, left_pad
from harness.train.streams import seed_of, uniforms

FAMILIES = ("qwen2", "llama", "gpt2")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14], [5, 5]]


def sharpened(family: str):
    """A model whose next-token law is far from uniform, so that errors of the cache would show."""
    model = build_model(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sample(model, prompts=PROMPTS, counts=(3, 3, 3, 3), max_tokens=20, temperature=1.0, streams=None):
    sampler = NativeSampler(model, eos_ids=[1], pad_id=0)
    streams = streams or [("t", i, k) for i, count in enumerate(counts) for k in range(count)]
    return sampler.sample(prompts, list(counts), streams, max_tokens=max_tokens, temperature=temperature)


class Output(dict):
    """Keys as attributes, as the outputs of transformers have them."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_goes_back_under_the_name_it_came_with(name):
    passed = []

    class Cache:
        def batch_select_indices(self, rows):
            passed.append(rows.tolist())

    def model(**arguments):
        passed.append(arguments.get(name))
        assert not ({"cache", "past_key_values"} - {name}) & arguments.keys()
        return Output({"logits": torch.zeros(2, 1, 4), name: cache})

    cache, decoder = Cache(), TransformersDecoder(model)
    prompts = torch.ones(2, 3, dtype=torch.long)
    decoder.start(prompts, prompts.bool(), torch.tensor([1, 1]), 4)
    decoder.step(torch.tensor([1, 2]))
    assert passed == [None, [0, 1], cache]


def test_known_families_decode_fused_and_others_fall_back():
    assert isinstance(decoder_for(build_model("qwen2")), FusedDecoder)
    assert isinstance(decoder_for(build_model("llama")), FusedDecoder)
    assert isinstance(decoder_for(build_model("gpt2")), TransformersDecoder)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampling_logprobs_equal_the_trainers(family, temperature):
    model = sharpened(family)
    found = sample(model, temperature=temperature)
    prompt_ids, prompt_mask = left_pad([p for p in PROMPTS for _ in range(3)], 0)
    with torch.no_grad():
        again = completion_logprobs(
            model, prompt_ids, prompt_mask, found.ids, found.mask, temperature=temperature
        )
    assert found.mask.sum() > 50
    assert (found.logprobs - again)[found.mask].abs().max() < 1e-4
    assert (again[~found.mask] == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_completion_does_not_depend_on_its_batch(family):
    model = sharpened(family)
    together = sample(model)
    alone = sample(model, prompts=[PROMPTS[1]], counts=[1], streams=[("t", 1, 2)])
    row = 3 + 2
    length = int(together.mask[row].sum())
    assert alone.ids[0, :length].tolist() == together.ids[row, :length].tolist()
    assert int(alone.mask.sum()) == length


def test_end_token_is_kept_and_truncation_flagged():
    found = sample(sharpened("qwen2"), counts=(16, 16, 16, 16), max_tokens=40)
    ended = ~found.truncated
    assert ended.any()
    for row in range(len(found.ids)):
        length = int(found.mask[row].sum())
        tokens = found.ids[row, :length].tolist()
        assert (tokens[-1] == 1) == bool(ended[row])
        assert 1 not in tokens[:-1]


def test_draw_follows_the_distribution():
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -30.0]])
    uniform = torch.from_numpy(uniforms([("law",)], 20_000))[0]
    tokens = draw(logits.expand(20_000, -1), uniform)
    counts = np.bincount(tokens.numpy(), minlength=5)
    expected = torch.softmax(logits[0].double(), 0).numpy() * 20_000
    assert counts[4] == 0
    assert stats.chisquare(counts[:4], expected[:4] * counts[:4].sum() / expected[:4].sum()).pvalue > 1e-3


def test_draw_at_the_edges_stays_inside_the_vocabulary():
    logits = torch.zeros(2, 3)
    assert draw(logits, torch.tensor([0.0, 1.0 - 1e-16], dtype=torch.float64)).tolist() == [0, 2]


def test_refresh_takes_new_weights():
    model = sharpened("qwen2")
    sampler = NativeSampler(model, eos_ids=[1], pad_id=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    sampler.refresh()
    streams = [("t", i) for i in range(4)]
    found = sampler.sample(PROMPTS, [1] * 4, streams, max_tokens=10, temperature=1.0)
    with torch.no_grad():
        again = completion_logprobs(model, *left_pad(PROMPTS, 0), found.ids, found.mask)
    assert (found.logprobs - again)[found.mask].abs().max() < 1e-4


def test_long_lists_are_split_without_changing_anything():
    model = sharpened("qwen2")
    small = NativeSampler(model, eos_ids=[1], pad_id=0, max_rows=3)
    streams = [("t", i, k) for i in range(4) for k in range(3)]
    split = small.sample(PROMPTS, [3] * 4, streams, max_tokens=12, temperature=1.0)
    whole = sample(model, max_tokens=12)
    width = min(split.ids.shape[1], whole.ids.shape[1])
    assert torch.equal(split.ids[:, :width], whole.ids[:, :width])


def test_wrong_number_of_streams_is_refused():
    with pytest.raises(ValueError, match="streams: 1 addresses for 12"):
        sample(build_model("qwen2"), streams=[("x",)])


def test_streams_are_pure_and_differ():
    a, b = uniforms([("train", 0, 1), ("train", 0, 2)], 50)
    again = uniforms([("train", 0, 2)], 50)[0]
    assert np.array_equal(b, again)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.5
    assert seed_of("a", 1) != seed_of("a1") != seed_of("a", "1")


def test_join_puts_completions_right_behind_prompts():
    prompt_ids, prompt_mask = left_pad([[5, 6], [7]], 0)
    ids = torch.tensor([[8, 9, 0], [10, 11, 12]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    tokens, before = join(prompt_ids, prompt_mask, ids, mask)
    assert tokens[0, :4].tolist() == [5, 6, 8, 9]
    assert tokens[1].tolist()[:4] == [7, 10, 11, 12]
    assert before[0, :2].tolist() == [1, 2]
    assert before[1].tolist() == [0, 1, 2]


def test_logprobs_in_chunks_equal_those_in_one_piece_with_gradients():
    model = sharpened("qwen2")
    found = sample(model)
    prompts = left_pad([p for p in PROMPTS for _ in range(3)], 0)
    results = []
    for chunk in (7, 10_000):
        model.zero_grad()
        logprobs = completion_logprobs(model, *prompts, found.ids, found.mask, chunk_tokens=chunk)
        (logprobs * torch.linspace(0, 1, logprobs.numel()).view_as(logprobs)).sum().backward()
        results.append((logprobs.detach(), model.model.embed_tokens.weight.grad.clone()))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-3)


def test_micro_batches_hold_every_row_once_longest_first():
    lengths = torch.tensor([3, 9, 1, 4, 7])
    parts = micro_batches(lengths, 2)
    assert sorted(torch.cat(parts).tolist()) == [0, 1, 2, 3, 4]
    assert [lengths[p].tolist() for p in parts] == [[9, 7], [4, 3], [1]]


def test_joined_completions_are_cut_to_the_longest():
    model = sharpened("qwen2")
    parts = [
        sample(model, prompts=[p], counts=[2], streams=[("j", i, 0), ("j", i, 1)])
        for i, p in enumerate(PROMPTS)
    ]
    joined = join_completions(parts, 0)
    assert joined.ids.shape[1] == int(joined.mask.sum(1).max())
    assert len(joined.ids) == 8
