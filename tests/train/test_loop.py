"""The loop: gradients for any split, resume equals uninterrupted, divergence, stop rule, refusal, budget of refills."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from algorithms.base import ALGORITHMS, Algorithm, LossTerm
from harness.errors import EnvironmentProblem, UserError
from harness.store.writer import RunWriter, read_status
from harness.sweep.jobs import job_for, manifest_of
from harness.sweep.worker import run_job
from harness.train.build import build, check
from harness.train.loop import Trainer
from harness.train.rollout import assemble

RECORDS = ("steps.jsonl", "evals.jsonl")


def train(spec, root: Path, stop_after: int | None = None):
    """Runs a specification here; with `stop_after` asks it to stop once that many steps are done."""
    job = job_for(spec, root)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    trainer = Trainer(build(spec), writer)
    if stop_after is not None:
        trainer.should_stop = lambda: trainer.progress.optimizer_step >= stop_after
    status, reason = trainer.run()
    writer.status(status, reason)
    writer.close()
    return trainer, Path(job.folder), status


def records(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RECORDS}


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.parts.model.parameters()])


def collected(spec, folder: Path):
    """A trainer in double precision, with the completions of its first rollout."""
    parts = build(spec)
    writer = RunWriter(folder, {"run_id": "x"})
    trainer = Trainer(parts, writer)
    rollout = trainer.collector.collect(spec.seeds.of("sampling"), 0, 0)
    parts.model.double()
    trainer.optimizer.step = lambda: None
    parts.generator.sampler.refresh = lambda version=0: None
    return trainer, rollout.completions, writer


def gradient(trainer, completions) -> torch.Tensor:
    """The clipped gradient of one optimizer step on these completions, in this order."""
    parts = trainer.parts
    batch = assemble(
        completions, parts.recipe, pad_id=0, max_completion_tokens=8, reward_range=parts.task.outcome_range
    )
    batch, _ = trainer._credit(batch)
    trainer._optimizer_step(batch)
    return torch.cat([p.grad.flatten() for p in parts.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("algorithm", ["grpo", "bot_grpo"])
def test_training_moves_weights_and_records_every_step(tiny_spec, tmp_path, algorithm):
    _, folder, status = train(tiny_spec(algorithm), tmp_path)
    assert status == "completed"
    steps = [json.loads(line) for line in (folder / "steps.jsonl").open()]
    evals = [json.loads(line) for line in (folder / "evals.jsonl").open()]
    assert [row["optimizer_step"] for row in steps] == [1, 2, 3, 4]
    assert [row["optimizer_step"] for row in evals] == [0, 2, 4]
    assert evals[0]["n"] == 6
    costs = evals[-1]["costs"]
    assert costs["optimizer_steps"] == 4
    assert costs["completions"] == 4 * 2 * 4
    assert 0 < costs["generated_tokens"] <= 32 * 8
    assert costs["forward_tokens"] == costs["backward_tokens"] > costs["generated_tokens"]


def test_learning_raises_the_outcome(tiny_spec, tmp_path):
    spec = tiny_spec(
        train={"horizon": 30, "prompts_per_step": 8, "group_size": 8},
        evaluation={"every": 30, "prompts": 8, "samples": 16},
    )
    _, folder, _ = train(spec, tmp_path)
    evals = [json.loads(line)["metrics"]["correct"] for line in (folder / "evals.jsonl").open()]
    assert evals[-1] > evals[0] + 0.1


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tiny_spec, tmp_path):
    _, first, _ = train(tiny_spec(), tmp_path / "a")
    _, second, _ = train(tiny_spec(), tmp_path / "b")
    _, other, _ = train(tiny_spec(seed=1), tmp_path / "c")
    assert records(first) == records(second)
    assert records(first) != records(other)


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3])
def test_stopped_and_resumed_equals_uninterrupted(tiny_spec, tmp_path, stop_after):
    spec = tiny_spec("bot_grpo")
    whole, whole_folder, _ = train(spec, tmp_path / "whole")
    _, folder, status = train(spec, tmp_path / "parts", stop_after=stop_after)
    assert status == "stopped"
    again, folder, status = train(spec, tmp_path / "parts")
    assert status == "completed"
    assert records(folder) == records(whole_folder)
    assert torch.equal(weights(again), weights(whole))


def test_records_behind_the_checkpoint_are_cut_on_resume(tiny_spec, tmp_path):
    spec = tiny_spec()
    _, whole, _ = train(spec, tmp_path / "whole")
    _, folder, _ = train(spec, tmp_path / "parts", stop_after=2)
    with open(folder / "steps.jsonl", "ab") as file:
        file.write(b'{"optimizer_step": 3, "metr')
    train(spec, tmp_path / "parts")
    assert records(folder) == records(whole)


def test_damaged_checkpoint_is_passed_over(tiny_spec, tmp_path):
    spec = tiny_spec()
    _, whole, _ = train(spec, tmp_path / "whole")
    _, folder, _ = train(spec, tmp_path / "parts", stop_after=3)
    newest = max((folder / "checkpoints").glob("step-*.pt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    job = job_for(spec, tmp_path / "parts")
    assert run_job(job) == "completed"
    assert read_status(folder)["damaged_checkpoints"] == [newest.name]
    assert records(folder) == records(whole)


def test_gradients_do_not_depend_on_micro_batches(tiny_spec, tmp_path):
    """One optimizer step of SGD-like size: weights agree for any split of the rows."""
    found = []
    for size in (1, 3, 8):
        trainer, completions, writer = collected(
            tiny_spec(train={"micro_batch_size": size}), tmp_path / str(size)
        )
        found.append(gradient(trainer, completions))
        writer.close()
    assert found[0].abs().max() > 1e-4
    for other in found[1:]:
        assert (found[0] - other).abs().max() < 1e-7


def test_rows_in_any_order_give_the_same_gradient(tiny_spec, tmp_path):
    trainer, completions, writer = collected(tiny_spec("bot_grpo"), tmp_path)
    found = [gradient(trainer, rows) for rows in (completions, completions[::-1])]
    writer.close()
    assert found[0].abs().max() > 1e-4
    assert (found[0] - found[1]).abs().max() < 1e-7


class NanLoss(Algorithm):
    """A loss that is not a number from the second rollout on."""

    name = "test_nan_loss"

    def __init__(self, options=None):
        super().__init__(options)
        self.calls = 0

    def advantages(self, batch):
        self.calls += 1
        return torch.zeros_like(batch.old_logprobs)

    def loss(self, logprobs, batch):
        return {"policy": LossTerm(logprobs * (math.nan if self.calls > 1 else 0.0))}


class RefuseAll(Algorithm):
    """Accepts no group, so that every step is spent on refills."""

    name = "test_refuse_all"

    def accept(self, group):
        return False

    def advantages(self, batch):
        raise AssertionError("nothing was accepted")


def test_nan_loss_is_divergence_with_its_records_kept(tiny_spec, tmp_path, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, NanLoss.name, NanLoss)
    _, folder, status = train(tiny_spec("test_nan_loss"), tmp_path)
    assert status == "diverged"
    state = read_status(folder)
    assert "loss is nan at optimizer step 2" in state["reason"]
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 1


def test_refills_are_bounded_and_paid_for(tiny_spec, tmp_path, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, RefuseAll.name, RefuseAll)
    spec = tiny_spec("test_refuse_all", train={"max_refill_rounds": 2, "horizon": 1})
    _, folder, status = train(spec, tmp_path)
    assert status == "completed"
    row = json.loads((folder / "steps.jsonl").read_text())
    assert row["metrics"] == {"refused_groups": 6.0, "skipped_update": 1.0}
    assert row["costs"]["completions"] == 3 * 2 * 4


def test_stop_rule_ends_the_run_after_enough_evaluations(tiny_spec, tmp_path):
    stop = {"rule": "sustained", "metric": "any", "threshold": 0.5, "sustain": 2}
    _, folder, status = train(tiny_spec(train={"horizon": 20}, stop=stop), tmp_path)
    assert status == "completed"
    assert "stop rule met at optimizer step 2" in read_status(folder)["reason"]


def test_several_updates_a_rollout_count_as_steps(tiny_spec, tmp_path):
    spec = tiny_spec(train={"updates_per_rollout": 2, "horizon": 4})
    _, folder, _ = train(spec, tmp_path)
    rows = [json.loads(line) for line in (folder / "steps.jsonl").open()]
    assert [row["optimizer_step"] for row in rows] == [2, 4]
    assert rows[-1]["costs"]["completions"] == 2 * 2 * 4


def test_recomputed_old_logprobs_are_metered_and_agree(tiny_spec, tmp_path):
    sampled, one, _ = train(tiny_spec(train={"horizon": 2}), tmp_path / "a")
    again, two, _ = train(tiny_spec(train={"horizon": 2, "old_logprobs": "recompute"}), tmp_path / "b")
    assert torch.allclose(weights(sampled), weights(again), atol=1e-5)
    first, second = (
        json.loads((f / "evals.jsonl").read_text().splitlines()[-1])["costs"] for f in (one, two)
    )
    assert second["forward_tokens"] == 2 * first["forward_tokens"]


def test_second_writer_of_a_run_is_refused_with_its_owner(tiny_spec, tmp_path):
    job = job_for(tiny_spec(), tmp_path)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    with pytest.raises(EnvironmentProblem, match=r"being written by process \d+ on "):
        RunWriter(Path(job.folder), manifest_of(job))
    writer.close()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OSError(28, "No space left on device", "steps.jsonl"),
            "stopped",
            "free some space and run the same command again",
        ),
        (RuntimeError("out of cheese"), "failed", "out of cheese .traceback in error.log"),
    ],
)
def test_failure_is_recorded_and_not_raised(tiny_spec, tmp_path, monkeypatch, error, status, said):
    import harness.sweep.worker as worker

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(worker.Trainer, "run", fail)
    job = job_for(tiny_spec(), tmp_path)
    assert run_job(job) == status
    state = read_status(Path(job.folder))
    assert state["status"] == status
    assert re.search(said, state["reason"])
    assert type(error).__name__ in (Path(job.folder) / "error.log").read_text()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"algorithm": "gppo"}, "did you mean .*'grpo'"),
        ({"task": {"name": "letter"}}, "did you mean 'letters'"),
        ({"task": {"recipe": "by_leter"}}, "did you mean 'by_letter'"),
        ({"train": {"group_size": 1}}, "set train.group_size to 2 or more"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(tiny_spec, sections, words):
    algorithm = sections.pop("algorithm", "grpo")
    with pytest.raises(UserError, match=words):
        check(tiny_spec(algorithm, **sections))


def test_prompt_longer_than_the_context_is_refused(tiny_spec, tmp_path):
    with pytest.raises(UserError, match="exceed the model's context of 256"):
        train(tiny_spec(train={"max_completion_tokens": 255}), tmp_path)
