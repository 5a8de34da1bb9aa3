"""Relations between algorithms, and invariances of every registered one."""

from __future__ import annotations

import ast
import inspect

import pytest
import torch
from algorithm_batches import credited, few, loss_and_gradient, make_batch, moved, ragged_batches
from hypothesis import given

from algorithms.base import ALGORITHMS, Algorithm, Batch
from algorithms.bot_grpo import BotGrpo, BotGrpoOptions
from algorithms.cort import Cort, CortOptions
from algorithms.cppo import Cppo, CppoOptions
from algorithms.dapo import Dapo, DapoOptions
from algorithms.dppo import Dppo, DppoOptions
from algorithms.dr_grpo import DrGrpo
from algorithms.gmpo import Gmpo
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.gspo import Gspo, GspoOptions
from algorithms.igrpo import Igrpo, IgrpoOptions
from algorithms.lambda_grpo import LambdaGrpo
from algorithms.rc_grpo import RcGrpo, RcGrpoOptions
from algorithms.rloo import Rloo, RlooOptions
from algorithms.sage import Sage, SageOptions
from harness import registry
from harness.train.toy import ToyModels, ToyPolicy, ToyTask, train_toy

NAMES = sorted(registry.algorithms())
EXPECTED = {
    "balanced_aggregation",
    "bot_grpo",
    "bpco",
    "cort",
    "cppo",
    "dapo",
    "dppo",
    "dr_grpo",
    "gmpo",
    "grpo",
    "grpo_process",
    "gspo",
    "igrpo",
    "lambda_grpo",
    "ppo",
    "pure",
    "rc_grpo",
    "reinforce_plus_plus",
    "rloo",
    "sage",
}


def test_every_algorithm_is_registered() -> None:
    assert set(NAMES) >= EXPECTED


def same(a: Algorithm, b: Algorithm, batch: Batch) -> None:
    """Equal loss and gradient on a policy that has moved."""
    results = [loss_and_gradient(x, credited(x, batch), moved(batch)) for x in (a, b)]
    assert results[0][0].item() == pytest.approx(results[1][0].item(), abs=1e-8)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-8)


@few
@given(ragged_batches())
def test_collapse_of_losses(batch: Batch) -> None:
    """BoT without local reward, CoRT without mixing, CPPO without pruning and the like are GRPO."""
    silent = batch.replace(local_rewards=0 * batch.local_rewards, replay_logprobs=batch.old_logprobs - 0.3)
    token_mean = GrpoOptions(aggregation="token_mean")
    same(BotGrpo(), Grpo(), silent)
    same(Cort(CortOptions(mix=0.0)), Grpo(), silent)
    same(Cppo(CppoOptions(prune_share=0.0)), Grpo(), batch)
    assert Cppo(CppoOptions(prune_share=0.0)).select(credited(Cppo(), batch)).all()
    same(Dapo(DapoOptions(epsilon_high=0.2, overlong_cache_share=0.0)), Grpo(token_mean), batch)
    same(Igrpo(IgrpoOptions(drafts=0)), Grpo(), batch)
    same(Sage(SageOptions(highest_level=0, epsilon_high=0.2)), Grpo(token_mean), batch)
    same(RcGrpo(RcGrpoOptions(high_share=1.0)), Grpo(), batch)
    preference = LambdaGrpo()
    prepared = preference.prepare(batch, ToyModels(ToyPolicy(ToyTask())))
    same(preference, Grpo(token_mean), prepared)


def test_collapse_of_whole_runs() -> None:
    """The same random streams, plans and updates: the learning curves coincide."""
    grpo = train_toy(Grpo(), rollouts=4)
    for algorithm in (
        BotGrpo(BotGrpoOptions(local_weight=0.0)),
        Cort(CortOptions(mix=0.0)),
        Cppo(CppoOptions(prune_share=0.0)),
        Igrpo(IgrpoOptions(drafts=0)),
        RcGrpo(RcGrpoOptions(high_share=1.0, high_token="")),
    ):
        assert train_toy(algorithm, rollouts=4).success == pytest.approx(grpo.success, abs=1e-6), (
            algorithm.name
        )
    relabelled = Grpo(GrpoOptions(aggregation="token_mean", epsilon_high=0.28))
    assert train_toy(Sage(SageOptions(highest_level=0)), rollouts=4).success == pytest.approx(
        train_toy(relabelled, rollouts=4).success
    )


@few
@given(ragged_batches())
def test_first_on_policy_step_is_the_same_whatever_the_trust_region(batch: Batch) -> None:
    options = [Grpo(), Gspo(), Gspo(GspoOptions(form="token")), Gmpo()]
    options.append(Grpo(GrpoOptions(epsilon_low=0.01, epsilon_high=5.0, dual_clip=3.0)))
    options.append(Dppo(DppoOptions(scale="std", aggregation="seq_mean_token_mean")))
    options.append(Dppo(DppoOptions(scale="std", aggregation="seq_mean_token_mean", surrogate="ratio")))
    first = loss_and_gradient(options[0], credited(options[0], batch), batch.old_logprobs)[1]
    for other in options[1:]:
        assert torch.allclose(
            loss_and_gradient(other, credited(other, batch), batch.old_logprobs)[1], first, atol=1e-9
        )


@few
@given(ragged_batches())
def test_rloo_dr_grpo_and_dppo_share_their_credit(batch: Batch) -> None:
    size = torch.bincount(batch.group_ids)[batch.group_ids].double()
    dr = DrGrpo().advantages(batch)
    rloo = Rloo(RlooOptions(kl_coefficient=0.0)).advantages(batch)
    assert torch.allclose(rloo, dr * (size / (size - 1))[:, None])
    assert torch.equal(Dppo().advantages(batch), dr)


def test_one_token_answers_make_sequence_and_token_methods_meet() -> None:
    batch = make_batch([1] * 4, [1, 0, 0, 1], [0, 0, 1, 1])
    same(Gspo(GspoOptions(epsilon_low=0.2, epsilon_high=0.2)), Grpo(), batch)
    same(Cort(), Grpo(), batch.replace(replay_logprobs=batch.old_logprobs - 0.5))
    same(BotGrpo(), Grpo(), batch)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_docstrings_state_equation_source_shapes_and_differences(name: str) -> None:
    algorithm = ALGORITHMS[name]
    text = inspect.getdoc(algorithm) or ""
    assert "Differs from the paper:" in text
    assert "[B, T]" in text or '"B T"' in text or "[B]" in text
    assert "arXiv" in text or "golden_critic" in text or "summary" in text
    assert algorithm.source
    assert algorithm.extra_cost


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_class_attributes_are_literals_that_can_be_read_without_importing(name: str) -> None:
    """`harness ls algorithms` reads them from the source, so that it needs no torch."""
    algorithm = ALGORITHMS[name]
    tree = ast.parse(inspect.getsource(inspect.getmodule(algorithm)))  # type: ignore[arg-type]
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == algorithm.__name__).body
    found = {
        n.targets[0].id: n.value
        for n in body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    assert ast.literal_eval(found["name"]) == name
    assert ast.literal_eval(found["source"]) == algorithm.source
    assert ast.literal_eval(found["extra_cost"]) == algorithm.extra_cost
    requires = found["requires"]
    assert isinstance(requires, ast.Call)
    assert frozenset(ast.literal_eval(requires.args[0]) if requires.args else ()) == algorithm.requires


def test_algorithms_import_neither_tasks_nor_harness() -> None:
    for name in EXPECTED:
        source = inspect.getsource(inspect.getmodule(ALGORITHMS[name]))  # type: ignore[arg-type]
        modules = {
            alias
            for node in ast.walk(ast.parse(source))
            for alias in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        }
        assert not any(m.split(".")[0] in ("tasks", "harness", "transformers") for m in modules), name
