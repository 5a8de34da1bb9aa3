"""The GPU check: for real where there is a card (-m gpu), at a tiny size on a CPU otherwise."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
import torch

SPEC = importlib.util.spec_from_file_location("gpu_check", Path(__file__).with_name("check.py"))
assert SPEC is not None
assert SPEC.loader is not None
gpu_check = importlib.util.module_from_spec(SPEC)
sys.modules["gpu_check"] = gpu_check
SPEC.loader.exec_module(gpu_check)


@pytest.mark.gpu
def test_the_check_passes_on_a_card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    found = gpu_check.check("cuda", quick=False)
    print(gpu_check.to_table(found, torch.cuda.get_device_name(0)))
    assert [s.name for s in found if s.status == "failed"] == []


def test_every_section_runs_on_a_cpu_at_a_tiny_size(capsys):
    code = gpu_check.main(["--device", "cpu", "--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    sections = {section["name"]: section for section in found["sections"]}
    assert list(sections) == [section.__name__ for section in gpu_check.SECTIONS]
    for name, section in sections.items():
        if name.startswith("vllm") and section["status"] == "skipped":
            assert "not installed" in section["reason"]
            continue
        assert section["status"] == "ok", section
        assert section["figures"]
    assert code == 0


def test_without_a_card_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 0
    assert capsys.readouterr().out.strip().splitlines() == [
        "no GPU here: nothing was checked (--device cpu --quick tries every section at a tiny size)"
    ]


def test_figures_keep_their_bounds_and_failures_are_rows():
    figure = gpu_check.Figure
    assert figure("a", 1.0, most=1.0).ok
    assert not figure("a", 1.1, most=1.0).ok
    assert not figure("a", 0.9, least=1.0).ok
    assert not figure("a", math.nan).ok
    stage = gpu_check.Stage(torch.device("cpu"), quick=True, deadline=math.inf)

    def beyond(stage):
        yield figure("too much", 2.0, most=1.0)

    def broken(stage):
        yield figure("fine", 1.0)
        raise ValueError("no such thing")

    def absent(stage):
        raise gpu_check.Skipped("not here")
        yield

    found = [gpu_check.run_section(section, stage) for section in (beyond, broken, absent)]
    assert [s.status for s in found] == ["failed", "failed", "skipped"]
    text = gpu_check.to_table(found, "nowhere")
    for words in ("OUT OF BOUNDS", "ValueError: no such thing", "not here"):
        assert words in text


def test_time_that_is_up_skips_the_rest():
    stage = gpu_check.Stage(torch.device("cpu"), quick=True, deadline=-math.inf)
    found = gpu_check.run_section(gpu_check.native_sampler, stage)
    assert (found.status, found.reason) == ("skipped", "no time left")
