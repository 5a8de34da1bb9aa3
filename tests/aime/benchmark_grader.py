"""Throughput of the integer grader: `python tests/aime/benchmark_grader.py [ROLLOUTS.jsonl]`; no test, no threshold.

Prints gradings a second of short answers, of the generated chains, and of real responses where a file is given.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.aime.generate import example, reference_chain
from tasks.aime.grader import grade, parse_gold


def gradings_per_second(pairs: Sequence[tuple[str, object]], seconds: float = 2.0) -> float:
    """Gradings of (response, gold) pairs a second of CPU time, over at least `seconds`."""
    start, done = time.process_time(), 0
    while time.process_time() - start < seconds:
        for response, gold in pairs:
            grade(response, gold)
        done += len(pairs)
    return done / (time.process_time() - start)


def main() -> None:
    """Prints one line for each kind of response."""
    sets = {"short answers": [(f"so it is \\boxed{{{i:03d}}}.", i) for i in range(1000)]}
    problems = [example("train", i, level=1 + i % 5) for i in range(1000)]
    sets["generated chains"] = [(reference_chain(p), p.reference["answer"]) for p in problems]
    for path in map(Path, sys.argv[1:]):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        sets[path.name] = [
            (text, row["answer"])
            for row in rows
            if parse_gold(row["answer"]) is not None
            for text in row["responses"]
        ]
    for name, pairs in sets.items():
        mean = sum(len(text) for text, _ in pairs) / len(pairs)
        print(
            f"{name:28} {gradings_per_second(pairs):10,.0f} gradings/s of CPU time, {mean:6.0f} characters on average"
        )


if __name__ == "__main__":
    main()
