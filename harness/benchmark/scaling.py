"""Time and peak memory against model width, group size, answer length, micro-batch and seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.benchmark.fit import exponent
from harness.benchmark.setting import Setting
from harness.benchmark.side import in_worker

LAYERS, HEAD, VOCABULARY, PROMPT = 4, 32, 576, 24


@dataclass(frozen=True)
class Point:
    """One size of everything: a random model of this width, one group, answers that never end early."""

    width: int = 128
    group: int = 32
    length: int = 64
    micro_batch: int = 16


AXES: Mapping[str, tuple[int, ...]] = {
    "width": (64, 128, 256, 512),
    "group": (64, 128, 256, 512, 1024),
    "length": (32, 64, 128, 256),
    "micro_batch": (4, 8, 16, 32, 64),
}
QUICK_AXES: Mapping[str, tuple[int, ...]] = {
    "width": (32, 64),
    "group": (2, 4),
    "length": (4, 8),
    "micro_batch": (1, 2),
}
BASE = {"micro_batch": Point(group=64, length=128)}
"""What stays put along an axis, where it is not the default."""
SEEDS = (2, 4, 8)


def _status(name: str) -> int:
    """A size in bytes from /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def _random_model(width: int) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=max(1, width // HEAD),
        num_key_value_heads=max(1, width // HEAD),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def _measured(action: Callable[[], Any]) -> tuple[Any, float, int]:
    """The result, seconds of processor time, and by how much the process grew at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, start = _status("VmRSS"), time.process_time()
    result = action()
    return result, time.process_time() - start, max(1, _status("VmHWM") - before)


def sample_point(point: Point) -> dict[str, float]:
    """Samples one group of a point; runs in a process of its own, whose memory nothing else has raised."""
    import torch

    from harness.train.sampler import NativeSampler

    torch.set_num_threads(1)
    sampler = NativeSampler(_random_model(point.width), eos_ids=[-1], pad_id=0, max_rows=point.group)
    streams: list[tuple[int | str, ...]] = [("scaling", k) for k in range(point.group)]
    # what the first call allocates for good is no part of the growth with size
    sampler.sample([[5] * PROMPT], [1], streams[:1], max_tokens=2, temperature=1.0)
    _, seconds, memory = _measured(
        lambda: sampler.sample(
            [[5] * PROMPT], [point.group], streams, max_tokens=point.length, temperature=1.0
        )
    )
    return {"sampling_seconds": seconds, "sampling_bytes": memory}


def train_point(point: Point) -> dict[str, float]:
    """Forward and backward over one group of a point, in a process of its own."""
    import torch

    from harness.train.policy import completion_logprobs, micro_batches

    torch.set_num_threads(1)
    model = _random_model(point.width)
    ids = torch.randint(2, VOCABULARY, (point.group, point.length))
    prompts = torch.full((point.group, PROMPT), 5)

    def train(count: int = point.group) -> None:
        for rows in micro_batches(torch.full((count,), point.length), point.micro_batch):
            part, prompt = ids[rows], prompts[rows]
            ones = (torch.ones_like(prompt).bool(), torch.ones_like(part).bool())
            completion_logprobs(model, prompt, ones[0], part, ones[1]).mean().backward()

    train(1)
    _, seconds, memory = _measured(train)
    return {"training_seconds": seconds, "training_bytes": memory}


def _seed_rows(setting: Setting, counts: Sequence[int]) -> list[dict[str, Any]]:
    from harness.benchmark.sweep import our_sweep

    our_sweep(replace(setting, optimizer_steps=1, warm_steps=0), 1)  # the fork server's imports are paid once
    rows = []
    for count in counts:
        found = our_sweep(setting, count)
        rows.append(
            {
                "axis": "seeds",
                "size": count,
                "tokens": found["tokens"],
                "sweep_seconds": found["seconds"],
                "sweep_bytes": found["peak_memory_bytes"],
            }
        )
    return rows


def fits(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The exponent of every cost along every axis: against the size, and against tokens where those grow."""
    found = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        points = [row for row in rows if row["axis"] == axis]
        costs = [name for name in points[0] if name.endswith(("_seconds", "_bytes"))]
        for cost in costs:
            fitted = exponent([row["size"] for row in points], [row[cost] for row in points])
            found.append({"axis": axis, "cost": cost, "points": len(points), **fitted.to_json()})
    return found


def scaling(
    setting: Setting, *, quick: bool, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures every point in a fresh process and fits power laws; 1 is linear."""
    axes = QUICK_AXES if quick else AXES
    rows: list[dict[str, Any]] = []
    for axis, sizes in axes.items():
        say(f"scaling with {axis}: {', '.join(map(str, sizes))}")
        for size in sizes:
            base = Point(32, 2, 4, 1) if quick else BASE.get(axis, Point())
            point = replace(base, **{axis: size})
            sampled = {} if axis == "micro_batch" else in_worker(sample_point, point)
            trained = in_worker(train_point, point)
            shape = asdict(point)
            tokens = point.group * point.length
            rows.append({"axis": axis, "size": size, "tokens": tokens, **sampled, **trained, **shape})
    say("scaling with seeds")
    rows += _seed_rows(setting, (1, 2) if quick else SEEDS)
    return {"rows": rows, "fits": fits(rows)}
