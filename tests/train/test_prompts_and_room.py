"""Prompts of any tokenizer, end tokens, thinking; what does not fit is refused before weights are read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_models import build_model, build_tokenizer

from harness.errors import EnvironmentProblem, UserError
from harness.memory import GIB
from harness.models import PRESETS, ModelPreset
from harness.spec import ModelSpec
from harness.store.writer import RunWriter
from harness.train import build as building
from harness.train.build import build
from harness.train.load import load_codec, load_tokenizer
from harness.train.loop import Trainer
from harness.train.prompts import PromptCodec, codec_of, end_tokens

TEMPLATE = (
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "{{ strftime_now('%d %B %Y') }} {{ '/think' if enable_thinking else '/no_think' }} {{ messages[0]['content'] }}"
)


def saved(folder, *, template: str | None = None, pad: str | None = "<pad>", eos: str | None = "<eos>"):
    """A model folder whose tokenizer lacks or has these."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template, tokenizer.pad_token, tokenizer.eos_token = template, pad, eos
    tokenizer.save_pretrained(folder)
    build_model(vocabulary=len(tokenizer)).save_pretrained(folder)
    return folder


def test_a_tokenizer_without_template_gives_plain_text():
    tokenizer = build_tokenizer()
    assert PromptCodec(tokenizer).encode("the cat") == tokenizer("the cat")["input_ids"]


def test_the_thinking_switch_reaches_the_template():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    texts = {
        thinking: tokenizer.decode(PromptCodec(tokenizer, thinking=thinking).encode("the cat"))
        for thinking in (None, True, False)
    }
    assert "/think" in texts[True] == texts[None]
    assert "/no_think" in texts[False]


def test_a_template_that_writes_the_date_writes_the_same_every_day():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    assert "08 July 2025" in tokenizer.decode(PromptCodec(tokenizer).encode("a"))


def test_thinking_without_a_switch_is_refused():
    with pytest.raises(
        UserError, match=r"model\.thinking=off: .* no such switch; use model\.thinking=preset"
    ):
        PromptCodec(build_tokenizer(), thinking=False)


def test_the_spec_and_the_preset_decide_on_thinking(monkeypatch):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    preset = ModelPreset("own", "hub", "o/own", "", chat_template=True, thinking=False)
    monkeypatch.setattr("harness.train.prompts.PRESETS", {**PRESETS, "own": preset})
    config = SimpleNamespace(max_position_embeddings=64)
    for thinking, word in (("preset", "/no_think"), ("on", "/think"), ("off", "/no_think")):
        codec = codec_of(ModelSpec(name="own", thinking=thinking), tokenizer, config, None)
        assert f" {word} " in tokenizer.decode(codec.encode("a"))
    assert codec.context == 64


def test_end_tokens_are_the_generation_configs_and_the_presets(monkeypatch):
    tokenizer = build_tokenizer()
    word = tokenizer.convert_tokens_to_ids("a")
    preset = ModelPreset("own", "hub", "o/own", "", stop_tokens=("a",))
    monkeypatch.setattr("harness.train.prompts.PRESETS", {"own": preset})
    assert end_tokens("other", tokenizer, SimpleNamespace(eos_token_id=[7, 5])) == [5, 7]
    assert end_tokens("other", tokenizer, SimpleNamespace(eos_token_id=3)) == [3]
    assert end_tokens("other", tokenizer, SimpleNamespace(eos_token_id=None)) == []
    assert end_tokens("own", tokenizer, SimpleNamespace(eos_token_id=3)) == sorted([3, word])
    monkeypatch.setattr(
        "harness.train.prompts.PRESETS", {"own": ModelPreset("own", "hub", "o", "", stop_tokens=("<gone>",))}
    )
    with pytest.raises(UserError, match=r"model\.name='own': its tokenizer has no '<gone>'"):
        end_tokens("own", tokenizer, None)


def test_a_model_of_bare_prompts_loses_its_template(tmp_path, monkeypatch):
    saved(tmp_path, template=TEMPLATE)
    monkeypatch.setattr("harness.train.load.local_folder", lambda name, **_: tmp_path)
    assert load_tokenizer(ModelSpec(name="Qwen2.5-3B")).chat_template is None
    assert load_tokenizer(ModelSpec(name="Qwen2.5-3B-Instruct")).chat_template == TEMPLATE


def run(tiny_spec, folder, root):
    spec = tiny_spec(model={"name": str(folder)})
    writer = RunWriter(root, {"run_id": "x"})
    trainer = Trainer(build(spec), writer)
    status, _ = trainer.run()
    writer.close()
    return trainer, status


@pytest.mark.parametrize("pad", [None, "<eos>"], ids=["no pad token", "pad equal to EOS"])
def test_training_without_a_pad_token_of_its_own(tiny_spec, tmp_path, pad):
    """The end token stands in for padding, and its sampled log-prob still counts as an action."""
    folder = saved(tmp_path / "model", pad=pad)
    plain, _ = run(tiny_spec, saved(tmp_path / "plain"), tmp_path / "a")
    trainer, status = run(tiny_spec, folder, tmp_path / "b")
    assert status == "completed"
    assert trainer.parts.codec.pad_id == trainer.parts.codec.eos_ids[0] == 1
    steps = [(tmp_path / name / "steps.jsonl").read_text() for name in ("a", "b")]
    assert steps[0] == steps[1], "what pads is masked everywhere: the run is the same"
    assert plain.parts.codec.pad_id == 0


def test_a_tokenizer_without_end_token_is_refused(tmp_path, tiny_spec):
    folder = saved(tmp_path, eos=None)
    with pytest.raises(UserError, match=r"model\.name: its tokenizer has no eos_token"):
        load_codec(ModelSpec(name=str(folder)))


@pytest.fixture
def no_weights(monkeypatch):
    def refuse(*args):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(building, "load_policy", refuse)


def test_a_context_too_short_is_refused_before_weights_are_read(tiny_spec, no_weights):
    with pytest.raises(UserError, match=r"train\.max_completion_tokens=256: .* context of 256; lower it to"):
        build(tiny_spec(train={"max_completion_tokens": 256}))


def test_without_cuda_a_cuda_model_is_refused_before_weights_are_read(tiny_spec, no_weights, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"model\.device='cuda': no CUDA device here; use model\.device=cpu"):
        build(tiny_spec(model={"device": "cuda"}))


@pytest.mark.parametrize("algorithm", ["grpo", "bpco"])
def test_too_small_a_card_is_refused_with_what_would_fit(tiny_spec, no_weights, monkeypatch, algorithm):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(0.55 * GIB), GIB))
    with pytest.raises(
        EnvironmentProblem, match=rf"{algorithm} needs about 0\.[56].* of the card are free; take a"
    ):
        build(tiny_spec(algorithm, train={"group_size": 1 if algorithm == "bpco" else 4}))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, GIB))
    with pytest.raises(AssertionError, match="weights were loaded"):
        build(tiny_spec(algorithm, train={"group_size": 1 if algorithm == "bpco" else 4}))


def test_8_bit_states_on_a_cpu_are_refused_before_weights_are_read(tiny_spec, no_weights):
    with pytest.raises(UserError, match=r"train\.optimizer='adamw_8bit'"):
        build(tiny_spec(train={"optimizer": "adamw_8bit"}, model={"device": "cpu"}))
