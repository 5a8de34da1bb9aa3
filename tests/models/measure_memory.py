"""Measures what training steps of a model of SmolLM2-135M's shape take, and prints it beside the plan's figure.

    python tests/models/measure_memory.py --dtype float32 --rows 4 --answer 96 [--rank 16] [--reference]

Weights are random: memory depends on shapes alone. One process a setting, as a peak is the process's own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path
from typing import Any

PROMPT = 32


def resident() -> dict[str, int]:
    """Bytes of this process: now in anonymous memory, and the peak of all."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "VmHWM")}


def specification(options: argparse.Namespace) -> Any:
    from harness.spec import parse_run

    adapter = {"rank": options.rank} if options.rank else None
    return parse_run(
        {
            "algorithm": {"name": "grpo"},
            "model": {
                "name": "SmolLM2-135M-Instruct",
                "dtype": options.dtype,
                "adapter": adapter,
                "gradient_checkpointing": options.checkpointing,
            },
            "train": {
                "micro_batch_size": options.rows,
                "max_completion_tokens": options.answer,
                "autocast": options.autocast,
            },
        }
    )


def warm_up(spec: Any) -> None:
    """A step of a model of next to no size: modules are imported and kernels set up before anything counts."""
    from harness.models.shape import ModelShape

    steps(build(spec, ModelShape(50000, 16, 1, 2, 1, 16, 8)), spec, 1, 2)


def build(spec: Any, shape: Any) -> Any:
    """A random Llama of a shape, with what the specification asks for."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from harness.train.adapters import add_adapter

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        tie_word_embeddings=shape.tied,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, spec.model.dtype))
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(before)
    if spec.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if spec.model.adapter is not None:
        add_adapter(model, spec.model.adapter)
    return model.eval()


def steps(model: Any, spec: Any, rows: int, answer: int) -> None:
    """Two optimizer steps of two micro-batches: the last has gradients, states and activations at once."""
    import torch

    from harness.train.optimizers import make_optimizer
    from harness.train.policy import completion_logprobs

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(spec.train, trained, [])
    ids = torch.randint(3, 49000, (rows, PROMPT + answer))
    mask = torch.ones(rows, PROMPT + answer, dtype=torch.bool)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            logprobs = completion_logprobs(
                model,
                ids[:, :PROMPT],
                mask[:, :PROMPT],
                ids[:, PROMPT:],
                mask[:, PROMPT:],
                autocast=spec.train.autocast,
            )
            (-logprobs.mean()).backward()
        optimizer.step()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from harness.memory import Situation, memory_plan
    from harness.models import PRESETS

    torch.set_num_threads(1)
    # what is freed goes back at once, so that the peak is of what is in use: a heap of small pieces holds up to
    # 0.2 GiB more at one row
    ctypes.CDLL("libc.so.6").mallopt(-3, 1 << 16)
    spec = specification(options)
    shape = PRESETS[spec.model.name].shape
    assert shape is not None
    warm_up(spec)
    before = resident()
    model = build(spec, shape)
    loaded = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    steps(model, spec, options.rows, options.answer)
    after = resident()
    plan = memory_plan(shape, spec, (), Situation(PROMPT, device="cpu"))
    planned = plan.of("training") + sum(
        p.bytes for p in plan.parts if p.when == "always" and p.name != "folded weights"
    )
    measured = after["VmHWM"] - after["RssFile"] - before["RssAnon"]
    return {
        **vars(options),
        "planned_mib": round(planned / 2**20),
        "measured_mib": round(measured / 2**20),
        "ratio": round(planned / measured, 3),
        "weights_mib": round((loaded["RssAnon"] - before["RssAnon"]) / 2**20),
        "parts_mib": {p.name: round(p.bytes / 2**20) for p in plan.parts},
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--autocast", default="none")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true")
    print(json.dumps(measure(parser.parse_args(words))))


if __name__ == "__main__":
    main()
