from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithms.base import Request
from harness.credit.monte_carlo import (
    Credit,
    ModelContinuer,
    Sampled,
    TableContinuer,
    edges_of,
    monte_carlo_credit,
)
from harness.credit.truth import enumerate_answers, exact_credit, exact_values
from harness.ladder.policy import TablePolicy
from harness.ladder.sampling import Answers, sample
from tasks.base import Answer
from tasks.ladder import LadderOptions
from tasks.ladder.options import FAMILIES


def policy_of(seed: int = 0, **options) -> TablePolicy:
    """A policy some way from its start, so that no state is like another."""
    policy = TablePolicy(LadderOptions(**{"letters": 3, "problems": 2, **options}))
    with torch.no_grad():
        policy.table.add_(torch.randn(policy.table.shape, generator=torch.Generator().manual_seed(seed)))
    return policy


def answers_of(policy: TablePolicy, count: int, seed: int = 0) -> Answers:
    rng = np.random.default_rng(seed)
    prompts = np.stack([rng.integers(0, policy.options.problems, count), np.zeros(count, int)], 1)
    return sample(policy, prompts, rng)


@pytest.mark.parametrize("outcome", ["all_right", "fraction"])
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_credit_is_that_of_full_enumeration(family, outcome):
    # with a filler answers are four times as long, so fewer letters keep them countable
    size = {"independent": (4, 3), "uneven": (2, 2), "hackable": (2, 2)}.get(family, (2, 3))
    policy = policy_of(family=family, outcome=outcome, steps=size[0], letters=size[1])
    answers = answers_of(policy, 30)
    credit = exact_credit(policy, answers)
    for number in (0, 1):
        every = enumerate_answers(policy, number)
        assert every.probabilities.sum() == pytest.approx(1.0)
        for i in np.flatnonzero(answers.prompts[:, 0] == number):
            length = answers.lengths[i]
            found = every.credit(answers.symbols[i, :length])
            assert credit[i, :length] == pytest.approx(found, abs=1e-12)
    expected = np.mean([(e := enumerate_answers(policy, n)).probabilities @ e.outcomes for n in (0, 1)])
    assert exact_values(policy)[1] == pytest.approx(expected, abs=1e-12)


def test_one_step_by_hand():
    # p = 3/4 for the right letter of one step: credit 1/4 for it and -3/4 for the others
    policy = TablePolicy(LadderOptions(steps=1, letters=2, problems=1, start_logit=float(np.log(3))))
    answers = answers_of(policy, 40)
    credit = exact_credit(policy, answers)[:, 0]
    assert credit == pytest.approx(np.where(answers.reading.correct, 0.25, -0.75))


@pytest.mark.parametrize("family", FAMILIES)
def test_credits_of_an_answer_add_up_to_its_outcome_less_what_was_expected(family):
    policy = policy_of(family=family, steps=3, outcome="fraction")
    answers = answers_of(policy, 50)
    values, _ = exact_values(policy)
    expected = values[answers.prompts[:, 0], 0, 0, 0]
    found = exact_credit(policy, answers).sum(1)
    assert found == pytest.approx(answers.reading.outcome - expected, abs=1e-12)


def test_what_does_not_matter_has_no_credit():
    policy = policy_of(family="distractor", steps=3, distractors=2)
    answers = answers_of(policy, 50)
    credit = exact_credit(policy, answers)
    distracting = np.arange(9) % 3 != 0
    assert np.abs(credit[:, distracting]).max() < 1e-12
    assert np.abs(credit[:, ~distracting]).max() > 0.01
    chain = policy_of(family="chain", steps=3, outcome="fraction")
    spoiled = answers_of(chain, 50)
    assert np.abs(exact_credit(chain, spoiled)[spoiled.reading.spoiled]).max() < 1e-12


def test_too_many_answers_are_refused():
    with pytest.raises(ValueError, match="too many to enumerate"):
        enumerate_answers(policy_of(steps=12), 0)


# --- Monte Carlo ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "outcome"), [("chain", "all_right"), ("independent", "fraction")])
def test_monte_carlo_is_unbiased_and_its_intervals_are_calibrated(family, outcome):
    policy = policy_of(family=family, outcome=outcome, steps=4, start_logit=2.0)
    answers = answers_of(policy, 60)
    truth = exact_credit(policy, answers)
    found = []
    for repeat in range(40):
        credits, _ = monte_carlo_credit(
            Sampled.all_of(answers), TableContinuer(policy), samples=6, most=99, address=("test", repeat)
        )
        found.append(
            [
                np.concatenate([getattr(c, name) for c in credits])
                for name in ("credit", "standard_error", "low", "high")
            ]
        )
    credit, error, low, high = np.moveaxis(np.array(found), 1, 0)
    exact = np.concatenate([row[:n] for row, n in zip(truth, answers.lengths, strict=True)])
    # the mean of 40 independent estimates of every token, against its own spread
    z = (credit.mean(0) - exact) / (credit.std(0, ddof=1) / np.sqrt(40) + 1e-9)
    assert abs(np.mean(z[np.abs(exact) > 1e-6])) < 0.5
    assert np.mean((credit - exact) ** 2) == pytest.approx(np.mean(error**2), rel=0.25)
    covered = np.mean((low <= exact + 1e-12) & (exact <= high + 1e-12))
    assert covered >= 0.93
    assert (
        outcome == "fraction" or covered <= 0.995
    )  # shares vary less than all-or-nothing, so theirs are wide


def test_the_value_after_the_last_token_is_the_outcome_and_prefixes_are_shared():
    policy = policy_of(steps=3)
    answers = answers_of(policy, 40)
    credits, cost = monte_carlo_credit(
        Sampled.all_of(answers), TableContinuer(policy), samples=4, most=99, address=("x",)
    )
    assert [c.values[-1] for c in credits] == answers.reading.outcome.tolist()
    assert cost.continuations == 40 * 3 * 4
    assert cost.prefixes < 40 * 3  # the start of an answer is common to many
    starts = {
        n: {c.values[0] for c, p in zip(credits, answers.prompts, strict=True) if p[0] == n} for n in (0, 1)
    }
    assert all(len(values) == 1 for values in starts.values())


def test_fewer_segments_cover_the_same_answer():
    assert edges_of(7, 3).tolist() == [0, 2, 5, 7]
    assert edges_of(2, 8).tolist() == [0, 1, 2]
    policy = policy_of(steps=8)
    answers = answers_of(policy, 6)
    credits, _ = monte_carlo_credit(
        Sampled.all_of(answers), TableContinuer(policy), samples=4, most=3, address=("x",)
    )
    for credit in credits:
        assert len(credit.credit) == 3
        assert len(credit.per_token()) == 8
        assert credit.per_token().sum() == pytest.approx(credit.values[-1] - credit.values[0])


def test_one_sample_is_refused():
    with pytest.raises(ValueError, match="samples=1: give two or more"):
        monte_carlo_credit([], TableContinuer(policy_of()), samples=1, most=3, address=("x",))


def test_exact_credit_as_segments():
    credit = Credit.exact(np.array([0.5, -0.25]))
    assert credit.per_token().tolist() == [0.5, -0.25]
    assert credit.standard_error.tolist() == [0.0, 0.0]


# --- a language model, by the shared loop's own sampler ---------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tiny_model_folder, letters_plugin):
    from harness.spec import parse_run
    from harness.train.build import build

    return build(
        parse_run(
            {
                "algorithm": {"name": "grpo"},
                "task": {"name": "letters"},
                "model": {"name": str(tiny_model_folder)},
                "train": {"max_completion_tokens": 6, "micro_batch_size": 8},
                "plugins": [str(letters_plugin)],
            }
        )
    )


def even_first(parts, example) -> float:
    """Probability that the first character of an answer has an even code, from the model's first token."""
    prompt = torch.tensor([parts.codec.encode(example.prompt)])
    with torch.no_grad():
        p = torch.softmax(parts.model(input_ids=prompt).logits[0, -1].double(), -1)
    total = 0.0
    for token, probability in enumerate(p.tolist()):
        text, _ = parts.generator.aligner.decode([token])
        if text and "\ufffd" not in text:
            total += probability * (ord(text[0]) % 2 == 0)
    return total


def test_a_models_values_are_those_of_its_own_probabilities(parts):
    example = parts.task.example("train", 3)
    lot = parts.generator.generate([Request(example=example, count=20, group=0)], ("t",), temperature=1.0)[0]
    answers = [Sampled.of(c) for c in lot]
    credits, cost = monte_carlo_credit(
        answers, ModelContinuer(parts.generator), samples=24, most=2, address=("mc",)
    )
    start = credits[0].values[0]
    assert all(c.values[0] == start for c in credits)
    n = 20 * 24
    # bytes that only begin a character are decided by later tokens: they move the value by less than this
    assert start == pytest.approx(even_first(parts, example), abs=4 * 0.5 / n**0.5 + 0.12)
    assert cost.continuations == sum(len(c.credit) for c in credits) * 24
    for completion, credit in zip(lot, credits, strict=True):
        text = completion.answer.text
        if text and "\ufffd" not in text[:1] and len(credit.credit) > 1:
            # the first character decides: after it the value is the outcome, and nothing later has credit
            assert credit.values[1] == completion.score.outcome
            assert credit.credit[1:].tolist() == [0.0] * (len(credit.credit) - 1)


def test_continuations_of_unlike_length_never_exceed_the_limit(parts):
    seen: list[Answer] = []
    continuer = ModelContinuer(parts.generator)

    class Spy:
        def score(self, examples, answers):
            seen.extend(answers)
            return parts.task.score(examples, answers)

    continuer.parts = type(parts.generator)(
        Spy(), parts.codec, parts.generator.aligner, parts.generator.sampler, max_tokens=6
    )
    example = parts.task.example("train", 0)
    prompt = tuple(parts.codec.encode(example.prompt))
    body = tuple(parts.codec.tokenizer("abcde")["input_ids"])[:5]
    prefixes = [(prompt, body[:k]) for k in range(len(body))]
    outcomes, tokens = continuer.continue_from(
        prefixes, [3] * len(prefixes), [example] * len(prefixes), ("z",)
    )
    assert [len(o) for o in outcomes] == [3] * len(prefixes)
    assert tokens <= 3 * sum(6 - len(ids) for _, ids in prefixes)
    assert len(seen) == len(set(seen))  # equal texts are graded once
    assert all(len(parts.codec.tokenizer(a.text)["input_ids"]) <= 12 for a in seen)
