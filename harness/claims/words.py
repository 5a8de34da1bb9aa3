"""The sentence that states a verdict, in the wording of evaluation.md 2.8."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from harness.claims.measure import AXES
from harness.claims.results import ArmResult, ComparisonResult
from harness.claims.rules import WORDS, number, span, win_rate
from harness.claims.schema import Claim, Equivalence, Scaling, WinRate
from harness.stats.compare import Difference


def setting(claim: Claim, scale: str, arms: Mapping[str, ArmResult]) -> str:
    """The setting in words: model, evaluation, horizon and seeds."""
    chosen = claim.scale(scale)
    models = list(dict.fromkeys(arm.model or chosen.model for arm in claim.arms_at(scale)))
    counts = sorted({len(arm.seeds) for arm in arms.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"{' and '.join(models)}, {chosen.eval_prompts} prompts every {chosen.eval_every} optimizer steps, "
        f"horizon {chosen.horizon}, {seeds} seeds an arm"
    )


def _target(claim: Claim) -> str:
    threshold = getattr(claim.endpoint, "threshold", None)
    if threshold is not None:
        return f"to {claim.endpoint.metric} {threshold:.0%}: "
    return ""


def _level(pair: ComparisonResult) -> str:
    return f"{100 * pair.level:.3g}%"


def ratio_words(pair: ComparisonResult, axis: str = "optimizer_steps") -> str:
    """A speed-up in words: how many times fewer steps (or another cost), with both intervals."""
    main, exact = pair.speedup[axis], pair.exact.get(axis)
    check = f"exact {span(exact.low, exact.high)}" if exact is not None else "no exact check"
    if main.estimate is None or not main.has_interval:
        reached = f"{main.events[1]} of {main.n[1]} and {main.events[0]} of {main.n[0]} runs reached it"
        return f"{pair.treatment} against {pair.baseline}: {reached}; speed-up {_level(pair)}: {check}"
    faster = main.estimate >= 1
    times = number(main.estimate if faster else 1 / main.estimate)
    return (
        f"{pair.treatment} needed {times} times {'fewer' if faster else 'more'} {AXES[axis]} than "
        f"{pair.baseline} (speed-up {number(main.estimate)}, {_level(pair)} {span(main.low, main.high)}; {check})"
    )


def signed_limits(low: float | None, high: float | None) -> str:
    """Limits in words; both signs may occur, open ends are said."""
    return "no interval" if low is None or high is None else f"{number(low)} to {number(high)}"


def signed_span(found: Difference) -> str:
    """The interval of a difference in words."""
    return signed_limits(found.low, found.high)


def difference_words(pair: ComparisonResult) -> str:
    """Differences in words: every effect with both intervals."""
    parts = []
    for name, main in pair.effects.items():
        exact = pair.exact_effects.get(name)
        check = f"; exact {signed_span(exact)}" if exact is not None else ""
        level = f"{100 * main.level:.3g}%"
        parts.append(f"{name} {number(main.estimate)} ({level} {signed_span(main)}{check})")
    return f"{pair.treatment} minus {pair.baseline}: {', '.join(parts)}"


def win_words(pair: ComparisonResult) -> str:
    """A win rate in words, with both intervals; the effect is its difference from one half."""
    (main,) = pair.effects.values()
    exact = next(iter(pair.exact_effects.values()), None)

    def limits(found: Difference) -> str:
        if found.low is None or found.high is None:
            return "no interval"
        return f"{number(win_rate(found.low))} to {number(win_rate(found.high))}"

    check = f"; exact {limits(exact)}" if exact is not None else ""
    rate = number(win_rate(main.estimate))
    return f"{pair.treatment} against {pair.baseline}: win rate {rate} ({_level(pair)} {limits(main)}{check})"


def exponent_words(pair: ComparisonResult) -> str:
    """A growth exponent in words."""
    found = pair.effects["exponent"]
    return f"cost of {pair.treatment} grows as size^{number(found.estimate)} ({_level(pair)} {signed_span(found)})"


def _body(claim: Claim, found: Sequence[ComparisonResult]) -> str:
    words: Callable[[ComparisonResult], str] = difference_words
    if isinstance(claim.endpoint, Scaling):
        words = exponent_words
    elif isinstance(claim.endpoint, WinRate):
        words = win_words
    axis = getattr(claim.endpoint, "axis", "optimizer_steps")
    parts = []
    for pair in found:
        if pair.primary and axis in pair.speedup:
            parts.append(ratio_words(pair, axis))
        elif pair.primary and pair.effects:
            parts.append(words(pair))
    if isinstance(claim.endpoint, Equivalence) and parts:
        parts.append(f"margin +-{number(claim.endpoint.margin)}")
    return "; ".join(parts) or "no comparison could be made"


def _settle_words(pairs: Sequence[ComparisonResult]) -> str:
    known = [pair.seeds_to_settle for pair in pairs if pair.seeds_to_settle is not None]
    if pairs and len(known) == len(pairs):
        return f" About {max(known)} seeds an arm would settle it, if this estimate and spread hold."
    return (
        " No number of seeds up to 1000 an arm can be named that would settle it at this estimate: "
        "a longer horizon or another design is needed."
    )


def _name(claim: Claim, verdict: str) -> str:
    if isinstance(claim.endpoint, Equivalence) and verdict == "supported_size":
        return "supported (equivalent within the margin)"
    if isinstance(claim.endpoint, Equivalence) and verdict == "refuted":
        return "not equivalent here"
    return WORDS[verdict]


def _published_words(claim: Claim) -> str:
    """The published figure and what it rests on, as its `reading` says."""
    value, reading = claim.published.value, claim.published.reading
    if value is None:
        return ""
    if "one run" in re.split(r"[;.] ", reading):
        return f" The paper's {value:g} was one run."
    return f" The paper's {value:g}: {reading}."


def sentence(
    claim: Claim, scale: str, verdict: str, found: Sequence[ComparisonResult], arms: Mapping[str, ArmResult]
) -> str:
    """One paragraph: setting, figures, the published figure, the verdict, what would settle it."""
    head = f"In our setting ({setting(claim, scale, arms)}), {_target(claim)}{_body(claim, found)}."
    print_figure = _published_words(claim)
    reasons = "; ".join(dict.fromkeys(pair.reason for pair in found if pair.primary and pair.reason))
    why = f" ({reasons})" if reasons else ""
    if scale == "smoke":
        return f"{head}{print_figure} Verdict: not testable: smoke is a look, never a verdict{why}."
    tail = ""
    if verdict in ("inconclusive", "mechanism_inconclusive"):
        tail = _settle_words([pair for pair in found if pair.primary and pair.verdict == "inconclusive"])
    if verdict.startswith("mechanism"):
        tail += " This scale can pass or fail a mechanism check; it neither supports nor refutes the claim."
    return f"{head}{print_figure} Verdict: {_name(claim, verdict)}{why}.{tail}"
