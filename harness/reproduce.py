"""The main job: a claim at a scale becomes runs, runs become a verdict, tables and a picture."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.claims.schema import Arm, Claim, Scale, parse_claim
from harness.errors import EnvironmentProblem, UserError
from harness.names import did_you_mean, lookup
from harness.spec import ModelSpec, RunSpec, SamplerSpec, TrainSpec, apply_settings, parse_run, parse_value
from harness.store.writer import read_json, write_json
from harness.sweep.jobs import Job, job_for

PROBE_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """All runs of a claim at a scale; `claim` holds any settings changed on the command line."""

    claim: Claim
    scale: str
    seeds: tuple[int, ...]
    out: Path
    jobs: tuple[Job, ...]


SETTINGS: dict[str, str] = {
    "train.horizon": "horizon",
    "evaluation.every": "eval_every",
    "evaluation.prompts": "eval_prompts",
    "task.recipe": "recipe",
    "model.name": "model",
    "stop.rule": "stop_rule",
}
"""Settings of a run that a claim's scale keeps under a name of its own."""
SECTIONS: dict[str, tuple[str, frozenset[str]]] = {
    "train": ("train", frozenset(TrainSpec.model_fields)),
    "sampler": ("sampler", frozenset(SamplerSpec.model_fields)),
    "model": ("model_settings", frozenset(ModelSpec.model_fields) - {"name", "weights"}),
}
"""Sections of a run that a claim's scale keeps whole: their name there, and their keys."""


def amend(claim: Claim, scale: str, settings: Sequence[str]) -> Claim:
    """The claim with settings changed at one scale: another definition, with another hash.

    `train.*`, `sampler.*`, `model.*`, `evaluation.*`, `task.recipe`, `task.options.*`, `stop.rule`, and
    `arms.NAME.OPTION` for one arm; UserError for any other key.
    """
    claim.scale(scale)
    if not settings:
        return claim
    body = claim.model_dump(mode="json")
    part = body["scales"][scale]
    for setting in settings:
        key, sep, text = setting.partition("=")
        if not sep:
            raise UserError(f"--set {setting!r}: write it as key=value, for example train.learning_rate=1e-4")
        head, _, rest = key.partition(".")
        if key in SETTINGS:
            part[SETTINGS[key]] = parse_value(text)
        elif head in SECTIONS and rest.partition(".")[0] in SECTIONS[head][1]:
            part[SECTIONS[head][0]] = apply_settings(part[SECTIONS[head][0]], [f"{rest}={text}"])
        elif key.startswith("task.options."):
            part["task_options"][key.removeprefix("task.options.")] = parse_value(text)
        elif head == "arms" and rest.count(".") == 1:
            arm, option = rest.split(".")
            lookup(f"arm of claim {claim.name}", arm, {a.name: a for a in claim.arms})
            part["arm_options"].setdefault(arm, {})[option] = parse_value(text)
        else:
            known = [
                *SETTINGS,
                *(f"{section}.{name}" for section, (_, names) in SECTIONS.items() for name in sorted(names)),
                "task.options.NAME",
                "arms.ARM.OPTION",
            ]
            raise UserError(did_you_mean("key of --set", key, known))
    body["deviations"] = [
        *body["deviations"],
        *(f"changed on the command line: {s}" for s in sorted(settings)),
    ]
    return parse_claim(body, f"claim {claim.name} with --set")


def parse_seeds(text: str, claim: Claim, scale: str) -> tuple[int, ...]:
    """Seeds from `5` (a count), `3-7` or `0,2,4`; the claim's own number when empty.

    UserError for text that is neither, and for seeds kept for tuning.
    """
    if not text:
        return claim.seeds(scale=scale)
    if text.isdigit():
        if int(text) < 1:
            raise UserError(f"--seeds {text!r}: give at least one seed")
        return claim.seeds(int(text), scale=scale)
    seeds = seed_list(text)
    tuned = sorted(set(seeds) & set(claim.tuning_seeds))
    if tuned:
        raise UserError(f"--seeds {text!r}: {tuned} were used for tuning this claim; choose others")
    return seeds


def seed_list(text: str) -> tuple[int, ...]:
    """Seeds from a list of numbers and ranges such as `0,2,5-7`; UserError for other text."""
    seeds: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds |= set(range(int(first), int(last or first) + 1))
    except ValueError:
        seeds = set()
    if not seeds:
        raise UserError(f"--seeds {text!r}: give a range (0-4) or a list (0,2,4)")
    return tuple(sorted(seeds))


def run_spec(claim: Claim, scale_name: str, arm: Arm, seed: int, plugins: Sequence[str] = ()) -> RunSpec:
    """The specification of one run of a claim."""
    scale: Scale = claim.scale(scale_name)
    endpoint = claim.endpoint
    stop: dict[str, Any] = {"rule": scale.stop_rule}
    if scale.stop_rule == "sustained":
        stop |= {"metric": endpoint.metric, "threshold": endpoint.threshold, "sustain": endpoint.sustain}  # type: ignore[union-attr]
    return parse_run(
        {
            "algorithm": {"name": arm.algorithm, "options": arm.options},
            "task": {
                "name": scale.task,
                "options": {**scale.task_options, **arm.task_options},
                "recipe": arm.recipe or scale.recipe or "",
            },
            "model": {"name": arm.model or scale.model, **scale.model_settings, **arm.model_settings},
            "train": {
                **scale.train,
                **arm.train,
                "horizon": max(1, round(scale.horizon * arm.horizon_fraction)),
            },
            "evaluation": {
                "every": scale.eval_every,
                "prompts": scale.eval_prompts,
                "samples": scale.eval_samples,
                "temperature": scale.eval_temperature,
            },
            "sampler": scale.sampler,
            "stop": stop,
            "seeds": {"seed": seed + arm.seed_offset},
            "plugins": list(plugins),
        }
    )


def train_line(spec: Mapping[str, Any]) -> list[str]:
    """The words of the `harness train` command that makes the run of a specification: the same run id.

    Only what differs from that command's own defaults is spelled out; the weights are pinned by the command.
    """
    own = parse_run({"algorithm": {"name": spec["algorithm"]["name"]}}).model_dump(mode="json")
    words = ["harness", "train", "--algorithm", spec["algorithm"]["name"], "--task", spec["task"]["name"]]
    words += ["--model", spec["model"]["name"], "--seeds", str(spec["seeds"]["seed"])]
    words += [word for plugin in spec["plugins"] for word in ("--plugin", plugin)]
    said = {"algorithm": {"name"}, "task": {"name"}, "model": {"name", "weights"}, "seeds": {"seed"}}
    for section, values in spec.items():
        if section == "plugins":
            continue
        if not isinstance(values, Mapping):
            words += _setting(section, values, own[section])
            continue
        before = own.get(section, {})
        for key, value in values.items():
            if key == "options":
                words += [w for name, v in value.items() for w in _setting(f"{section}.options.{name}", v)]
            elif key not in said.get(section, ()):
                words += _setting(f"{section}.{key}", value, before.get(key))
    return words


def _setting(key: str, value: Any, default: Any = None) -> list[str]:
    """`--set key=value` where the value is not the default; text that would be read as another value is quoted."""
    if value == default:
        return []
    plain = value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)
    return ["--set", f"{key}={plain}"]


def plan(
    claim: Claim, scale: str, seeds: Sequence[int], *, out: str = "", plugins: Sequence[str] = ()
) -> Plan:
    """Every run of a claim at a scale; arms take turns, so that an interrupted job has seeds of each."""
    key = claim.hash(scale)
    root = Path(out) if out else Path("results/runs") / f"{claim.name}-{scale}-{key[:8]}"
    note = {"name": claim.name, "version": claim.version, "scale": scale, "hash": key}
    jobs = [
        job_for(run_spec(claim, scale, arm, seed, plugins), root / "runs", arm=arm.name, claim=note)
        for seed in seeds
        for arm in claim.arms_at(scale)
    ]
    return Plan(claim, scale, tuple(seeds), root, tuple(jobs))


def fix_definition(plan: Plan) -> None:
    """Stores the claim's definition before its first run; refuses a folder that holds another one."""
    path, key = plan.out / "claim.json", plan.claim.hash(plan.scale)
    if path.exists():
        known = read_json(path)
        if known.get("hash") != key:
            raise EnvironmentProblem(
                f"--out {str(plan.out)!r} holds {known.get('name')} at {known.get('scale')} scale, version hash "
                f"{known.get('hash')}, not {key}: choose another folder"
            )
        return
    if plan.out.exists() and any(plan.out.iterdir()):
        raise EnvironmentProblem(
            f"--out {str(plan.out)!r} is not empty and holds no claim: choose another folder"
        )
    plan.out.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "name": plan.claim.name,
            "scale": plan.scale,
            "hash": key,
            "definition": json.loads(plan.claim.definition(plan.scale)),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    )


def estimate(jobs: Sequence[Job], parallel: int, run: Callable[[Job], str]) -> dict[str, float]:
    """Tokens and minutes of a sweep at most, from a two-step probe of its first run.

    Every run is taken to its horizon at the probe's pace: answers shorten and runs stop early as they
    learn, so the truth is usually well below.
    """
    from harness.store.reader import load_run

    folder = Path(tempfile.mkdtemp(prefix="creditbench-probe-"))
    try:
        spec = {**jobs[0].spec, "train": {**jobs[0].spec["train"], "horizon": PROBE_STEPS}}
        probe = Job(spec, str(folder / "probe"), {}, "probe")
        if run(probe) != "completed":
            raise EnvironmentProblem(f"the probe failed: {load_run(folder / 'probe').reason}")
        record = load_run(folder / "probe")
        trained = [t for t in record.timings if t["phase"] == "train"]
        evaluated = [t for t in record.timings if t["phase"] == "eval"]
        per_step = (trained[-1]["seconds"] - evaluated[0]["seconds"]) / PROBE_STEPS
        per_eval = evaluated[-1]["evaluation_seconds"] / len(evaluated)
        tokens = record.evals[-1]["costs"]["generated_tokens"] / PROBE_STEPS
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps = sum(job.spec["train"]["horizon"] for job in jobs)
    evaluations = sum(1 + job.spec["train"]["horizon"] // job.spec["evaluation"]["every"] for job in jobs)
    seconds = (steps * per_step + evaluations * per_eval) / max(1, min(parallel, len(jobs)))
    return {
        "tokens": round(tokens * steps),
        "minutes": round(seconds / 60, 1),
        "seconds_per_step": round(per_step, 2),
    }
