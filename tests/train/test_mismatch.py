"""Sampler against trainer: the figures, the truncated weights, the flag of a run, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from algorithms.base import Batch, LossTerm
from harness.errors import UserError
from harness.show import describe
from harness.store.reader import load_run
from harness.store.writer import RunWriter, read_status
from harness.sweep.jobs import job_for, manifest_of
from harness.sweep.worker import run_job
from harness.train.build import build, check
from harness.train.loop import Diverged, Trainer
from harness.train.mismatch import (
    MismatchMeter,
    corrected,
    flag_note,
    flagged,
    importance_weights,
)
from harness.train.reduction import Reducer


def batch_of(old, sampling, mask=None) -> Batch:
    old, sampling = torch.as_tensor(old), torch.as_tensor(sampling)
    rows, width = old.shape
    mask = torch.ones(rows, width, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    flat = torch.zeros(rows, width, dtype=old.dtype)
    return Batch(
        completion_ids=torch.zeros(rows, width, dtype=torch.long),
        completion_mask=mask,
        group_ids=torch.zeros(rows, dtype=torch.long),
        rewards=torch.zeros(rows),
        correct=torch.zeros(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        local_rewards=flat,
        scored=torch.zeros(rows, width, dtype=torch.bool),
        step_ids=torch.zeros(rows, width, dtype=torch.long),
        prompt_ids=torch.zeros(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        old_logprobs=old,
        sampling_logprobs=sampling,
    )


def test_weights_by_hand():
    """d = (ln 2, ln 8, -ln 4): weights 2, capped 3, 1/4; outside the mask 1."""
    batch = batch_of(
        [[math.log(2), math.log(8), -math.log(4), 5.0]],
        [[0.0, 0.0, 0.0, 0.0]],
        [[True, True, True, False]],
    )
    assert importance_weights(batch, 3.0).tolist()[0] == pytest.approx([2.0, 3.0, 0.25, 1.0])


def test_figures_by_hand():
    """d = (0.1, -0.2, 0.3) over two lots: mean |d| 0.2, max 0.3, k3 the mean of exp(d) - 1 - d."""
    meter = MismatchMeter(cap=1.2)
    meter.add(torch.tensor([[0.1, 9.0]]), torch.zeros(1, 2), torch.tensor([[True, False]]))
    meter.add(torch.tensor([[-0.2, 0.3]]), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    found = meter.metrics()
    assert found["mismatch_mean"] == pytest.approx(0.2)
    assert found["mismatch_max"] == pytest.approx(0.3)
    # 0.00517092 + 0.01873075 + 0.04985881
    assert found["mismatch_kl"] == pytest.approx(0.07376048 / 3, rel=1e-5)
    assert found["mismatch_capped"] == pytest.approx(1 / 3)  # exp(0.3) = 1.35 only
    assert MismatchMeter().metrics() == {}


def test_a_row_loss_is_weighted_by_the_mean_of_its_tokens():
    """Weights (2, 3) and (1, -): means 2.5 and 1; with a cap of 2.5 the first is (2 + 2.5) / 2."""
    batch = batch_of(
        [[math.log(2), math.log(3)], [0.0, 7.0]], [[0.0, 0.0], [0.0, 0.0]], [[True, True], [True, False]]
    )
    terms = {"policy": LossTerm(torch.tensor([1.0, 1.0]), "seq_level")}
    assert corrected(terms, batch, 10.0)["policy"].per_token.tolist() == pytest.approx([2.5, 1.0])
    assert corrected(terms, batch, 2.5)["policy"].per_token.tolist() == pytest.approx([2.25, 1.0])


def test_penalties_and_regressions_are_left_alone():
    batch = batch_of([[1.0]], [[0.0]])
    terms = {name: LossTerm(torch.tensor([[2.0]])) for name in ("policy", "kl", "value")}
    found = corrected(terms, batch, 2.0)
    assert [found[name].per_token.item() for name in terms] == [4.0, 2.0, 2.0]


LOGPROBS = arrays.arrays("float64", (3, 4), elements=st.floats(-6, 0))


@settings(max_examples=40, deadline=None)
@given(LOGPROBS)
def test_no_cap_and_equal_logprobs_give_the_plain_loss_exactly(values):
    batch = batch_of(torch.from_numpy(values), torch.from_numpy(values))
    terms = {"policy": LossTerm(torch.from_numpy(values) * 3.7)}
    found = corrected(terms, batch, math.inf)
    assert torch.equal(found["policy"].per_token, terms["policy"].per_token)
    assert corrected(terms, batch, None) is terms


@settings(max_examples=40, deadline=None)
@given(LOGPROBS, LOGPROBS, st.floats(0.5, 4))
def test_gradient_is_the_weighted_gradient(old, sampling, cap):
    batch = batch_of(torch.from_numpy(old), torch.from_numpy(sampling))
    leaf = torch.from_numpy(old.copy()).requires_grad_()
    weights = Reducer(batch).weights("seq_mean_token_mean")
    terms = {"policy": LossTerm(leaf**2)}
    Reducer(batch).value(corrected(terms, batch, cap), torch.arange(3)).backward()
    ratio = torch.from_numpy(old - sampling).exp().clamp(max=cap)
    assert torch.allclose(leaf.grad, 2 * leaf.detach() * ratio * weights, atol=1e-12)


def test_flag_counts_what_passed_the_limit():
    known: dict[str, float] = {}
    for step, mean in enumerate([0.05, 0.3, 0.2], start=1):
        known = flagged(known, mean, 0.1, step)
    assert known == {"rollouts": 3, "over": 2, "worst": 0.3, "first_step": 2}
    assert flag_note(known, 0.1) == {"mismatch": {**known, "limit": 0.1}}
    assert flag_note(flagged({}, 0.05, 0.1, 1), 0.1) == {}
    assert flagged({}, math.nan, 0.1, 1)["over"] == 1


def steps_of(folder: Path) -> list[dict]:
    return [json.loads(line)["metrics"] for line in (folder / "steps.jsonl").open()]


def test_recomputed_runs_record_the_difference_and_default_runs_do_not(tiny_spec, tmp_path):
    plain, cap = tiny_spec(), {"old_logprobs": "recompute", "importance_cap": 2.0}
    for spec, measured in ((plain, False), (tiny_spec(train=cap), True)):
        job = job_for(spec, tmp_path)
        assert run_job(job) == "completed"
        for row in steps_of(Path(job.folder)):
            assert ("mismatch_mean" in row) == measured
            if measured:  # one engine, one precision: equal up to rounding
                assert row["mismatch_max"] < 1e-4
                assert 0 <= row["mismatch_kl"] < 1e-8
                assert row["mismatch_capped"] == row["mismatch_flag"] == 0.0
        assert "mismatch" not in read_status(Path(job.folder))


class Off:
    """The run's sampler with log-probs that are off by `shift` nats: another engine, gone wrong."""

    def __init__(self, sampler, shift: float) -> None:
        self.sampler, self.shift = sampler, shift

    def __getattr__(self, name: str):
        return getattr(self.sampler, name)

    def sample(self, *args, **kwargs):
        found = self.sampler.sample(*args, **kwargs)
        return replace(found, logprobs=found.logprobs - self.shift)


def train(spec, root: Path, shift: float) -> tuple[Trainer, Path, tuple[str, str]]:
    job = job_for(spec, root)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    parts = build(spec)
    parts.generator.sampler = Off(parts.generator.sampler, shift)  # type: ignore[assignment]
    trainer = Trainer(parts, writer)
    ended = trainer.run()
    writer.status(*ended, **trainer.notes)
    writer.close()
    return trainer, Path(job.folder), ended


def test_a_run_over_the_limit_is_flagged_everywhere(tiny_spec, tmp_path):
    spec = tiny_spec(train={"old_logprobs": "recompute", "importance_cap": 1.2, "mismatch_limit": 0.2})
    _, folder, _ = train(spec, tmp_path, shift=0.5)
    for row in steps_of(folder):
        assert row["mismatch_mean"] == pytest.approx(0.5, abs=1e-4)
        assert row["mismatch_flag"] == row["mismatch_capped"] == 1.0
    assert read_status(folder)["mismatch"]["over"] == 4
    run = load_run(folder)
    words = "disagreed by up to 0.5 nats a token on average (limit 0.2), in 4 of 4 rollouts"
    assert any(words in problem for problem in run.problems)
    assert any(words in problem for problem in describe(str(folder))["problems"])


def test_the_flag_survives_stopping_and_going_on(tiny_spec, tmp_path):
    spec = tiny_spec(train={"old_logprobs": "recompute"})
    whole, _, _ = train(spec, tmp_path / "whole", shift=0.5)
    job = job_for(spec, tmp_path / "parts")
    for stop_after in (2, 99):
        writer = RunWriter(Path(job.folder), manifest_of(job))
        parts = build(spec)
        parts.generator.sampler = Off(parts.generator.sampler, 0.5)  # type: ignore[assignment]
        trainer = Trainer(parts, writer)
        trainer.should_stop = lambda t=trainer, n=stop_after: t.progress.optimizer_step >= n
        trainer.run()
        writer.close()
    assert trainer.notes == whole.notes
    assert trainer.notes["mismatch"]["rollouts"] == 4


def test_the_correction_undoes_a_sampler_that_is_off(tiny_spec, tmp_path):
    """Log-probs off by ln 1.5 everywhere: every weight is 1.5, so is the loss of the first step."""
    plain = tiny_spec(train={"old_logprobs": "recompute", "horizon": 1})
    cap = tiny_spec(train={"old_logprobs": "recompute", "horizon": 1, "importance_cap": 2.0})
    norms = [
        steps_of(train(spec, tmp_path / str(i), shift=math.log(1.5))[1])[0]["grad_norm"]
        for i, spec in enumerate((plain, cap))
    ]
    assert norms[0] > 0
    assert norms[1] == pytest.approx(1.5 * norms[0], rel=1e-4)


def test_another_engine_is_measured_by_the_first_update_itself(tiny_spec, tmp_path):
    """vLLM in float32 with the sampler's own log-probs: measured without an extra forward."""
    spec = tiny_spec(train={"updates_per_rollout": 2, "horizon": 2})
    twin = spec.model_copy(update={"sampler": spec.sampler.model_copy(update={"name": "vllm"})})
    job = job_for(spec, tmp_path)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    parts = build(spec)
    parts.spec = twin
    trainer = Trainer(parts, writer)
    trainer.run()
    writer.close()
    (row,) = steps_of(Path(job.folder))
    assert 0 < row["mismatch_max"] < 1e-4
    assert parts.costs.forward_tokens == parts.costs.backward_tokens


def test_log_probs_that_are_not_finite_are_divergence(tiny_spec, tmp_path):
    spec = tiny_spec(train={"old_logprobs": "recompute"})
    _, _, (status, reason) = train(spec, tmp_path, shift=math.inf)
    assert status == "diverged"
    assert "not finite" in reason
    assert issubclass(Diverged, Exception)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"importance_cap": 2.0}}, "set train.old_logprobs=recompute"),
        ({"sampler": {"name": "vllm", "dtype": "bfloat16"}}, "in bfloat16 .sampler.dtype.*=recompute"),
        ({"sampler": {"name": "vllm"}, "model": {"dtype": "bfloat16"}}, "in bfloat16 .model.dtype"),
        ({"sampler": {"name": "vllm"}, "train": {"autocast": "bfloat16"}}, "in bfloat16 .train.autocast"),
    ],
)
def test_what_would_pass_two_different_numbers_for_one_is_refused(tiny_spec, sections, words):
    with pytest.raises(UserError, match=words) as caught:
        check(tiny_spec(**sections))
    assert "\n" not in str(caught.value)


def test_float32_or_recomputed_vllm_is_accepted_by_the_check(tiny_spec):
    from harness.train.mismatch import check_mismatch

    check_mismatch(tiny_spec(sampler={"name": "vllm"}))
    check_mismatch(
        tiny_spec(sampler={"name": "vllm", "dtype": "bfloat16"}, train={"old_logprobs": "recompute"})
    )
