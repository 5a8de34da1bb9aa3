"""Arithmetic of the benchmark: ratios at like token counts, exponents, rows, floors, tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.benchmark import against, document, fit, floor, sweep, variants
from harness.benchmark.clock import Clock, step_rows
from harness.benchmark.setting import Setting
from harness.errors import UserError
from harness.models.shape import ModelShape


def steps(tokens: list[int], fixed: float, each: float, noise: float = 0.0) -> list[dict[str, Any]]:
    """Step rows of a loop that pays `fixed` seconds a step and `each` a token."""
    rng = np.random.default_rng(len(tokens))
    times = [fixed + each * t + noise * rng.standard_normal() for t in tokens]
    return [
        {"optimizer_step": i + 1, "tokens": t, "seconds": s, "cpu_seconds": 2 * s}
        for i, (t, s) in enumerate(zip(tokens, times, strict=True))
    ]


OURS = [4000, 5000, 6000, 7000]
THEIRS = [6000, 7000, 8000, 9000]


def test_ratio_is_taken_at_like_token_counts() -> None:
    """At 6,500 tokens: theirs 2 + 1.3 = 3.3 s, ours 1 + 0.65 = 1.65 s, so 2, though plain rates say otherwise."""
    ours, theirs = steps(OURS, 1.0, 1e-4), steps(THEIRS, 2.0, 2e-4)
    found = against.compare([ours, ours], [theirs, theirs])
    assert found["like_tokens"] == 6500
    assert found["tokens_overlap"]
    assert found["ratio_to_trl"] == pytest.approx(2.0)
    assert found["cpu_ratio"] == pytest.approx(2.0)
    assert found["seconds_at_like_tokens"] == {"ours": pytest.approx(1.65), "trl": pytest.approx(3.3)}
    assert found["tokens_per_second"]["ours"] == pytest.approx(22000 / 6.2)
    assert found["plain_ratio"] == pytest.approx((22000 / 6.2) / (30000 / 14))
    assert found["plain_ratio"] < 1.7
    assert found["pair_ratios"] == [pytest.approx(2.0)] * 2


def test_the_spread_holds_the_ratio_and_grows_with_noise() -> None:
    widths = []
    for noise in (0.01, 0.1):
        ours = [steps(OURS * 2, 1.0, 1e-4, noise) for _ in range(2)]
        found = against.compare(ours, [steps(THEIRS * 2, 2.0, 2e-4, noise) for _ in range(2)])
        assert found["ratio_low"] < found["ratio_to_trl"] < found["ratio_high"]
        widths.append(found["ratio_high"] - found["ratio_low"])
    assert widths[0] < 0.1 < widths[1]


def test_without_overlap_the_point_between_is_used_and_said() -> None:
    found = against.like_tokens(steps([100, 200], 1, 0), steps([400, 500], 1, 0))
    assert found == (300, False)


def test_steps_of_one_length_use_their_rate() -> None:
    assert against.seconds_at(steps([500] * 4, 1.0, 1e-3), 1000) == pytest.approx(3.0)


@settings(deadline=None)  # the first call imports scipy
@given(st.floats(0.2, 3.0), st.floats(1e-9, 10.0))
def test_exponent_of_a_power_law(power: float, factor: float) -> None:
    sizes = [1, 2, 4, 8, 16]
    found = fit.exponent(sizes, [factor * s**power for s in sizes])
    assert found.value == pytest.approx(power, abs=1e-6)
    assert found.low - 1e-6 <= power <= found.high + 1e-6


def test_exponent_interval_covers_what_is_true() -> None:
    """95% intervals of noisy linear costs hold 1 about 19 times in 20."""
    rng, sizes = np.random.default_rng(0), [10, 20, 40, 80, 160]
    held = 0
    for _ in range(400):
        found = fit.exponent(sizes, [s * math.exp(0.05 * rng.standard_normal()) for s in sizes])
        held += found.low <= 1 <= found.high
    assert 365 <= held <= 393


def test_two_points_have_no_interval_and_fewer_are_refused() -> None:
    assert fit.exponent([1, 2], [1, 4]).to_json() == {
        "exponent": pytest.approx(2.0),
        "low": None,
        "high": None,
    }
    with pytest.raises(ValueError, match="at least two"):
        fit.exponent([1], [1])
    with pytest.raises(ValueError, match="above 0"):
        fit.exponent([1, 2], [0.0, 1.0])


def test_step_rows_need_an_end() -> None:
    rows = step_rows([(0.0, 0.0), (2.0, 1.0), (5.0, 2.5)], [10, 20, 30])
    assert [(r["optimizer_step"], r["tokens"], r["seconds"], r["cpu_seconds"]) for r in rows] == [
        (1, 10, 2.0, 1.0),
        (2, 20, 3.0, 1.5),
    ]
    clock = Clock()
    assert clock() is False
    assert len(clock.marks) == 1


SHAPE = ModelShape(
    vocabulary=10, hidden=4, layers=2, heads=2, kv_heads=1, intermediate=8, head_size=2, tied=True
)


def test_flops_by_hand() -> None:
    """A layer: q 16, k 8, v 8, o 16, three of 32, so 144; two of them and a head of 40 are 328 products a token."""
    assert floor.matrix_parameters(SHAPE) == 328
    assert floor.attention_flops(SHAPE, 3) == 4 * 2 * 4 * 3
    # a prompt of 2 (contexts 1 + 2) once, two completions of 2 tokens each (contexts 3 + 4)
    sampled = floor.rollout_flops(SHAPE, [2, 2], [2, 2])
    assert sampled == 656 * 2 + 32 * 3 + 2 * (656 * 2 + 32 * (3 + 4))
    # forward and backward of one row of 4 tokens, the head on 2 of them
    assert floor.training_flops(SHAPE, [2], [2]) == 3 * (2 * 288 * 4 + 2 * 40 * 2 + 32 * 10)


def test_variant_ratios_are_speeds_over_the_first() -> None:
    rows = variants.rows_of("sampling", {"default": 2.0, "slow": 4.0})
    assert [(r["variant"], r["ratio"]) for r in rows] == [("default", 1.0), ("slow", 0.5)]


def test_every_variant_runs_in_every_round() -> None:
    calls: list[str] = []
    found = variants.interleaved({n: lambda n=n: calls.append(n) for n in "ab"}, rounds=2)  # type: ignore[misc]
    assert calls == ["a", "b"] * 3
    assert set(found) == {"a", "b"}


def test_sweep_ratio_is_to_the_better_of_trls_ways() -> None:
    ours = sweep.rates(4, 80_000, 40.0)
    found = sweep.headline(ours, [sweep.rates(4, 60_000, 100.0), sweep.rates(4, 60_000, 75.0)])
    assert ours["seeds_per_hour"] == 360
    assert found["sweep_ratio_to_trl"] == pytest.approx(2000 / 800)
    assert found["seeds_ratio_to_trl"] == pytest.approx(360 / 192)


def test_setting_goes_through_json_and_refuses_too_few_steps() -> None:
    setting = Setting(optimizer_steps=9, seed=4)
    assert Setting.of({**setting.to_json(), "unknown": 1}) == setting
    with pytest.raises(UserError, match="--steps 3: the first 3 are dropped; give at least 4"):
        Setting(optimizer_steps=3)


def full_call(**changes: Any) -> dict[str, Any]:
    """A call as it is kept, of `--against`."""
    machine = {"processor": "some processor", "cores": 2, "versions": {"torch": "2.13"}, "time": "now"}
    ours, theirs = steps(OURS, 1.0, 1e-4), steps(THEIRS, 2.0, 2e-4)
    found = {**against.compare([ours], [theirs]), "peak_memory_bytes": {"ours": 2**20, "trl": 2**21}}
    return {
        "machine": machine,
        "setting": Setting().to_json(),
        "quick": False,
        "trl_tunables": "",
        **found,
        **changes,
    }


def test_tables_in_a_document_come_from_files(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Speed\n<!-- benchmark: against -->\nold\n<!-- end -->\nafter\n")
    with pytest.raises(
        UserError, match=r"holds no against-\*\.json of a full call; first harness benchmark --against"
    ):
        document.write_document(page, tmp_path)
    huge = {"ratio_to_trl": 1.5, "trl_tunables": "glibc.malloc.hugetlb=1"}
    for stamp, changes in (("1", {}), ("2", {"ratio_to_trl": 4.5}), ("3", {"quick": True}), ("4", huge)):
        (tmp_path / f"against-{stamp}.json").write_text(json.dumps(full_call(**changes)))
    assert document.write_document(page, tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| 2 | 4.50 |" in text
    assert "| 3, huge pages for TRL too | 1.50 |" in text
    assert "| 4 |" not in text
    assert "Geometric mean of the 2 calls with TRL as it comes: 3.00." in text
    assert not document.write_document(page, tmp_path)


def test_an_unknown_block_names_its_neighbour(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- benchmark: scorings -->\n<!-- end -->\n")
    with pytest.raises(UserError, match="scoring"):
        document.write_document(page, tmp_path)


def test_results_hold_no_number_that_json_lacks() -> None:
    assert document.to_plain({"a": (1, math.inf), "b": {"c": math.nan}}) == {"a": [1, None], "b": {"c": None}}
