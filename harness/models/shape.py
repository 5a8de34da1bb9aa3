"""How large a model is, from the few numbers of its config: parameters, caches, activations; no torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError

_ALIASES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads"),
}


@dataclass(frozen=True)
class ModelShape:
    """The numbers that decide how much memory a decoder takes; sizes in elements."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    head_size: int
    tied: bool = True
    attention_bias: bool = False
    gated: bool = True
    learned_positions: int = 0

    @property
    def attention_linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of one attention block."""
        inner, shared = self.heads * self.head_size, self.kv_heads * self.head_size
        return {
            "q_proj": (self.hidden, inner),
            "k_proj": (self.hidden, shared),
            "v_proj": (self.hidden, shared),
            "o_proj": (inner, self.hidden),
        }

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of every linear layer of one block."""
        wide = {"up_proj": (self.hidden, self.intermediate), "down_proj": (self.intermediate, self.hidden)}
        if self.gated:
            wide["gate_proj"] = (self.hidden, self.intermediate)
        return {**self.attention_linears, **wide}

    @property
    def embedding_parameters(self) -> int:
        """Of the input embedding, and of learned positions where there are any."""
        return (self.vocabulary + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the output head; 0 where it is the embedding's matrix."""
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def backbone_parameters(self) -> int:
        """Everything but the output head."""
        matrices = sum(a * b for a, b in self.linears.values())
        biases = (self.heads + 2 * self.kv_heads) * self.head_size if self.attention_bias else 0
        return self.embedding_parameters + self.layers * (matrices + biases + 2 * self.hidden) + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.backbone_parameters + self.head_parameters

    @property
    def cache_per_token(self) -> int:
        """Elements of keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] = ()) -> int:
        """Of a LoRA adapter of this rank on the named linear layers (all of them where none is named)."""
        chosen = [size for name, size in self.linears.items() if not targets or name in targets]
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in chosen)


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a `config.json`; UserError when it lacks a size."""

    def size(name: str) -> int:
        for alias in _ALIASES[name]:
            if isinstance(config.get(alias), int):
                return config[alias]
        raise UserError(f"config.json: it has no {name}; give a model whose config names its sizes")

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    family = config.get("model_type", "")
    return ModelShape(
        vocabulary=int(config.get("vocab_size", 0)),
        hidden=hidden,
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        intermediate=config.get("intermediate_size") or config.get("n_inner") or 4 * hidden,
        head_size=config.get("head_dim") or hidden // heads,
        tied=bool(config.get("tie_word_embeddings", family in {"gpt2", "qwen2"})),
        attention_bias=bool(config.get("attention_bias", family in {"gpt2", "qwen2"})),
        gated=family not in {"gpt2", "gpt_neox", "opt"},
        learned_positions=int(config.get("n_positions", 0)) if family == "gpt2" else 0,
    )


def shape_of_folder(folder: Path) -> ModelShape | None:
    """The shape of a model in a folder; None where there is no `config.json`."""
    path = folder / "config.json"
    return shape_of_config(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
