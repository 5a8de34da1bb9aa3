"""Shared fixtures: a tiny random model folder and a toy task that needs no Node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
PLUGIN = Path(__file__).parent / "plugins" / "letters_task.py"


def build_tokenizer(vocabulary: int = 300):
    """A byte-level BPE of a few merges, with pad and end tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(["the cat and the hat", "a bad cab", "write letters: é 🎉"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def build_model(family: str = "qwen2", vocabulary: int = 300, seed: int = 0):
    """A random model of about 30 k parameters; families with and without a fused forward."""
    import torch
    import transformers

    torch.manual_seed(seed)
    common = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **common)
        return transformers.GPT2LMHeadModel(config).eval()
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }
    if family == "qwen2":
        config = transformers.Qwen2Config(num_key_value_heads=4, tie_word_embeddings=True, **shape, **common)
        return transformers.Qwen2ForCausalLM(config).eval()
    config = transformers.LlamaConfig(num_key_value_heads=2, tie_word_embeddings=False, **shape, **common)
    return transformers.LlamaForCausalLM(config).eval()


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
