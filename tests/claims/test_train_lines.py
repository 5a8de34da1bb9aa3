"""The `harness train` line printed for a run of a claim makes that run: the same specification, the same id."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.claims.schema import claim_names, load_claim
from harness.commands.run import TrainOptions, train_jobs
from harness.reproduce import amend, plan, train_line
from harness.spec import apply_settings

OPTIONS = {"--algorithm": "algorithm", "--task": "task", "--model": "model", "--seeds": "seeds"}
LISTS = {"--set": "settings", "--plugin": "plugin"}


def read(line: str) -> TrainOptions:
    """The options of a printed command line, as a shell would hand them over."""
    words = shlex.split(line)
    assert words[:2] == ["harness", "train"]
    found: dict = {}
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        if flag in LISTS:
            found.setdefault(LISTS[flag], []).append(value)
        else:
            found[OPTIONS[flag]] = value
    return TrainOptions(**found)


@pytest.mark.parametrize("name", claim_names())
def test_every_printed_line_gives_the_same_run(name):
    claim = load_claim(name)
    for scale in claim.scales:
        for job in plan(claim, scale, (0,)).jobs:
            (again,) = train_jobs(read(shlex.join(train_line(job.spec))))
            assert again.spec == job.spec
            assert again.run_id == job.run_id


def test_a_changed_claim_prints_its_changes(tmp_path):
    settings_changed = [
        "train.learning_rate=2e-4",
        "stop.rule=none",
        "evaluation.prompts=7",
        "model.dtype=bfloat16",
        "model.adapter.rank=4",
        "sampler.memory_share=0.3",
        "arms.bot_grpo.local_weight=0.1",
        "task.options.outcome_level=renders",
    ]
    claim = amend(load_claim("compile-speedup"), "tiny", settings_changed).with_control()
    jobs = plan(claim, "tiny", (3,)).jobs
    spec = {job.arm: job.spec for job in jobs}["bot_grpo"]
    assert spec["model"]["adapter"]["rank"] == 4
    assert spec["sampler"]["memory_share"] == 0.3
    for job in jobs:
        (again,) = train_jobs(read(shlex.join(train_line(job.spec))))
        assert again.run_id == job.run_id


WORDS = st.sampled_from(
    ["none", "null", "true", "None", "1e-3", "3", "[1]", '"x"', "plain", "with space", ""]
)


@settings(max_examples=60, deadline=None)
@given(WORDS | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.lists(st.integers()))
def test_any_value_survives_the_line(value):
    spec = plan(load_claim("compile-speedup"), "smoke", (0,)).jobs[0].spec
    spec = {**spec, "task": {**spec["task"], "options": {"x": value, "y": {"z": value}}}}
    parsed = apply_settings({}, read(shlex.join(train_line(spec))).settings)
    assert parsed["task"]["options"] == {"x": value, "y": {"z": value}}


@pytest.mark.slow
def test_the_command_itself_reads_the_line():
    job = plan(load_claim("reward-stability"), "smoke", (0,)).jobs[3]
    words = train_line(job.spec)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *words, "--dry-run"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [job.spec]
