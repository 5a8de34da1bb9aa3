"""Problems of the ladder as text, other wordings of their prompts, and a corpus to start a small model from."""

from __future__ import annotations

import functools

import numpy as np

from tasks.base import Example
from tasks.ladder.options import FILLER, LETTERS, LadderOptions

HINTS = 2


def right_text(options: LadderOptions, number: int) -> str:
    """The shortest right answer of a problem; distractors are written as the first letter."""
    steps = [LETTERS[i] for i in options.targets[number]]
    return "".join(step + LETTERS[0] * (options.period - 1) for step in steps)


@functools.lru_cache(maxsize=4096)
def problem(options: LadderOptions, number: int) -> Example:
    """Problem number `number`: `steps:start+shift=`, answered by start, start + shift, start + 2 shift, ..."""
    letter = LETTERS[number % options.letters]
    shift = (1 + number // options.letters) % options.letters
    answer = right_text(options, number)
    head = f"{options.steps}:{letter}"
    given = {f"hint_{k}": answer[: k * options.period] for k in range(1, HINTS + 1)} | {"privileged": answer}
    variants = {name: f"{head}+{shift}({text})=" for name, text in given.items()}
    return Example(
        id=f"ladder-{options.family}-{options.steps}-{number}",
        prompt=f"{head}+{shift}=",
        reference={"number": number, "right": answer},
        variants={**variants, "without_rubric": f"{head}="},
    )


def write_answer(options: LadderOptions, number: int, rng: np.random.Generator) -> str:
    """An answer as the start of the ladder writes it: each step right with its start probability."""
    out: list[str] = []
    letters, wrong = 0, False
    shares = options.filler_shares()
    while letters < options.units and len(out) < options.token_limit:
        if options.has_filler and rng.random() < shares[wrong]:
            out.append(FILLER)
            continue
        target = int(options.targets[number][letters // options.period])
        if letters % options.period:
            chosen = int(rng.integers(options.letters))
        elif rng.random() < options.start_probability:
            chosen = target
        else:
            chosen = (target + int(rng.integers(1, options.letters))) % options.letters
            wrong = True
        out.append(LETTERS[chosen])
        letters += 1
    return "".join(out)


class LadderCorpus:
    """Documents for `harness pretrain`: prompts of one ladder with answers as its start writes them."""

    def __init__(self, options: LadderOptions) -> None:
        self.options = options

    def example(self, split: str, index: int) -> Example:
        """The problem at an index; both splits hold the same problems."""
        return problem(self.options, index % self.options.problems)

    def right_answer(self, example: Example, rng: np.random.Generator) -> str:
        """The shortest right answer."""
        return str(example.reference["right"])

    def corpus_answer(self, example: Example, rng: np.random.Generator) -> str:
        """An answer of the corpus."""
        return write_answer(self.options, int(example.reference["number"]), rng)


START = LadderCorpus(LadderOptions())
