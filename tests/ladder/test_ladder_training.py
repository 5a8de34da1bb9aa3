from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.bot_grpo import BotGrpo
from algorithms.grpo import Grpo
from harness import registry
from harness.errors import UserError
from harness.ladder.policy import WORDINGS, Prompts, TablePolicy
from harness.ladder.run import run_table, table_trainer
from harness.ladder.sampling import answer_texts, assemble, sample
from harness.ladder.trainer import TableTrainer
from harness.spec import TrainSpec, parse_run
from harness.store.reader import load_run
from harness.store.writer import RunWriter
from harness.sweep.jobs import job_for, manifest_of
from tasks.base import Answer
from tasks.ladder import LadderOptions, LadderTask
from tasks.ladder.options import FAMILIES

FAST = TrainSpec(prompts_per_step=8, group_size=8, learning_rate=0.1)


def trainer(algorithm=Grpo, seed: int = 0, train: TrainSpec = FAST, options=None, **task) -> TableTrainer:
    return TableTrainer(algorithm(algorithm.Options(**(options or {}))), LadderOptions(**task), train, seed)


def spec(**sections):
    value = {
        "algorithm": {"name": "grpo"},
        "task": {"name": "ladder", "options": {"steps": 2}},
        "model": {"name": "table"},
        "train": {"prompts_per_step": 4, "learning_rate": 0.1, "horizon": 6},
        "evaluation": {"every": 2, "prompts": 1},
    }
    return parse_run({**value, **sections})


@pytest.mark.parametrize("family", FAMILIES)
def test_success_in_closed_form_is_that_of_sampled_answers(family):
    options = LadderOptions(family=family, steps=2, start_logit=1.5)
    policy = TablePolicy(options)
    rng = np.random.default_rng(0)
    prompts = np.stack([rng.integers(0, options.problems, 6000), np.zeros(6000, int)], 1)
    found = sample(policy, prompts, rng).reading.correct.mean()
    assert found == pytest.approx(float(policy.success_probability().detach()), abs=4 * 0.5 / 6000**0.5)


def test_the_start_has_the_probabilities_that_the_options_ask_for():
    options = LadderOptions(family="uneven", steps=3, filler_share=0.6)
    first = TablePolicy(options).log_softmax().detach().exp()[0, 0]
    assert float(first[0, options.letters]) == pytest.approx(0.05)
    assert float(first[3, options.letters]) == pytest.approx(0.6)
    right = float(first[0, options.targets[0, 0]])
    assert right / 0.95 == pytest.approx(options.start_probability)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_batch_says_of_each_answer_what_the_task_says(family):
    options = LadderOptions(family=family, steps=3, outcome="fraction")
    policy, rng = TablePolicy(options), np.random.default_rng(5)
    prompts = np.stack([rng.integers(0, options.problems, 24), np.zeros(24, int)], 1)
    answers = sample(policy, prompts, rng)
    batch = assemble(answers, np.repeat(np.arange(3), 8), policy)
    task = LadderTask(options)
    examples = [task.example("train", int(n)) for n in prompts[:, 0]]
    texts = answer_texts(answers, options)
    scores = task.score(
        examples, [Answer(t, f) for t, f in zip(texts, answers.finished.tolist(), strict=True)]
    )
    for row, (text, score) in enumerate(zip(texts, scores, strict=True)):
        assert float(batch.rewards[row]) == score.outcome
        assert bool(batch.correct[row]) == score.correct
        assert int(batch.lengths[row]) == len(text)
        local = {s.start: s.value for s in score.spans}
        assert batch.local_rewards[row].tolist() == [
            local.get(t, 0.0) for t in range(batch.local_rewards.shape[1])
        ]
        for number, (start, end) in enumerate(score.steps):
            assert (batch.step_ids[row, start:end] == number).all()


def test_logprobs_are_those_of_the_draw():
    options = LadderOptions(family="chain", steps=2)
    policy, rng = TablePolicy(options), np.random.default_rng(0)
    with torch.no_grad():
        policy.table.add_(torch.randn(policy.table.shape, generator=torch.Generator().manual_seed(1)))
    prompts = np.tile([[1, 0]], (20000, 1))
    answers = sample(policy, prompts, rng)
    batch = assemble(answers, np.zeros(20000, int), policy)
    texts = answer_texts(answers, options)
    for text in set(texts):
        row = texts.index(text)
        expected = float(batch.old_logprobs[row].sum().exp())
        assert texts.count(text) / 20000 == pytest.approx(expected, abs=0.015)


def test_prompts_in_other_words_are_read_and_foreign_ones_refused():
    prompts = Prompts(LadderOptions(steps=4))
    task = LadderTask(steps=4)
    example = task.example("train", 2)
    assert prompts.encode(example.prompt) == (2, 0)
    assert prompts.encode(example.variants["hint_1"]) == (2, WORDINGS.index("hint_1"))
    assert prompts.encode("<reward:high>\n" + example.prompt) == (2, WORDINGS.index("high"))
    assert prompts.encode(f"{example.prompt} draft abcd, try again") == (2, 0)
    with pytest.raises(ValueError, match="holds no prompt of this ladder"):
        prompts.encode("write a poem")


def test_hints_help_and_a_prompt_without_its_rule_hurts():
    policy, rng = TablePolicy(LadderOptions(steps=4)), np.random.default_rng(0)

    def right(wording: str) -> float:
        prompts = np.tile([[0, WORDINGS.index(wording)]], (2000, 1))
        return float(sample(policy, prompts, rng).reading.right.mean())

    assert right("hint_2") > right("") + 0.1 > right("without_rubric") + 0.2
    assert right("privileged") > right("high") > right("low")


@pytest.mark.parametrize("name", sorted(registry.algorithms()))
def test_every_algorithm_trains_a_table_upwards(name):
    # few steps: this is about the hooks; learning itself is proved in the learning tests
    algorithm = registry.algorithms()[name]
    run = trainer(algorithm, steps=3, outcome="fraction", start_logit=1.0)
    before = run.success()
    for _ in range(12):
        record = run.step()
    assert np.isfinite(record["loss"])
    assert run.costs.completions >= 12 * 64
    assert run.success() > before or name == "bpco"  # its policy waits for the critic to warm up


def test_outcomes_all_alike_move_nothing_by_default_and_something_when_kept():
    # no answer of 24 steps is ever right at this start: only a kept local reward teaches
    task = {"steps": 24, "start_logit": 0.0}
    for degenerate, moves in (("zero_if_global_const", False), ("keep", True)):
        run = trainer(BotGrpo, options={"degenerate": degenerate}, **task)
        for _ in range(10):
            run.step()
        right = float(torch.softmax(run.policy.table, -1)[run.policy.right == 1].mean())
        assert (right > 0.3) == moves


def test_the_pilots_order_at_sixteen_steps_all_or_nothing():
    # with no success in sight, an exact local reward that is kept learns and the outcome alone does not
    def steps_to_half(options) -> int:
        run = trainer(BotGrpo, train=FAST, options=options, steps=16, problems=1)
        for step in range(70):
            run.step(describe=False)
            if run.success() > 0.5:
                return step
        return 70

    assert steps_to_half({"degenerate": "keep"}) < 60
    assert steps_to_half({}) == 70


def test_a_local_reward_that_can_be_farmed_is_farmed_and_flagged(tmp_path: Path):
    task = {"name": "ladder", "options": {"family": "hackable", "steps": 8}}
    train = {"prompts_per_step": 8, "learning_rate": 0.1, "horizon": 60}
    keep = {"name": "bot_grpo", "options": {"degenerate": "keep"}}
    chosen = spec(algorithm=keep, task=task, train=train, evaluation={"every": 30, "prompts": 1})
    record = finished(chosen, tmp_path)
    last = record.evals[-1]["metrics"]
    assert last["flag_hacked"] == 1.0
    assert last["flag_never_ends"] == 1.0
    assert last["correct"] < 1e-3


def finished(chosen, root: Path):
    job = job_for(chosen, root)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    writer.status(*run_table(chosen, writer))
    writer.close()
    return load_run(Path(job.folder))


def test_a_run_leaves_the_same_records_as_any_other_and_again_the_same_bytes(tmp_path: Path):
    first, second = (finished(spec(), tmp_path / name) for name in "ab")
    assert first.status == "completed"
    assert not first.problems
    assert [row["optimizer_step"] for row in first.evals] == [0, 2, 4, 6]
    assert first.evals[-1]["costs"]["completions"] == 6 * 4 * 8
    assert first.evals[0]["metrics"]["correct"] == pytest.approx(
        LadderOptions(steps=2).start_probability ** 2
    )
    for name in ("evals.jsonl", "steps.jsonl"):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()


def test_runs_of_two_seeds_differ(tmp_path: Path):
    one, two = (finished(spec(seeds={"seed": s}), tmp_path) for s in (0, 1))
    assert json.dumps(one.evals[1:]) != json.dumps(two.evals[1:])


def test_the_stop_rule_ends_a_run_and_a_request_stops_it(tmp_path: Path):
    easy = {"name": "ladder", "options": {"steps": 1, "start_logit": 6.0}}
    found = finished(spec(task=easy, stop={"rule": "sustained", "sustain": 2}), tmp_path)
    assert found.reason == "stop rule met at optimizer step 2"
    job = job_for(spec(), tmp_path / "other")
    writer = RunWriter(Path(job.folder), manifest_of(job))
    assert run_table(spec(), writer, lambda: True) == ("stopped", "asked to stop at optimizer step 0")
    writer.close()


def test_a_table_is_no_policy_of_another_task():
    with pytest.raises(UserError, match="a table can only be the policy of task 'ladder'"):
        table_trainer(spec(task={"name": "aime"}))


@pytest.mark.slow
def test_a_small_model_learns_the_ladder_in_the_shared_loop(tiny_model_folder: Path, tmp_path: Path):
    from harness.train.build import build
    from harness.train.loop import Trainer

    chosen = spec(
        model={"name": str(tiny_model_folder)},
        task={"name": "ladder", "options": {"steps": 1, "outcome": "fraction", "problems": 1}},
        train={
            "prompts_per_step": 8, "horizon": 40, "learning_rate": 1e-2, "max_completion_tokens": 4,
        },
        evaluation={"every": 40, "prompts": 1, "samples": 64},
    )  # fmt: skip
    job = job_for(chosen, tmp_path)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    Trainer(build(chosen), writer).run()
    writer.close()
    rates = [row["metrics"]["outcome"] for row in load_run(Path(job.folder)).evals]
    assert rates[-1] > rates[0] + 0.2
