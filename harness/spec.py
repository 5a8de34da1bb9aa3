"""The specification of one run: typed, strict, hashed; importable without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from harness.errors import UserError
from harness.names import did_you_mean


class Strict(BaseModel):
    """Frozen, and unknown keys are errors.

    A field named in `later` came after runs had been published: it is written only where it is not at its
    default, so that the id of a run that does not use it stays what it was.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_unused_later_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        body = handler(self)
        fields = type(self).model_fields
        unused = {name for name in self.later if getattr(self, name) == fields[name].get_default()}
        return {name: value for name, value in body.items() if name not in unused}


class AlgorithmSpec(Strict):
    """A registered algorithm and its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class TaskSpec(Strict):
    """A registered task, its options, and the recipe of its local reward ("" is the task's default)."""

    name: str = "react"
    options: dict[str, Any] = Field(default_factory=dict)
    recipe: str = ""


class AdapterSpec(Strict):
    """A LoRA adapter in place of full fine-tuning; `targets` empty is every linear layer but the head."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    targets: tuple[str, ...] = ()


class ModelSpec(Strict):
    """A model preset, a folder, or a Hub id; random weights of the same shape when `random_init`.

    `weights` pins the content of a folder's weight files (filled in when a run is planned, checked when it
    is loaded), so that runs of a rebuilt model never pass for runs of the old one.
    """

    later = frozenset({"revision", "adapter", "gradient_checkpointing", "thinking"})

    name: str = "react-tiny"
    weights: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    random_init: bool = False
    revision: str = ""
    adapter: AdapterSpec | None = None
    gradient_checkpointing: bool = False
    thinking: Literal["preset", "on", "off"] = "preset"


class TrainSpec(Strict):
    """How the shared loop trains; lengths in tokens, the horizon in optimizer steps.

    `importance_cap` truncates the weight exp(old - sampling log-prob) of each token's loss (TIS); a run whose
    mean absolute difference between the two passes `mismatch_limit` (nats) is flagged.
    """

    later = frozenset({"optimizer", "autocast", "importance_cap", "mismatch_limit"})

    prompts_per_step: int = Field(16, ge=1)
    group_size: int = Field(8, ge=1)
    horizon: int = Field(80, ge=1)
    learning_rate: float = Field(3e-4, gt=0)
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    max_completion_tokens: int = Field(128, ge=1)
    temperature: float = Field(1.0, gt=0)
    updates_per_rollout: int = Field(1, ge=1)
    micro_batch_size: int = Field(16, ge=1)
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    max_refill_rounds: int = Field(10, ge=0)
    checkpoint_every: int = Field(5, ge=1)
    threads: int = Field(1, ge=1)
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    autocast: Literal["none", "bfloat16"] = "none"
    importance_cap: float | None = Field(None, gt=0)
    mismatch_limit: float = Field(0.1, gt=0)


class SamplerSpec(Strict):
    """What samples completions: the harness's own decoder, or a vLLM engine beside the trainer.

    `memory_share` is the share of the card the engine may take, `sleep` hands it back while the trainer works,
    `probe_limit` the log-prob difference (nats) allowed after the weights were handed over: the largest one in float32,
    the mean in bfloat16 (0: 1e-3 and 0.15).
    """

    name: Literal["native", "vllm"] = "native"
    dtype: Literal["model", "float32", "bfloat16"] = "model"
    memory_share: float = Field(0.45, gt=0, le=1)
    sleep: bool = True
    eager: bool = False
    probe_sequences: int = Field(4, ge=1)
    probe_limit: float = Field(0.0, ge=0)


class EvaluationSpec(Strict):
    """Held-out evaluation: every n optimizer steps, on the first `prompts` of the test split."""

    every: int = Field(5, ge=1)
    prompts: int = Field(200, ge=1)
    samples: int = Field(1, ge=1)
    temperature: float = Field(1.0, gt=0)


class StopSpec(Strict):
    """`sustained` ends a run `after` optimizer steps past the last of `sustain` evaluations in a row at the threshold."""

    rule: Literal["none", "sustained"] = "none"
    metric: str = ""
    threshold: float = 0.8
    sustain: int = Field(3, ge=1)
    after: int = Field(0, ge=0)


class SeedSpec(Strict):
    """Independent seeds; each defaults to one derived from `seed`."""

    seed: int = Field(0, ge=0)
    data: int | None = None
    sampling: int | None = None
    initialisation: int | None = None
    evaluation: int | None = None

    def of(self, purpose: Literal["data", "sampling", "initialisation", "evaluation"]) -> int:
        """The seed of one purpose."""
        own = getattr(self, purpose)
        if own is not None:
            return own
        digest = hashlib.blake2b(f"{purpose}:{self.seed}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big")


class RunSpec(Strict):
    """Everything that determines a run; its hash is the run's id."""

    later = frozenset({"sampler"})

    algorithm: AlgorithmSpec
    task: TaskSpec = TaskSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec = TrainSpec()
    sampler: SamplerSpec = SamplerSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    stop: StopSpec = StopSpec()
    seeds: SeedSpec = SeedSpec()
    plugins: tuple[str, ...] = ()
    label: str = ""

    @model_validator(mode="after")
    def _divides(self) -> RunSpec:
        rows = self.train.prompts_per_step * self.train.group_size
        if rows % self.train.updates_per_rollout:
            raise ValueError(
                f"train.updates_per_rollout={self.train.updates_per_rollout} does not divide the {rows} completions "
                "of a rollout; choose a divisor of prompts_per_step x group_size"
            )
        return self

    @property
    def run_id(self) -> str:
        """Twelve hex digits of the hash of the canonical specification."""
        return fingerprint(self.model_dump(mode="json"))[:12]


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _known_fields(location: Sequence[str | int]) -> list[str]:
    model: Any = RunSpec
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def parse_run(value: Mapping[str, Any]) -> RunSpec:
    """A RunSpec from plain data; UserError names the first wrong field, its value and the fix."""
    try:
        return RunSpec.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _known_fields(first["loc"][:-1])
            prefix = ".".join(str(part) for part in first["loc"][:-1])
            raise UserError(
                did_you_mean(f"key{f' in {prefix}' if prefix else ''}", str(first["loc"][-1]), known)
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        given = f"={first['input']!r}" if where and not isinstance(first["input"], dict) else ""
        raise UserError(f"{where}{given}: {message}" if where else message) from None


def parse_value(text: str) -> Any:
    """The value of `--set key=value`: JSON where it parses (numbers, true, lists), else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def apply_settings(value: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A copy of `value` with each `a.b=c` applied; UserError when one has no `=` or runs through a leaf."""
    out: dict[str, Any] = json.loads(json.dumps(value))
    for setting in settings:
        path, sep, text = setting.partition("=")
        if not sep or not path.strip():
            raise UserError(f"--set {setting!r}: write it as key=value, for example train.learning_rate=1e-4")
        node = out
        *parents, leaf = path.strip().split(".")
        for part in parents:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                raise UserError(
                    f"--set {setting!r}: {part!r} is a value, not a section; its value is {child!r}"
                )
            node = child
        node[leaf] = parse_value(text)
    return out
