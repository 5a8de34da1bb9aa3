"""The declarative form of a published claim: one TOML file each, validated strictly."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import UserError
from harness.names import did_you_mean

SCALES = ("smoke", "tiny", "small", "paper")
FOLDER = Path(__file__).parent
Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """Frozen, and refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Arm(Strict):
    """One side of a comparison: an algorithm with its options, and what differs from the scale's settings."""

    name: str
    algorithm: str
    options: dict[str, Any] = {}
    train: dict[str, Any] = {}
    task_options: dict[str, Any] = {}
    recipe: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] = {}
    horizon_fraction: float = Field(default=1.0, gt=0, le=1)
    factors: dict[str, str | float] = {}
    seed_offset: Annotated[int, Field(ge=0)] = 0


class Comparison(Strict):
    """`treatment` against `baseline`; only primary comparisons decide the verdict."""

    treatment: str
    baseline: str
    primary: bool = True


class Published(Strict):
    """The figure in print: its value on the endpoint's scale (None: an order only) and how it is read."""

    value: float | None = None
    reading: str


class TimeToThreshold(Strict):
    """How many times sooner the treatment reaches a level of a metric; `axis` is the cost that decides."""

    kind: Literal["time_to_threshold"] = "time_to_threshold"
    metric: str
    threshold: float
    sustain: Positive = 3
    rule: Literal["isotonic", "sustained", "raw"] = "isotonic"
    axis: str = "optimizer_steps"


class FinalDifference(Strict):
    """Difference of a metric at the end, treatment minus baseline (mean of the last `last` evaluations)."""

    kind: Literal["final_difference"] = "final_difference"
    metric: str
    last: Positive = 1
    at_equal: str | None = None


class PassAtKDifference(Strict):
    """Difference of Pass@k, treatment minus baseline, for every k of a grid named before the run."""

    kind: Literal["pass_at_k_difference"] = "pass_at_k_difference"
    metric: str = "correct"
    k: tuple[Positive, ...]
    population: Literal["these_problems", "such_problems"] = "these_problems"


class Equivalence(Strict):
    """Difference of a metric inside (-margin, margin), by two one-sided tests."""

    kind: Literal["equivalence"] = "equivalence"
    metric: str
    margin: float = Field(gt=0)
    last: Positive = 1
    at_equal: str | None = None


class WinRate(Strict):
    """Share of pairs in which a judge prefers the treatment, both orders shown, ties counted half.

    `metric` is recorded with the treatment's evaluations; `{baseline}` stands for the baseline's name.
    """

    kind: Literal["win_rate"] = "win_rate"
    metric: str = "win_rate_vs_{baseline}"


class Factorial(Strict):
    """Main effects and interaction of two factors of the arms (levels 0 and 1), on log time to a threshold.

    The first factor's main effect decides the verdict; arms without these factors are controls.
    """

    kind: Literal["factorial"] = "factorial"
    metric: str
    threshold: float
    factors: tuple[str, str]
    sustain: Positive = 3
    rule: Literal["isotonic", "sustained", "raw"] = "isotonic"


class Scaling(Strict):
    """Exponent b in cost = a * size^b over the arms of each algorithm; both are cost axes."""

    kind: Literal["scaling"] = "scaling"
    metric: str
    size: str
    exponent: float = 1.0
    margin: float = Field(default=0.15, gt=0)


class Slope(Strict):
    """One question of a trend: how `treatment`'s log speed-up changes with a factor of the cells named."""

    treatment: str
    factor: str
    sign: Literal[1, -1]
    cells: tuple[str, ...]
    primary: bool = True


class Trend(Strict):
    """How the speed-up over the baseline changes along a factor of the claim's cells; each slope has a sign to show."""

    kind: Literal["trend"] = "trend"
    metric: str
    threshold: float
    slopes: tuple[Slope, ...]
    sustain: Positive = 3
    rule: Literal["isotonic", "sustained", "raw"] = "isotonic"


Endpoint = Annotated[
    TimeToThreshold
    | FinalDifference
    | PassAtKDifference
    | Equivalence
    | WinRate
    | Factorial
    | Scaling
    | Trend,
    Field(discriminator="kind"),
]


class Cell(Strict):
    """One setting of the task in which arms are compared: its factors, its options, and which arms (all, if none)."""

    name: str
    factors: dict[str, float] = {}
    task_options: dict[str, Any] = {}
    train: dict[str, Any] = {}
    arms: tuple[str, ...] = ()


class ArmSettings(Strict):
    """What one arm has of its own at one scale."""

    train: dict[str, Any] = {}
    task_options: dict[str, Any] = {}
    recipe: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] = {}


class Scale(Strict):
    """Everything a run needs at one scale.

    `train`, `sampler` and `model_settings` hold settings of the trainer, the sampler and the model by their own
    names. `published_settings` says of settings (`train.learning_rate`, `algorithm.options.epsilon_low`) which
    source states them, `chosen` why the others are what they are; a setting in neither is chosen.
    """

    model: str
    task: str
    task_options: dict[str, Any] = {}
    recipe: str | None = None
    horizon: Positive
    eval_every: Positive
    eval_prompts: Positive
    eval_samples: Positive = 1
    eval_temperature: float = Field(default=1.0, gt=0)
    seeds: Positive | None = None
    stop_rule: Literal["none", "sustained"] = "none"
    train: dict[str, Any] = {}
    sampler: dict[str, Any] = {}
    model_settings: dict[str, Any] = {}
    arm_options: dict[str, dict[str, Any]] = {}
    arm_settings: dict[str, ArmSettings] = {}
    published_settings: dict[str, str] = {}
    chosen: dict[str, str] = {}
    arms: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


CONTROL = "_control"
CONTROL_OFFSET = 5000
DECISIVE = {
    "name", "version", "published", "baseline", "endpoint", "secondary", "smallest_effect", "size_width", "minimum_seeds",
    "first_seed", "paired",
}  # fmt: skip


def _in_cell(arm: Arm, cell: Cell) -> Arm:
    return arm.model_copy(
        update={
            "name": f"{arm.name}@{cell.name}",
            "task_options": {**arm.task_options, **cell.task_options},
            "train": {**arm.train, **cell.train},
            "factors": {**arm.factors, **cell.factors},
        }
    )


class Claim(Strict):
    """A published statement, how it will be tested, and what would count as its support; see load_claim."""

    name: str
    version: Positive
    statement: str
    source: str
    published: Published
    baseline: str
    arms: tuple[Arm, ...]
    endpoint: Endpoint
    secondary: tuple[Endpoint, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    cells: tuple[Cell, ...] = ()
    smallest_effect: float = 1.10
    size_width: float = 1.6
    minimum_seeds: Positive = 4
    default_seeds: Positive = 5
    first_seed: int = 0
    tuning_seeds: tuple[int, ...] = ()
    paired: bool = False
    deviations: tuple[str, ...] = ()
    not_at: dict[str, str] = {}
    scales: dict[str, Scale]

    @model_validator(mode="after")
    def _names_agree(self) -> Claim:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"arms: names must differ, got {names}")
        used = [self.baseline]
        used += [name for pair in self.comparisons for name in (pair.treatment, pair.baseline)]
        for label in (*self.scales, *self.not_at):
            if label not in SCALES:
                raise ValueError(did_you_mean("scale", label, SCALES))
        for scale in self.scales.values():
            used += [*scale.arm_options, *scale.arm_settings, *scale.arms]
        used += [name for cell in self.cells for name in cell.arms]
        slopes = self.endpoint.slopes if isinstance(self.endpoint, Trend) else ()
        used += [slope.treatment for slope in slopes]
        for name in used:
            if name not in names:
                raise ValueError(did_you_mean("arm", name, names))
        cells = [cell.name for cell in self.cells]
        in_cells = [
            *(n for s in self.scales.values() for n in s.cells),
            *(n for s in slopes for n in s.cells),
        ]
        for name in in_cells:
            if name not in cells:
                raise ValueError(did_you_mean("cell", name, cells))
        planned = range(self.first_seed, self.first_seed + self.default_seeds)
        if set(planned) & set(self.tuning_seeds):
            raise ValueError(
                f"tuning_seeds {self.tuning_seeds} overlap the seeds {list(planned)} of the claim"
            )
        return self

    def scale(self, name: str) -> Scale:
        """The settings at a scale; UserError where the claim has none, with its reason where it gives one."""
        if name in self.not_at and name not in self.scales:
            raise UserError(f"claim {self.name!r} has no scale {name!r}: {self.not_at[name]}")
        if name not in self.scales:
            raise UserError(f"claim {self.name!r} has " + did_you_mean("scale", name, self.scales))
        return self.scales[name]

    def completions_a_seed(self, scale: str) -> int:
        """Completions of one seed of every arm, taken to the horizon: known before any run."""
        setting, count = self.scale(scale), 0
        for arm in self.arms_at(scale):
            train = {**setting.train, **arm.train}
            steps = max(1, round(setting.horizon * arm.horizon_fraction))
            rows = train.get("prompts_per_step", 16) * train.get("group_size", 8)
            count += steps * rows // train.get("updates_per_rollout", 1)
            count += (1 + steps // setting.eval_every) * setting.eval_prompts * setting.eval_samples
        return count

    def arms_at(self, scale: str) -> tuple[Arm, ...]:
        """The arms run at a scale, with the scale's own options merged in."""
        setting = self.scale(scale)
        chosen = [self._at(arm, setting) for arm in self.arms if not setting.arms or arm.name in setting.arms]
        if not self.cells:
            return tuple(chosen)
        return tuple(
            _in_cell(arm, cell)
            for cell in self.cells_at(scale)
            for arm in chosen
            if not cell.arms or arm.name in cell.arms
        )

    def cells_at(self, scale: str) -> tuple[Cell, ...]:
        """The cells run at a scale; an arm there is called `arm@cell`."""
        named = self.scale(scale).cells
        return tuple(cell for cell in self.cells if not named or cell.name in named)

    def _at(self, arm: Arm, setting: Scale) -> Arm:
        own = setting.arm_settings.get(arm.name, ArmSettings())
        return arm.model_copy(
            update={
                "options": {**arm.options, **setting.arm_options.get(arm.name, {})},
                "train": {**arm.train, **own.train},
                "task_options": {**arm.task_options, **own.task_options},
                "recipe": own.recipe or arm.recipe,
                "model": own.model or arm.model,
                "model_settings": {**arm.model_settings, **own.model_settings},
            }
        )

    def arm(self, name: str) -> Arm:
        """The arm called `name`."""
        return next(arm for arm in self.arms if arm.name == name)

    def comparisons_at(self, scale: str) -> tuple[Comparison, ...]:
        """The comparisons made at a scale: those declared, or every other arm against the baseline."""
        names = [arm.name for arm in self.arms_at(scale)]
        if self.cells:
            split = [(name, *name.split("@", 1)) for name in names]
            return tuple(
                Comparison(treatment=name, baseline=f"{self.baseline}@{cell}", primary=False)
                for name, arm, cell in split
                if arm != self.baseline and f"{self.baseline}@{cell}" in names
            )
        pairs = self.comparisons or tuple(
            Comparison(treatment=name, baseline=self.baseline) for name in names if name != self.baseline
        )
        return tuple(pair for pair in pairs if pair.treatment in names and pair.baseline in names)

    def with_control(self) -> Claim:
        """The claim with an A/A control: the baseline once more, on seeds of its own, compared but not judged.

        A difference between the control and the baseline would cast doubt on the whole sweep. This is
        another definition, with another hash.
        """
        base = self.arm(self.baseline)
        control = base.model_copy(
            update={"name": f"{base.name}{CONTROL}", "seed_offset": CONTROL_OFFSET, "factors": {}}
        )
        pairs = self.comparisons or tuple(
            Comparison(treatment=arm.name, baseline=self.baseline)
            for arm in self.arms
            if arm.name != self.baseline
        )
        pairs += (Comparison(treatment=control.name, baseline=base.name, primary=False),)
        body = self.model_dump(mode="json")
        body["arms"] = [*body["arms"], control.model_dump(mode="json")]
        body["comparisons"] = [pair.model_dump(mode="json") for pair in pairs]
        for scale in body["scales"].values():
            for key in ("arm_options", "arm_settings"):
                if base.name in scale[key]:
                    scale[key][control.name] = scale[key][base.name]
            if scale["arms"]:
                scale["arms"] = [*scale["arms"], control.name]
        return Claim.model_validate(body)

    def seeds(self, count: int | None = None, *, scale: str | None = None) -> tuple[int, ...]:
        """The seeds of a confirmation, in order; UserError when they would reach the tuning seeds."""
        preset = self.scale(scale).seeds if scale else None
        number = count or preset or self.default_seeds
        found = tuple(range(self.first_seed, self.first_seed + number))
        if set(found) & set(self.tuning_seeds):
            raise UserError(
                f"seeds={number}: reaches the tuning seeds {list(self.tuning_seeds)} of claim {self.name!r}; "
                "take fewer"
            )
        return found

    def definition(self, scale: str | None = None) -> str:
        """Canonical JSON of what was fixed before the first run; with `scale`, of that scale alone.

        What decides a verdict is always spelled out; other fields only where they differ from their
        default, so that a field added by a later harness leaves older definitions as they were. Why a claim
        has no run at a scale (`not_at`) is no part of it.
        """
        decisive = self.model_dump(mode="json", include=DECISIVE)
        if decisive["endpoint"].get("axis") == "optimizer_steps":
            del decisive["endpoint"]["axis"]
        body = {**self.model_dump(mode="json", exclude_defaults=True, exclude={"not_at"}), **decisive}
        if scale is not None:
            self.scale(scale)
            body["scales"] = {scale: body["scales"][scale]}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def hash(self, scale: str | None = None) -> str:
        """First 16 hexadecimal digits of the SHA-256 of `definition`."""
        return hashlib.sha256(self.definition(scale).encode()).hexdigest()[:16]


KINDS: dict[str, type[Strict]] = {
    model.model_fields["kind"].default: model
    for model in (
        TimeToThreshold,
        FinalDifference,
        PassAtKDifference,
        Equivalence,
        WinRate,
        Factorial,
        Scaling,
        Trend,
    )
}


def _known_keys(model: Any, path: tuple[Any, ...]) -> list[str]:
    """The keys that are allowed where an unknown one was found."""
    groups: dict[str, type[BaseModel]] = {
        "arms": Arm,
        "arm_settings": ArmSettings,
        "published": Published,
        "comparisons": Comparison,
        "cells": Cell,
        "slopes": Slope,
        "scales": Scale,
    }
    for part in reversed(path):
        if part in KINDS:
            return list(KINDS[part].model_fields)
        if part in groups:
            return list(groups[part].model_fields)
    return list(model.model_fields)


def _explain(error: ValidationError, where: str) -> str:
    """One line: the file, the field, its value, and the nearest known name or what is wrong."""
    first = error.errors()[0]
    path = tuple(first["loc"])
    field = ".".join(str(part) for part in path if part not in KINDS) or "claim"
    if first["type"] == "extra_forbidden":
        return f"{where}: {field}: " + did_you_mean("key", str(path[-1]), _known_keys(Claim, path[:-1]))
    if first["type"] == "missing":
        return f"{where}: {field} is missing: add it"
    value = "" if isinstance(first["input"], dict | list) else f"={first['input']!r}"
    return f"{where}: {field}{value}: {first['msg'].removeprefix('Value error, ')}"


def parse_claim(data: Mapping[str, Any], where: str) -> Claim:
    """A claim from a mapping; UserError in one line that names field, value and fix."""
    try:
        return Claim.model_validate(data)
    except ValidationError as error:
        raise UserError(_explain(error, where)) from error


def load_claim_file(path: Path) -> Claim:
    """A claim from a TOML file; UserError when it cannot be read or breaks the schema."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"claim file {str(path)!r} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"claim file {str(path)!r} is not valid TOML: {error}") from error
    return parse_claim(data, path.name)


def claim_names() -> list[str]:
    """Names of the claims that come with the harness, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_claim(name: str) -> Claim:
    """The claim called `name` (or the TOML file it names); UserError with the nearest names otherwise."""
    if name.endswith(".toml"):
        return load_claim_file(Path(name))
    if name not in claim_names():
        raise UserError(did_you_mean("claim", name, claim_names()))
    return load_claim_file(FOLDER / f"{name}.toml")
