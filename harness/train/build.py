"""Builds the parts of a run from its specification, refusing what cannot work before anything is sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from algorithms.base import Algorithm, ConfigError, Setting
from harness import registry
from harness.errors import UserError
from harness.models.source import TABLE
from harness.names import did_you_mean, lookup
from harness.spec import RunSpec, SamplerSpec
from harness.train.alignment import TextAligner
from harness.train.costs import Costs
from harness.train.facade import MeteredModels
from harness.train.load import check_room, load_codec, load_policy
from harness.train.loop import Parts
from harness.train.mismatch import check_mismatch
from harness.train.prompts import PromptCodec
from harness.train.rollout import Generator
from harness.train.sampler import NativeSampler, Sampler
from harness.train.vllm_sampler import VllmSampler, require_vllm
from tasks.base import Task

PROMPTS_CHECKED = 16
"""Prompts of each split that must fit before weights are loaded; later ones are checked as they are sampled."""


def typed_options(owner: str, options_class: type, values: Mapping[str, Any]) -> Any:
    """An options dataclass from plain values; UserError names the unknown key or the wrong value."""
    names = [f.name for f in dataclasses.fields(options_class)]
    for name in values:
        if name not in names:
            raise UserError(did_you_mean(f"option of {owner}", name, names))
    try:
        return TypeAdapter(options_class).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # raised by the options class itself, in its own words
            raise UserError(str(first["ctx"]["error"])) from None
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{owner}.{where}={first['input']!r}: {first['msg']}") from None


def build_algorithm(spec: RunSpec) -> Algorithm:
    """The run's algorithm with its typed options."""
    chosen: Any = lookup("algorithm", spec.algorithm.name, registry.algorithms())
    try:
        return chosen(typed_options(spec.algorithm.name, chosen.Options, spec.algorithm.options))
    except ConfigError as error:
        raise UserError(str(error)) from None


def build_task(spec: RunSpec) -> Task:
    """The run's task with its typed options."""
    chosen: Any = lookup("task", spec.task.name, registry.tasks())
    options_class = getattr(chosen, "Options", None)
    if options_class is None:
        if spec.task.options:
            raise UserError(f"task.options={dict(spec.task.options)!r}: task {spec.task.name} has no options")
        return chosen()
    return chosen(typed_options(spec.task.name, options_class, spec.task.options))


def check(spec: RunSpec) -> tuple[Algorithm, Task]:
    """Algorithm and task of a run, after every check that needs no model; UserError otherwise."""
    for plugin in spec.plugins:
        registry.load_plugin(Path(plugin))
    algorithm, task = build_algorithm(spec), build_task(spec)
    lookup(f"recipe of task {spec.task.name}", spec.task.recipe or task.default_recipe, task.recipes)
    setting = Setting(
        group_size=spec.train.group_size,
        provides=task.provides,
        reward_range=task.outcome_range,
        updates_per_rollout=spec.train.updates_per_rollout,
        task=spec.task.name,
    )
    try:
        algorithm.check(setting)
    except ConfigError as error:
        raise UserError(str(error)) from None
    check_mismatch(spec)
    if spec.model.name == TABLE and spec.sampler.name != "native":
        raise UserError(
            f"sampler.name={spec.sampler.name!r}: a table of logits samples itself; use sampler.name=native"
        )
    return algorithm, task


def check_prompts(spec: RunSpec, task: Task, codec: PromptCodec) -> None:
    """UserError when the prompt of one of a split's first examples leaves no room for the longest answer."""
    if not codec.context:
        return
    for split in ("train", "test"):
        size = task.size(split)
        count = PROMPTS_CHECKED if size is None else min(size, PROMPTS_CHECKED)
        for index in range(count):
            example = task.example(split, index)
            for prompt in (example.prompt, *example.variants.values()):
                codec.encode(prompt, room=spec.train.max_completion_tokens, shots=example.shots)


def build_sampler(spec: SamplerSpec, model: Any, codec: PromptCodec) -> Sampler:
    """What draws the completions; a vLLM engine is started here."""
    if spec.name == "native":
        return NativeSampler(model, eos_ids=codec.eos_ids, pad_id=codec.pad_id)
    return VllmSampler(model, codec, spec)


def build(spec: RunSpec) -> Parts:
    """All parts of a run, the policy loaded and the algorithm set up."""
    algorithm, task = check(spec)
    if spec.sampler.name == "vllm":
        require_vllm()
    codec = load_codec(spec.model)
    check_prompts(spec, task, codec)
    check_room(spec, algorithm.requires)
    model, tokenizer = load_policy(spec.model, spec.seeds.of("initialisation"))
    costs = Costs()
    train = spec.train
    models = MeteredModels(
        model,
        codec,
        costs,
        temperature=train.temperature,
        rows=train.micro_batch_size,
        autocast=train.autocast,
    )
    if algorithm.requires & {"reference", "critic"}:
        models.keep_start(model)
    algorithm.setup(models)
    if "reference" not in algorithm.requires:
        models.forget_start()
    sampler = build_sampler(spec.sampler, model, codec)
    generator = Generator(
        task, codec, TextAligner(tokenizer), sampler, max_tokens=train.max_completion_tokens
    )
    return Parts(
        spec=spec,
        task=task,
        recipe=task.recipes[spec.task.recipe or task.default_recipe],
        model=model,
        codec=codec,
        algorithm=algorithm,
        models=models,
        generator=generator,
        costs=costs,
    )
