"""Evaluates a checkpoint or a model on a task: several samples a problem, Pass@k, and every sample kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from algorithms.base import Request
from harness.errors import UserError
from harness.evaluate.passk import PassAtK, SampleRow, summarise_samples, write_samples
from harness.evaluate.target import Target, load_target
from harness.store.writer import write_json
from harness.sweep.jobs import versions
from harness.train.alignment import TextAligner
from harness.train.rollout import Completion, Generator, describe
from harness.train.sampler import NativeSampler, Sampler
from harness.train.streams import Address
from tasks.base import Example, Task
from tasks.passk import completion_hash, default_ks

PROBLEMS_PER_CALL = 64
"""Problems sampled at once; part of the address of the random streams, so a constant and no option."""


@dataclass(frozen=True)
class EvaluationOptions:
    """How to evaluate; `ks` empty means the powers of two up to `samples`, `problems` None all of the split.

    Lengths in tokens. `temperature` near 0 is greedy: then use one sample.
    """

    samples: int = 1
    ks: tuple[int, ...] = ()
    problems: int | None = None
    split: str = "test"
    temperature: float = 1.0
    max_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"samples={self.samples}: use 1 or more")
        if self.temperature <= 0:
            raise UserError(f"temperature={self.temperature}: use a number above 0 (0.01 is nearly greedy)")
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise UserError(
                    f"k={k}: Pass@k needs 1 <= k <= samples={self.samples}; raise samples or lower k"
                )

    @property
    def grid(self) -> list[int]:
        """The k of Pass@k, named before anything is sampled."""
        return list(self.ks) or default_ks(self.samples)


@dataclass(frozen=True)
class Evaluation:
    """The result: Pass@k, mean metrics, costs, the samples themselves, and how it was made."""

    target: str
    task: str
    passk: PassAtK
    metrics: dict[str, float]
    samples: list[SampleRow]
    costs: dict[str, int]
    engine: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The evaluation in the form of a run's evaluation records."""
        passed = {f"pass_at_{k}": value for k, value in self.passk.pass_at_k.items()}
        majority = {f"maj_at_{k}": value for k, value in self.passk.maj_at_k.items()}
        return {
            **self.about,
            "n": len(self.samples),
            "metrics": {**self.metrics, **passed, **majority, "avg_at_n": self.passk.avg_at_n},
            "problems": {name: list(pair) for name, pair in self.passk.counts.items()},
            "flags": list(self.passk.flags),
            "costs": self.costs,
            "engine": self.engine,
        }


def batch_invariant(
    sampler: Sampler, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float, seed: int = 0
) -> bool | None:
    """Whether the first prompt gets the same completion alone and among seven others; None with one prompt.

    Where it does not, results depend on what shares a batch: the evaluation is marked, not failed.
    """
    few = prompts[:8]
    if len(few) < 2:
        return None
    streams: list[Address] = [("batch-invariance", seed, i) for i in range(len(few))]
    alone = sampler.sample(few[:1], [1], streams[:1], max_tokens=max_tokens, temperature=temperature)
    among = sampler.sample(few, [1] * len(few), streams, max_tokens=max_tokens, temperature=temperature)
    first, second = (found.ids[0][found.mask[0]] for found in (alone, among))
    return bool(torch.equal(first, second))


def _examples(task: Task, options: EvaluationOptions) -> list[Example]:
    size = task.size(options.split)
    if size is None and options.problems is None:
        raise UserError(f"problems: the {options.split} split of {task.name} never ends; say how many")
    count = size if options.problems is None else options.problems
    count = count if size is None else min(count or 0, size)
    if not count:
        raise UserError(f"problems={options.problems}: no problem to evaluate; use 1 or more")
    return [task.example(options.split, i) for i in range(count)]


def _sample_row(target: Target, task: Task, sample: int, completion: Completion) -> SampleRow:
    vote: Callable[[Any], str | None] | None = getattr(task, "vote", None)
    return SampleRow(
        run=target.run_id or target.name,
        seed=target.seed,
        optimizer_step=target.optimizer_step,
        problem=completion.example.id,
        sample=sample,
        correct=completion.score.correct,
        status=completion.score.status,
        extracted=vote(completion.answer) if vote else None,
        truncated=completion.truncated,
        completion=completion_hash(completion.answer.text),
        grader_version=getattr(task, "grader_version", ""),
    )


def _engine(target: Target, invariant: bool | None) -> dict[str, Any]:
    device = next(target.model.parameters()).device
    return {
        "name": "native",
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "batch_invariant": invariant,
    }


def evaluate_task(
    target: Target,
    task: Task,
    options: EvaluationOptions,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Samples and grades every problem of a split; `progress` hears of problems done, of all.

    Each sample has a random stream of its own, from the seed, the problem's place and the sample's number.
    UserError for a prompt that does not fit, and for a k beyond the samples.
    """
    codec = target.codec()
    sampler = NativeSampler(target.model, eos_ids=codec.eos_ids, pad_id=codec.pad_id)
    generator = Generator(task, codec, TextAligner(target.tokenizer), sampler, max_tokens=options.max_tokens)
    examples = _examples(task, options)
    prompts = [codec.encode(e.prompt, room=options.max_tokens, shots=e.shots) for e in examples[:8]]
    invariant = batch_invariant(
        sampler, prompts, max_tokens=min(32, options.max_tokens), temperature=options.temperature
    )
    found: list[Completion] = []
    rows: list[SampleRow] = []
    for first in range(0, len(examples), PROBLEMS_PER_CALL):
        part = examples[first : first + PROBLEMS_PER_CALL]
        requests = [Request(example=e, count=options.samples, group=i) for i, e in enumerate(part)]
        lots = generator.generate(
            requests, ("evaluate", options.seed, first), temperature=options.temperature
        )
        for lot in lots:
            found += lot
            rows += [_sample_row(target, task, i, completion) for i, completion in enumerate(lot)]
        progress(first + len(part), len(examples))
    return Evaluation(
        target=target.name,
        task=task.name,
        passk=summarise_samples(
            rows, options.grid, requested=options.samples, temperature=options.temperature
        ),
        metrics=describe(found),
        samples=rows,
        costs={
            "prompts": len(examples),
            "completions": len(found),
            "generated_tokens": sum(len(c.ids) for c in found),
        },
        engine=_engine(target, invariant),
        about={
            "target": target.name,
            "run_id": target.run_id,
            "seed": target.seed,
            "optimizer_step": target.optimizer_step,
            "task": task.name,
            "task_options": _plain(getattr(task, "options", None)),
            "grader_version": getattr(task, "grader_version", ""),
            "options": {**asdict(options), "ks": options.grid},
        },
    )


def _plain(options: Any) -> Any:
    """A task's options as JSON values."""
    return json.loads(json.dumps(asdict(options), default=str)) if options is not None else {}


def save_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Writes `evaluation.json` (all but the samples) and `samples.parquet` (the 0/1 matrix) into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_samples(folder / "samples.parquet", evaluation.samples)
    write_json(folder / "evaluation.json", evaluation.record())


def evaluate_named(
    name: str | Path,
    task: Task,
    options: EvaluationOptions,
    folder: Path | None = None,
    *,
    which: str = "last",
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Evaluates a run directory or a model by name, and saves the result where a folder is given."""
    evaluation = evaluate_task(
        load_target(name, which=which, device=device), task, options, progress=progress
    )
    if folder is not None:
        save_evaluation(evaluation, folder)
    return evaluation


def greedy_completer(target: Target, *, max_tokens: int) -> Callable[[Sequence[str]], list[str]]:
    """Text to its greedy continuation, without a chat template: for the contamination probe."""
    codec = target.codec()
    sampler = NativeSampler(target.model, eos_ids=codec.eos_ids, pad_id=codec.pad_id)
    aligner = TextAligner(target.tokenizer)

    def complete(prompts: Sequence[str]) -> list[str]:
        ids = [target.tokenizer(prompt)["input_ids"] for prompt in prompts]
        streams: list[Address] = [("probe", i) for i in range(len(ids))]
        found = sampler.sample(ids, [1] * len(ids), streams, max_tokens=max_tokens, temperature=1e-4)
        return [
            aligner.decode(row[mask].tolist())[0] for row, mask in zip(found.ids, found.mask, strict=True)
        ]

    return complete
