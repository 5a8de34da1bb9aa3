"""RC-GRPO: one group, completions sampled under different reward tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from algorithms.base import Request, Sample, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import require_between


@dataclass(frozen=True, kw_only=True)
class RcGrpoOptions(GrpoOptions):
    """GRPO's options, the reward tokens and their mixture."""

    high_token: str = "<reward:high>\n"
    low_token: str = "<reward:low>\n"
    high_share: float = 0.5  # of a group, rounded; 1: one token only

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "high_share")


@register
class RcGrpo(Grpo):
    """Reward-conditioned GRPO.

    Each completion of a group is sampled under a prompt that starts with a reward token; the group's
    statistics join them, so A_i = (R_i - mean_g R) / (std_g R + eps) over both conditions, `Float[Tensor,
    "B T"]`, and each completion is trained under the prompt it was sampled with (arXiv 2602.03025). With
    one token it is GRPO.

    Differs from the paper: a fixed share of each group in place of a draw (the mixture is not public); the
    supervised stage that teaches the tokens happens outside the loop: without it they are plain text.
    """

    name = "rc_grpo"
    source = "arXiv 2602.03025"
    requires = frozenset({"groups"})
    extra_cost = "a supervised stage before (not part of the loop)"
    Options = RcGrpoOptions
    options: RcGrpoOptions

    def rollout_plan(
        self, examples: Sequence[Any], group_size: int
    ) -> Generator[list[Request], list[Sample], None]:
        """Two requests a group, one for each reward token."""
        o = self.options
        high = round(o.high_share * group_size)
        shares = [(o.high_token, high), (o.low_token, group_size - high)]
        yield [
            Request(example=example, count=count, group=i, prompt=token + example.prompt)
            for i, example in enumerate(examples)
            for token, count in shares
            if count > 0
        ]
