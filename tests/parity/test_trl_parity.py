"""Values and gradients of TRL's own losses, called without a model, against ours.

Run with `-m trl` where TRL 1.16 is installed. With CREDITBENCH_REQUIRE_TRL=1 a missing TRL fails.
"""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, moved
from torch import Tensor

from algorithms.base import Algorithm, Batch
from algorithms.bot_grpo import BotGrpo
from algorithms.cort import Cort
from algorithms.dapo import Dapo, DapoOptions
from algorithms.dr_grpo import DrGrpo, DrGrpoOptions
from algorithms.gmpo import Gmpo, GmpoOptions
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.gspo import Gspo, GspoOptions
from algorithms.pure import Pure, PureOptions
from algorithms.rloo import Rloo, RlooOptions
from harness.train.reduction import Reducer

pytestmark = pytest.mark.trl

DIFFERENCES: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
TOLERANCE = 1e-12


def trl(name: str) -> ModuleType:
    """A module of TRL; skips where TRL is absent, fails where it is required."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("CREDITBENCH_REQUIRE_TRL") == "1":
            pytest.fail(f"CREDITBENCH_REQUIRE_TRL=1, but {name} cannot be imported: {error}")
        pytest.skip(f"{name} is not installed: run this in the trl environment")


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Prints the largest differences when the module is done (shown with -s)."""
    yield
    print("\nparity with TRL: largest differences\n| case | loss | gradient |\n|---|---|---|")
    for case, (loss, gradient) in sorted(DIFFERENCES.items()):
        print(f"| {case} | {loss:.1e} | {gradient:.1e} |")


def bare(trainer: type, logprobs: Tensor, **settings: Any) -> Any:
    """A TRL trainer without model or data, that sees `logprobs`."""
    made = object.__new__(trainer)
    entropies = torch.zeros_like(logprobs)
    values = {
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "max_completion_length": logprobs.shape[1],
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
        "use_adaptive_entropy": False,
        "aux_loss_enabled": False,
        "args": SimpleNamespace(
            delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1
        ),
        "accelerator": SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x,
            sync_gradients=True,
        ),
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logprobs, entropies, None),
        **settings,
    }
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def inputs_of(batch: Batch, advantages: Tensor) -> dict[str, Tensor]:
    mask = batch.completion_mask
    inputs = {
        "prompt_ids": batch.prompt_ids,
        "prompt_mask": batch.prompt_mask.long(),
        "completion_ids": batch.completion_ids,
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": batch.old_logprobs.nan_to_num(),
        "old_logps": torch.where(mask, batch.old_logprobs, 0.0).sum(-1),
        "num_items_in_batch": mask.sum(),
    }
    if batch.reference_logprobs is not None:
        inputs["ref_per_token_logps"] = batch.reference_logprobs.nan_to_num()
    return inputs


def theirs(
    trainer: type, batch: Batch, advantages: Tensor, logprobs: Tensor, **settings: Any
) -> tuple[float, Tensor]:
    leaf = logprobs.detach().nan_to_num().requires_grad_()
    made = bare(trainer, leaf, **settings)
    loss = trainer._compute_loss(made, made.model, inputs_of(batch, advantages))  # type: ignore[attr-defined]
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


def ours(algorithm: Algorithm, batch: Batch, logprobs: Tensor, **reducer: Any) -> tuple[float, Tensor]:
    leaf = logprobs.detach().clone().requires_grad_()
    value = Reducer(batch, **reducer).value(algorithm.loss(leaf, batch), torch.arange(len(batch)))
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad


def agree(case: str, mine: tuple[float, Tensor], other: tuple[float, Tensor], mask: Tensor) -> None:
    loss = abs(mine[0] - other[0])
    gradient = float((mine[1] - other[1])[mask].abs().max())
    DIFFERENCES[case] = [max(DIFFERENCES[case][0], loss), max(DIFFERENCES[case][1], gradient)]
    assert loss < TOLERANCE, case
    assert gradient < TOLERANCE, case


def a_batch(seed: int, beta: float) -> Batch:
    """Ragged, with a completion of one token; two groups."""
    batch = make_batch(
        [5, 1, 7, 3, 2, 6],
        [1, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
        local=[[0.5, -1, 0, 1, 0.2], [1], [0] * 7, [-1, 0, 1], [0.3, 0.1], [0.5] * 6],
        steps=[[0, 0, 1, 1, 1], [0], [0, 0, 0, 1, 1, 2, 2], [0] * 3, [0, 1], [0] * 6],
        seed=seed,
    )
    noise = torch.randn(
        batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed + 50)
    ).double()
    batch = batch.replace(replay_logprobs=batch.old_logprobs - noise)
    return batch.replace(reference_logprobs=batch.old_logprobs - 0.4 * noise) if beta else batch


LOSSES = {
    "grpo": (Grpo, GrpoOptions, {"loss_type": "grpo"}, {}),
    "dr_grpo": (DrGrpo, DrGrpoOptions, {"loss_type": "dr_grpo"}, {}),
    "dapo": (Dapo, DapoOptions, {"loss_type": "dapo", "epsilon_high": 0.28}, {}),
    "bnpo": (Grpo, GrpoOptions, {"loss_type": "bnpo"}, {"aggregation": "token_mean"}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize("shape", ["outcome", "token"])
@pytest.mark.parametrize("name", LOSSES)
def test_token_losses(name: str, shape: str, beta: float, seed: int) -> None:
    algorithm_class, options_class, settings, options = LOSSES[name]
    trainer = trl("trl").GRPOTrainer
    algorithm = algorithm_class(options_class(kl_coefficient=beta, **options))
    batch = a_batch(seed, beta)
    credit = BotGrpo() if shape == "token" else algorithm
    batch = batch.replace(advantages=credit.advantages(batch))
    advantages = batch.masked_advantages if shape == "token" else batch.masked_advantages[:, 0]
    logprobs = moved(batch, 0.4, seed)
    other = theirs(trainer, batch, advantages, logprobs, beta=beta, **settings)
    case = f"{name} ({shape} advantages{', KL' if beta else ''})"
    agree(case, ours(algorithm, batch, logprobs), other, batch.completion_mask)


@pytest.mark.parametrize("credit", ["bot_grpo", "cort", "pure"])
def test_token_credit_through_trls_loss(credit: str) -> None:
    """BoT-GRPO, CoRT and PURE are TRL's GRPO loss with advantages of their own."""
    trainer = trl("trl").GRPOTrainer
    made = {
        "bot_grpo": BotGrpo(),
        "cort": Cort(),
        "pure": Pure(PureOptions(kl_coefficient=0, ratio_guard=None)),
    }
    algorithm, batch = made[credit], a_batch(1, 0.0)
    batch = batch.replace(advantages=algorithm.advantages(batch))
    logprobs = moved(batch, 0.4)
    other = theirs(trainer, batch, batch.masked_advantages, logprobs)
    agree(f"{credit} (its own advantages)", ours(algorithm, batch, logprobs), other, batch.completion_mask)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.2, 0.2)])
@pytest.mark.parametrize("form", ["sequence", "token"])
def test_gspo(form: str, clip: tuple[float, float], seed: int) -> None:
    trainer, batch = trl("trl").GRPOTrainer, a_batch(seed, 0.0)
    algorithm = Gspo(GspoOptions(form=form, epsilon_low=clip[0], epsilon_high=clip[1]))
    batch = batch.replace(advantages=algorithm.advantages(batch))
    logprobs = moved(batch, 0.3, seed)
    other = theirs(
        trainer,
        batch,
        batch.masked_advantages[:, 0],
        logprobs,
        importance_sampling_level="sequence",
        epsilon_low=clip[0],
        epsilon_high=clip[1],
    )
    agree(f"gspo ({form} form)", ours(algorithm, batch, logprobs), other, batch.completion_mask)


@pytest.mark.parametrize("seed", range(3))
def test_gmpo(seed: int) -> None:
    trainer = trl("trl.experimental.gmpo").GMPOTrainer
    algorithm, batch = Gmpo(GmpoOptions(epsilon_low=0.2, epsilon_high=0.3)), a_batch(seed, 0.0)
    batch = batch.replace(advantages=algorithm.advantages(batch))
    logprobs = moved(batch, 0.4, seed)
    other = theirs(trainer, batch, batch.masked_advantages[:, 0], logprobs, epsilon_low=0.2, epsilon_high=0.3)
    agree("gmpo", ours(algorithm, batch, logprobs), other, batch.completion_mask)


@pytest.mark.parametrize("seed", range(3))
def test_rloo(seed: int) -> None:
    """TRL's loss with the advantage that its trainer computes inline: (R - KL) minus the mean of the others."""
    trainer, batch = trl("trl").RLOOTrainer, a_batch(seed, 0.05)
    algorithm = Rloo(RlooOptions(kl_coefficient=0.05))
    batch = batch.replace(advantages=algorithm.advantages(batch))
    assert batch.reference_logprobs is not None
    kl = torch.where(batch.completion_mask, batch.old_logprobs - batch.reference_logprobs, 0.0).sum(-1)
    rewards = (batch.rewards - 0.05 * kl).view(2, 3)
    advantages = (rewards - (rewards.sum(1, keepdim=True) - rewards) / 2).flatten()
    logprobs = moved(batch, 0.1, seed)
    agree(
        "rloo",
        ours(algorithm, batch, logprobs),
        theirs(trainer, batch, advantages, logprobs),
        batch.completion_mask,
    )


def test_two_sided_clip_is_dual_clip() -> None:
    trainer, batch = trl("trl").GRPOTrainer, a_batch(0, 0.0)
    algorithm = Grpo(GrpoOptions(dual_clip=1.5))
    batch = batch.replace(advantages=algorithm.advantages(batch))
    logprobs = moved(batch, 1.0)
    other = theirs(trainer, batch, batch.masked_advantages[:, 0], logprobs, delta=1.5)
    agree("grpo (delta = dual clip)", ours(algorithm, batch, logprobs), other, batch.completion_mask)


def test_fully_masked_rows_count_in_trl() -> None:
    """TRL's mean is over all rows; ours drops empty ones unless told to count them."""
    trainer = trl("trl").GRPOTrainer
    batch = make_batch([3, 0, 2], [1, 0, 0])
    batch = batch.replace(advantages=Grpo().advantages(batch))
    logprobs = moved(batch)
    other = theirs(trainer, batch, batch.masked_advantages[:, 0], logprobs)
    agree(
        "grpo (a masked row)", ours(Grpo(), batch, logprobs, empty_rows="count"), other, batch.completion_mask
    )
    dropped = ours(Grpo(), batch, logprobs)[0]
    assert dropped == pytest.approx(other[0] * 3 / 2)


def test_accumulated_micro_batches_are_one_step() -> None:
    """Two micro-batches of unequal token counts: TRL's dapo divides by the whole step's tokens, as we do."""
    trainer, batch = trl("trl").GRPOTrainer, a_batch(2, 0.0)
    algorithm = Dapo()
    batch = batch.replace(advantages=algorithm.advantages(batch))
    logprobs, total = moved(batch, 0.4), torch.zeros_like(batch.old_logprobs)
    for rows in (torch.arange(2), torch.arange(2, 6)):
        part = batch.rows(rows)
        leaf = logprobs[rows].detach().nan_to_num().requires_grad_()
        made = bare(trainer, leaf, loss_type="dapo", epsilon_high=0.28)
        inputs = {
            **inputs_of(part, part.masked_advantages[:, 0]),
            "num_items_in_batch": batch.completion_mask.sum(),
        }
        trainer._compute_loss(made, made.model, inputs).backward()
        assert leaf.grad is not None
        total[rows] += leaf.grad
    mine = ours(algorithm, batch, logprobs)
    agree("dapo (two micro-batches)", mine, (mine[0], total), batch.completion_mask)


def tiny_trainer(model: Any, folder: Any, scale: str, rewards: list[list[float]]) -> Any:
    """A real GRPO training of two steps on a random model, whose rewards and advantages are read back."""
    datasets, module = trl("datasets"), trl("trl")

    def reward(completions: list[str], **_: Any) -> list[float]:
        values = [(sum(map(ord, text)) % 7) / 3 for text in completions]
        rewards.append(values)
        return values

    config = module.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=5,
        max_steps=2,
        scale_rewards=scale,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        bf16=False,
    )
    data = datasets.Dataset.from_dict({"prompt": ["the cat", "a bad cab", "the hat", "write"]})
    return module.GRPOTrainer(model=str(model), reward_funcs=reward, args=config, train_dataset=data)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages_of_a_real_training(scale: str, tmp_path: Any, tiny_model_folder: Any) -> None:
    """What TRL's trainer logs as advantages, from the rewards that it got: n - 1 deviation plus 1e-4."""
    rewards: list[list[float]] = []
    trainer = tiny_trainer(tiny_model_folder, tmp_path, scale, rewards)
    trainer.train()
    logged = torch.tensor(list(trainer._logs["advantages"]), dtype=torch.float64)
    flat = rewards[-1]  # the trainer keeps the advantages of its last generation batch
    assert len(rewards) == 2
    assert len(flat) == len(logged) == 8
    batch = make_batch([1] * len(flat), flat, [i // 4 for i in range(len(flat))])
    options = GrpoOptions(
        std_ddof="sequence_bessel", std_eps=1e-4, scale="none" if scale == "none" else "std"
    )
    found = Grpo(options).advantages(batch)[:, 0]
    assert found.abs().max() > 0.1
    largest = float((found - logged).abs().max())
    DIFFERENCES[f"advantages, scale_rewards={scale} (float32 run)"] = [largest, float("nan")]
    assert largest < 1e-5
