"""The tiny models: tokenizer, start, and their rebuild."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.errors import UserError
from harness.models import PRESETS, shipped_path
from harness.train.pretrain import Corpus, encode, measure, pretrain, sample_answers, token_losses

RECIPE = PRESETS["react-tiny"].recipe
assert RECIPE is not None
TOKENIZER = AutoTokenizer.from_pretrained(shipped_path("react-tiny"))


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(shipped_path("react-tiny")).eval()


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "text", ["a\u2028b\r\n\tc", "👩‍👩‍👧‍👦 {x}", "\ufeff<p>é\u0301</p>", "\x00\x7f", "```tsx\n```\n"]
)
def test_odd_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_special_tokens_are_distinct_and_inside_the_vocabulary(model) -> None:
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    assert len(TOKENIZER) == model.config.vocab_size
    assert model.config.eos_token_id == TOKENIZER.eos_token_id
    assert TOKENIZER.bos_token_id is None
    assert not TOKENIZER.chat_template


def test_right_answers_are_short() -> None:
    corpus = Corpus(RECIPE, seed=3)
    lengths = []
    for i in range(300):
        problem = corpus.example("test", i)
        answer = corpus.source.right_answer(problem, corpus.rng("test", i))
        lengths.append(len(TOKENIZER(answer)["input_ids"]) + 1)
    assert max(lengths) <= RECIPE.max_new_tokens
    assert 50 <= sum(lengths) / len(lengths) <= 90


def test_the_shipped_model_is_small(model) -> None:
    assert sum(p.numel() for p in model.parameters()) <= 850_000
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_shipped_model_starts_where_its_card_says(model) -> None:
    measured = measure(model, TOKENIZER, RECIPE, Corpus(RECIPE, 0), seed=0)
    assert 0.01 <= measured["start_rate"] <= 0.06
    assert measured["truncated"] < 0.1
    assert measured["right_answer_loss"] < measured["held_out_loss"] < 1
    card = (shipped_path("react-tiny") / "README.md").read_text()
    assert f"{measured['right']} of {measured['n']};" in card
    assert f"| {measured['held_out_loss']:.4f} |" in card


def test_padding_does_not_count_in_the_loss(model) -> None:
    texts = ["<p>Home</p>", "<h1>Hello</h1><p>Home</p>"]
    with torch.no_grad():
        both = token_losses(model, encode(TOKENIZER, texts))
        alone = [token_losses(model, encode(TOKENIZER, [text])) for text in texts]
    torch.testing.assert_close(both, torch.cat(alone), rtol=0, atol=1e-4)


def test_sampling_is_the_same_for_the_same_seed(model) -> None:
    examples = [Corpus(RECIPE, 0).example("test", i) for i in range(8)]
    runs = [sample_answers(model, TOKENIZER, examples, max_new_tokens=32, seed=s) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_short_rebuild_is_deterministic_complete_and_learns(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    before = torch.random.get_rng_state()
    for name, seed, steps in (("a", 0, 3), ("b", 0, 3), ("c", 1, 10)):
        result = pretrain(
            tmp_path / name, seed=seed, steps=steps, held_out=8, progress=lambda *done: seen.append(done)
        )
    assert [step for step, _, _ in seen] == [1, 2, 3, 1, 2, 3, *range(1, 11)]
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert seen[-1][2] < seen[-10][2] - 0.5
    card = (tmp_path / "c" / "README.md").read_text()
    assert f"with {result['parameters']} parameters" in card
    assert "10 steps of" in card
    assert "--seed 1" in card


def test_only_models_with_a_recipe_are_built(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="react-tiny"):
        pretrain(tmp_path, preset="SmolLM3-3B")


@pytest.mark.slow
def test_a_rebuild_behaves_like_the_shipped_model(tmp_path: Path, model) -> None:
    rebuilt = pretrain(tmp_path, seed=1)
    shipped = measure(model, TOKENIZER, RECIPE, Corpus(RECIPE, 0), seed=0)
    assert abs(rebuilt["held_out_loss"] - shipped["held_out_loss"]) < 0.05
    assert 0.01 <= rebuilt["start_rate"] <= 0.07
    assert rebuilt["truncated"] < 0.1
