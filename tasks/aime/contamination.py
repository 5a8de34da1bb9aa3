"""Partial-prompt probe: does a model complete problems that it should never have seen?

The model gets the first part of a problem and nothing else. A model that has seen the problem tends to write
the rest of it word for word, and even its answer. Source: arXiv 2507.10532, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.aime.extract import find_answer
from tasks.aime.grader import parse_gold, parse_number
from tasks.aime.problems import Problem

__all__ = ["Completer", "ProbeRow", "contamination_probe", "probe_summary", "rouge_l"]

Completer = Callable[[Sequence[str]], Sequence[str]]
"""Prompts, taken as they are (no chat template), to greedy completions."""

MAX_WORDS = 2000


@dataclass(frozen=True)
class ProbeRow:
    """One problem at one fraction: whether its rest came word for word, how near it was, whether the answer came."""

    id: str
    fraction: float
    exact: bool
    rouge_l: float
    answered: bool


def rouge_l(candidate: str, reference: str) -> float:
    """Longest common subsequence of words as a share of the reference's words (ROUGE-L recall)."""
    words, wanted = candidate.split()[:MAX_WORDS], reference.split()[:MAX_WORDS]
    if not wanted:
        return 0.0
    longest = [0] * (len(wanted) + 1)
    for word in words:
        diagonal = 0
        for j, other in enumerate(wanted, 1):
            above = longest[j]
            longest[j] = diagonal + 1 if word == other else max(above, longest[j - 1])
            diagonal = above
    return longest[-1] / len(wanted)


def _cut(problem: str, fraction: float) -> tuple[str, str]:
    """The first share of a problem's words, as written, and the rest."""
    words = problem.split(" ")
    place = max(1, min(len(words) - 1, round(len(words) * fraction)))
    return " ".join(words[:place]), " ".join(words[place:])


def _answered(completion: str, gold: str) -> bool:
    found = find_answer(completion, phrase_fallback=True)
    value = parse_gold(gold)
    return found.text is not None and value is not None and parse_number(found.text) == value


def contamination_probe(
    problems: Sequence[Problem], complete: Completer, fractions: Sequence[float] = (0.4, 0.6, 0.8)
) -> list[ProbeRow]:
    """One row for each problem and fraction, in order; problems of one word are left out.

    ValueError names a fraction outside (0, 1).
    """
    for fraction in fractions:
        if not 0 < fraction < 1:
            raise ValueError(f"fractions={fraction}: give shares of a problem between 0 and 1")
    usable = [p for p in problems if " " in p.problem.strip()]
    rows = []
    for fraction in fractions:
        parts = [_cut(p.problem.strip(), fraction) for p in usable]
        completions = complete([head for head, _ in parts]) if parts else []
        for problem, (_, rest), completion in zip(usable, parts, completions, strict=True):
            words = rest.split()
            rows.append(
                ProbeRow(
                    id=problem.id,
                    fraction=fraction,
                    exact=completion.split()[: len(words)] == words,
                    rouge_l=rouge_l(" ".join(completion.split()[: len(words)]), rest),
                    answered=_answered(completion, problem.answer),
                )
            )
    return rows


def probe_summary(rows: Sequence[ProbeRow]) -> dict[str, dict[str, float]]:
    """Mean of each measure by fraction: `exact`, `rouge_l`, `answered`, and the number of problems `n`."""
    found: dict[str, dict[str, float]] = {}
    for fraction in sorted({row.fraction for row in rows}):
        chosen = [row for row in rows if row.fraction == fraction]
        n = len(chosen)
        found[f"{fraction:g}"] = {
            "n": n,
            "exact": sum(row.exact for row in chosen) / n,
            "rouge_l": sum(row.rouge_l for row in chosen) / n,
            "answered": sum(row.answered for row in chosen) / n,
        }
    return found
