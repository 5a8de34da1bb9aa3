from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.train.alignment import local_to_tokens, steps_to_tokens
from tasks.base import Answer, Task
from tasks.ladder import LadderOptions, LadderTask
from tasks.ladder.generate import START, right_text, write_answer
from tasks.ladder.options import FAMILIES
from tasks.ladder.rules import encode_texts, read


def scored(text: str, number: int = 1, finished: bool = True, **options):
    task = LadderTask(steps=3, **options)
    return task.score([task.example("train", number)], [Answer(text, finished)])[0]


def values(score) -> dict[int, float]:
    return {span.start: span.value for span in score.spans}


def test_it_is_a_task_with_a_rule_in_its_prompt():
    task = LadderTask(steps=3)
    example = task.example("train", 1)
    assert isinstance(task, Task)
    assert example.prompt == "3:b+1="
    assert example.reference["right"] == "bcd"
    assert task.example("test", 1 + task.size("test")) == example
    assert example.variants["without_rubric"] == "3:b="
    assert example.variants["hint_2"] == "3:b+1(bc)="


@pytest.mark.parametrize("family", FAMILIES)
def test_the_right_answer_wins_in_every_family(family):
    for outcome in ("all_right", "fraction"):
        options = LadderOptions(family=family, outcome=outcome, steps=3)
        found = scored(right_text(options, 1), family=family, outcome=outcome)
        assert found.correct
        assert found.outcome == 1.0


# golden values by hand: problem 1 asks for b, c, d
@pytest.mark.parametrize(
    ("family", "text", "fraction", "local"),
    [
        ("independent", "bad", 2 / 3, {0: 1, 1: -1, 2: 1}),
        ("independent", "b~d", 2 / 3, {0: 1, 1: -1, 2: 1}),  # no filler here: just a wrong letter
        ("independent", "bcdd", 3 / 4, {0: 1, 1: 1, 2: 1, 3: -1}),
        ("chain", "bad", 1 / 3, {0: 1, 1: -1}),
        ("distractor", "bxcxax", 2 / 3, {0: 1, 2: 1, 4: -1}),
        ("uneven", "b~~cd", 1.0, {0: 1, 3: 1, 4: 1}),
        ("hackable", "b~~ad", 2 / 3, {1: 1, 2: 1, 3: -1}),
    ],
)
def test_outcome_and_local_reward_by_hand(family, text, fraction, local):
    found = scored(text, family=family, outcome="fraction")
    assert found.outcome == pytest.approx(fraction)
    assert values(found) == local
    assert found.correct == (text == "b~~cd")


def test_an_unfinished_or_short_answer_is_not_right():
    assert not scored("bcd", finished=False).correct
    assert not scored("bc").correct
    assert scored("", outcome="fraction").outcome == 0.0


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(alphabet="abcd~xé ", max_size=12),
    family=st.sampled_from(FAMILIES),
    outcome=st.sampled_from(("all_right", "fraction")),
)
def test_any_text_is_scored_within_range_and_alone_as_in_company(text, family, outcome):
    task = LadderTask(family=family, outcome=outcome, steps=4, noise=0.3, dropout=0.2, bias=0.1)
    examples = [task.example("train", n) for n in (0, 1, 2)]
    answers = [Answer("abcdabcd"), Answer(text), Answer("")]
    together = task.score(examples, answers)
    assert together[1] == task.score(examples[1:2], answers[1:2])[0]
    for score in together:
        assert 0 <= score.outcome <= 1
        assert all(-1 <= span.value <= 1 for span in score.spans)
    assert together[1].correct <= (together[1].outcome == 1.0)


def many(n: int, **options):
    o = LadderOptions(steps=8, **options)
    rng = np.random.default_rng(0)
    symbols = rng.integers(0, o.letters, (n, 8))
    full = np.full(n, 8)
    salts = rng.integers(0, 2**40, n)
    return read(symbols, full, np.ones(n, bool), np.zeros(n, int), o, salts)


def test_noise_flips_and_dropout_hides_their_share():
    found = many(4000, noise=0.2)
    assert np.mean(found.local == -found.exact) == pytest.approx(0.2, abs=0.01)
    hidden = many(4000, dropout=0.25)
    assert np.mean(hidden.local == 0) == pytest.approx(0.25, abs=0.012)
    assert np.all((hidden.local == 0) | (hidden.local == hidden.exact))


def test_delay_moves_bias_shifts_and_scale_is_unbounded():
    late = many(50, delay=2)
    assert np.array_equal(late.local[:, 2:], late.exact[:, :-2])
    assert not late.local[:, :2].any()
    assert np.array_equal(many(50, bias=0.5).local, np.clip(late.exact + 0.5, -1, 1))
    wild = many(4000, scale_spread=1.0)
    assert np.array_equal(np.sign(wild.local), np.sign(wild.exact))
    assert np.log(np.abs(wild.local)).std() == pytest.approx(1.0, abs=0.02)
    assert np.abs(wild.local).max() > 5
    assert not many(50, delay=8).local.any()


def test_without_a_salt_a_judge_repeats_itself_and_a_seed_changes_it():
    o = LadderOptions(steps=8, noise=0.5)
    symbols, lengths = encode_texts(["abcdabcd", "abcdabca", "abcdabcd"], o)
    problems, done = np.zeros(3, int), np.ones(3, bool)
    one = read(symbols, lengths, done, problems, o).local
    assert np.array_equal(one[0], one[2])
    wider = np.pad(symbols, ((0, 0), (0, 3)), constant_values=-2)
    assert np.array_equal(read(wider, lengths, done, problems, o).local[:, :8], one)
    other = LadderOptions(steps=8, noise=0.5, degrade_seed=1)
    assert not np.array_equal(read(symbols, lengths, done, problems, other).local, one)


def test_the_local_reward_reaches_tokens_as_it_is():
    task = LadderTask(steps=3, family="hackable")
    answer = Answer("b~ad")
    score = task.score([task.example("train", 1)], [answer])[0]
    ranges = np.stack([np.arange(4), np.arange(1, 5)], 1)
    tokens, scored_tokens = local_to_tokens(
        task.recipes["steps_scored"](answer, score), ranges, has_end_token=False
    )
    assert tokens.tolist() == [0, 1, -1, 0]
    assert scored_tokens.tolist() == [False, True, True, False]
    assert steps_to_tokens(score.steps, ranges).tolist() == [0, 1, 1, 2]
    negative, _ = local_to_tokens(task.recipes["errors_only"](answer, score), ranges, has_end_token=False)
    assert negative.tolist() == [0, 0, -1, 0]


@pytest.mark.parametrize("field", ["family", "outcome"])
def test_a_wrong_option_names_its_values(field):
    with pytest.raises(ValueError, match=rf"task\.{field}='x': choose one of"):
        LadderOptions(**{field: "x"})


def test_limits_of_numbers_are_named():
    with pytest.raises(ValueError, match=r"task\.noise=2: set it from 0 to 1"):
        LadderOptions(noise=2)
    with pytest.raises(ValueError, match="filler_share"):
        LadderOptions(filler_share=1.5)


def test_the_corpus_starts_where_the_options_say():
    o, rng = LadderOptions(steps=8, start_logit=1.0), np.random.default_rng(3)
    texts = [write_answer(o, 1, rng) for _ in range(600)]
    symbols, lengths = encode_texts(texts, o)
    found = read(symbols, lengths, np.ones(600, bool), np.ones(600, int), o)
    assert np.mean(found.right) == pytest.approx(o.start_probability, abs=0.02)
    example = START.example("train", 5)
    assert START.right_answer(example, rng) == example.reference["right"]


def test_wrong_answers_are_longer_in_the_uneven_family():
    o, rng = LadderOptions(steps=4, family="uneven", start_logit=2.0), np.random.default_rng(1)
    texts = [write_answer(o, 1, rng) for _ in range(400)]
    symbols, lengths = encode_texts(texts, o)
    letters = (symbols >= 0) & (symbols < o.letters)
    found = read(symbols, lengths, letters.sum(1) == o.units, np.ones(400, int), o)
    assert lengths[~found.correct].mean() > 1.4 * lengths[found.correct].mean()
