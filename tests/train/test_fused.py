"""The fused forward for training: the same bits as transformers, forward and backward; fallback where it must."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import build_model

from harness.spec import AdapterSpec
from harness.train import fused, policy
from harness.train.adapters import add_adapter
from harness.train.policy import completion_logprobs, last_hidden

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LAYOUTS = {
    "qwen2": lambda: transformers.Qwen2Config(num_key_value_heads=4, tie_word_embeddings=True, **SHAPE),
    "qwen2, grouped queries": lambda: transformers.Qwen2Config(num_key_value_heads=2, **SHAPE),
    "llama, one key head": lambda: transformers.LlamaConfig(num_key_value_heads=1, **SHAPE),
    "llama, biases and wide heads": lambda: transformers.LlamaConfig(
        num_key_value_heads=2, head_dim=16, attention_bias=True, mlp_bias=True, **SHAPE
    ),
    "llama, stretched positions": lambda: transformers.LlamaConfig(
        num_key_value_heads=2,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        **SHAPE,
    ),
}


def model_of(layout: str):
    """A random model none of whose scales and biases are ones or zeros."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(LAYOUTS[layout]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def plain(backbone, tokens):
    return backbone(input_ids=tokens, use_cache=False).last_hidden_state


def outcome(forward, backbone, tokens, onto):
    """Hidden states, and the gradient of each parameter that is trained."""
    backbone.zero_grad(set_to_none=True)
    hidden = forward(backbone, tokens)
    (hidden * onto).sum().backward()
    return hidden.detach(), {n: p.grad.clone() for n, p in backbone.named_parameters() if p.grad is not None}


def assert_same_bits(backbone, tokens):
    onto = torch.randn(*tokens.shape, backbone.config.hidden_size, generator=torch.Generator().manual_seed(5))
    expected, gradients = outcome(plain, backbone, tokens, onto)
    found, others = outcome(fused.fused_hidden, backbone, tokens, onto)
    assert torch.equal(found, expected)
    assert others.keys() == gradients.keys()
    different = [name for name, gradient in gradients.items() if not torch.equal(others[name], gradient)]
    assert not different


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 2), (5, 37), (16, 130)])
def test_states_and_gradients_are_those_of_transformers_to_the_last_bit(layout, rows, width):
    model = model_of(layout)
    assert fused.supports(model.model)
    tokens = torch.randint(2, 97, (rows, width), generator=torch.Generator().manual_seed(rows * width))
    assert_same_bits(model.model, tokens)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_under_an_adapter_too(family):
    pytest.importorskip("peft", reason="LoRA needs the extra gpu (peft)")
    model = build_model(family)
    add_adapter(model, AdapterSpec(rank=4, alpha=8.0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    backbone = policy.backbone_of(model.eval())
    assert fused.supports(backbone)
    assert_same_bits(backbone, torch.randint(2, 300, (4, 19)))


def test_log_probs_of_completions_go_through_it(monkeypatch):
    model, calls = build_model("qwen2"), []
    whole = fused.fused_hidden
    monkeypatch.setattr(fused, "fused_hidden", lambda *args: calls.append(args) or whole(*args))
    prompts, answers = torch.full((2, 3), 5), torch.full((2, 4), 7)
    arguments = (prompts, prompts.bool(), answers, answers.bool())
    found = completion_logprobs(model, *arguments)
    assert len(calls) == 1
    monkeypatch.setattr(fused, "supports", lambda backbone: False)
    assert torch.equal(found, completion_logprobs(model, *arguments))
    assert len(calls) == 1


def _sliding():
    config = transformers.Qwen2Config(
        use_sliding_window=True, sliding_window=4, max_window_layers=1, num_key_value_heads=4, **SHAPE
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _checkpointing():
    model = build_model("qwen2")
    model.gradient_checkpointing_enable()
    return model


def _hooked():
    model = build_model("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def _eager():
    model = build_model("qwen2")
    model.set_attn_implementation("eager")
    return model


FALLBACKS = {
    "another family": lambda: build_model("gpt2"),
    "sliding windows": _sliding,
    "layers that are recomputed": _checkpointing,
    "a hook": _hooked,
    "another attention": _eager,
    "half precision": lambda: build_model("qwen2").bfloat16(),
    "training mode, where dropout lives": lambda: build_model("qwen2").train(),
}


@pytest.mark.parametrize("reason", FALLBACKS)
def test_everything_else_goes_through_transformers(reason):
    backbone = policy.backbone_of(FALLBACKS[reason]())
    tokens = torch.randint(2, 97, (2, 9))
    assert not fused.supports(backbone)
    assert torch.equal(last_hidden(backbone, tokens), plain(backbone, tokens))


def test_mixed_precision_and_compiled_models_go_through_transformers():
    model = build_model("qwen2")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused.supports(model.model)
    assert fused.supports(model.model)
    assert not fused.supports(torch.compile(model.model))
