"""The vLLM sampler where vLLM is not needed: what is refused, and how the card is shared."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from harness.errors import EnvironmentProblem, UserError
from harness.train.build import build, check
from harness.train.vllm_sampler import VllmSampler, require_vllm


def test_missing_vllm_names_the_extra_before_anything_is_loaded(tiny_spec, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else found(name, *rest)
    )
    monkeypatch.setattr("harness.train.build.load_policy", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(EnvironmentProblem, match=r"creditbench\[gpu\].*sampler.name=native") as caught:
        build(tiny_spec(sampler={"name": "vllm"}))
    assert "\n" not in str(caught.value)


def test_a_folder_of_that_name_is_not_vllm(monkeypatch):
    folder = SimpleNamespace(origin=None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: folder)
    with pytest.raises(EnvironmentProblem, match="not installed"):
        require_vllm()


def test_a_table_of_logits_is_refused(tiny_spec):
    with pytest.raises(UserError, match=r"sampler\.name='vllm': a table of logits samples itself"):
        check(tiny_spec(model={"name": "table"}, sampler={"name": "vllm"}))


class Engine:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def send_weights(self) -> None:
        self.calls.append("send")

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")


def resting(sleep: bool) -> VllmSampler:
    """A sampler on a card that is not there, around an engine that only takes notes."""
    sampler = VllmSampler.__new__(VllmSampler)
    sampler.spec = SimpleNamespace(sleep=sleep)
    sampler.device = torch.device("cuda")
    sampler.engine = sampler.transfer = Engine()
    sampler.seconds = {"sync": 0.0, "sleep": 0.0}
    sampler._stale, sampler._asleep, sampler.version = True, False, 0
    return sampler


def test_weights_arrive_before_the_cache_takes_the_memory():
    sampler = resting(sleep=True)
    assert sampler._ready()
    sampler.rest()
    sampler.rest()
    sampler.refresh(1)
    assert sampler._ready()
    assert not sampler._ready()
    awake = ["send", "reset"]
    again = ["sleep 1", "wake weights", "send", "wake kv_cache", "reset"]
    assert sampler.engine.calls == [*awake, *again, "reset"]
    assert sampler.version == 1


def test_without_sleep_the_engine_keeps_the_card():
    sampler = resting(sleep=False)
    sampler.rest()
    assert sampler._ready()
    assert sampler.engine.calls == ["send", "reset"]
