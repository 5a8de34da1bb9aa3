"""What this machine can still take: memory and GPUs, without importing torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from harness.memory import Situation, memory_plan
from harness.models.source import shape_of, source_of
from harness.spec import parse_run

MIB = 1024**2
BASE_BYTES = 600 * MIB
"""A worker with torch and transformers imported, before its model (measured: about 500 MiB)."""
UNKNOWN_BYTES = 4096 * MIB
"""For a model whose files are not here."""
LARGEST_ON_CPU = 1_000_000_000
"""Parameters beyond which a model trains on a GPU alone: the machine's memory only passes its weights on."""
BYTES_PER_PARAMETER = 20
"""Weights, gradient, two AdamW moments and a frozen copy, four bytes each."""
PROMPT_TOKENS = 128


def available_bytes() -> int:
    """Memory that new processes can have: the machine's, or what is left of the control group's limit."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        found = min(found, int(text) - int(used.read_text()))
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 when it has ended or cannot be looked at."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


@cache
def parameters_and_vocabulary(name: str) -> tuple[int, int] | None:
    """Parameters (from the headers of its weights) and vocabulary of a model in a folder; None elsewhere."""
    folder = Path(source_of(name))
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files or not (folder / "config.json").exists():
        return None
    count = 0
    for path in files:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        count += sum(prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    return count, int(json.loads((folder / "config.json").read_text()).get("vocab_size", 0))


def estimate_bytes(spec: Mapping[str, Any]) -> int:
    """Memory that a run will take at most, roughly: its process, its model five times, its logits three times."""
    model, train = spec.get("model"), spec.get("train")
    if not model or not train:
        return BASE_BYTES
    known = parameters_and_vocabulary(model["name"])
    if known is None:
        shape = shape_of(model["name"])
        if shape is None:
            return UNKNOWN_BYTES
        if shape.parameters > LARGEST_ON_CPU or (wants_gpu(spec) and visible_gpus()):
            return UNKNOWN_BYTES + 4 * shape.parameters
        plan = memory_plan(shape, parse_run(spec), {"reference"}, Situation(device="cpu"))
        return BASE_BYTES + int(plan.total)
    parameters, vocabulary = known
    tokens = train["micro_batch_size"] * (train["max_completion_tokens"] + PROMPT_TOKENS)
    return BASE_BYTES + BYTES_PER_PARAMETER * parameters + 3 * 4 * tokens * vocabulary


def visible_gpus() -> list[str]:
    """The CUDA devices that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if (text := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [part.strip() for part in text.split(",") if part.strip() and part.strip() != "-1"]
    if not (program := shutil.which("nvidia-smi")):
        return []
    done = subprocess.run(
        [program, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return done.stdout.split() if done.returncode == 0 else []


def wants_gpu(spec: Mapping[str, Any]) -> bool:
    """Whether a run uses a GPU where there is one."""
    device = (spec.get("model") or {}).get("device", "cpu")
    return device == "auto" or device.startswith("cuda")
