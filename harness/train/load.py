"""Loads a policy: a shipped preset, a folder, a GGUF file, or a Hub id."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from harness.errors import EnvironmentProblem, UserError
from harness.memory import GIB, PROMPT_TOKENS, Situation, memory_plan, remedies
from harness.models import PRESETS
from harness.models.fetch import local_folder
from harness.models.shape import shape_of_folder
from harness.models.source import weights_fingerprint
from harness.spec import ModelSpec, RunSpec
from harness.train.adapters import add_adapter
from harness.train.optimizers import check_optimizer
from harness.train.prompts import PromptCodec, codec_of
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


def load_codec(spec: ModelSpec) -> PromptCodec:
    """How the model's prompts are written and its answers end, from its small files alone."""
    from transformers import AutoConfig, GenerationConfig

    tokenizer = load_tokenizer(spec)
    folder = local_folder(spec.name, revision=spec.revision, weights=False)
    config = AutoConfig.from_pretrained(folder)
    try:
        generation = GenerationConfig.from_pretrained(folder)
    except OSError:  # a model need not have one
        generation = GenerationConfig.from_model_config(config)
    return codec_of(spec, tokenizer, config, generation)


def load_policy(spec: ModelSpec, seed: int) -> tuple[Any, Any]:
    """The model (in evaluation mode: no dropout, so that log-probs are those of sampling) and its tokenizer.

    With an adapter the model is the base with LoRA layers in place, in whose state_dict only they stand.
    """
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
    model = model.to(device)
    if spec.gradient_checkpointing:
        _turn_on_checkpointing(spec, model)
    if spec.adapter is not None:
        torch.manual_seed(seed_of("initialisation", seed))
        add_adapter(model, spec.adapter)
    return model.eval(), tokenizer


def check_room(spec: RunSpec, requires: Collection[str], prompt_tokens: int = 0) -> None:
    """Refuses what the device cannot do or hold, before weights are loaded: the optimizer, then the memory.

    EnvironmentProblem names what the card has, what the run would take, and the settings with which it fits.
    """
    device = device_of(spec.model.device)
    check_optimizer(spec.train, device)
    if device.type != "cuda":
        return
    shape = shape_of_folder(local_folder(spec.model.name, revision=spec.model.revision, weights=False))
    assert shape is not None, "local_folder refuses a folder without config.json"
    free, _ = torch.cuda.mem_get_info(device)
    situation = Situation(prompt_tokens or PROMPT_TOKENS, free)
    plan = memory_plan(shape, spec, requires, situation)
    if plan.total <= free:
        return
    change = remedies(shape, spec, requires, situation)
    advice = "take a larger card" if change is None else "set " + ", ".join(change)
    raise EnvironmentProblem(
        f"model.name={spec.model.name!r}: {spec.algorithm.name} needs about {plan.total / GIB:.1f} GiB, and "
        f"{free / GIB:.1f} GiB of the card are free; {advice} (harness plan --memory shows the parts)"
    )


def _turn_on_checkpointing(spec: ModelSpec, model: Any) -> None:
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError:
        raise UserError(
            f"model.gradient_checkpointing=true: {spec.name} ({type(model).__name__}) does not support it; set it to "
            "false and lower train.micro_batch_size"
        ) from None


def _unreadable(spec: ModelSpec, folder: Path, error: Exception) -> UserError:
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return UserError(
        f"model.name={spec.name!r}: cannot be loaded from {folder} ({first}); give a folder or cached Hub id"
    )
