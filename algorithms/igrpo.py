"""iGRPO: drafts first; the best one joins the prompt that is trained on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from algorithms.base import ConfigError, Request, Sample, register
from algorithms.grpo import Grpo, GrpoOptions
from algorithms.options import require_at_least


@dataclass(frozen=True, kw_only=True)
class IgrpoOptions(GrpoOptions):
    """GRPO's options, the number of drafts and how a draft joins the prompt."""

    drafts: int = 8  # 0: GRPO
    template: str = "{prompt}\n\nA draft:\n{draft}\n\nImprove on it.\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0, "drafts")
        if "{prompt}" not in self.template or "{draft}" not in self.template:
            raise ConfigError(
                f"algorithm.options.template={self.template!r}: it must hold {{prompt}} and {{draft}}"
            )


@register
class Igrpo(Grpo):
    """Iterative GRPO in two stages.

    Stage 1: N drafts a prompt, scored, without gradient; the draft of the highest outcome (the first of
    equals) joins the prompt. Stage 2: G completions of the longer prompt, and GRPO on those, conditioned
    on it: ratio, KL and A (`Float[Tensor, "B T"]`) never see the drafts (arXiv 2602.09000).

    Differs from the paper: its template and N are not public; N is 8 and the template an option. An empty
    draft leaves the prompt as it is.
    """

    name = "igrpo"
    source = "arXiv 2602.09000"
    requires = frozenset({"groups"})
    extra_cost = "N drafts a prompt, and prompts longer by one answer"
    Options = IgrpoOptions
    options: IgrpoOptions

    def rollout_plan(
        self, examples: Sequence[Any], group_size: int
    ) -> Generator[list[Request], list[Sample], None]:
        """Drafts, then the completions to train on."""
        o, best = self.options, dict[int, Sample]()
        if o.drafts > 0:
            samples = yield [
                Request(example=example, count=o.drafts, group=i, train=False)
                for i, example in enumerate(examples)
            ]
            for sample in samples:
                known = best.get(sample.request.group)
                if known is None or sample.outcome > known.outcome:
                    best[sample.request.group] = sample
        yield [
            Request(example=example, count=group_size, group=i, prompt=self._prompt(example, best.get(i)))
            for i, example in enumerate(examples)
        ]

    def _prompt(self, example: Any, draft: Sample | None) -> str | None:
        if draft is None or not draft.text.strip():
            return None
        # replaced one by one: an answer full of braces would break str.format
        return self.options.template.replace("{prompt}", example.prompt).replace("{draft}", draft.text)
