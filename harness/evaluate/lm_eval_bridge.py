"""lm-evaluation-harness with our checkpoint as its model; results in the form of our own evaluations.

Our own Pass@k stays the primary number for AIME: the AIME tasks of lm-eval read only the first of several
samples, and want no box.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentProblem, UserError
from harness.evaluate.target import Target
from harness.names import did_you_mean
from harness.store.writer import write_json
from harness.sweep.jobs import versions


def _need_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise EnvironmentProblem("suite=lm-eval: lm-eval is not installed; pip install 'creditbench[eval]'")


def _known_tasks(tasks: Sequence[str], include_path: Path | None) -> Any:
    """The task manager of lm-eval, with our own folder of YAML tasks; UserError for a task it does not know."""
    from lm_eval.tasks import TaskManager

    if include_path is not None and not include_path.is_dir():
        raise UserError(f"include={str(include_path)!r} is not a folder: give the folder of your YAML tasks")
    if include_path is not None:
        # indexing the thousands of tasks of lm-eval takes longer than running a local one
        manager = TaskManager(include_path=str(include_path), include_defaults=False)
        if set(tasks) <= set(manager.all_tasks):
            return manager
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    for task in tasks:
        if task not in manager.all_tasks:
            raise UserError(
                did_you_mean("lm-eval task", task, manager.all_tasks).partition("; known")[0][:300]
            )
    return manager


def metrics_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Numbers of an lm-eval result by task: `metric` or `metric:filter`, and `..._stderr` beside each."""
    found: dict[str, dict[str, float]] = {}
    for task, values in results.items():
        numbers = found.setdefault(task, {})
        for key, value in values.items():
            metric, _, chosen = key.partition(",")
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                continue
            numbers[metric if chosen in ("", "none") else f"{metric}:{chosen}"] = float(value)
    return found


def evaluate_suite(
    target: Target,
    tasks: Sequence[str],
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Runs tasks of lm-eval on a checkpoint or a model; the record has `metrics` by task, `n`, versions.

    `include_path` is a folder of YAML tasks of one's own, which may read local files and then needs no network.
    EnvironmentProblem when lm-eval is absent; UserError for an unknown task or a set that cannot be read.
    """
    _need_lm_eval()
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    manager = _known_tasks(tasks, include_path)
    model = HFLM(pretrained=target.model, tokenizer=target.tokenizer, batch_size=batch_size, backend="causal")
    try:
        found = lm_eval.simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            apply_chat_template=bool(target.tokenizer.chat_template),
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
            log_samples=False,
            bootstrap_iters=0,
        )
    except (ConnectionError, FileNotFoundError) as error:
        raise UserError(
            f"tasks={','.join(tasks)}: a data set cannot be read ({type(error).__name__}: {error}); connect once, or "
            "use YAML tasks with local files"
        ) from error
    return {
        "suite": "lm-eval",
        "target": target.name,
        "run_id": target.run_id,
        "seed": target.seed,
        "optimizer_step": target.optimizer_step,
        "tasks": list(tasks),
        "metrics": metrics_of(found["results"]),
        "n": {task: counts.get("effective") for task, counts in found["n-samples"].items()},
        "task_versions": dict(found["versions"]),
        "options": {"limit": limit, "batch_size": batch_size, "seed": seed},
        "versions": {**versions(), "lm-eval": metadata.version("lm_eval")},
    }


def save_suite(record: Mapping[str, Any], folder: Path) -> None:
    """Writes the record as `lm-eval.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "lm-eval.json", record)
