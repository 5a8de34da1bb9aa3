"""The forward of Qwen2 and Llama models for training on a CPU: bit for bit that of transformers, in fewer passes.

Products, attention and activation are the model's own modules. Only what stands between them is done anew:
RMSNorm and the rotation of queries and keys, whose backward passes autograd spells out in twice as many
passes over memory. Every element goes through the same roundings in the same order, so that neither a hidden
state nor a gradient changes (`tests/train/test_fused.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

LAYERS = {"Qwen2Model": "Qwen2DecoderLayer", "LlamaModel": "LlamaDecoderLayer"}
"""The models that this forward computes, by the class of each, with the class of their layers."""
FULL = "full_attention"


class _Norm(torch.autograd.Function):
    """RMSNorm: y = w * (x * r), r = (mean(x^2) + epsilon)^(-1/2); gives x back too, for the residual sum.

    So the gradient of that sum comes in here, and the parts of x's gradient add up in the order that
    autograd takes them in: the residual sum's, that through x * r, that through r.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        r = x.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        normed = x * r
        ctx.save_for_backward(x, r, normed, weight)
        ctx.set_materialize_grads(False)
        return x.view_as(x), weight * normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor | None, None]:
        x, r, normed, weight = ctx.saved_tensors
        residual, gradient = gradients
        assert gradient is not None
        product = gradient * normed
        # frozen under an adapter
        of_weight = product.sum_to_size(weight.shape) if ctx.needs_input_grad[1] else None
        inner = gradient * weight
        of_r = torch.mul(inner, x, out=product).sum(-1, keepdim=True)
        # d(mean x^2)/dx = 2x/D: doubling is exact and dividing is per row, so both may come before the product
        of_square = -0.5 * of_r * r.pow(3) / x.shape[-1]
        inner.mul_(r)
        if residual is not None:
            inner.add_(residual)
        return inner.add_(torch.mul(x, of_square * 2, out=product)), of_weight, None


class _Rotation(torch.autograd.Function):
    """Rotary positions: y = x * cos + swap(x) * sin, where swap exchanges the halves of each head.

    `sin` is negative in each first half, which is where transformers negate x.
    """

    @staticmethod
    def _swap(x: Tensor, size: int) -> Tensor:
        halves = x.view(*x.shape[:-1], -1, 2, size // 2)
        return torch.cat([halves[..., 1:, :], halves[..., :1, :]], dim=-2).view(x.shape)

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.size = size
        return (x * cos).add_(_Rotation._swap(x, size).mul_(sin))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        (gradient,) = gradients
        turned = _Rotation._swap(gradient * sin, ctx.size)
        return (gradient * cos).add_(turned), None, None, None


def supports(backbone: Any) -> bool:
    """Whether `fused_hidden` computes what the backbone's forward does, without anything of it left out."""
    layer_class = LAYERS.get(type(backbone).__name__)
    if layer_class is None or any(type(layer).__name__ != layer_class for layer in backbone.layers):
        return False
    config, weight = backbone.config, backbone.norm.weight
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and config._attn_implementation == "sdpa"
        and set(getattr(config, "layer_types", None) or [FULL]) == {FULL}
        and not any(layer.gradient_checkpointing for layer in backbone.layers)
        and not any(m.training or m._forward_hooks or m._forward_pre_hooks for m in backbone.modules())
        and not torch.is_autocast_enabled("cpu")
    )


def fused_hidden(backbone: Any, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W D"]:
    """The final hidden states of right-padded rows, equal to the last bit to `backbone(tokens)`'s."""
    x = backbone.embed_tokens(tokens)
    cos, sin = backbone.rotary_emb(x, torch.arange(tokens.shape[1], device=tokens.device)[None])
    half = sin.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
    # repeated for each head, so that a pass runs over whole rows instead of one head at a time
    heads = {backbone.config.num_attention_heads, backbone.config.num_key_value_heads}
    turns = {many: (cos.repeat(1, 1, many), sin.repeat(1, 1, many)) for many in heads}
    for layer in backbone.layers:
        attention = layer.self_attn
        x, normed = _norm(layer.input_layernorm, x)
        x = x + attention.o_proj(_attended(attention, normed, turns))
        x, normed = _norm(layer.post_attention_layernorm, x)
        x = x + layer.mlp(normed)
    return _norm(backbone.norm, x)[1]


def _norm(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return _Norm.apply(x, module.weight, module.variance_epsilon)


def _attended(attention: Any, normed: Tensor, turns: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
    rows, width, size = *normed.shape[:2], attention.head_dim

    def heads(x: Tensor) -> Tensor:
        return x.view(rows, width, -1, size).transpose(1, 2)

    def turned(x: Tensor) -> Tensor:
        return heads(_Rotation.apply(x, *turns[x.shape[-1] // size], size))

    queries, keys = turned(attention.q_proj(normed)), turned(attention.k_proj(normed))
    attend = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
    found, _ = attend(
        attention,
        queries,
        keys,
        heads(attention.v_proj(normed)),
        None,
        dropout=0.0,
        scaling=attention.scaling,
    )
    return found.reshape(rows, width, -1)
