"""Shared fixtures: a tiny random model folder and a toy task that needs no Node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_models import build_model, build_tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
PLUGIN = Path(__file__).parent / "plugins" / "letters_task.py"


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved random Qwen2 model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_model(vocabulary=len(tokenizer)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def letters_plugin() -> Path:
    """The toy task `letters` as a plug-in file."""
    from harness.registry import load_plugin

    load_plugin(PLUGIN)
    return PLUGIN


@pytest.fixture
def tiny_spec(tiny_model_folder: Path, letters_plugin: Path):
    """A factory of run specifications that train in a second; keyword sections override."""
    from harness.spec import parse_run

    def make(algorithm: str = "grpo", seed: int = 0, **sections):
        value = {
            "algorithm": {"name": algorithm},
            "task": {"name": "letters"},
            "model": {"name": str(tiny_model_folder)},
            "train": {
                "prompts_per_step": 2,
                "group_size": 4,
                "horizon": 4,
                "max_completion_tokens": 8,
                "micro_batch_size": 4,
                "learning_rate": 1e-2,
            },
            "evaluation": {"every": 2, "prompts": 6},
            "seeds": {"seed": seed},
            "plugins": [str(letters_plugin)],
        }
        for name, section in sections.items():
            value[name] = {**value.get(name, {}), **section} if isinstance(section, dict) else section
        return parse_run(value)

    return make
