"""What a run has spent so far, on every cost axis that is the same on every machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Costs:
    """Cumulative counts; `forward_tokens` counts passes outside sampling, extra no-grad ones included."""

    optimizer_steps: int = 0
    prompts: int = 0
    completions: int = 0
    generated_tokens: int = 0
    forward_tokens: int = 0
    backward_tokens: int = 0
    judge_calls: int = 0
    judge_usd: float = 0.0

    def as_dict(self) -> dict[str, int | float]:
        """The counts by name, for a record."""
        return asdict(self)
