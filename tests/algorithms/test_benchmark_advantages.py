"""The scaling benchmark: its material, its fit, and that no algorithm's credit is worse than linear."""

from __future__ import annotations

import math

import pytest

from algorithms.bot_grpo import BotGrpo
from algorithms.grpo import Grpo
from harness import registry
from harness.benchmark import advantages as benchmark


def test_batches_have_about_the_tokens_asked_for_and_run_everywhere() -> None:
    batch = benchmark.batch_of(20_000)
    assert int(batch.completion_mask.sum()) == pytest.approx(20_000, rel=0.1)
    assert set(batch.group_ids.bincount().tolist()) == {8}
    for algorithm in registry.algorithms().values():
        assert algorithm().advantages(batch).shape == batch.completion_mask.shape


def test_the_fit_finds_a_known_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 8.0, 64.0])
    monkeypatch.setattr(benchmark, "measure", lambda compute, repeats: next(times))
    found = benchmark.scaling_of(Grpo(), sizes=(10_000, 20_000, 40_000))
    assert found.exponent.value == pytest.approx(3.0, abs=0.1)
    assert found.seconds == (1.0, 8.0, 64.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.algorithms()))
def test_time_grows_no_faster_than_linearly(name: str) -> None:
    """Quadratic credit has exponent 2; caches and allocation bend a linear one up to about 1.2."""
    found = benchmark.scaling_of(
        registry.algorithms()[name](), sizes=(10_000, 40_000, 160_000, 640_000), repeats=3
    )
    assert found.exponent.value < 1.5, found


def test_bot_grpo_costs_microseconds_a_token() -> None:
    """128 completions of 60 tokens take under 20 ms where a step takes over a second: below 2% of it."""
    batch = benchmark.batch_of(128 * 60, length=60)
    assert benchmark.measure(lambda: BotGrpo().advantages(batch)) < 0.02
    assert math.isfinite(float(BotGrpo().advantages(batch).sum()))
