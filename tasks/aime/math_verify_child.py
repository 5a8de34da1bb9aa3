"""The child process of the second opinion: JSON lines in, one opinion a line out."""

from __future__ import annotations

import json
import logging
import resource
import sys


def opinion(answer: str, gold: str) -> str:
    """`correct`, `wrong`, or `unparsable` when math-verify finds no value in either."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # no timeouts of its own: they need signals, and the parent kills this process at its deadline
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]
    golds = parse(f"${gold}$", extraction_config=configs, parsing_timeout=None)
    answers = parse(f"$\\boxed{{{answer}}}$", extraction_config=configs, parsing_timeout=None)
    if not golds or not answers:
        return "unparsable"
    return "correct" if verify(golds, answers, timeout_seconds=None) else "wrong"


def main() -> None:
    """Answers until the input ends; an expression that exhausts the memory is a timeout."""
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    logging.disable(logging.WARNING)  # it warns at every call that its timeouts are off
    opinion("1", "1")  # imports what it needs before the first deadline runs
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            said = opinion(request["answer"], request["gold"])
        except (MemoryError, RecursionError):
            said = "timeout"
        print(said, flush=True)


if __name__ == "__main__":
    main()
