"""Prints a demonstration's table of success before and after training, from its records."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.stats.rates import wilson

HEAD = "| run | optimizer step | compile (95% Wilson) | on task | truncated | mean tokens | unique | training seconds |"


def rows(folder: Path) -> list[str]:
    """One line an evaluation of every run under the folder."""
    lines = [HEAD, "|:--|--:|:--|--:|--:|--:|--:|--:|"]
    for path in sorted(folder.glob("*/evals.jsonl")):
        timings = [json.loads(line) for line in (path.parent / "timings.jsonl").read_text().splitlines()]
        spent = {t["optimizer_step"]: t["seconds"] for t in timings}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            m, n = record["metrics"], record["n"]
            right = round(m["compile"] * n)
            low, high = wilson(right, n)
            lines.append(
                f"| {path.parent.name} | {record['optimizer_step']} | {right}/{n} = {right / n:.1%} "
                f"({low:.1%} to {high:.1%}) | {m['on_task']:.1%} | {m['truncated']:.1%} | {m['mean_tokens']:.0f} | "
                f"{m['unique_share']:.1%} | {spent[record['optimizer_step']]:.0f} |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(rows(Path(sys.argv[1]))))
