"""What judges of a claim's answers cost: nothing where a program judges, else calls times list prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.spec import RunSpec
from tasks.judges.api import IMAGE_TOKENS
from tasks.judges.prices import PRICES, find_price

if TYPE_CHECKING:
    from harness.resolved import ArmPlan

SHOWN = ("gpt-5-mini", "claude-sonnet-4-5")
"""A cheap and a dear judge of the price table, to show the range."""
CALL = (1_500, 300)
"""Assumed tokens of one call: problem, answer and rubric in, scores with remarks out."""
PAIR = (2 * IMAGE_TOKENS + 500, 100)
"""Assumed tokens of one comparison of two screenshots."""
FREE_JUDGES = {
    "": "a program (parser, renderer, exact answers)",
    "arithmetic": "exact arithmetic",
    "prm": "a process-reward model on the same card",
    "scripted": "a script",
    "none": "nobody",
}


def usd(model: str, calls: int, tokens: tuple[int, int]) -> float:
    """US dollars of so many calls at the list price of a model."""
    return calls * PRICES[model].cost(*tokens)


def judge_lines(
    specs: Mapping[str, RunSpec], arms: Sequence[ArmPlan], seeds: int, pairs: int
) -> Iterator[str]:
    """Who judges in these runs and what it costs, then what a paid judge in its place would cost.

    `pairs` are the prompts times comparisons of a win-rate claim, each judged in both orders a seed.
    """
    billed = 0.0
    for arm in arms:
        name = _judge(specs[arm.arm])
        if name not in FREE_JUDGES:
            options = specs[arm.arm].task.options.get("judge_options", {})
            price = find_price(options.get("model", ""), options.get("base_url"), options.get("price_usd"))
            billed += (arm.completions + arm.evaluation_completions) * price.cost(*CALL) * seeds
    who = ", ".join(dict.fromkeys(FREE_JUDGES.get(_judge(spec), _judge(spec)) for spec in specs.values()))
    yield f"judge of answers: {who}; {billed:,.0f} US$"
    located = [arm.completions * seeds for arm in arms if _local(specs[arm.arm])]
    if located and not billed:
        calls = sum(located)
        yield (
            f"with a paid judge for the local reward: {calls:,} calls of {CALL[0]:,} + {CALL[1]:,} tokens (assumed), "
            + " or ".join(f"{usd(model, calls, CALL):,.0f} US$ with {model}" for model in SHOWN)
            + ", at the list prices of tasks/judges/prices.py"
        )
    if pairs:
        calls = 2 * pairs * seeds
        yield (
            f"judge of pairs: a script, 0 US$; with --judge openai or anthropic {calls:,} calls of {PAIR[0]:,} + "
            f"{PAIR[1]:,} tokens (assumed), "
            + " or ".join(f"{usd(model, calls, PAIR):,.0f} US$ with {model}" for model in SHOWN)
        )


def _judge(spec: RunSpec) -> str:
    default = "arithmetic" if spec.task.name == "aime" else ""
    return str(spec.task.options.get("judge", default))


def _local(spec: RunSpec) -> bool:
    """Whether the algorithm is trained on a local reward."""
    from harness.train.build import build_algorithm

    return "token_rewards" in build_algorithm(spec).requires
