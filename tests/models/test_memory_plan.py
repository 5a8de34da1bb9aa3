"""The memory plan: by hand for a small shape, what each need adds, what fits, and measured peaks (slow)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.memory import (
    GIB,
    Situation,
    activation_bytes,
    answer,
    layer_bytes,
    logits_bytes,
    memory_plan,
    memory_tables,
    remedies,
)
from harness.models import PRESETS
from harness.models.shape import ModelShape
from harness.spec import parse_run

SHAPE = ModelShape(vocabulary=1000, hidden=8, layers=2, heads=2, kv_heads=1, intermediate=16, head_size=4)
CPU = Situation(prompt_tokens=10, device="cpu")


def spec(algorithm: str = "grpo", **sections):
    train = {"micro_batch_size": 2, "max_completion_tokens": 20, "prompts_per_step": 2, "group_size": 4}
    value = {"algorithm": {"name": algorithm}, "model": {"name": "Qwen2.5-3B"}, "train": train}
    for name, section in sections.items():
        value[name] = {**value.get(name, {}), **section}
    return parse_run(value)


def parts(requires=(), situation=CPU, **sections) -> dict[str, float]:
    return {p.name: p.bytes for p in memory_plan(SHAPE, spec(**sections), requires, situation).parts}


def test_a_small_plan_by_hand():
    # a block: q 8x8, k and v 8x4 each, o 8x8, three 8x16, two norms of 8; and the embedding, and the last norm
    block = 64 + 2 * 32 + 64 + 3 * 128 + 16
    parameters = 1000 * 8 + 2 * block + 8
    assert SHAPE.parameters == parameters
    found = parts()
    assert found["weights"] == found["gradients"] == 4 * parameters
    assert found["optimizer states"] == 8 * parameters
    # 6 of width 8, 5 of 2 heads x 4, 4 of 1 head x 4, 4 of 16, for 2 rows of 30 tokens
    assert layer_bytes(SHAPE, 4) == 4 * (48 + 40 + 16 + 64)
    assert found["activations"] == 2 * 168 * 60 * 4
    assert found["logits"] == 3 * 4 * 40 * 1000
    assert found["KV cache"] == 8 * 30 * (2 * 2 * 4) * 4
    plan = memory_plan(SHAPE, spec(), (), CPU)
    assert plan.total == plan.of("always") + max(plan.of("training"), plan.of("sampling"))


def test_16_bits_halve_and_an_adapter_trains_little():
    whole, half = parts(), parts(model={"dtype": "bfloat16"})
    for name in ("weights", "gradients", "optimizer states", "KV cache"):
        assert half[name] == whole[name] / 2
    # norms keep their inputs in 32 bits; logits have 16 bits at both ends beside
    assert half["activations"] == whole["activations"] / 2 + 2 * 60 * 2 * 2 * 8
    assert half["logits"] == whole["logits"] * 4 / 3
    adapter = SHAPE.adapter_parameters(2)
    assert adapter == 2 * 2 * ((8 + 8) * 2 + (8 + 4) * 2 + (8 + 16) * 3)
    lora = parts(model={"adapter": {"rank": 2}})
    assert lora["weights"] == whole["weights"] + 4 * adapter
    assert lora["gradients"] == 4 * adapter
    assert lora["optimizer states"] == 8 * adapter


def test_a_reference_is_a_copy_and_none_with_an_adapter():
    assert parts({"reference"})["reference"] == parts()["weights"]
    assert "reference" not in parts({"reference"}, model={"adapter": {}})
    assert "reference" not in parts({"critic"})


def test_a_critic_is_a_second_network_and_a_second_adapter_with_one():
    whole = parts({"critic"})
    assert whole["critic's weights"] == 4 * SHAPE.backbone_parameters
    assert whole["critic's optimizer states"] == 8 * SHAPE.backbone_parameters
    assert whole["critic's activations"] == whole["activations"]
    lora = parts({"critic"}, model={"adapter": {"rank": 2}})
    assert lora["critic's weights"] == 4 * SHAPE.adapter_parameters(2)


def test_optimizers_of_8_bits_checkpointing_and_autocast():
    assert parts(train={"optimizer": "adamw_8bit"})["optimizer states"] == pytest.approx(
        SHAPE.parameters * 2 * (1 + 4 / 256)
    )
    tokens, block = 60, 168 * 60 * 4
    assert activation_bytes(SHAPE, tokens, 4, checkpointing=True) == 2 * 8 * tokens * 4 + block
    assert parts(train={"autocast": "bfloat16"})["bfloat16 copies of the weights"] == 2 * SHAPE.parameters
    # two norms of 14 bytes a value, all else in 16 bits
    assert parts(train={"autocast": "bfloat16"})["activations"] == 2 * 60 * (2 * 14 * 8 + 2 * (40 + 16 + 64))


def test_logits_of_a_long_batch_are_those_of_one_chunk():
    large = PRESETS["Phi-4-mini-reasoning"].shape
    assert large is not None
    assert logits_bytes(large, 10**6) == logits_bytes(large, 10**5) <= 3 * 256 * 2**20
    assert logits_bytes(large, 10**6, 2) <= 4 * 256 * 2**20


def test_the_engines_share_sleeps_or_stays():
    card = Situation(10, 80 * GIB)
    asleep = memory_plan(SHAPE, spec(sampler={"name": "vllm"}), (), card)
    awake = memory_plan(SHAPE, spec(sampler={"name": "vllm", "sleep": False}), (), card)
    assert asleep.of("sampling") == pytest.approx(0.45 * 80 * GIB)
    # the allowance for fragments grows with what is held
    assert awake.of("always") > asleep.of("always") + 0.45 * 80 * GIB
    assert awake.of("sampling") == 0


def test_what_fits_and_what_to_change():
    shape = PRESETS["Qwen2.5-3B"].shape
    assert shape is not None
    run = spec(train={"micro_batch_size": 1, "max_completion_tokens": 2048})
    small, large = answer(shape, run, (), 24), answer(shape, run, (), 141)
    assert not small.fits
    assert large.fits
    assert large.change == ()
    assert small.change
    assert any(word.startswith("model.adapter") for word in small.change)
    assert remedies(shape, run, (), Situation(256, 2 * GIB)) is None
    assert answer(shape, run, {"critic"}, 141).plan.total > large.plan.total + 4 * shape.parameters * 3
    text = json.dumps([small.to_json(), large.to_json()])
    assert '"fits": false' in text
    names = [table.name for table in memory_tables([small, large])]
    assert names == ["memory", "memory-cards"]


def test_a_fit_needs_no_change_and_changes_make_it_fit():
    from harness.memory import REMEDIES, amended

    shape = PRESETS["Qwen2.5-3B"].shape
    assert shape is not None
    run = spec(train={"micro_batch_size": 4, "max_completion_tokens": 2048})
    for gib in (16, 24, 48, 80):
        words = answer(shape, run, {"reference"}, gib).change
        assert words is not None
        changed = run
        for word, changes in REMEDIES:
            if word in words:
                changed = amended(changed, changes)
        assert memory_plan(shape, changed, {"reference"}, Situation(256, gib * GIB)).total <= gib * GIB


def test_a_sweep_reserves_the_planned_memory_of_a_published_model(monkeypatch):
    """Of the processor's memory: all of it where it trains there, the weights alone on their way to a GPU."""
    from harness.sweep import resources

    monkeypatch.setattr(resources, "visible_gpus", lambda: [])
    small = spec(model={"name": "SmolLM2-135M-Instruct"}).model_dump(mode="json")
    parameters = PRESETS["SmolLM2-135M-Instruct"].shape.parameters
    on_cpu = resources.estimate_bytes(small)
    assert on_cpu > resources.BASE_BYTES + 16 * parameters
    monkeypatch.setattr(resources, "visible_gpus", lambda: ["0"])
    assert resources.estimate_bytes(small) == resources.UNKNOWN_BYTES + 4 * parameters
    unknown = spec(model={"name": "org/unknown"}).model_dump(mode="json")
    assert resources.estimate_bytes(unknown) == resources.UNKNOWN_BYTES


# --- the command ----------------------------------------------------------------------------------------


def harness(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *words], capture_output=True, text=True, check=False
    )


def test_the_command_answers_per_algorithm_and_card_without_the_model():
    done = harness(
        "plan", "--memory", "--model", "Qwen2.5-3B", "--algorithm", "grpo,bpco", "--card", "24,80", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(f["algorithm"], f["card_gib"]) for f in found] == [
        ("grpo", 24), ("grpo", 80), ("bpco", 24), ("bpco", 80),
    ]  # fmt: skip
    names = {f["algorithm"]: {p["name"] for p in f["parts"]} for f in found}
    assert "critic's weights" in names["bpco"] - names["grpo"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a model with --model"),
        (("--model", "org/unknown"), "its sizes are not known"),
        (("--model", "Qwen2.5-3B", "--card", "big"), "--card 'big'"),
    ],
)
def test_the_command_refuses_in_one_line(words, said):
    done = harness("plan", "--memory", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# --- measured -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--rows", "1"),
        ("--rows", "4", "--answer", "96"),
        ("--rows", "2", "--dtype", "bfloat16"),
        ("--rows", "2", "--rank", "16", "--dtype", "bfloat16"),
        ("--rows", "2", "--autocast", "bfloat16"),
        ("--rows", "4", "--answer", "96", "--checkpointing"),
    ],
)
def test_the_plan_is_near_the_measured_peak(words):
    """Of two training steps of a model of SmolLM2-135M's shape, each setting in a process of its own."""
    program = Path(__file__).parent / "measure_memory.py"
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 0.8 < found["ratio"] < 1.25, found
