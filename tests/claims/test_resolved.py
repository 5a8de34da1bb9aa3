"""Paper and small scales resolve to a complete plan, by hand-checked amounts; claims that ran keep their definition."""

from __future__ import annotations

import functools
import json

import pytest

from harness.claims.schema import claim_names, load_claim, parse_claim
from harness.commands import run as commands
from harness.errors import UserError
from harness.judge_costs import CALL, usd
from harness.models import PRESETS
from harness.models.shape import ModelShape
from harness.reproduce import plan
from harness.resolved import PROMPT_TOKENS, resolve
from harness.throughput import Card, decode_seconds, pass_seconds, rows_in_flight

LARGE = [
    (name, scale)
    for name in claim_names()
    for scale in ("small", "paper")
    if scale in load_claim(name).scales
]
RAN_AT_TINY = {
    "compile-speedup": "b3a07bba1bf2839d",
    "aime-passk": "0013c303",
    "credit-ladder": "602aadac",
    "reward-stability-ladder": "50c01b65",
    "what-helps-ladder": "abf84a69",
}


@functools.cache
def resolved(name: str, scale: str):
    claim = load_claim(name)
    return resolve(claim, scale, plan(claim, scale, claim.seeds(scale=scale)).jobs)


@pytest.mark.parametrize(("name", "key"), RAN_AT_TINY.items())
def test_definitions_that_ran_keep_their_hash(name, key):
    assert load_claim(name).hash("tiny").startswith(key)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_claim_has_the_scale_or_says_why_not(scale):
    for name in claim_names():
        claim = load_claim(name)
        assert (scale in claim.scales) != (scale in claim.not_at), name
        if scale in claim.not_at:
            with pytest.raises(UserError, match=claim.not_at[scale]):
                claim.scale(scale)


@pytest.mark.parametrize(("name", "scale"), LARGE)
def test_the_plan_is_complete(name, scale):
    found = resolved(name, scale)
    for setting in found.settings:
        assert setting.origin in ("published", "chosen")
        assert setting.words, setting.key
    for model in found.models:
        pinned = model["revision"].removeprefix("files ")
        assert len(pinned) in (16, 40) or model["name"] == "SmolLM2-135M-Instruct", model
        assert model["parameters"] != "unknown"
    assert found.data
    assert found.hours is not None
    assert found.hours > 0
    for arm in found.arms:
        assert arm.fits, (arm.arm, arm.memory_bytes, arm.change)
    assert any("US$" in line for line in found.judge)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(("name", "scale"), LARGE)
def test_large_scales_sample_and_train_as_they_must(name, scale):
    for job in plan(load_claim(name), scale, (0,)).jobs:
        assert job.spec["sampler"]["name"] == "vllm"
        assert job.spec["sampler"]["dtype"] == "bfloat16"
        assert job.spec["train"]["old_logprobs"] == "recompute"
        # steps of 1e-6 would vanish in bfloat16 weights
        assert job.spec["model"]["dtype"] == "float32"
        assert job.spec["train"]["autocast"] == "bfloat16"
        assert job.spec["model"].get("gradient_checkpointing", False) == (scale == "paper")


def test_what_is_published_is_marked_and_the_rest_is_chosen():
    origins = {s.key: s.origin for s in resolved("compile-speedup", "paper").settings}
    assert origins["model.name"] == origins["task.name"] == "published"
    assert origins["algorithm.options.token_weight (bot_grpo)"] == "published"
    assert origins["algorithm.options.local_weight (bot_grpo)"] == "chosen"
    assert origins["train.learning_rate"] == origins["train.group_size"] == "chosen"
    learned = {s.key: s for s in resolved("bpco-parts", "paper").settings}["train.learning_rate"]
    assert (learned.origin, learned.value) == ("published", 1e-6)


def test_claims_follow_the_settings_that_a_preset_states():
    for name in ("compile-speedup", "what-helps", "aime-passk", "base-family"):
        for job in plan(load_claim(name), "paper", (0,)).jobs:
            for key, value in PRESETS[job.spec["model"]["name"]].settings.items():
                section, field = key.split(".")
                assert job.spec[section][field] == value, (name, key)


def test_amounts_by_hand():
    """180 steps of 32 x 8 answers, 37 evaluations of 200, all at most 2,048 tokens; 5 seeds, 2 arms."""
    found = resolved("compile-speedup", "paper")
    grpo = found.arms[0]
    assert (grpo.prompts, grpo.completions, grpo.evaluation_completions) == (5_760, 46_080, 7_400)
    assert grpo.tokens == 94_371_840
    assert found.tokens == (94_371_840 + 7_400 * 2_048) * 10
    assert grpo.passes == "update 4, old log-probs 1"
    half = {arm.arm: arm.optimizer_steps for arm in resolved("aime-passk", "paper").arms}
    assert half == {"bot_grpo": 200, "grpo": 400}
    assert PROMPT_TOKENS > 0


def test_judges_are_priced_from_the_table():
    """46,080 judged answers x 5 seeds; gpt-5-mini takes 0.25 and 2 US$ a million tokens."""
    line = next(words for words in resolved("compile-speedup", "paper").judge if "paid judge" in words)
    calls = 46_080 * 5
    assert f"{calls:,} calls" in line
    assert usd("gpt-5-mini", calls, CALL) == pytest.approx(calls * (1_500 * 0.25 + 300 * 2) / 1e6)
    pairs = next(words for words in resolved("win-rate", "paper").judge if "judge of pairs" in words)
    assert f"{200 * 4 * 2 * 5:,} calls" in pairs  # prompts, opponents, both orders, seeds


SHAPE = ModelShape(vocabulary=100, hidden=8, layers=2, heads=2, kv_heads=1, intermediate=16, head_size=4)
CARD = Card("toy", flops=1e6, bandwidth=1e6, memory_bytes=1e5)


def test_decoding_by_hand():
    """Weights P x 2 bytes and 4 answers x 12 tokens x 16 numbers x 2 bytes a token, at half of 1 MB/s, plus 2 ms."""
    weights = SHAPE.parameters * 2
    assert SHAPE.cache_per_token == 16
    step = (weights + 4 * 12 * 16 * 2) / 5e5 + 0.002
    found = decode_seconds(SHAPE, 4, 10, 4, card=CARD, memory_share=1.0)
    assert found == pytest.approx(4 * step)
    assert rows_in_flight(SHAPE, 1000, 12, 1e9) == 256
    assert rows_in_flight(SHAPE, 1000, 12, 12 * 16 * 2 * 3 + 1) == 3


def test_training_by_hand():
    """3 passes over 2 x 10 tokens at 35% of 1 MFLOP/s: 2 P and 4 x 2 layers x 8 wide x 10 / 2 FLOPs a token."""
    flops = 3 * 20 * (2 * SHAPE.parameters + 4 * 2 * 8 * 10 / 2)
    assert pass_seconds(SHAPE, 2, 6, 4, card=CARD, passes=3.0) == pytest.approx(flops / 3.5e5)


def test_a_word_on_no_setting_is_refused():
    data = load_claim("compile-speedup").model_dump(mode="json")
    data["scales"]["paper"]["chosen"]["train.learning_rat"] = "because"
    claim = parse_claim(data, "mine")
    with pytest.raises(UserError, match=r"did you mean 'train\.learning_rate'"):
        resolve(claim, "paper", plan(claim, "paper", (0,)).jobs)


def test_a_dry_run_at_paper_scale_loads_no_model(capsys):
    options = commands.ReproduceOptions(claim="aime-passk", scale="paper", dry_run=True, quiet=True)
    assert commands.reproduce(options) == 0
    text = capsys.readouterr().out
    assert "GPU hours" in text
    assert "Qwen/Qwen2.5-3B" in text
    assert text.count("harness train --algorithm") == 10
