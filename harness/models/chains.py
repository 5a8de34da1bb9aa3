"""Corpora of generated arithmetic problems for the tiny models: with worked chains, and with bare results."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tasks.aime import generate
from tasks.base import Example


@dataclass(frozen=True)
class ChainCorpus:
    """Problems of one level of the generated ladder; answers show their steps when `worked`.

    `faults` holds the shares of corpus answers with 0, 1, 2, ... faults.
    """

    worked: bool
    faults: tuple[float, ...]
    level: int = 2

    def example(self, split: str, index: int) -> Example:
        """The problem at an index; the test split begins anew after its last."""
        index = index % generate.TEST_SIZE if split == "test" else index
        return generate.example(split, index, level=self.level)

    def right_answer(self, problem: Example, rng: np.random.Generator) -> str:
        """The worked chain, or its last line alone: the boxed result."""
        chain = generate.reference_chain(problem)
        return chain if self.worked else chain.rsplit("\n", 1)[-1]

    def corpus_answer(self, problem: Example, rng: np.random.Generator) -> str:
        """An answer of the pretraining corpus: most often with random faults."""
        answer = self.right_answer(problem, rng)
        faults = int(rng.choice(len(self.faults), p=self.faults))
        fault_rng = random.Random(int(rng.integers(2**63)))
        for _ in range(faults):
            answer = generate.corrupt_chain(answer, fault_rng)
        return answer


WORKED = ChainCorpus(worked=True, faults=(0.02, 0.05, 0.13, 0.2, 0.3, 0.3))
BARE = ChainCorpus(worked=False, faults=(0.4, 0.6))
