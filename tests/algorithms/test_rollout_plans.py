"""iGRPO, SAGE and RC-GRPO: what is sampled, under which prompt, and what reaches the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from algorithms.base import Algorithm, ConfigError, Request, Sample
from algorithms.grpo import Grpo
from algorithms.igrpo import Igrpo, IgrpoOptions
from algorithms.rc_grpo import RcGrpo, RcGrpoOptions
from algorithms.sage import Sage, SageOptions
from harness.train.toy import ToyExample, ToyTask, ToyTrainer

EXAMPLES = [ToyExample(0), ToyExample(1)]
Answer = Callable[[Request, int], tuple[str, float, bool]]


def run_plan(
    algorithm: Algorithm, answer: Answer, group_size: int = 4, examples: Sequence = EXAMPLES
) -> list[list[Request]]:
    """Every round of requests, answering completion k of a request with (text, outcome, correct)."""
    plan = algorithm.rollout_plan(examples, group_size)
    rounds = [next(plan)]
    while True:
        samples = []
        for request in rounds[-1]:
            for k in range(request.count):
                text, outcome, correct = answer(request, k)
                samples.append(Sample(request, text, outcome, correct, False))
        try:
            rounds.append(plan.send(samples))
        except StopIteration:
            return rounds


def wrong(request: Request, k: int) -> tuple[str, float, bool]:
    return "x", 0.0, False


def right(request: Request, k: int) -> tuple[str, float, bool]:
    return "x", 1.0, True


def test_plain_plan_is_one_round_of_groups() -> None:
    assert run_plan(Grpo(), wrong) == [[Request(e, 4, i) for i, e in enumerate(EXAMPLES)]]


# --- iGRPO -------------------------------------------------------------------------------------------------


def test_the_best_draft_joins_the_prompt_and_drafts_are_not_trained_on() -> None:
    scores = {0: [0.2, 0.9, 0.9], 1: [0.5, 0.1, 0.3]}
    algorithm = Igrpo(IgrpoOptions(drafts=3, template="{prompt}|{draft}"))
    rounds = run_plan(algorithm, lambda r, k: (f"draft{k}", scores[r.group][k % 3], False))
    assert [(r.count, r.train, r.prompt) for r in rounds[0]] == [(3, False, None)] * 2
    assert [(r.count, r.train, r.prompt) for r in rounds[1]] == [
        (4, True, "p0|draft1"),
        (4, True, "p1|draft0"),
    ]


def test_braces_in_a_draft_are_text() -> None:
    algorithm = Igrpo(IgrpoOptions(drafts=1, template="{prompt}|{draft}"))
    rounds = run_plan(algorithm, lambda r, k: ("{prompt} { } {0}", 1.0, True))
    assert rounds[1][0].prompt == "p0|{prompt} { } {0}"


@pytest.mark.parametrize("drafts", [0, 2])
def test_without_drafts_or_with_empty_ones_it_is_grpo(drafts: int) -> None:
    rounds = run_plan(Igrpo(IgrpoOptions(drafts=drafts)), lambda r, k: ("  ", 1.0, True))
    assert len(rounds) == (2 if drafts else 1)
    assert rounds[-1] == run_plan(Grpo(), wrong)[0]


def test_refinements_are_trained_under_the_longer_prompt() -> None:
    trainer = ToyTrainer(Igrpo(IgrpoOptions(drafts=2, template="{prompt} hint_1 {draft}")), ToyTask())
    batch = trainer.rollout(2, 4)
    assert len(batch) == 8
    assert trainer.completions == 2 * (2 + 4)
    assert (batch.prompt_ids[:, 1] == 2).all()
    own = trainer.policy.log_softmax(batch.prompt_ids)[:, : batch.completion_mask.shape[1]]
    expected = own.gather(-1, batch.completion_ids[..., None])[..., 0]
    assert torch.equal(batch.old_logprobs[batch.completion_mask], expected[batch.completion_mask])


def test_a_template_without_its_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"it must hold {prompt} and {draft}"):
        IgrpoOptions(template="{prompt}")


# --- SAGE --------------------------------------------------------------------------------------------------


def test_only_collapsed_groups_are_sampled_again_and_replaced() -> None:
    rounds = run_plan(Sage(), lambda r, k: ("x", 0.0, r.group == 1 or r.prompt == "p0 hint_2"))
    assert [[(r.group, r.prompt, r.replaces) for r in requests] for requests in rounds] == [
        [(0, None, False), (1, None, False)],
        [(0, "p0 hint_1", True)],
        [(0, "p0 hint_2", True)],
    ]


def test_hints_end_where_the_task_has_no_more() -> None:
    assert len(run_plan(Sage(), wrong)) == 3  # the toy has two hints, the option allows three
    assert len(run_plan(Sage(SageOptions(highest_level=1)), wrong)) == 2


@pytest.mark.parametrize("mode", ["online", "light"])
def test_level_zero_is_grpo(mode: str) -> None:
    assert run_plan(Sage(SageOptions(highest_level=0, mode=mode)), wrong) == run_plan(Grpo(), wrong)
    assert run_plan(Sage(), right) == run_plan(Grpo(), wrong)


def test_light_moves_the_level_of_each_prompt_and_remembers_it() -> None:
    algorithm = Sage(SageOptions(mode="light"))
    levels = []
    for answer in (wrong, wrong, wrong, right, right):
        rounds = run_plan(algorithm, lambda r, k, answer=answer: ("x", 0.0, r.group == 1 or answer(r, k)[2]))
        levels.append(rounds[0][0].prompt)
        assert rounds[0][1].prompt is None
        assert not rounds[0][0].replaces
    assert levels == [None, "p0 hint_1", "p0 hint_2", "p0 hint_2", "p0 hint_1"]
    copy = Sage(SageOptions(mode="light"))
    copy.load_state_dict(algorithm.state_dict())
    assert copy.levels == algorithm.levels == {"toy-0": 0, "toy-1": 0}


def test_light_holds_its_level_between_the_thresholds() -> None:
    algorithm = Sage(SageOptions(mode="light"))
    algorithm.levels = {"toy-0": 1, "toy-1": 1}
    run_plan(algorithm, lambda r, k: ("x", 0.0, k == 0))  # accuracy 0.25 of [0.1, 0.35]
    assert algorithm.levels == {"toy-0": 1, "toy-1": 1}


def test_one_group_never_mixes_levels() -> None:
    trainer = ToyTrainer(Sage(), ToyTask(start_logit=0.0, horizon=4))
    batch = trainer.rollout(6, 4)
    hinted = 0
    for group in batch.group_ids.unique():
        own = batch.prompt_ids[batch.group_ids == group]
        assert (own == own[0]).all()
        assert len(own) == 4
        hinted += bool(own[0, 1] > 0)
    assert hinted > 0
    assert trainer.completions > len(batch)


# --- RC-GRPO -----------------------------------------------------------------------------------------------


def test_a_group_holds_both_conditions_and_one_statistic() -> None:
    ((first, second, *_),) = run_plan(RcGrpo(RcGrpoOptions(high_token="H ", low_token="L ")), wrong)
    assert [(r.group, r.count, r.prompt) for r in (first, second)] == [(0, 2, "H p0"), (0, 2, "L p0")]
    trainer = ToyTrainer(
        RcGrpo(RcGrpoOptions(high_token="high ", low_token="low ")), ToyTask(outcome="fraction")
    )
    batch = trainer.credit(trainer.rollout(2, 4))
    assert batch.advantages is not None
    for group in batch.group_ids.unique():
        own = batch.group_ids == group
        assert set(batch.prompt_ids[own, 1].tolist()) == {1, -1}
        assert batch.advantages[own, 0].sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.0, 1), (0.5, 2)])
def test_one_token_only_is_one_request(share: float, count: int) -> None:
    requests = run_plan(RcGrpo(RcGrpoOptions(high_share=share, high_token="", low_token="L")), wrong)[0]
    assert len(requests) == 2 * count
    if share == 1:
        assert [(r.prompt, r.count, r.group) for r in requests] == [("p0", 4, 0), ("p1", 4, 1)]
