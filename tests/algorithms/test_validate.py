"""The conformance suite: passes what is right, and names what is wrong, one defect a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.base import ALGORITHMS, Algorithm, Batch, ConfigError, LossTerm, Models, Setting, register
from algorithms.bpco import Bpco
from algorithms.grpo import Grpo
from harness import registry, validate
from harness.validate import CHECKS, Finding

QUICK = [name for name in CHECKS if name != "learns"]


@pytest.fixture
def clean_registry() -> Iterator[None]:
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


def run(check: str, algorithm: type[Algorithm]) -> Finding:
    return validate._run(check, CHECKS[check], algorithm, None)


@pytest.mark.parametrize("name", sorted(registry.algorithms()))
def test_every_algorithm_conforms(name: str) -> None:
    """All checks but the learning, which tests/learning makes for each."""
    algorithm = ALGORITHMS[name]
    assert [f.message for f in (run(check, algorithm) for check in QUICK) if not f.ok] == []


def test_validate_runs_every_check() -> None:
    findings = validate.validate(Grpo)
    assert [f.check for f in findings] == list(CHECKS)
    assert all(f.ok for f in findings)
    assert "0.8 after" in findings[-1].message


def test_options_are_passed_on() -> None:
    findings = validate.validate(Bpco, Bpco.Options(critic_warmup=10_000))
    assert [f.check for f in findings if not f.ok] == ["moves-policy", "learns"]


class Base(Algorithm):
    """A right algorithm, for defects to be made in: A = R minus the group's mean."""

    name = "defect"
    source = "none"

    def advantages(self, batch: Batch) -> Tensor:
        rewards = torch.where(torch.isfinite(batch.rewards), batch.rewards, 0.0)
        a = torch.stack(
            [r - rewards[batch.group_ids == g].mean() for r, g in zip(rewards, batch.group_ids, strict=True)]
        )
        return torch.where(batch.completion_mask, a[:, None], 0.0)

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        step = torch.where(batch.completion_mask, logprobs - batch.old_logprobs, 0.0)
        return {"policy": LossTerm(-step.exp() * batch.masked_advantages)}


class WrongShape(Base):
    """[B] advantages."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch)[:, 0]


class NotFloat(Base):
    """Integer advantages."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch).round().long()


class Random(Base):
    """Advantages with noise."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch) * torch.rand(())


class NoMask(Base):
    """Advantages on padding."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch)[:, :1].expand(batch.completion_mask.shape)


class NanLeaks(Base):
    """Multiplies by the mask."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        ratio = (logprobs - batch.old_logprobs).exp() * batch.completion_mask
        return {"policy": LossTerm(-ratio * batch.masked_advantages)}


class UsesWidth(Base):
    """Divides by the padded width."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch) / batch.completion_mask.shape[1]


class DividesByZero(Base):
    """No guard for equal rewards."""

    def advantages(self, batch: Batch) -> Tensor:
        a = super().advantages(batch)
        return torch.where(batch.completion_mask, a / a.abs().sum(), 0.0)


class NanMetric(Base):
    """A metric of 0 / 0."""

    def metrics(self, batch: Batch) -> dict[str, float]:
        return {"ratio": float(batch.masked_advantages.sum() * 0 / batch.rewards.diff().abs().sum())}


class Adjacent(Base):
    """Takes neighbours for a group."""

    def advantages(self, batch: Batch) -> Tensor:
        if len(batch) < 4:
            return super().advantages(batch)
        rewards = torch.where(torch.isfinite(batch.rewards), batch.rewards, 0.0)
        a = (rewards.view(-1, 4) - rewards.view(-1, 4).mean(1, keepdim=True)).flatten()
        return torch.where(batch.completion_mask, a[:, None], 0.0)


class SelectsByPosition(Base):
    """Keeps the first rows."""

    def select(self, batch: Batch) -> Tensor:
        return torch.arange(len(batch)) < (len(batch) + 1) // 2


class UsesGroupNumber(Base):
    """Reads the value of a group id."""

    def advantages(self, batch: Batch) -> Tensor:
        return super().advantages(batch) * (1 + batch.group_ids[:, None])


class DividesItself(Base):
    """Averages in the loss."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        term = super().loss(logprobs, batch)["policy"]
        return {"policy": LossTerm(term.per_token / len(batch), "seq_mean_token_sum")}


class UnknownAggregation(Base):
    """A name the loop does not know."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        return {"policy": LossTerm(super().loss(logprobs, batch)["policy"].per_token, "mean")}


class NoTerms(Base):
    """Returns nothing to minimise."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        return {}


class LeaksIntoRewards(Base):
    """A loss with gradient in the rewards."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        step = torch.where(batch.completion_mask, logprobs - batch.old_logprobs, 0.0)
        return {"policy": LossTerm(-step.exp() * batch.rewards[:, None])}


class Detached(Base):
    """Trains nothing."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        return super().loss(logprobs.detach().requires_grad_(), batch)


class Forgets(Base):
    """A parameter that no checkpoint holds."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.scale]}]

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        return {"policy": LossTerm(super().loss(logprobs, batch)["policy"].per_token * self.scale)}


class SecretForward(Base):
    """Pays for a forward that it does not declare."""

    def prepare(self, batch: Batch, models: Models) -> Batch:
        return batch.replace(reference_logprobs=models.reference_logprobs(batch))


class WrongSign(Base):
    """Learns to fail."""

    def loss(self, logprobs: Tensor, batch: Batch) -> dict[str, LossTerm]:
        return {"policy": LossTerm(-super().loss(logprobs, batch)["policy"].per_token)}


class Refuses(Base):
    """Refuses every setting."""

    def check(self, setting: Setting) -> None:
        raise ConfigError("algorithm.options.x=1: set it to 2")


class Raises(Base):
    """Fails with an error of its own."""

    def advantages(self, batch: Batch) -> Tensor:
        raise KeyError("values")


@pytest.mark.parametrize(
    ("algorithm", "check", "message"),
    [
        (WrongShape, "shape", "return [B, T]"),
        (NotFloat, "shape", "return a floating-point tensor"),
        (Random, "shape", "must be deterministic"),
        (NoMask, "mask", "not 0 outside completion_mask"),
        (NanLeaks, "mask", "mask log-ratios before exp"),
        (UsesWidth, "padding", "take lengths and means from completion_mask only"),
        (DividesByZero, "finite", "not finite for all outcomes equal"),
        (NanMetric, "finite", "metric 'ratio' is nan"),
        (Adjacent, "row-order", "group by group_ids"),
        (SelectsByPosition, "row-order", "break ties by content"),
        (UsesGroupNumber, "group-names", "use group_ids only to tell groups apart"),
        (DividesItself, "micro-batches", "let the loop divide"),
        (UnknownAggregation, "loss-terms", "choose from seq_mean_token_mean"),
        (NoTerms, "loss-terms", "returned no terms"),
        (LeaksIntoRewards, "detached", "gradients reach rewards"),
        (Detached, "moves-policy", "no gradient in the policy"),
        (Forgets, "save-load", "into state_dict"),
        (SecretForward, "extra-cost", "say so in extra_cost"),
        (WrongSign, "learns", "check the sign of the loss"),
        (Refuses, "accepts-setting", "set it to 2"),
        (Raises, "shape", "raised KeyError at test_validate.py"),
    ],
)
def test_each_defect_is_named_by_its_check(algorithm: type[Algorithm], check: str, message: str) -> None:
    finding = run(check, algorithm)
    assert not finding.ok
    assert message in finding.message
    assert "\n" not in finding.message


@pytest.mark.parametrize("check", [name for name in QUICK if name != "declares"])
def test_the_base_of_the_defects_is_sound(check: str) -> None:
    assert run(check, Base) == Finding(check, True, run(check, Base).message)


def test_declarations(clean_registry: None) -> None:
    class Nameless(Algorithm):
        """No name."""

    assert 'add `name = "my_algorithm"`' in run("declares", Nameless).message
    assert "decorate the class with @register" in run("declares", Base).message

    @register
    class Sourceless(Base):
        """No source."""

        name = "sourceless"
        source = ""

    assert "no source" in run("declares", Sourceless).message

    @register
    class Demanding(Base):
        """An unknown requirement."""

        name = "demanding"
        requires = frozenset({"gold"})

    assert "requires has ['gold']" in run("declares", Demanding).message

    @dataclass
    class Loose:
        x: int = 1

    @register
    class Mutable(Base):
        """Options that change."""

        name = "mutable"
        Options = Loose

    assert "frozen dataclass" in run("declares", Mutable).message


PLUGIN = '''
"""Advantage of the outcome's sign, as a plug-in."""

import torch

from algorithms.base import Algorithm, LossTerm, register


@register
class SignReinforce(Algorithm):
    """A_it = +1 where the outcome beats the group's mean, -1 where it is below; REINFORCE."""

    name = "sign_reinforce"
    source = "an example"
    requires = frozenset({"groups"})

    def advantages(self, batch):
        same = batch.group_ids[:, None] == batch.group_ids[None, :]
        rewards = batch.rewards.nan_to_num()
        mean = (same * rewards[None, :]).sum(-1) / same.sum(-1)
        sign = torch.where((rewards - mean).abs() < 1e-9, 0.0, (rewards - mean).sign())
        return torch.where(batch.completion_mask, sign[:, None], 0.0)

    def loss(self, logprobs, batch):
        picked = torch.where(batch.completion_mask, logprobs, 0.0)
        return {"policy": LossTerm(-batch.masked_advantages * picked, "seq_mean_token_mean")}
'''


def test_a_plugin_of_under_forty_lines_conforms(tmp_path: Any, clean_registry: None) -> None:
    path = tmp_path / "sign_reinforce.py"
    path.write_text(PLUGIN)
    assert len(PLUGIN.strip().splitlines()) < 40
    module = registry.load_plugin(path)
    findings: Mapping[str, Finding] = {f.check: f for f in validate.validate(module.SignReinforce)}
    assert [f.message for f in findings.values() if not f.ok] == []
