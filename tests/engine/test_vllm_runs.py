"""Whole engines: what starting one leaves alone, tied heads, adapters, half precision, and a run that resumes.

Run with `-m vllm` where vLLM is installed; each test starts engines of its own.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.spec import ModelSpec, SamplerSpec
from harness.store.writer import RunWriter, read_status
from harness.sweep.jobs import job_for, manifest_of
from harness.sweep.worker import run_job
from harness.train.build import build
from harness.train.load import load_codec, load_policy
from harness.train.loop import Trainer
from harness.train.vllm_sampler import VllmSampler, WeightSyncError

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm_installed")]
REACT = {"name": "react-tiny"}
STREAMS = [("test", k) for k in range(8)]


def engine(spec: ModelSpec, **sampler):
    """Model, codec and a started sampler."""
    model, codec = load_policy(spec, 0)[0], load_codec(spec)
    return model, codec, VllmSampler(model, codec, SamplerSpec(name="vllm", **sampler))


def draw(sampler, codec):
    prompt = codec.encode("Write a React component that shows a list of products.")
    return sampler.sample([prompt], [8], STREAMS, max_tokens=40, temperature=1.0)


def test_probe_sees_a_tied_head_that_kept_its_old_weights(monkeypatch):
    """vLLM 0.32 on a CPU, as it is: the outputs look plausible, and are those of another head."""
    monkeypatch.setattr("harness.train.vllm_sampler.unties_head", lambda device: False)
    _, codec, sampler = engine(ModelSpec(name="react-tiny"))
    try:
        with pytest.raises(WeightSyncError, match="step 0"):
            draw(sampler, codec)
    finally:
        sampler.close()


def test_starting_an_engine_leaves_generators_and_threads_alone():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    threads = torch.get_num_threads()
    _, _, sampler = engine(ModelSpec(name="react-tiny"))
    sampler.close()
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
    assert random.random() == expected[2]
    assert torch.get_num_threads() == threads
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


def test_an_adapter_goes_over_merged_and_stays_apart():
    model, codec, sampler = engine(ModelSpec(name="react-tiny", adapter={"rank": 4}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    try:
        draw(sampler, codec)
        assert sampler.probed["largest"] < 1e-3
    finally:
        sampler.close()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.named_parameters())


def test_half_precision_is_judged_by_its_mean():
    model, codec, sampler = engine(ModelSpec(name="react-tiny"), dtype="bfloat16")
    try:
        draw(sampler, codec)
        assert sampler.probed["largest"] > 1e-3
        assert sampler.probed["mean"] < 0.15
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        sampler.transfer.send_weights = lambda: None
        sampler.refresh(1)
        with pytest.raises(WeightSyncError, match="mean difference"):
            draw(sampler, codec)
    finally:
        sampler.close()


def train(spec, root: Path, stop_after: int | None = None) -> Path:
    """Runs a specification here; with `stop_after` it is cut off there, records and all."""
    job = job_for(spec, root)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    parts = build(spec)
    trainer = Trainer(parts, writer)
    if stop_after is not None:
        trainer.should_stop = lambda: trainer.progress.optimizer_step >= stop_after
    status, reason = trainer.run()
    writer.status(status, reason)
    writer.close()
    parts.generator.sampler.close()
    return Path(job.folder)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tiny_spec, tmp_path):
    spec = tiny_spec("bot_grpo", model=REACT, sampler={"name": "vllm"})
    whole = train(spec, tmp_path / "whole")
    train(spec, tmp_path / "parts", stop_after=2)
    parts = train(spec, tmp_path / "parts")
    steps = [json.loads(line) for line in (whole / "steps.jsonl").open()]
    assert [row["metrics"]["weights_version"] for row in steps] == [0, 1, 2, 3]
    for name in ("steps.jsonl", "evals.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    timings = [json.loads(line) for line in (whole / "timings.jsonl").open()]
    assert all(row["sampler_startup_seconds"] > 0 for row in timings)
    assert timings[-1]["sampler_sync_seconds"] > timings[0]["sampler_sync_seconds"] > 0


def test_a_failing_probe_ends_the_run_as_failed(tiny_spec, tmp_path):
    job = job_for(tiny_spec(model=REACT, sampler={"name": "vllm", "probe_limit": 1e-12}), tmp_path)
    assert run_job(job) == "failed"
    assert read_status(Path(job.folder))["reason"].startswith("WeightSyncError: after handing over")
