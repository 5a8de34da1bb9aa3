"""What both sides of a comparison run: the same model files, prompts, reward, group, limit, type and steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.spec import RunSpec, parse_run

ROOT = Path(__file__).resolve().parents[2]
NEVER = 10**9
"""An interval of optimizer steps that no benchmark reaches: neither side evaluates or saves within a run."""


@dataclass(frozen=True)
class Setting:
    """One run of either side; `warm_steps` are run and dropped, a micro-batch of 0 is the whole step.

    Each side has the micro-batch that it is fastest with here (TRL: of 16, 32 and the whole step).
    """

    model: str = "react-tiny"
    task: str = "react"
    prompts_per_step: int = 16
    group_size: int = 8
    max_completion_tokens: int = 128
    learning_rate: float = 3e-4
    temperature: float = 1.0
    optimizer_steps: int = 12
    warm_steps: int = 3
    threads: int = 1
    seed: int = 0
    micro_batch_size: int = 16
    trl_micro_batch_size: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.warm_steps < self.optimizer_steps:
            raise UserError(
                f"--steps {self.optimizer_steps}: the first {self.warm_steps} are dropped; give at least "
                f"{self.warm_steps + 1}"
            )

    @property
    def completions(self) -> int:
        """Completions of one optimizer step."""
        return self.prompts_per_step * self.group_size

    def quick(self) -> Setting:
        """The same with sizes that only prove that everything runs."""
        small = replace(self, prompts_per_step=2, group_size=2, max_completion_tokens=12)
        return replace(small, optimizer_steps=3, warm_steps=1)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Setting:
        """From plain data, keys of others ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: found for name, found in value.items() if name in names})

    def spec(self, *, horizon: int) -> RunSpec:
        """Our run of this setting: GRPO, one prompt of evaluation at either end, no checkpoint between."""
        return parse_run(
            {
                "algorithm": {"name": "grpo"},
                "task": {"name": self.task},
                "model": {"name": self.model, "device": "cpu"},
                "train": {
                    "prompts_per_step": self.prompts_per_step,
                    "group_size": self.group_size,
                    "horizon": horizon,
                    "learning_rate": self.learning_rate,
                    "max_completion_tokens": self.max_completion_tokens,
                    "temperature": self.temperature,
                    "micro_batch_size": self.micro_batch_size or self.completions,
                    "checkpoint_every": NEVER,
                    "threads": self.threads,
                },
                "evaluation": {"every": NEVER, "prompts": 1},
                "seeds": {"seed": self.seed},
            }
        )


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def example_indices(spec: RunSpec, size: int, count: int) -> list[int]:
    """The first `count` training examples of a run, in its order: a shuffle an epoch, as the loop draws them."""
    from harness.train.streams import generator

    found: list[int] = []
    epoch = 0
    while len(found) < count:
        found += generator("data", spec.seeds.of("data"), epoch).permutation(size).tolist()
        epoch += 1
    return found[:count]


def environment(threads: int) -> dict[str, str]:
    """The environment of a run's process: its threads, no network, this project, one Node for both sides."""
    from tasks.react.install import find_node

    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
        "CREDITBENCH_NODE": str(find_node()),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT),
    }
