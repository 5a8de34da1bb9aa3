"""Simulated runs with known crossing times, to check the whole way from curve to verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.claims.schema import Claim
from harness.store.reader import RunRecord


def simulated_run(
    arm: str, seed: int, crossing: float, rng: np.random.Generator, *, horizon: int = 160, cadence: int = 5,
    prompts: int = 200,
) -> RunRecord:  # fmt: skip
    """A run whose true rate is logistic, ends at 0.93 and passes 0.8 at step `crossing`.

    It stops once three successive evaluations are at 0.8, as the trainer's stop rule does.
    """
    slope, ceiling, threshold = max(crossing, 1e-9) / 8, 0.93, 0.8
    middle = crossing - slope * math.log(threshold / (ceiling - threshold))
    evals: list[dict[str, Any]] = []
    in_a_row = 0
    for step in range(0, horizon + 1, cadence):
        rate = ceiling / (1 + math.exp(-(step - middle) / slope))
        value = float(rng.binomial(prompts, rate)) / prompts
        spent = evals[-1]["costs"]["generated_tokens"] if evals else 0
        tokens = spent + int(cadence * rng.integers(4_000, 5_200)) if step else 0
        evals.append(
            {
                "optimizer_step": step,
                "n": prompts,
                "metrics": {
                    "compile": value, "compile_raw": min(1.0, value + 0.02), "on_task": 0.6 * value,
                    "mean_tokens": 45.0, "truncated": 0.05, "unique_share": 0.9,
                },
                "costs": {
                    "optimizer_steps": step, "prompts": 16 * step, "completions": 128 * step,
                    "generated_tokens": tokens, "forward_tokens": 0,
                    "backward_tokens": int(1.3 * tokens), "judge_calls": 0, "judge_usd": 0.0,
                },
            }
        )  # fmt: skip
        in_a_row = in_a_row + 1 if value >= threshold else 0
        if in_a_row == 3:
            break
    steps = [row["optimizer_step"] for row in evals if row["optimizer_step"]]
    timings = [{"optimizer_step": step, "phase": "train", "seconds": 1.4 * step} for step in steps]
    return RunRecord(
        run_id=f"{arm}-{seed}", path=Path(f"{arm}-{seed}"), arm=arm, algorithm=arm, seed=seed,
        status="completed", evals=evals, timings=timings,
    )  # fmt: skip


def simulated_sweep(
    claim: Claim, scale: str, crossings: dict[str, Sequence[float]], rng: np.random.Generator
) -> list[RunRecord]:
    """Runs of every arm with the given true crossing steps, at a scale's horizon and cadence."""
    setting = claim.scale(scale)
    return [
        simulated_run(
            arm, claim.first_seed + i, crossing, rng,
            horizon=setting.horizon, cadence=setting.eval_every, prompts=setting.eval_prompts,
        )
        for arm, steps in crossings.items()
        for i, crossing in enumerate(steps)
    ]  # fmt: skip
