"""Generated multi-step problems with integer answers 0 to 999 and worked chains, at five levels.

A problem starts from a number and applies operations to it. The split of a problem is a function of its
content (a hash of start and operations), so that train and test are disjoint whatever indices are drawn.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tasks.base import Example

__all__ = ["LEVELS", "RUBRIC", "TEST_SIZE", "corrupt_chain", "example", "reference_chain"]

LEVELS = (1, 2, 3, 4, 5)
TEST_SIZE = 512
RUBRIC = "Show each step, then box the result."
_TEST_BUCKETS = 8  # of 64: one problem in eight belongs to the test split


@dataclass(frozen=True)
class _Level:
    """What a level draws: number of steps, largest value on the way, largest addend, operations."""

    steps: int
    largest: int
    addend: int
    operations: tuple[str, ...]


_LEVELS = {
    1: _Level(2, 99, 9, ("add", "minus")),
    2: _Level(3, 99, 20, ("add", "minus")),
    3: _Level(3, 199, 40, ("add", "minus", "times")),
    4: _Level(4, 999, 99, ("add", "minus", "times", "divide")),
    5: _Level(5, 999, 199, ("add", "minus", "times", "divide", "fraction")),
}


@dataclass(frozen=True)
class _Step:
    """One operation: its words for the prompt, and its effect and sign for the chain."""

    words: str
    symbol: str  # what follows the value, for example "+48" or "*3/4"
    factor: Fraction = Fraction(1)
    addend: int = 0

    def apply(self, value: int) -> Fraction:
        return value * self.factor + self.addend


def _draw_step(kind: str, level: _Level, rng: random.Random) -> _Step:
    if kind == "times":
        n = rng.randint(2, 6)
        return _Step(f"times {n}", f"*{n}", factor=Fraction(n))
    if kind == "divide":
        n = rng.randint(2, 6)
        return _Step(f"divide by {n}", f"/{n}", factor=Fraction(1, n))
    if kind == "fraction":
        low, high = rng.choice(((2, 3), (3, 4), (2, 5), (3, 5), (5, 6)))
        return _Step(f"take {low}/{high}", f"*{low}/{high}", factor=Fraction(low, high))
    n = rng.randint(1, level.addend)
    sign = 1 if kind == "add" else -1
    return _Step(f"{kind} {n}", f"{'+' if sign > 0 else '-'}{n}", addend=sign * n)


def _fits(value: Fraction, level: _Level) -> bool:
    return value.denominator == 1 and 0 <= value <= level.largest


def _draw_problem(level: _Level, rng: random.Random) -> tuple[int, list[_Step]]:
    """A start and operations that stay on integers from 0 to the largest value of the level."""
    start = value = rng.randint(1, level.largest // 2 if "times" in level.operations else level.largest)
    steps: list[_Step] = []
    while len(steps) < level.steps:
        kind = rng.choice(level.operations)
        # tries an operation more than once, so that additions, which nearly always fit, do not crowd out
        # products and quotients; some addition fits every value, so that the loop ends
        tries = (_draw_step(kind, level, rng) for _ in range(6))
        step = next((s for s in tries if _fits(s.apply(value), level)), None)
        if step is not None:
            steps.append(step)
            value = int(step.apply(value))
    return start, steps


def _question(start: int, steps: list[_Step]) -> str:
    return f"Start {start}; " + "; ".join(step.words for step in steps) + "."


def _split_of(question: str) -> str:
    bucket = hashlib.sha256(question.encode()).digest()[0] % 64
    return "test" if bucket < _TEST_BUCKETS else "train"


def _draw_question(split: str, rng: random.Random, level: int) -> tuple[str, int, list[_Step]]:
    while True:
        start, steps = _draw_problem(_LEVELS[level], rng)
        question = _question(start, steps)
        if _split_of(question) == split:
            return question, start, steps


@functools.lru_cache(maxsize=len(LEVELS))
def _test_questions(level: int) -> tuple[tuple[str, int, list[_Step]], ...]:
    """The test split of a level: distinct problems in a fixed order."""
    rng = random.Random(f"aime-generated/test/{level}")
    found: dict[str, tuple[str, int, list[_Step]]] = {}
    while len(found) < TEST_SIZE:
        drawn = _draw_question("test", rng, level)
        found.setdefault(drawn[0], drawn)
    return tuple(found.values())


def _equations(start: int, steps: list[_Step]) -> tuple[list[str], int]:
    equations = []
    value = start
    for step in steps:
        after = int(step.apply(value))
        equations.append(f"{value}{step.symbol}={after}")
        value = after
    return equations, value


def example(split: str, index: int, *, level: int = 2) -> Example:
    """Problem number `index` (0-based) of `train` (endless) or `test` (TEST_SIZE problems) at a level.

    A pure function of its arguments. ValueError names an unknown split or level, IndexError an index
    outside the split.
    """
    if level not in _LEVELS:
        raise ValueError(f"level={level!r} is unknown: choose one of {', '.join(map(str, LEVELS))}")
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} is unknown: choose train or test")
    if index < 0 or (split == "test" and index >= TEST_SIZE):
        raise IndexError(f"index={index} is outside the {split} split: test holds 0 to {TEST_SIZE - 1}")
    if split == "test":
        question, start, steps = _test_questions(level)[index]
    else:
        rng = random.Random(f"aime-generated/train/{level}/{index}")
        question, start, steps = _draw_question(split, rng, level)
    equations, answer = _equations(start, steps)
    task = f"{question} {RUBRIC}"
    return Example(
        id=f"aime-generated-{level}-{split}-{index}",
        prompt=f"{task}\n",
        reference={"answer": answer, "level": level, "steps": equations},
        variants={
            "without_rubric": f"{question}\n",
            "privileged": f"{task} Result {answer}.\n",
            "hint_1": f"{task} Hint: {equations[0]}.\n",
            "hint_2": f"{task} Hint: {', '.join(equations[:-1])}.\n",
        },
    )


def _write_chain(equations: list[str], answer: str) -> str:
    lines = [f"Step {number}: {equation}." for number, equation in enumerate(equations, 1)]
    return "\n".join([*lines, f"\\boxed{{{answer}}}"])


def reference_chain(example: Example) -> str:
    """The worked answer: one line `Step n: a+b=c.` for each step, then the boxed result."""
    return _write_chain(list(example.reference["steps"]), str(example.reference["answer"]))


_EQUATION = re.compile(r"(\d+)([+\-*/][\d/]+)=(\d+)\.")


def _other_number(number: str, rng: random.Random) -> str:
    """A number that differs in one digit, or by a few."""
    place = rng.randrange(len(number))
    digit = rng.choice([d for d in "0123456789" if d != number[place]])
    changed = str(int(number[:place] + digit + number[place + 1 :]))
    return changed if rng.random() < 0.6 else str(abs(int(number) + rng.choice((-3, -2, -1, 1, 2, 3, 10))))


def _apply_symbol(value: int, symbol: str) -> int:
    """What follows from a (wrong) value; rounds down where a division is no longer exact."""
    if symbol[0] in "+-":
        return max(0, value + int(symbol))
    low, _, high = symbol[1:].partition("/")
    return value // int(low) if symbol[0] == "/" else value * int(low) // int(high or 1)


def _wrong_result(chain: str, rng: random.Random) -> str:
    """One false equality; the later steps go on from it, as a slip does."""
    found = _EQUATION.findall(chain)
    place = rng.randrange(len(found))
    value = int(found[0][0])
    equations = []
    for i, (left, symbol, right) in enumerate(found):
        left = left if i <= place else str(value)
        value = int(right) if i < place else _apply_symbol(value, symbol)
        if i == place:
            value = int(_other_number(right, rng))
        equations.append(f"{left}{symbol}={value}")
    return _write_chain(equations, str(value))


def _wrong_operand(chain: str, rng: random.Random) -> str:
    """One number on the left of an equality miscopied; its result stays as it was."""
    match = rng.choice(list(_EQUATION.finditer(chain)))
    return chain[: match.start(1)] + _other_number(match[1], rng) + chain[match.end(1) :]


def _wrong_box(chain: str, rng: random.Random) -> str:
    return re.sub(r"\d+(?=\}$)", lambda m: _other_number(m[0], rng), chain)


def _no_box(chain: str, rng: random.Random) -> str:
    return re.sub(r"\n?\\boxed\{\d*\}?$", "", chain)


def _lost_line(chain: str, rng: random.Random) -> str:
    *lines, last = chain.split("\n")
    if lines:
        del lines[rng.randrange(len(lines))]
    return "\n".join([*lines, last])


def _lost_character(chain: str, rng: random.Random) -> str:
    place = rng.randrange(len(chain))
    return chain[:place] + chain[place + 1 :]


_CORRUPTIONS: tuple[tuple[Callable[[str, random.Random], str], float], ...] = (
    (_wrong_result, 5.0),
    (_wrong_operand, 2.0),
    (_wrong_box, 1.0),
    (_no_box, 0.5),
    (_lost_line, 0.5),
    (_lost_character, 1.0),
)


def corrupt_chain(chain: str, rng: random.Random) -> str:
    """A worked chain with one random fault, mostly a false equality that the later steps follow.

    May be applied again to what it gave; a chain without equations left only loses a character. The
    result differs from `chain` unless that is empty.
    """
    if not chain:
        return chain
    kinds, weights = zip(*_CORRUPTIONS, strict=True)
    for _ in range(8):
        kind = rng.choices(kinds, weights)[0]
        if kind in (_wrong_result, _wrong_operand) and not _EQUATION.search(chain):
            continue
        corrupted = kind(chain, rng)
        if corrupted != chain:
            return corrupted
    return _lost_character(chain, rng)
