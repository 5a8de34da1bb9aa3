"""Loads a policy: a shipped preset, a folder, a GGUF file, or a Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.models import PRESETS
from harness.models.fetch import local_folder
from harness.models.source import weights_fingerprint
from harness.spec import ModelSpec
from harness.train.streams import seed_of


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; UserError when a named device is absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device={name!r}: no CUDA device here; use model.device=cpu")
    return torch.device(name)


def load_tokenizer(spec: ModelSpec) -> Any:
    """The model's tokenizer, without its chat template where the preset is one of bare prompts."""
    from transformers import AutoTokenizer

    folder = local_folder(spec.name, revision=spec.revision, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise _unreadable(spec, folder, error) from error
    preset = PRESETS.get(spec.name)
    if preset is not None and not preset.chat_template:
        tokenizer.chat_template = None
    return tokenizer


def load_policy(spec: ModelSpec, seed: int) -> tuple[Any, Any]:
    """The model (in evaluation mode: no dropout, so that log-probs are those of sampling) and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if spec.weights and weights_fingerprint(spec.name) != spec.weights:
        raise UserError(
            f"model.weights={spec.weights!r}: the files of {spec.name} have another content now; restore them, or "
            "start afresh in another --out"
        )
    device = device_of(spec.device)
    dtype = getattr(torch, spec.dtype)
    tokenizer = load_tokenizer(spec)
    folder = local_folder(spec.name, revision=spec.revision, weights=not spec.random_init)
    try:
        if spec.random_init:
            torch.manual_seed(seed_of("initialisation", seed))
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError) as error:
        raise _unreadable(spec, folder, error) from error
    return model.to(device).eval(), tokenizer


def _unreadable(spec: ModelSpec, folder: Path, error: Exception) -> UserError:
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return UserError(
        f"model.name={spec.name!r}: cannot be loaded from {folder} ({first}); give a folder or cached Hub id"
    )
