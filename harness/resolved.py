"""A claim at a scale, resolved before any GPU hour is spent: what would run, by which settings, and what it takes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.claims.schema import Arm, Claim, Scale, WinRate
from harness.errors import UserError
from harness.judge_costs import judge_lines
from harness.models import PRESETS
from harness.models.source import shape_of
from harness.names import did_you_mean
from harness.origins import PUBLISHED_OPTIONS, REASONS
from harness.spec import RunSpec, parse_run
from harness.sweep.jobs import Job
from harness.throughput import (
    H100,
    ROLLOUT_SECONDS,
    SLEEP_SECONDS,
    START_SECONDS,
    Card,
    assumptions,
    decode_seconds,
    pass_seconds,
)

PROMPT_TOKENS = 300
"""Assumed length of a prompt."""
GIB = 2**30
PRM_BYTES = 7.6e9 * 2
"""Weights of Qwen2.5-Math-PRM-7B in bfloat16."""


@dataclass(frozen=True)
class Setting:
    """One setting: its value in every arm (or by arm), whether a source states it, and which or why."""

    key: str
    value: Any
    origin: str
    words: str


@dataclass(frozen=True)
class ArmPlan:
    """What one run of an arm samples and takes at most: every answer at the token limit, to the horizon."""

    arm: str
    algorithm: str
    model: str
    optimizer_steps: int
    prompts: int
    completions: int
    evaluation_completions: int
    tokens: int
    evaluation_tokens: int
    passes: str
    hours: float | None
    memory_bytes: float | None = None
    fits: bool | None = None
    change: str = ""


@dataclass(frozen=True)
class Resolved:
    """The whole plan; `hours` and `tokens` are of all runs, at most."""

    claim: str
    scale: str
    card: str
    seeds: tuple[int, ...]
    models: tuple[Mapping[str, str], ...]
    data: tuple[str, ...]
    settings: tuple[Setting, ...]
    arms: tuple[ArmPlan, ...]
    tokens: int
    hours: float | None
    judge: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def resolve(claim: Claim, scale: str, jobs: Sequence[Job], card: Card = H100) -> Resolved:
    """The plan of a claim's runs; UserError where a word on settings names no setting."""
    setting = claim.scale(scale)
    specs = {job.arm: parse_run(job.spec) for job in jobs}
    seeds = tuple(dict.fromkeys(job.spec["seeds"]["seed"] for job in jobs if job.arm == next(iter(specs))))
    arms = tuple(_arm_plan(name, spec, card) for name, spec in specs.items())
    hours = [arm.hours for arm in arms]
    pairs = len(claim.comparisons_at(scale)) if isinstance(claim.endpoint, WinRate) else 0
    return Resolved(
        claim=claim.name,
        scale=scale,
        card=card.name,
        seeds=seeds,
        models=tuple(_models(specs.values())),
        data=tuple(dict.fromkeys(line for spec in specs.values() for line in _data(spec))),
        settings=tuple(settings_of(claim, scale, specs)),
        arms=arms,
        tokens=sum(arm.tokens + arm.evaluation_tokens for arm in arms) * len(seeds),
        hours=None if None in hours else sum(h or 0.0 for h in hours) * len(seeds),
        judge=tuple(judge_lines(specs, arms, len(seeds), pairs * setting.eval_prompts)),
        notes=(*assumptions(card), *_notes(specs)),
    )


def _arm_plan(name: str, spec: RunSpec, card: Card) -> ArmPlan:
    train, evaluation = spec.train, spec.evaluation
    rollouts = math.ceil(train.horizon / train.updates_per_rollout)
    evaluations = 1 + train.horizon // evaluation.every + bool(train.horizon % evaluation.every)
    rows, tested = train.prompts_per_step * train.group_size, evaluation.prompts * evaluation.samples
    limit = train.max_completion_tokens
    requires = build_requires(spec)
    passes, words = _passes(spec, requires)
    return ArmPlan(
        arm=name,
        algorithm=spec.algorithm.name,
        model=spec.model.name,
        optimizer_steps=train.horizon,
        prompts=rollouts * train.prompts_per_step,
        completions=rollouts * rows,
        evaluation_completions=evaluations * tested,
        tokens=rollouts * rows * limit,
        evaluation_tokens=evaluations * tested * limit,
        passes=words,
        hours=_hours(spec, rollouts, evaluations, passes, card),
        **_memory(spec, requires, card),
    )


def build_requires(spec: RunSpec) -> frozenset[str]:
    """What the run's algorithm needs, with its options: groups, a reference, a critic."""
    from harness.train.build import build_algorithm

    return build_algorithm(spec).requires


def _passes(spec: RunSpec, requires: frozenset[str]) -> tuple[float, str]:
    """Forward passes over a rollout's tokens (a backward counts for two), and what they are for."""
    update = 4.0 if spec.model.gradient_checkpointing else 3.0
    parts = [(update, "update")]
    if spec.train.old_logprobs == "recompute":
        parts.append((1.0, "old log-probs"))
    if "reference" in requires:
        parts.append((1.0, "reference"))
    if "rubric" in requires:
        parts.append((1.0, "replay without the rubric"))
    if "critic" in requires:
        parts += [(1.0, "values"), (3.0, "critic's update")]
    return sum(count for count, _ in parts), ", ".join(f"{words} {count:g}" for count, words in parts)


def _hours(spec: RunSpec, rollouts: int, evaluations: int, passes: float, card: Card) -> float | None:
    """GPU hours of one run at most; None for a model of unknown size."""
    shape, train = shape_of(spec.model.name), spec.train
    if shape is None:
        return None
    limit, share = train.max_completion_tokens, spec.sampler.memory_share

    def sampling(rows: int) -> float:
        return decode_seconds(shape, rows, PROMPT_TOKENS, limit, card=card, memory_share=share)

    rows = train.prompts_per_step * train.group_size
    step = sampling(rows) + pass_seconds(shape, rows, PROMPT_TOKENS, limit, card=card, passes=passes)
    tested = sampling(spec.evaluation.prompts * spec.evaluation.samples)
    sleeps = SLEEP_SECONDS if spec.sampler.name == "vllm" and spec.sampler.sleep else 0.0
    seconds = START_SECONDS + rollouts * (step + ROLLOUT_SECONDS + sleeps) + evaluations * tested
    return seconds / 3600


def _memory(spec: RunSpec, requires: frozenset[str], card: Card) -> dict[str, Any]:
    """Peak memory of a run on the card, a process-reward model beside it included, and what to change if too much."""
    from harness.memory import answer

    shape = shape_of(spec.model.name)
    if shape is None:
        return {}
    judge = PRM_BYTES if spec.task.options.get("judge") == "prm" else 0.0
    found = answer(shape, spec, requires, (card.memory_bytes - judge) / GIB, PROMPT_TOKENS)
    change = "nothing helps" if found.change is None else ", ".join(found.change)
    return {"memory_bytes": found.plan.total + judge, "fits": found.fits, "change": change}


def _models(specs: Any) -> Iterator[dict[str, str]]:
    """Each model once: where it comes from, its revision, its size."""
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        name = spec.model.name
        preset = PRESETS.get(name)
        revision = spec.model.revision or (preset.revision if preset and preset.source == "hub" else "")
        if (name, revision) in seen:
            continue
        seen.add((name, revision))
        shape = shape_of(name)
        pinned = f"files {spec.model.weights}" if spec.model.weights else revision or "not pinned"
        yield {
            "name": name,
            "location": preset.location if preset else name,
            "revision": pinned,
            "parameters": f"{shape.parameters / 1e9:.3g} B" if shape else "unknown",
        }


def _data(spec: RunSpec) -> Iterator[str]:
    """The problems trained and tested on, with their revisions."""
    import harness

    if spec.task.name != "aime":
        yield (
            f"{spec.task.name}: generated by the task itself, creditbench {harness.__version__}; tested on the first "
            f"{spec.evaluation.prompts} of its test split"
        )
        return
    from tasks.aime.problems import HUB_SETS

    for purpose, key in (("trained on", "source"), ("tested on", "test_source")):
        name = spec.task.options.get(key) or "generated"
        found = HUB_SETS.get(name)
        where = (
            f"{found.repository} at {found.revision}, {found.filename}, SHA-256 {found.sha256}"
            if found
            else name
        )
        yield f"{purpose} {name}: {where}"


def settings_of(claim: Claim, scale: str, specs: Mapping[str, RunSpec]) -> list[Setting]:
    """Every setting of the runs with its origin: `published`, or `chosen` with the reason where one is given."""
    setting, by_key = claim.scale(scale), {name: dict(_flat(spec)) for name, spec in specs.items()}
    keys = list(dict.fromkeys(key for values in by_key.values() for key in values))
    for word in (*setting.published_settings, *setting.chosen):
        if word not in keys:
            raise UserError(f"claim {claim.name!r}, scales.{scale}: " + did_you_mean("setting", word, keys))
    defaults = dict(_flat(parse_run({"algorithm": {"name": "grpo"}, "stop": {"rule": setting.stop_rule}})))
    arms = {arm.name: arm for arm in claim.arms_at(scale)}
    out = []
    for key in keys:
        groups: dict[str, list[str]] = {}
        found: dict[str, tuple[Any, str, str]] = {}
        for name, values in by_key.items():
            if key in values:
                value = values[key]
                row = (value, *_origin(key, setting, arms[name], specs[name], value, defaults))
                groups.setdefault(json.dumps(row), []).append(name)
                found[name] = row
        for group in groups.values():
            label = key if len(group) == len(specs) else f"{key} ({', '.join(group)})"
            out.append(Setting(label, *found[group[0]]))
    return out


def _flat(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    """Every setting of a run by its dotted key, those at their default and all options of the algorithm included."""
    from harness.registry import algorithms
    from harness.show import options_of

    yield from (("model.name", spec.model.name), ("task.name", spec.task.name))
    options = {**options_of(algorithms()[spec.algorithm.name]), **spec.algorithm.options}
    yield from ((f"algorithm.options.{key}", value) for key, value in options.items())
    for section in ("task", "model", "train", "sampler", "evaluation", "stop"):
        part = getattr(spec, section)
        for key in type(part).model_fields:
            value = getattr(part, key)
            if key == "options":
                yield from ((f"task.options.{name}", item) for name, item in value.items())
            elif (section, key) not in (("task", "name"), ("model", "name"), ("model", "weights")):
                yield f"{section}.{key}", value if not hasattr(value, "model_dump") else value.model_dump()


def _origin(
    key: str, setting: Scale, arm: Arm, spec: RunSpec, value: Any, defaults: Mapping[str, Any]
) -> tuple[str, str]:
    if key in setting.published_settings:
        return "published", setting.published_settings[key]
    if key in setting.chosen:
        return "chosen", setting.chosen[key]
    option = key.removeprefix("algorithm.options.")
    if option != key:
        if option in arm.options:
            return "chosen", "what the arm is about, or the claim's own"
        source = PUBLISHED_OPTIONS.get(spec.algorithm.name, {}).get(option)
        return ("published", source) if source else ("chosen", "default of the algorithm")
    if key.removeprefix("task.options.") in arm.task_options and key not in defaults:
        return "chosen", "what the arm or the scale is about"
    usual = defaults.get(key, ...) == value
    if usual and key.partition(".")[0] in ("stop", "sampler", "model"):
        return "chosen", "default of the harness"
    return "chosen", REASONS.get(key, "default of the harness" if usual else "")


def _notes(specs: Mapping[str, RunSpec]) -> Iterator[str]:
    yield (
        "tokens and hours are upper bounds: every answer at the token limit, every run to its horizon; answers of half "
        "the length take about half"
    )
    for name, spec in specs.items():
        if spec.algorithm.name == "dapo":
            rounds = 1 + spec.train.max_refill_rounds
            yield (
                f"{name} draws other prompts for groups without signal: it may sample up to {rounds} times as much, which "
                "is not in the figures"
            )
        if spec.task.options.get("judge") == "prm":
            yield f"{name}: the process-reward model reads every answer on the same card, which is not in the hours"
