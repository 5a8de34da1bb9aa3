"""SAGE: a hint for the prompts on which every completion failed."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from algorithms.base import ConfigError, Request, Sample, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import Aggregation, require_at_least, require_between


@dataclass(frozen=True, kw_only=True)
class SageOptions(GrpoOptions):
    """GRPO's options with SAGE's clip, and when to hint."""

    epsilon_high: float = 0.28
    aggregation: Aggregation = "token_mean"
    mode: Literal["online", "light"] = "online"
    highest_level: int = 3  # 0: GRPO
    low_accuracy: float = 0.1  # light: below it the level of a prompt rises by one
    high_accuracy: float = 0.35  # light: above it the level falls by one

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0, "highest_level")
        require_between(self, 0.0, 1.0, "low_accuracy", "high_accuracy")
        if self.low_accuracy > self.high_accuracy:
            raise ConfigError(
                f"algorithm.options.low_accuracy={self.low_accuracy:g}: set it to at most "
                f"high_accuracy={self.high_accuracy:g}"
            )


@register
class Sage(Grpo):
    """Self-hinting on collapse.

    `online`: a group without a correct completion is sampled again under `hint_1`, then `hint_2`, up to the
    highest level; the new group replaces the old one, so statistics never mix levels. `light`: each prompt
    keeps a level that rises when its accuracy was below `low_accuracy` and falls above `high_accuracy`.
    GRPO on (prompt with hint, completion) with the same outcome, `Float[Tensor, "B T"]`; no hint at
    evaluation (arXiv 2602.03143; BaohaoLiao/SAGE).

    Differs from the paper: hints are the task's prompt variants, not written by the model from the reference
    solution; a hint that the task lacks ends the rise. Groups in which every completion is right are kept.
    """

    name = "sage"
    source = "arXiv 2602.03143"
    requires = frozenset({"groups", "hints"})
    extra_cost = "completions of collapsed groups, sampled again under a hint (online)"
    Options = SageOptions
    options: SageOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.levels: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        """The hint level of each prompt (light)."""
        return {"levels": dict(self.levels)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the levels."""
        self.levels = dict(state["levels"])

    def rollout_plan(
        self, examples: Sequence[Any], group_size: int
    ) -> Generator[list[Request], list[Sample], None]:
        """One round at the known levels (light), or rounds of rising hints for what collapsed (online)."""
        if self.options.mode == "light":
            samples = yield [
                self._request(example, i, group_size, self.levels.get(example.id, 0))
                for i, example in enumerate(examples)
            ]
            self._adjust(samples)
            return
        samples = yield [self._request(example, i, group_size, 0) for i, example in enumerate(examples)]
        collapsed = _collapsed(samples)
        for level in range(1, self.options.highest_level + 1):
            requests = [
                self._request(examples[i], i, group_size, level)
                for i in collapsed
                if f"hint_{level}" in examples[i].variants
            ]
            if not requests:
                return
            collapsed = _collapsed((yield requests))

    def _request(self, example: Any, group: int, count: int, level: int) -> Request:
        prompt = example.variants[f"hint_{level}"] if level else None
        replaces = level > 0 and self.options.mode == "online"
        return Request(example=example, count=count, group=group, prompt=prompt, replaces=replaces)

    def _adjust(self, samples: Sequence[Sample]) -> None:
        """Moves the level of each prompt by its accuracy, within the hints that there are."""
        for group in sorted({s.request.group for s in samples}):
            own = [s for s in samples if s.request.group == group]
            example, accuracy = own[0].request.example, sum(s.correct for s in own) / len(own)
            level = self.levels.get(example.id, 0)
            if accuracy < self.options.low_accuracy and level < self.options.highest_level:
                level += f"hint_{level + 1}" in example.variants
            elif accuracy > self.options.high_accuracy and level > 0:
                level -= 1
            self.levels[example.id] = level


def _collapsed(samples: Sequence[Sample]) -> list[int]:
    """Groups of this round without a correct completion."""
    groups = {s.request.group for s in samples}
    return sorted(groups - {s.request.group for s in samples if s.correct})
