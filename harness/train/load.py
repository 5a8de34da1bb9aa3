"""Loads a policy: a shipped preset, a folder, or a Hub id."""

from __future__ import annotations

from typing import Any

import torch

from harness.errors import UserError
from harness.models.source import source_of, weights_fingerprint
from harness.spec import ModelSpec
from harness.train.streams import seed_of


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; UserError when a named device is absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device={name!r}: no CUDA device here; use model.device=cpu")
    return torch.device(name)


def load_policy(spec: ModelSpec, seed: int) -> tuple[Any, Any]:
    """The model (in evaluation mode: no dropout, so that log-probs are those of sampling) and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = source_of(spec.name)
    if spec.weights and weights_fingerprint(spec.name) != spec.weights:
        raise UserError(
            f"model.weights={spec.weights!r}: the files of {spec.name} have another content now; restore them, or "
            "start afresh in another --out"
        )
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
