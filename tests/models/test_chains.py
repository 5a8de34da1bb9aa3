"""The arithmetic models: one that shows its steps, one that only ever saw results."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.models import PRESETS, shipped_path
from harness.models.chains import BARE, WORKED
from harness.train.pretrain import Corpus, measure, sample_answers
from tasks.aime.task import AimeTask
from tasks.base import Answer


@pytest.fixture(scope="module")
def task():
    grader = AimeTask()
    yield grader
    grader.close()


def _right(task: AimeTask, answers: list[str], corpus) -> float:
    examples = [corpus.example("test", i) for i in range(len(answers))]
    scores = task.score(examples, [Answer(text) for text in answers])
    return sum(score.correct for score in scores) / len(scores)


@pytest.mark.parametrize("corpus", [WORKED, BARE])
def test_right_answers_are_right_and_corpus_answers_mostly_wrong(task: AimeTask, corpus) -> None:
    rng = np.random.default_rng(0)
    problems = [corpus.example("test", i) for i in range(300)]
    assert _right(task, [corpus.right_answer(p, rng) for p in problems], corpus) == 1
    assert 0.01 < _right(task, [corpus.corpus_answer(p, rng) for p in problems], corpus) < 0.6


def test_only_one_corpus_shows_steps() -> None:
    rng = np.random.default_rng(0)
    problem = WORKED.example("train", 0)
    assert WORKED.right_answer(problem, rng).startswith("Step 1: ")
    assert BARE.right_answer(problem, rng) == f"\\boxed{{{problem.reference['answer']}}}"
    assert not any("Step" in BARE.corpus_answer(BARE.example("train", i), rng) for i in range(200))


def test_corpus_answers_depend_on_their_stream_alone() -> None:
    problem = WORKED.example("train", 5)
    drawn = [WORKED.corpus_answer(problem, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("name", ["chains-tiny", "chains-tiny-base"])
def test_a_shipped_model_starts_where_its_card_says(name: str) -> None:
    recipe = PRESETS[name].recipe
    assert recipe is not None
    tokenizer = AutoTokenizer.from_pretrained(shipped_path(name))
    model = AutoModelForCausalLM.from_pretrained(shipped_path(name)).eval()
    measured = measure(model, tokenizer, recipe, Corpus(recipe, 0), seed=0)
    assert 0.01 <= measured["start_rate"] <= 0.1
    assert measured["truncated"] < 0.1
    card = (shipped_path(name) / "README.md").read_text()
    assert f"{measured['right']} of {measured['n']};" in card
    examples = [WORKED.example("test", i) for i in range(50)]
    answers, _ = sample_answers(model, tokenizer, examples, max_new_tokens=recipe.max_new_tokens, seed=1)
    shows_steps = sum("Step 1" in answer.text for answer in answers)
    assert shows_steps >= 40 if name == "chains-tiny" else shows_steps == 0
