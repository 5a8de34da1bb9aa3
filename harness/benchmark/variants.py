"""What was tried on the loop, each against its default in turn: what pays and what does not."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from harness.benchmark.floor import Work, build_parts, sample_work, train_pass
from harness.benchmark.setting import Setting
from harness.benchmark.side import in_new_process
from harness.sweep.server import huge_pages
from harness.train.decoders import TransformersDecoder
from harness.train.loop import Parts
from harness.train.policy import backbone_of
from harness.train.sampler import NativeSampler

Action = Callable[[], object]


def interleaved(actions: Mapping[str, Action], rounds: int) -> dict[str, float]:
    """The median processor seconds of each action, all run once a round, the first round dropped."""
    timings: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            start = time.process_time()
            action()
            if number:
                timings[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in timings.items()}


def rows_of(part: str, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row a variant; `ratio` is the speed of the variant over that of the first, the default."""
    default = next(iter(seconds.values()))
    return [
        {"part": part, "variant": name, "seconds": found, "ratio": default / found}
        for name, found in seconds.items()
    ]


def _sampling(parts: Parts, setting: Setting) -> dict[str, Action]:
    def with_sampler(change: Callable[[NativeSampler], None]) -> Action:
        made = NativeSampler(parts.model, eos_ids=parts.codec.eos_ids, pad_id=parts.codec.pad_id)
        change(made)

        def run() -> None:
            kept, parts.generator.sampler = parts.generator.sampler, made
            sample_work(parts, setting)
            parts.generator.sampler = kept

        return run

    def fallback(sampler: NativeSampler) -> None:
        sampler.decoder = TransformersDecoder(parts.model)

    def never(sampler: NativeSampler) -> None:
        sampler.compact_every = setting.max_completion_tokens + 1

    return {
        "fused decode, ended rows dropped (default)": with_sampler(lambda sampler: None),
        "ended rows kept": with_sampler(never),
        "the forward of transformers": with_sampler(fallback),
    }


def _training(parts: Parts, work: Work, size: int) -> dict[str, Action]:
    rows = len(work.found.ids)
    unsorted = list(torch.arange(rows).split(size))
    default = f"fewer passes, length-sorted micro-batches of {size} (default)"
    actions: dict[str, Action] = {
        default: lambda: train_pass(parts, work, size),
        "the forward of transformers": _through(parts, work, size, _OfTransformers(backbone_of(parts.model))),
        f"unsorted micro-batches of {size}": lambda: train_pass(parts, work, size, order=unsorted),
    }
    for other in sorted({size // 4, size // 2, 2 * size, rows} - {0, size}):
        name = f"length-sorted micro-batches of {other}" if other < rows else "one batch"
        actions[name] = partial(train_pass, parts, work, other)
    return actions


class _OfTransformers(torch.nn.Module):
    """A backbone behind a class that no fused forward knows, so that it runs as transformers wrote it."""

    def __init__(self, backbone: torch.nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, **inputs: Any) -> Any:
        return self.backbone(**inputs)


def _through(parts: Parts, work: Work, size: int, backbone: Any) -> Action:
    """A training pass through another backbone than the model's own."""
    plain = parts.model
    # the model's own get_decoder would give the plain one again
    made = SimpleNamespace(
        get_decoder=lambda: backbone,
        get_output_embeddings=plain.get_output_embeddings,
        zero_grad=plain.zero_grad,
    )

    def run() -> None:
        parts.model = made
        try:
            train_pass(parts, work, size)
        finally:
            parts.model = plain

    return run


class Compiled:
    """Training through torch.compile with dynamic shapes; the wall seconds of the first pass, which compiles."""

    NAME = "the forward of transformers, compiled"

    def __init__(self, parts: Parts, work: Work, size: int) -> None:
        self.run = _through(parts, work, size, torch.compile(backbone_of(parts.model), dynamic=True))
        start = time.perf_counter()
        self.run()
        self.first_seconds = time.perf_counter() - start

    def record(self, seconds: Mapping[str, float]) -> dict[str, float | None]:
        """What compiling costs once, and after how many optimizer steps it has paid (None: never)."""
        saved = next(iter(seconds.values())) - seconds[self.NAME]
        steps = self.first_seconds / saved if saved > 0 else None
        return {"compile_seconds": self.first_seconds, "compile_pays_after_steps": steps}


def _loop(parts: Parts, work: Work, setting: Setting) -> dict[str, float]:
    """Wall seconds of scoring beside sampling and training: the most that scoring meanwhile could hide."""
    from tasks.base import Answer

    examples = [parts.task.example("train", i) for i in range(len(work.prompts))]
    owners = [e for e, count in zip(examples, work.counts, strict=True) for _ in range(count)]
    answers = []
    for ids, mask in zip(work.found.ids, work.found.mask, strict=True):
        answers.append(Answer(parts.generator.aligner.decode(ids[mask].tolist())[0]))
    found = {"sampling": 0.0, "scoring": 0.0, "training": 0.0}
    parts.task.score(owners[:1], answers[:1])  # starts the checker
    for name, action in {
        "sampling": lambda: sample_work(parts, setting),
        "scoring": lambda: parts.task.score(owners, answers),
        "training": lambda: train_pass(parts, work, setting.micro_batch_size),
    }.items():
        start = time.perf_counter()
        action()
        found[name] = time.perf_counter() - start
    return found


def default_seconds(setting: Setting, repeats: int) -> dict[str, float]:
    """Median processor seconds of sampling and of training as they are by default, in this process."""
    parts = build_parts(setting)
    work = sample_work(parts, setting)
    actions: dict[str, Action] = {
        "sampling": lambda: sample_work(parts, setting),
        "training": lambda: train_pass(parts, work, setting.micro_batch_size),
    }
    found = interleaved(actions, repeats)
    parts.task.close()
    return found


def pages(setting: Setting, *, quick: bool) -> list[dict[str, Any]]:
    """Rows for memory in huge pages, as workers have it, and in small ones: fresh processes, in turn."""
    rounds, repeats = (1, 1) if quick else (3, 5)
    found: dict[str, list[dict[str, float]]] = {"huge": [], "small": []}
    for _ in range(rounds):
        with huge_pages():
            found["huge"].append(in_new_process(default_seconds, setting, repeats))
        found["small"].append(in_new_process(default_seconds, setting, repeats))
    rows = []
    for part in ("sampling", "training"):
        middle = {name: statistics.median(one[part] for one in made) for name, made in found.items()}
        names = {"huge": "memory in huge pages (default)", "small": "memory in small pages"}
        rows += rows_of(part, {names[name]: seconds for name, seconds in middle.items()})
    return rows


def variants(setting: Setting, *, quick: bool) -> dict[str, Any]:
    """Sampling and training variants with their speed over the default, and the share of scoring in a step."""
    rounds = 1 if quick else 5
    parts = build_parts(setting)
    work = sample_work(parts, setting)
    rows = rows_of("sampling", interleaved(_sampling(parts, setting), rounds))
    actions = _training(parts, work, setting.micro_batch_size)
    # torch.compile needs a C++ compiler; the page says so where there is none
    able = not quick and any(map(shutil.which, ("c++", "g++", "clang++")))
    compiled = Compiled(parts, work, setting.micro_batch_size) if able else None
    if compiled:
        actions[compiled.NAME] = compiled.run
    training = interleaved(actions, rounds)
    rows += rows_of("training", training)
    whole = _loop(parts, work, setting)
    parts.task.close()
    return {
        "threads": setting.threads,
        "rows": rows,
        "compiling": compiled.record(training) if compiled else None,
        "step_seconds": whole,
        "scoring_share_of_step": whole["scoring"] / sum(whole.values()),
    }
