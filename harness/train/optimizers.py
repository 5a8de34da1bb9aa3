"""The optimizers of the shared loop: AdamW, and its 8-bit and paged forms on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.errors import EnvironmentProblem, UserError
from harness.spec import TrainSpec

_BITSANDBYTES = {"adamw_8bit": "AdamW8bit", "paged_adamw_8bit": "PagedAdamW8bit"}


def check_optimizer(train: TrainSpec, device: torch.device) -> None:
    """Refuses an optimizer that cannot run on a device: UserError, or EnvironmentProblem for a missing package."""
    if train.optimizer not in _BITSANDBYTES:
        return
    if device.type != "cuda":
        raise UserError(
            f"train.optimizer={train.optimizer!r}: its kernels need CUDA, and the model is on {device.type}; use "
            "train.optimizer=adamw"
        )
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise EnvironmentProblem(
            f"train.optimizer={train.optimizer!r}: it needs bitsandbytes; run pip install 'creditbench[gpu]', or use "
            "train.optimizer=adamw"
        ) from None


def make_optimizer(
    train: TrainSpec, parameters: Sequence[torch.nn.Parameter], own: Sequence[dict[str, Any]]
) -> torch.optim.Optimizer:
    """The run's optimizer over the policy's parameters and an algorithm's own groups.

    All are AdamW (betas 0.9 and 0.999); the 8-bit ones keep their two moments in blocks of 8-bit numbers
    (arXiv 2110.02861), the paged one lets them move to the machine's memory.
    """
    groups = [{"params": list(parameters)}, *own]
    settings: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    if train.optimizer in _BITSANDBYTES:
        check_optimizer(train, parameters[0].device)
        import bitsandbytes

        return getattr(bitsandbytes.optim, _BITSANDBYTES[train.optimizer])(groups, **settings)
    return torch.optim.AdamW(groups, **settings, fused=all(p.is_floating_point() for p in parameters))
