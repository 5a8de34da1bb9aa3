"""One run of TRL's GRPOTrainer, timed like ours: `python -m harness.benchmark.theirs` in an environment with TRL.

bf16 and gradient checkpointing, on by default there, are off: both cost time at this size on a CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from harness.benchmark.clock import Clock, peak_memory_bytes, step_rows
from harness.benchmark.setting import Setting, example_indices


def config_values(setting: Setting, folder: str) -> dict[str, Any]:
    """The arguments of GRPOConfig: plain GRPO without KL, the settings of ours, nothing logged or saved."""
    rows = min(setting.trl_micro_batch_size or setting.completions, setting.completions)
    return {
        "output_dir": folder,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": setting.completions // rows,
        "num_generations": setting.group_size,
        "max_completion_length": setting.max_completion_tokens,
        "max_steps": setting.optimizer_steps + 1,
        "learning_rate": setting.learning_rate,
        "lr_scheduler_type": "constant",
        "temperature": setting.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "beta": 0.0,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "shuffle_dataset": False,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": setting.seed,
    }


class Reward:
    """The task's outcome of each completion, as TRL asks for it; counts the tokens of every step."""

    def __init__(self, task: Any, examples: Sequence[Any], eos_ids: Sequence[int]) -> None:
        self.task = task
        self.examples = examples
        self.eos_ids = frozenset(eos_ids)
        self.tokens: list[int] = []
        self.__name__ = "outcome"

    def __call__(
        self, completions: list[str], completion_ids: list[list[int]], number: list[int], **_: Any
    ) -> list[float]:
        from tasks.base import Answer

        self.tokens.append(sum(map(len, completion_ids)))
        answers = [
            Answer(text, finished=bool(ids) and ids[-1] in self.eos_ids)
            for text, ids in zip(completions, completion_ids, strict=True)
        ]
        scores = self.task.score([self.examples[i] for i in number], answers)
        return [score.outcome for score in scores]


def measure(setting: Setting) -> dict[str, Any]:
    """As harness.benchmark.ours.measure, with TRL's trainer."""
    started = time.perf_counter()
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from harness.models.source import source_of
    from harness.registry import tasks

    torch.set_num_threads(setting.threads)
    clock, source = Clock(), source_of(setting.model)
    task = tasks()[setting.task]()
    tokenizer = AutoTokenizer.from_pretrained(source)
    steps = setting.optimizer_steps + 1
    spec = setting.spec(horizon=steps)
    indices = example_indices(spec, task.size("train"), steps * setting.prompts_per_step)
    examples = [task.example("train", i) for i in indices]
    reward = Reward(task, examples, [tokenizer.eos_token_id])
    data = Dataset.from_dict({"prompt": [e.prompt for e in examples], "number": list(range(len(examples)))})

    class Marks(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock()

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=source,
            reward_funcs=reward,
            args=GRPOConfig(**config_values(setting, folder)),
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[Marks()],
        )
        trainer.train()
    task.close()
    return {
        "start_seconds": round(clock.marks[0][0] - started, 3),
        "steps": step_rows(clock.marks, reward.tokens),
        "tokens": sum(reward.tokens),
        "peak_memory_bytes": peak_memory_bytes(),
    }


if __name__ == "__main__":
    found = measure(Setting.of(json.load(sys.stdin)))
    print(json.dumps(found))
