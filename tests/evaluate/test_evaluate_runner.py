"""Evaluation of runs and models: samples kept, streams independent, records in the store's form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.errors import UserError
from harness.evaluate.passk import counts_of, read_samples
from harness.evaluate.runner import (
    EvaluationOptions,
    batch_invariant,
    evaluate_named,
    evaluate_task,
    greedy_completer,
)
from harness.evaluate.target import load_target
from tasks.aime import AimeTask
from tasks.base import TASKS
from tasks.passk import pass_at_k

OPTIONS = EvaluationOptions(samples=4, problems=6, max_tokens=8)


@pytest.fixture(scope="module")
def target(tiny_model_folder):
    return load_target(tiny_model_folder, device="cpu")


@pytest.fixture
def letters(letters_plugin):
    return TASKS["letters"]()


@pytest.fixture
def trained(tiny_spec, tmp_path):
    """A run of four steps with its checkpoints."""
    from harness.sweep.jobs import job_for
    from harness.sweep.worker import run_job

    job = job_for(tiny_spec(), tmp_path, arm="grpo")
    assert run_job(job) == "completed"
    return job


def test_every_sample_is_graded_and_kept(target, letters, tmp_path):
    found = evaluate_named(target.name, letters, OPTIONS, tmp_path / "e", device="cpu")
    assert len(found.samples) == 24
    record = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert record["n"] == 24
    assert record["problems"] == {name: list(pair) for name, pair in counts_of(found.samples).items()}
    assert sum(c for _, c in record["problems"].values()) == sum(r.correct for r in found.samples) > 0
    for k in (1, 2, 4):
        expected = sum(pass_at_k(n, c, k) for n, c in record["problems"].values()) / 6
        assert record["metrics"][f"pass_at_{k}"] == pytest.approx(expected)
    assert record["metrics"]["avg_at_n"] == pytest.approx(record["metrics"]["correct"])
    assert record["costs"]["completions"] == 24
    assert record["options"]["ks"] == [1, 2, 4]
    assert "batch_invariant" in record["engine"]
    assert read_samples(tmp_path / "e" / "samples.parquet") == found.samples


def test_samples_have_streams_of_their_own(target, letters):
    first, again = (evaluate_task(target, letters, OPTIONS).samples for _ in range(2))
    assert first == again
    other = evaluate_task(target, letters, replace(OPTIONS, seed=1)).samples
    assert [r.completion for r in first] != [r.completion for r in other]
    assert len({r.completion for r in first}) > 12
    fewer = evaluate_task(target, letters, replace(OPTIONS, samples=2)).samples
    assert [r.completion for r in fewer] == [r.completion for r in first if r.sample < 2]


def test_a_run_is_evaluated_from_its_checkpoint(trained, letters, tmp_path):
    import torch

    last, best = (
        load_target(trained.folder, device="cpu"),
        load_target(trained.folder, which="best", device="cpu"),
    )
    assert last.optimizer_step == 4
    assert last.run_id == trained.run_id
    start = load_target(last.spec.model.name, device="cpu")
    pairs = list(zip(last.model.parameters(), start.model.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in pairs)
    found = evaluate_task(last, letters, OPTIONS)
    assert {r.optimizer_step for r in found.samples} == {4}
    assert found.record()["run_id"] == trained.run_id
    assert best.optimizer_step in (0, 2, 4)


def test_what_cannot_be_loaded_is_named(trained, tmp_path):
    from pathlib import Path

    with pytest.raises(UserError, match="checkpoint='first'"):
        load_target(trained.folder, which="first")
    for path in (Path(trained.folder) / "checkpoints").glob("*.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(UserError, match="no sound checkpoint"):
        load_target(trained.folder)


def test_the_aime_task_on_a_random_model(target):
    found = evaluate_task(target, AimeTask(level=1), replace(OPTIONS, problems=3, max_tokens=12))
    assert found.passk.pass_at_k[4] == 0.0
    assert {r.status for r in found.samples} <= {"no_box", "truncated", "unbalanced"}
    assert {r.extracted for r in found.samples} == {None}
    assert {r.grader_version for r in found.samples} == {AimeTask().grader_version}
    assert found.passk.truncation_rate == found.metrics["truncated"]
    assert found.record()["task_options"]["level"] == 1
    json.dumps(found.record(), allow_nan=False)


def test_progress_and_the_number_of_problems(target, letters):
    heard = []
    evaluate_task(target, letters, replace(OPTIONS, problems=None), progress=lambda *at: heard.append(at))
    assert heard == [(8, 8)]
    with pytest.raises(UserError, match="never ends"):
        evaluate_task(target, letters, replace(OPTIONS, split="train", problems=None))
    with pytest.raises(UserError, match="problems=0"):
        evaluate_task(target, letters, replace(OPTIONS, problems=0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples=0"),
        ({"samples": 4, "ks": (1, 8)}, "k=8"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_wrong_options_are_refused_before_sampling(options, words):
    with pytest.raises(UserError, match=words):
        EvaluationOptions(**options)


class Moody:
    """A sampler whose completions depend on what shares the batch, or not."""

    def __init__(self, sampler, moody):
        self.sampler, self.moody = sampler, moody

    def sample(self, prompts, counts, streams, **options):
        found = self.sampler.sample(prompts, counts, streams, **options)
        return replace(found, ids=found.ids + len(prompts)) if self.moody else found


def test_dependence_on_the_batch_is_found_and_only_marked(target):
    from harness.train.prompts import PromptCodec
    from harness.train.sampler import NativeSampler

    codec = PromptCodec(target.tokenizer)
    sampler = NativeSampler(target.model, eos_ids=codec.eos_ids, pad_id=codec.pad_id)
    prompts = [codec.encode(f"write {i}") for i in range(9)]
    assert batch_invariant(Moody(sampler, False), prompts, max_tokens=6, temperature=1.0) is True
    assert batch_invariant(Moody(sampler, True), prompts, max_tokens=6, temperature=1.0) is False
    assert batch_invariant(sampler, prompts[:1], max_tokens=6, temperature=1.0) is None


def test_greedy_completions_for_the_probe(target):
    complete = greedy_completer(target, max_tokens=5)
    first = complete(["the cat", "a bad", "write é"])
    assert first == complete(["the cat", "a bad", "write é"])
    assert all(isinstance(text, str) for text in first)


def test_the_contamination_probe_runs_on_a_model(target, tmp_path):
    from harness.evaluate.probe import probe_target

    path = tmp_path / "p.jsonl"
    rows = [{"id": f"x{i}", "problem": f"the cat and the hat number {i}", "answer": i} for i in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    record = probe_target(target, str(path), fractions=(0.5,), problems=2, max_tokens=4)
    assert [row["id"] for row in record["rows"]] == ["x0", "x1"]
    assert record["summary"]["0.5"]["n"] == 2
    json.dumps(record, allow_nan=False)
    with pytest.raises(UserError, match="fractions"):
        probe_target(target, str(path), fractions=(2.0,))
    with pytest.raises(UserError, match="source="):
        probe_target(target, "nowhere")


class Scripted:
    """A decoder that writes the same tokens in every row, whatever was sampled before."""

    def __init__(self, tokens, vocabulary):
        self.tokens, self.vocabulary, self.place, self.rows = tokens, vocabulary, 0, 0

    def _logits(self):
        import torch

        logits = torch.full((self.rows, self.vocabulary), -1e9)
        logits[:, self.tokens[min(self.place, len(self.tokens) - 1)]] = 0.0
        self.place += 1
        return logits

    def start(self, prompt_ids, prompt_mask, counts, limit):
        self.rows, self.place = int(counts.sum()), 0
        return self._logits()

    def step(self, tokens):
        return self._logits()

    def keep(self, kept):
        self.rows = len(kept)


@pytest.mark.parametrize(
    ("written", "mask", "cut"),
    [([11, 12, 2], [1, 1, 1], False), ([2], [1], False), ([11, 12, 13, 14, 15], [1, 1, 1, 1, 1], True)],
)
def test_the_end_token_counts_where_padding_is_the_same_token(target, written, mask, cut):
    from harness.train.sampler import NativeSampler

    sampler = NativeSampler(target.model, eos_ids=[2], pad_id=2)
    sampler.decoder = Scripted(written, 300)
    found = sampler.sample([[5]], [1], [("a", 0)], max_tokens=5, temperature=1.0)
    assert found.mask[0].int().tolist() == mask
    assert found.ids[0][: len(mask)].tolist() == written[: len(mask)]
    assert bool(found.truncated[0]) is cut
