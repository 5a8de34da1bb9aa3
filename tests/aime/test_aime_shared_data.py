"""The grader on published solutions and on real responses of a model; reads the shared test data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.aime.grader import grade, parse_gold
from tasks.aime.problems import DataError, check_aime, load_problems, manifest_of, read_manifest
from tasks.aime.task import AimeTask
from tasks.passk import majority_at_k, mean_pass_at_k

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not (DATA / "aime24.jsonl").is_file(), reason="the shared test data is not beside this checkout"
)


def lines(name):
    return [
        json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").split("\n") if line.strip()
    ]


def test_every_gold_solution_is_correct_and_every_other_gold_wrong():
    for row in lines("aime24.jsonl"):
        gold = int(row["answer"])
        assert grade(row["solution"], row["answer"]).status == "correct", row["id"]
        for other in {
            (gold + 1) % 1000,
            (gold - 1) % 1000,
            gold + 10,
            gold * 10,
            int(row["answer"][::-1]),
        } - {gold}:
            assert grade(row["solution"], other).status == "wrong", (row["id"], other)


def test_every_perturbed_solution_is_wrong():
    for row in lines("aime24.jsonl"):
        gold, solution = int(row["answer"]), row["solution"]
        assert grade(f"{solution}\nNo: \\boxed{{{(gold + 1) % 1000}}}", gold).status == "wrong"
        assert grade(f"{solution}\nOr \\boxed{{{gold}, {gold + 1}}}", gold).status == "wrong"
        assert grade(f"<think>{solution}", gold).status == "truncated"
        assert grade(f"<think>{solution}</think>", gold).status == "no_box"
        assert grade(solution, gold, finish_reason="length").status == "truncated"
        assert grade(solution.replace("\\boxed", "").replace("\\framebox", ""), gold).correct is False


def test_the_pinned_manifest_is_that_of_the_published_set():
    problems = load_problems(str(DATA / "aime24.jsonl"), manifest="aime-2024")
    check_aime(problems, "aime24.jsonl")
    assert manifest_of(problems) == read_manifest("aime-2024")


def test_a_copy_with_one_other_gold_is_refused(tmp_path):
    rows = lines("aime24.jsonl")
    rows[7]["answer"] = str(int(rows[7]["answer"]) + 1)
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match="content hash mismatch against the pinned manifest: answer 26"):
        load_problems(str(copy), manifest="aime-2024")


def test_integer_verdicts_on_real_responses_agree_with_the_peer_but_for_one():
    disagreements = []
    graded = 0
    for row in lines("math_rollouts_100x8.jsonl"):
        if parse_gold(row["answer"]) is None:
            continue
        for i, (response, peer) in enumerate(zip(row["responses"], row["peer_correct"], strict=True)):
            graded += 1
            if grade(response, row["answer"]).correct != peer:
                disagreements.append((row["id"], i))
    # the gold 10{,}000 against \boxed{10{,}000}: the peer is wrong (disagreements.md)
    assert disagreements == [(72, 7)]
    assert graded == 616


def test_pass_at_k_average_and_majority_of_real_responses_agree_with_enumeration():
    from itertools import combinations

    task = AimeTask()
    rows = [r for r in lines("math_rollouts_100x8.jsonl") if parse_gold(r["answer"]) is not None]
    graded = list(
        task.score_records({"id": r["id"], "responses": r["responses"], "gold": r["answer"]} for r in rows)
    )
    summary = task.summarise(graded, ks=range(1, 9))
    for k in range(1, 9):
        passed, voted = [], []
        for row in graded:
            if "flag" in row:
                continue
            subsets = list(combinations(range(8), k))
            passed.append(sum(any(row["correct"][i] for i in s) for s in subsets) / len(subsets))
            shares = []
            for subset in subsets:
                votes = {}
                for i in subset:
                    key = "right" if row["correct"][i] else row["extracted"][i]
                    votes[key] = votes.get(key, 0) + 1
                leaders = [key for key in votes if votes[key] == max(votes.values())]
                shares.append(leaders.count("right") / len(leaders))
            voted.append(sum(shares) / len(shares))
        counts = {str(r["id"]): (8, sum(r["correct"])) for r in graded if "flag" not in r}
        assert mean_pass_at_k(counts, k) == pytest.approx(sum(passed) / len(passed), abs=1e-12)
        ours = [majority_at_k(r["extracted"], r["correct"], k) for r in graded if "flag" not in r]
        assert sum(ours) / len(ours) == pytest.approx(sum(voted) / len(voted), abs=1e-12)
    assert summary["graded"] == 616
    assert summary["accuracy"] == pytest.approx(sum(sum(r["correct"]) for r in graded) / 616)
