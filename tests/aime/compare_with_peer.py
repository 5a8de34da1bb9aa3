"""Writes disagreements.md: our verdicts on real responses beside those of a peer grader and of math-verify.

Run in an environment with the extra `eval`: `python tests/aime/compare_with_peer.py ROLLOUTS.jsonl`. Fails when a
disagreement has no ruling below.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from tasks.aime.grader import GRADER_VERSION, grade, parse_gold
from tasks.aime.math_grader import MATH_GRADER_VERSION, grade_math
from tasks.aime.second_opinion import SecondOpinion
from tasks.passk import majority_at_k, mean_pass_at_k

RULINGS = {
    3: (
        "ours",
        "The gold is a time of day, and the response gives it with the same p.m.; the peer and math-verify "
        "read only `4:30`, and then compare it with the whole gold.",
    ),
    72: (
        "ours",
        "Gold and answer are both ten thousand; the peer compares the text of the gold, grouped by `{,}`, with the "
        "plain digits of this answer. math-verify agrees with us.",
    ),
}
"""Who is right, by problem, judged by reading the problem, the gold and the response."""


def verdicts(rows, opinion):
    """One record for each response: ours (both modes), the peer's, math-verify's."""
    for row in rows:
        whole = parse_gold(row["answer"]) is not None
        for i, response in enumerate(row["responses"]):
            ours = grade_math(response, row["answer"], opinion.ask, ask_always=True)
            yield {
                "id": row["id"],
                "sample": i,
                "gold": row["answer"],
                "extracted": ours.extracted,
                "ours": ours.correct,
                "integer": grade(response, row["answer"]).correct if whole else None,
                "peer": row["peer_correct"][i],
                "peer_extracted": row["peer_extracted"][i],
                "math_verify": ours.second_opinion,
            }


def disagreement_lines(found):
    """A table of every response on which two graders differ, with the ruling."""
    lines = [
        "| problem | sample | gold | answer | ours | peer | math-verify | right |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for v in found:
        word = {True: "correct", False: "wrong"}
        lines.append(
            f"| {v['id']} | {v['sample']} | `{v['gold']}` | `{v['extracted']}` | {word[v['ours']]} "
            f"| {word[v['peer']]} | {v['math_verify']} | {RULINGS[v['id']][0]} |"
        )
    lines += ["", "Why:", ""]
    return lines + [f"- Problem {i}: {RULINGS[i][1]}" for i in sorted({v["id"] for v in found})]


def table_lines(records):
    """Pass@k and maj@k of the 100 problems by our verdicts and by the peer's."""
    problems = {}
    for v in records:
        problems.setdefault(str(v["id"]), []).append(v)
    lines = ["| k | Pass@k, ours | Pass@k, peer | maj@k, ours |", "|---|---|---|---|"]
    for k in range(1, 9):
        ours = mean_pass_at_k({i: (8, sum(v["ours"] for v in p)) for i, p in problems.items()}, k)
        peer = mean_pass_at_k({i: (8, sum(v["peer"] for v in p)) for i, p in problems.items()}, k)
        votes = [
            majority_at_k([v["extracted"] for v in p], [v["ours"] for v in p], k) for p in problems.values()
        ]
        lines.append(f"| {k} | {ours:.4f} | {peer:.4f} | {sum(votes) / len(votes):.4f} |")
    return lines


def main() -> None:
    """Reads the rollouts, writes disagreements.md beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("disagreements.md"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rollouts.read_text(encoding="utf-8").split("\n") if line]
    opinion = SecondOpinion()
    try:
        records = list(verdicts(rows, opinion))
    finally:
        opinion.close()
    differ = [
        v
        for v in records
        if len(
            {v["ours"], v["peer"], v["math_verify"] == "correct"}
            | {v["ours"] if v["integer"] is None else v["integer"]}
        )
        > 1
    ]
    unruled = sorted({v["id"] for v in differ} - set(RULINGS))
    if unruled:
        raise SystemExit(f"no ruling for problems {unruled}: read them and add one")
    counts = Counter((v["ours"], v["peer"]) for v in records)
    integers = [v for v in records if v["integer"] is not None]
    text = [
        "# Verdicts on 800 real responses",
        "",
        f"Made by `python tests/aime/compare_with_peer.py`. Graders: {MATH_GRADER_VERSION}, on numeric golds also "
        f"{GRADER_VERSION}; the peer's verdicts come with the data; math-verify was asked about every answer.",
        "",
        f"- {len(records)} responses: both correct {counts[True, True]}, both wrong {counts[False, False]}, "
        f"only ours correct {counts[True, False]}, only the peer's correct {counts[False, True]}.",
        f"- Integer grader on the {len(integers)} responses with a numeric gold: "
        f"{sum(v['integer'] != v['peer'] for v in integers)} differ from the peer, "
        f"{sum(v['integer'] != v['ours'] for v in integers)} from our general grader.",
        f"- math-verify: {sum((v['math_verify'] == 'correct') != v['ours'] for v in records)} of {len(records)} differ "
        f"from ours; {sum(v['math_verify'] in ('timeout', 'crashed') for v in records)} timeouts.",
        "",
        "## Every disagreement",
        "",
        *disagreement_lines(differ),
        "",
        "## Pass@k and majority",
        "",
        *table_lines(records),
        "",
    ]
    options.out.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
