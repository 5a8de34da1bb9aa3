"""Trainer against sampler: how far their log-probs are apart, the correction for it, and the flag of a run.

The sampler draws from q (its own kernels, perhaps another precision), the trainer differentiates p. With
d = log p - log q of each sampled token, truncated importance sampling multiplies the token's policy loss by
min(exp(d), cap): off-policy samples count by p / q, and the cap bounds the variance.
Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025), "TIS".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms.base import Batch, LossTerm
from harness.errors import UserError
from harness.spec import RunSpec

UNWEIGHTED = frozenset({"kl", "value"})
"""Terms that are no expectation of the policy gradient over sampled tokens: a penalty, a regression."""
MAX_LOG_RATIO = 20.0
"""Bound of |d| before exp, so that no weight overflows."""


def check_mismatch(spec: RunSpec) -> None:
    """Refuses settings in which the two log-probs would be taken for equal although they are not; UserError."""
    train = spec.train
    if train.old_logprobs == "recompute":
        return
    if train.importance_cap is not None:
        raise UserError(
            f"train.importance_cap={train.importance_cap:g}: with train.old_logprobs=sampler the two log-probs are the "
            "same numbers and every weight is 1; set train.old_logprobs=recompute"
        )
    half = [
        name
        for name, value in (
            ("sampler.dtype", spec.sampler.dtype),
            ("model.dtype", spec.model.dtype),
            ("train.autocast", train.autocast),
        )
        if value == "bfloat16"
    ]
    if spec.sampler.name == "vllm" and half:
        raise UserError(
            f"train.old_logprobs='sampler': in bfloat16 ({half[0]}) the log-probs of vLLM differ from the trainer's by "
            "hundredths of a nat on average and by more than 1 at worst; set train.old_logprobs=recompute"
        )


def importance_weights(batch: Batch, cap: float) -> Float[Tensor, "B T"]:
    """min(exp(old - sampling log-prob), cap) of each token, detached; 1 outside the mask."""
    return _ratio(batch.old_logprobs, batch.sampling_logprobs, batch.completion_mask).clamp(max=cap)


def _ratio(ours: Tensor, theirs: Tensor, mask: Bool[Tensor, "B T"]) -> Tensor:
    gap = torch.where(mask, ours.detach() - theirs.detach(), torch.zeros_like(ours))
    return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def corrected(terms: Mapping[str, LossTerm], batch: Batch, cap: float | None) -> Mapping[str, LossTerm]:
    """The terms with truncated importance weights on every policy loss; the same object without a cap.

    A loss of one number a row is weighted by the mean of its tokens' weights: the product of thousands of
    ratios, its true weight, would leave no signal. KL penalties and value losses (UNWEIGHTED) stay as they are.
    """
    if cap is None:
        return terms
    token = importance_weights(batch, cap)
    mask = batch.completion_mask
    row = torch.where(mask, token, torch.zeros_like(token)).sum(-1) / batch.lengths.clamp(min=1)
    return {
        name: term
        if name in UNWEIGHTED
        else replace(term, per_token=term.per_token * (token if term.per_token.ndim == 2 else row))
        for name, term in terms.items()
    }


@dataclass
class MismatchMeter:
    """The difference d = trainer - sampler log-prob over the tokens of one rollout, in nats.

    `mismatch_mean` and `mismatch_max` are of |d|; `mismatch_kl` is the estimate mean(exp(d) - 1 - d) of
    KL(sampler || trainer), "k3" of Schulman's note "Approximating KL divergence"; `mismatch_capped` is the share
    of tokens whose weight the cap cuts.
    """

    cap: float | None = None
    tokens: int = 0
    absolute: float = 0.0
    largest: float = 0.0
    divergence: float = 0.0
    capped: int = 0

    def add(
        self, ours: Float[Tensor, "B T"], theirs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> None:
        """Counts the tokens under the mask: the trainer's log-probs and the sampler's."""
        gap = (ours.detach().double() - theirs.detach().double())[mask]
        if not len(gap):
            return
        bounded = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        self.tokens += len(gap)
        self.absolute += float(gap.abs().sum())
        self.largest = max(self.largest, float(gap.abs().max()))
        self.divergence += float((bounded.exp() - 1 - bounded).sum())
        if self.cap is not None:
            self.capped += int((bounded.exp() > self.cap).sum())

    def metrics(self) -> dict[str, float]:
        """The figures by name, for a step's record; empty before a token was counted."""
        if not self.tokens:
            return {}
        found = {
            "mismatch_mean": self.absolute / self.tokens,
            "mismatch_max": self.largest,
            "mismatch_kl": self.divergence / self.tokens,
        }
        if self.cap is not None:
            found["mismatch_capped"] = self.capped / self.tokens
        return found


def flagged(known: Mapping[str, float], mean: float, limit: float, optimizer_step: int) -> dict[str, float]:
    """What is known of a run after one more rollout of mean |d| `mean`: plain numbers, kept in its checkpoints.

    `rollouts` seen, how many were `over` the limit, the `worst` mean, and the `first_step` over the limit.
    """
    over = not mean <= limit  # what is not a number is over it too
    first = known.get("first_step", -1)
    return {
        "rollouts": known.get("rollouts", 0) + 1,
        "over": known.get("over", 0) + over,
        "worst": max(known.get("worst", 0.0), mean),
        "first_step": optimizer_step if over and first < 0 else first,
    }


def flag_note(known: Mapping[str, float], limit: float) -> dict[str, dict[str, float]]:
    """What the status record says of a run that passed the limit; empty where no rollout did."""
    return {"mismatch": {**known, "limit": limit}} if known.get("over") else {}
