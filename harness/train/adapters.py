"""LoRA adapters by peft, put into a model in place: what is trained, saved, merged, and turned off."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.errors import EnvironmentProblem, UserError
from harness.spec import AdapterSpec

MARK = "lora_"
"""Part of the name of every tensor of an adapter."""


def add_adapter(model: Any, adapter: AdapterSpec) -> None:
    """Puts a LoRA adapter into the model: h = W x + alpha / rank B A x, with B = 0 at the start.

    Only A and B train (in 32 bits, whatever the weights are), and only they are in the model's state_dict.
    Source: arXiv 2106.09685. UserError when a named layer is not in the model.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise EnvironmentProblem(
            "model.adapter: LoRA needs peft; run pip install 'creditbench[gpu]', or unset model.adapter"
        ) from None
    head = model.get_output_embeddings()
    own = next((name for name, module in model.named_modules() if module is head), "")
    if model.config.tie_word_embeddings and own.rpartition(".")[2] in adapter.targets:
        raise UserError(
            f"model.adapter.targets={list(adapter.targets)!r}: {own} is the embedding's own matrix in this model, which "
            "an adapter would part; leave it out"
        )
    config: Any = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # any number: it is only divided
        lora_dropout=0.0,
        target_modules=list(adapter.targets) or "all-linear",
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError:
        known = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        raise UserError(
            f"model.adapter.targets={list(adapter.targets)!r}: no such layer in the model; its linear layers are "
            f"{', '.join(sorted(known))}"
        ) from None
    for name, parameter in model.named_parameters():
        if MARK in name:
            parameter.data = parameter.data.float()
    _save_adapter_only(model)


def adapter_layers(module: nn.Module) -> list[Any]:
    """The layers of a module that carry an adapter; empty without one."""
    return [layer for layer in module.modules() if hasattr(layer, "lora_A")]


@contextmanager
def adapter_off(module: nn.Module) -> Iterator[None]:
    """The base model alone, inside the block."""
    layers = adapter_layers(module)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def weight_of(linear: Any) -> Tensor:
    """The weight that a linear layer computes with: the adapter's product added where there is one."""
    if not hasattr(linear, "lora_A"):
        return linear.weight
    weight = linear.get_base_layer().weight
    return weight + linear.get_delta_weight(linear.active_adapters[0]).to(weight.dtype)


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names of the plain model, adapters merged: what another engine should load."""
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if MARK in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        found = weight_of(layers[owner]) if owner != name else parameter
        state[name.replace(".base_layer.", ".")] = found.detach()
    return state


@torch.no_grad()
def merge_adapter(model: Any) -> None:
    """Folds the adapter into the weights, for good: the model is a plain one afterwards."""
    for name, layer in list(model.named_modules()):
        if not hasattr(layer, "lora_A"):
            continue
        plain = layer.get_base_layer()
        plain.weight.copy_(weight_of(layer))
        model.set_submodule(name, plain)
    model.requires_grad_(True)


def twin(backbone: nn.Module) -> nn.Module:
    """A copy with an adapter of its own that shares the frozen weights, so that it costs the adapter alone."""
    frozen = [p for p in backbone.parameters() if not p.requires_grad]
    shared: dict[int, Any] = {id(tensor): tensor for tensor in [*frozen, *backbone.buffers()]}
    made = copy.deepcopy(backbone, shared)
    _save_adapter_only(made)
    return made


def _save_adapter_only(module: nn.Module) -> None:
    module.register_state_dict_post_hook(_drop_base)
    module.register_load_state_dict_post_hook(_excuse_base)


def _drop_base(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    if adapter_layers(module):
        for name in [n for n in state if n.startswith(prefix) and MARK not in n]:
            del state[name]


def _excuse_base(module: nn.Module, keys: Any) -> None:
    """Base weights need not be in a state that is loaded; names of adapters still must."""
    if adapter_layers(module):
        # the head of a critic stands beside its backbone: only this module's own base weights are excused
        own = {name for name, _ in module.named_parameters(remove_duplicate=False) if MARK not in name}
        keys.missing_keys[:] = [
            key
            for key in keys.missing_keys
            if MARK in key or not any(key == name or key.endswith(f".{name}") for name in own)
        ]
