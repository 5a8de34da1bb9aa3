"""The contamination probe on a model or a checkpoint: does it complete problems that it should not know?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.errors import UserError
from harness.evaluate.runner import greedy_completer
from harness.evaluate.target import Target
from tasks.aime.contamination import contamination_probe, probe_summary
from tasks.aime.problems import DataError, load_problems


def probe_target(
    target: Target,
    source: str,
    *,
    fractions: Sequence[float] = (0.4, 0.6, 0.8),
    problems: int | None = None,
    max_tokens: int = 128,
) -> dict[str, Any]:
    """Partial-prompt completion of the problems of a source (see tasks.aime.problems.load_problems).

    The record holds the means by fraction under `summary` and every problem under `rows`. UserError for a source
    that cannot be read or a fraction outside (0, 1).
    """
    try:
        found = load_problems(source, integers=False)[:problems]
        rows = contamination_probe(found, greedy_completer(target, max_tokens=max_tokens), fractions)
    except (DataError, ValueError) as error:
        raise UserError(str(error)) from error
    return {
        "probe": "partial prompt",
        "target": target.name,
        "run_id": target.run_id,
        "source": source,
        "max_tokens": max_tokens,
        "summary": probe_summary(rows),
        "rows": [asdict(row) for row in rows],
    }
