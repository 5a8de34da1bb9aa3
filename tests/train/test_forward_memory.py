"""Logits in chunks, recomputed layers, mixed precision, and the choice of optimizer."""

from __future__ import annotations

import sys
import types
import weakref

import pytest
import torch
from tiny_models import build_model

from harness import memory
from harness.errors import EnvironmentProblem, UserError
from harness.spec import ModelSpec, TrainSpec
from harness.train import policy
from harness.train.load import load_policy
from harness.train.optimizers import check_optimizer, make_optimizer
from harness.train.policy import chunk_for, completion_logprobs

FAMILIES = ("qwen2", "llama", "gpt2")


def batch(rows: int = 6, prompt: int = 3, answer: int = 20):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 300, (rows, prompt + answer), generator=generator)
    lengths = torch.randint(answer // 2, answer + 1, (rows,), generator=generator)
    mask = torch.arange(answer)[None] < lengths[:, None]
    return ids[:, :prompt], torch.ones(rows, prompt, dtype=torch.bool), ids[:, prompt:], mask


class LiveLogits:
    """Watches an output head: how many bytes of its outputs are alive at once."""

    def __init__(self, head: torch.nn.Module) -> None:
        self.now = self.peak = self.calls = 0
        head.register_forward_hook(self._seen)

    def _seen(self, head, inputs, output) -> None:
        size = output.numel() * output.element_size()
        self.calls += 1
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(output.untyped_storage(), self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


def test_a_chunk_follows_the_vocabulary():
    assert chunk_for(576) == 8192, "tiny models train in one piece, as before"
    for vocabulary in (49152, 128256, 151936, 200064):
        assert chunk_for(vocabulary) * vocabulary * 4 <= policy.LOGITS_BYTES
        assert (chunk_for(vocabulary) + 1) * vocabulary * 4 > policy.LOGITS_BYTES
    assert chunk_for(10**9) == 1
    assert (memory.LOGITS_BYTES, memory.MOST_CHUNK_TOKENS) == (policy.LOGITS_BYTES, policy.MOST_CHUNK_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_a_long_batch_never_exist_at_once(family, monkeypatch):
    """With room for 16 tokens' logits, no more are alive in forward or backward; with room for all, all are."""
    sizes, gradients = {}, {}
    for tokens in (16, 10_000):
        model = build_model(family)
        watched = LiveLogits(model.get_output_embeddings())
        monkeypatch.setattr(policy, "LOGITS_BYTES", tokens * 300 * 4)
        logprobs = completion_logprobs(model, *batch())
        logprobs.sum().backward()
        sizes[tokens] = watched.peak
        gradients[tokens] = model.get_input_embeddings().weight.grad
        assert watched.calls > 1 or tokens == 10_000
    whole = int(batch()[3].sum()) * 300 * 4
    assert sizes[10_000] == whole
    assert sizes[16] <= 16 * 300 * 4 < whole / 4
    assert torch.allclose(gradients[16], gradients[10_000], rtol=1e-4, atol=1e-5)


def test_one_piece_is_bit_equal_to_the_plain_formula():
    model = build_model("qwen2")
    prompts, prompt_mask, ids, mask = batch()
    found = completion_logprobs(model, prompts, prompt_mask, ids, mask)
    logits = model(input_ids=torch.cat([prompts, ids], dim=1), use_cache=False).logits[:, 2:-1]
    wanted = -torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
    assert torch.allclose(found[mask], wanted.view(ids.shape)[mask], atol=1e-6)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_recomputed_layers_give_the_same_gradients(family, tmp_path):
    build_model(family).save_pretrained(tmp_path)
    from tiny_models import build_tokenizer

    build_tokenizer().save_pretrained(tmp_path)
    results, counts = [], []
    for on in (False, True):
        model, _ = load_policy(ModelSpec(name=str(tmp_path), gradient_checkpointing=on), 0)
        calls = []
        layer = model.model.layers[0]
        layer.mlp.register_forward_pre_hook(lambda *_, seen=calls: seen.append(1))
        logprobs = completion_logprobs(model, *batch())
        logprobs.sum().backward()
        counts.append(len(calls))
        results.append((logprobs.detach(), model.get_input_embeddings().weight.grad))
        assert not any(m.training for m in model.modules()), "no dropout may come alive"
        with torch.no_grad():
            completion_logprobs(model, *batch())
        assert len(calls) == counts[-1] + 1
    assert counts == [1, 2], "the block runs again in backward, and only there"
    assert torch.equal(results[0][0], results[1][0])
    assert torch.allclose(results[0][1], results[1][1], atol=1e-6)


def test_mixed_precision_keeps_32_bit_results_and_gradients():
    model = build_model("llama")
    plain = completion_logprobs(model, *batch())
    mixed = completion_logprobs(model, *batch(), autocast="bfloat16")
    mask = batch()[3]
    assert mixed.dtype == torch.float32
    assert 0 < (plain - mixed)[mask].abs().max() < 0.2
    mixed.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_autocast_reaches_training_and_the_facade(tiny_spec, tmp_path):
    from harness.train.build import build

    seen = []
    for autocast in ("none", "bfloat16"):
        parts = build(tiny_spec("bpco", train={"autocast": autocast, "group_size": 1}))
        layer = parts.model.model.layers[0].mlp.down_proj
        layer.register_forward_hook(lambda m, i, o: seen.append(o.dtype))
        from harness.train.rollout import assemble

        lots = parts.generator.generate(
            next(parts.algorithm.rollout_plan([parts.task.example("train", 0)], 1)), ("t", 0), temperature=1.0
        )
        rows = assemble(
            lots[0], parts.recipe, pad_id=0, max_completion_tokens=8, reward_range=parts.task.outcome_range
        )
        parts.models.logprobs(rows)
    assert seen[-1] == torch.bfloat16
    assert torch.float32 in seen


def test_the_default_optimizer_is_adamw_as_before():
    parameters = [torch.nn.Parameter(torch.ones(3, 2))]
    made = make_optimizer(TrainSpec(weight_decay=0.1), parameters, [{"params": [], "lr_scale": 5.0}])
    assert type(made) is torch.optim.AdamW
    assert made.defaults["fused"] is True
    assert made.defaults["lr"] == 3e-4
    assert made.defaults["weight_decay"] == 0.1
    assert [group.get("lr_scale") for group in made.param_groups] == [None, 5.0]


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit"])
def test_8_bit_states_need_cuda_and_their_package(name, monkeypatch):
    train = TrainSpec(optimizer=name)
    with pytest.raises(UserError, match=rf"train\.optimizer='{name}'.*CUDA.*train\.optimizer=adamw"):
        make_optimizer(train, [torch.nn.Parameter(torch.ones(1))], [])
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(EnvironmentProblem, match="bitsandbytes"):
        check_optimizer(train, torch.device("cuda"))
    optim = types.SimpleNamespace(AdamW8bit=torch.optim.AdamW, PagedAdamW8bit=torch.optim.SGD)
    monkeypatch.setitem(sys.modules, "bitsandbytes", types.SimpleNamespace(optim=optim))
    monkeypatch.setattr("harness.train.optimizers.check_optimizer", lambda train, device: None)
    made = make_optimizer(train, [torch.nn.Parameter(torch.ones(1))], [])
    assert type(made) is (torch.optim.AdamW if name == "adamw_8bit" else torch.optim.SGD)
