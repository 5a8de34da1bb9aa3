"""Publishes a run's model: weights, tokenizer, and a model card made from its manifest; to a folder or the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import EnvironmentProblem, UserError
from harness.store.checksums import write_checksums
from harness.store.reader import RunRecord, load_run
from harness.store.writer import write_atomic

CARD = """\
# {{ run.arm }} on {{ task }}, seed {{ run.seed }}

Trained with creditbench {{ versions.get("creditbench", "") }} by the
algorithm `{{ run.algorithm }}` from `{{ base }}`, for {{ step }} optimizer steps ({{ status }}).
{%- if claim %} One run of the claim `{{ claim }}` at {{ scale }} scale.{% endif %}

This is one seed of a comparison, made to measure a training method. It is not a model for use.

## Held-out evaluation of these weights

| metric | value |
|---|---|
{%- for name, value in metrics.items() %}
| {{ name }} | {{ "%.4g" | format(value) }} |
{%- endfor %}

n = {{ n }} completions, optimizer step {{ step }}.

## What it cost

| | |
|---|---|
{%- for name, value in costs.items() %}
| {{ name.replace("_", " ") }} | {{ "{:,.6g}".format(value) }} |
{%- endfor %}

## How to repeat it

Run id `{{ run.run_id }}`: the hash of the specification in `manifest.json`, which is complete.

```json
{{ spec }}
```

Versions: {% for name, value in versions.items() %}{{ name }} {{ value }}{{ "" if loop.last else ", " }}{% endfor %}.
"""


@dataclass(frozen=True)
class Published:
    """Where a run's model went: the folder, and its address on the Hub ("" for a folder alone)."""

    folder: Path
    url: str = ""


def load_checkpoint(run: RunRecord, which: Literal["best", "last"]) -> tuple[Mapping[str, Any], int]:
    """The weights of a run's best or last checkpoint and their optimizer step; EnvironmentProblem when damaged."""
    from harness.train import checkpoint

    folder = run.path / "checkpoints"
    if which == "best":
        state = checkpoint.load(folder / "best.pt", device="cpu")
    else:
        sound = (checkpoint.load(path, device="cpu") for path in reversed(checkpoint.steps(folder)))
        state = next((found for found in sound if found is not None), None)
    if state is None:
        raise EnvironmentProblem(
            f"{folder}: the {which} checkpoint is absent or damaged; try --checkpoint "
            f"{'last' if which == 'best' else 'best'}"
        )
    step = state["optimizer_step"] if which == "best" else state["progress"]["optimizer_step"]
    return state["model"], int(step)


def evaluation_at(run: RunRecord, step: int) -> Mapping[str, Any]:
    """The evaluation of the weights at an optimizer step; the last one before it otherwise."""
    before = [record for record in run.evals if record["optimizer_step"] <= step]
    return before[-1] if before else {"metrics": {}, "costs": {}, "n": 0, "optimizer_step": 0}


def model_card(run: RunRecord, step: int) -> str:
    """The model card: metadata that the Hub reads, results and costs of these weights, the whole specification."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    spec = dict(run.spec)
    base = spec["model"]["name"]
    task = spec["task"]["name"]
    evaluation = evaluation_at(run, step)
    data = ModelCardData(
        base_model=base if "/" in base and not Path(base).is_dir() else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["creditbench", "reinforcement-learning", run.algorithm],
        model_name=f"{run.arm}-seed{run.seed}-{run.run_id}",
        eval_results=[
            EvalResult(
                task_type="text-generation",
                dataset_type=task,
                dataset_name=f"creditbench {task}",
                dataset_split="test",
                metric_type=name,
                metric_value=round(float(value), 6),
            )
            for name, value in evaluation["metrics"].items()
        ],
    )
    card = ModelCard.from_template(
        data,
        template_str="---\n{{ card_data }}\n---\n\n" + CARD,
        run=run,
        task=task,
        base=base,
        step=step,
        status=run.status,
        claim=run.claim.get("name", ""),
        scale=run.claim.get("scale", ""),
        metrics=evaluation["metrics"],
        costs=evaluation["costs"],
        n=evaluation["n"],
        spec=json.dumps(spec, indent=2, sort_keys=True),
        versions=run.manifest.get("versions", {}),
    )
    return str(card)


def to_folder(run_folder: Path, out: Path, *, which: Literal["best", "last"] = "best") -> Path:
    """Writes weights (safetensors), tokenizer, card, manifest, evaluations and SHA256SUMS to a new folder.

    Needs no network. UserError when the folder holds no run or `out` is not empty.
    """
    from harness.spec import parse_run
    from harness.train.adapters import merge_adapter
    from harness.train.load import load_policy

    if not (run_folder / "manifest.json").exists():
        raise UserError(f"{run_folder}: holds no manifest.json; give the folder of one run")
    if out.exists() and any(out.iterdir()):
        raise EnvironmentProblem(f"--out {str(out)!r} is not empty: choose another folder")
    run = load_run(run_folder, with_steps=False)
    spec = parse_run({**run.spec, "model": {**run.spec["model"], "device": "cpu"}})
    weights, step = load_checkpoint(run, which)
    model, tokenizer = load_policy(spec.model, spec.seeds.of("initialisation"))
    model.load_state_dict(weights)
    merge_adapter(model)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_atomic(out / "README.md", model_card(run, step).encode())
    for name in ("manifest.json", "evals.jsonl"):
        shutil.copyfile(run_folder / name, out / name)
    write_checksums(out, [path for path in out.rglob("*") if path.is_file()])
    return out


def to_hub(folder: Path, repo: str, *, private: bool = True) -> str:
    """Uploads a published folder to a Hub repository, made where absent; its address.

    EnvironmentProblem when the Hub cannot be reached or refuses; the folder stays.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi()
    try:
        url = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repo, commit_message="Publish a run of creditbench")
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentProblem(
            f"--repo {repo}: the Hub refused or is out of reach ({first}); the model is in {folder}"
        ) from error
    return str(url)


def publish(
    run_folder: Path,
    out: Path,
    *,
    which: Literal["best", "last"] = "best",
    repo: str = "",
    private: bool = True,
) -> Published:
    """Writes a run's model to `out`, and uploads it to the Hub repository `repo` when one is named."""
    folder = to_folder(run_folder, out, which=which)
    return Published(folder, to_hub(folder, repo, private=private) if repo else "")
