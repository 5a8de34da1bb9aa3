"""Loads a policy: a shipped preset, a folder, or a Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.models import PRESETS, shipped_path
from harness.spec import ModelSpec
from harness.train.streams import seed_of


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; UserError when a named device is absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device={name!r}: no CUDA device here; use model.device=cpu")
    return torch.device(name)


def source_of(spec: ModelSpec) -> str:
    """A folder path or a Hub id for a model name; UserError when it is neither preset, folder nor Hub id."""
    preset = PRESETS.get(spec.name)
    if preset is not None:
        return str(shipped_path(spec.name)) if preset.source == "folder" else preset.location
    if Path(spec.name).is_dir():
        return spec.name
    if spec.name.count("/") == 1:
        return spec.name
    from harness.names import did_you_mean

    raise UserError(did_you_mean("model", spec.name, PRESETS) + "; or a folder, or a Hub id such as org/name")


def load_policy(spec: ModelSpec, seed: int) -> tuple[Any, Any]:
    """The model (in evaluation mode: no dropout, so that log-probs are those of sampling) and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = source_of(spec)
    dtype = getattr(torch, spec.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        if spec.random_init:
            torch.manual_seed(seed_of("initialisation", seed))
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except OSError as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"model.name={spec.name!r}: cannot be loaded ({first}); give a folder or cached Hub id"
        ) from error
    return model.to(device_of(spec.device)).eval(), tokenizer
