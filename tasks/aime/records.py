"""Grades answers from anywhere, record by record, and sums them up with Pass@k; no record can stop the rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tasks.aime.extract import CUT_REASONS
from tasks.aime.grader import STATUSES, Grade
from tasks.passk import average_at_n, completion_hash, default_ks, majority_at_k, mean_pass_at_k

__all__ = ["score_records", "summarise"]

WARN_SHARE = 0.05
"""Above this share of truncated or boxless answers the prompt or the token budget is suspect, not the model."""

Grader = Callable[[str, object, str | None], Grade]
"""Response, gold and finish reason to a grade."""


class RecordError(ValueError):
    """A record that cannot be graded; the message says why."""


def _record(item: object) -> Mapping[str, Any]:
    """A record from a mapping or a line of JSON."""
    if isinstance(item, bytes | str):
        try:
            item = json.loads(item)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"not JSON: {error}") from error
    if not isinstance(item, Mapping):
        raise RecordError(f"a record is an object with id, response and gold, not {type(item).__name__}")
    return item


def _responses(record: Mapping[str, Any]) -> tuple[list[str | None], bool]:
    """The responses of a record (None where one is missing), and whether it gave a list."""
    if ("response" in record) == ("responses" in record):
        raise RecordError("give either response (text) or responses (a list of texts)")
    many = "responses" in record
    found = record["responses"] if many else [record["response"]]
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise RecordError("responses must be a list of at least one text")
    for response in found:
        if response is not None and not isinstance(response, str):
            raise RecordError(f"a response must be text, not {type(response).__name__}")
    return list(found), many


def _finish_reasons(record: Mapping[str, Any], count: int) -> list[str | None]:
    reason = record.get("finish_reason")
    if isinstance(reason, Sequence) and not isinstance(reason, str):
        if len(reason) != count:
            raise RecordError(f"finish_reason has {len(reason)} entries for {count} responses")
        return list(reason)
    if reason is not None and not isinstance(reason, str):
        raise RecordError(f"finish_reason must be text or a list of texts, not {type(reason).__name__}")
    return [reason] * count


def _requested(record: Mapping[str, Any], count: int) -> int:
    wanted = record.get("requested_n", count)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise RecordError(f"requested_n={wanted!r} must be a whole number of samples")
    return max(wanted, count)


def _identity(record: Mapping[str, Any], number: int) -> str | int:
    name = record.get("id")
    if name is None:
        return number
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise RecordError(f"id must be text or a whole number, not {type(name).__name__}")
    return name


def _row(item: object, number: int, grade: Grader, version: str) -> dict[str, Any]:
    record = _record(item)
    name = _identity(record, number)
    responses, many = _responses(record)
    if "gold" not in record:
        raise RecordError("gold is missing: the right answer")
    reasons = _finish_reasons(record, len(responses))
    given = [(text, reason) for text, reason in zip(responses, reasons, strict=True) if text is not None]
    grades = [
        None if text is None else grade(text, record["gold"], reason)
        for text, reason in zip(responses, reasons, strict=True)
    ]
    columns: dict[str, list[Any]] = {
        "correct": [None if g is None else g.correct for g in grades],
        "status": ["missing" if g is None else g.status for g in grades],
        "extracted": [None if g is None else g.extracted for g in grades],
        "truncated": [
            False if g is None else g.status == "truncated" or reason in CUT_REASONS
            for g, reason in zip(grades, reasons, strict=True)
        ],
    }
    if any(g is not None and g.second_opinion is not None for g in grades):
        columns["second_opinion"] = [None if g is None else g.second_opinion for g in grades]
    row: dict[str, Any] = {"id": name}
    row.update(columns if many else {key: values[0] for key, values in columns.items()})
    hashes = [completion_hash(text) for text, _ in given]
    missing = _requested(record, len(responses)) - len(given)
    if many or missing:
        row |= {"n": len(given), "missing": missing, "completions": hashes}
    else:
        row["completions"] = hashes
    if len(hashes) > 1 and len(set(hashes)) == 1:
        row |= {"flag": "duplicate_samples", "effective_n": 1}
    row["grader_version"] = version
    return row


def score_records(records: Iterable[object], grade: Grader, version: str) -> Iterator[dict[str, Any]]:
    """One row for each record, in order, lazily; a record that cannot be graded gives a row with `error`.

    A record (a mapping, or a line of JSON) holds `id`, `response` or `responses` (null: a sample that
    never came), `gold`, and perhaps `finish_reason` (one or a list) and `requested_n`. A row holds `id`,
    `correct`, `status`, `extracted`, `truncated` (lists for several responses), hashes of the completions,
    and the grader's version. All samples of a problem alike are flagged `duplicate_samples`.
    """
    for number, item in enumerate(records, 1):
        if isinstance(item, Mapping) and isinstance(item.get("error"), str) and "gold" not in item:
            yield {"id": None, **item}  # a line that its reader could not read
            continue
        try:
            yield _row(item, number, grade, version)
        except RecordError as error:
            name = item.get("id") if isinstance(item, Mapping) else None
            yield {"id": name if isinstance(name, str | int) else None, "error": f"record {number}: {error}"}


class _Problem:
    """The samples of one problem, perhaps from several rows."""

    def __init__(self) -> None:
        self.correct: list[bool] = []
        self.votes: list[str | None] = []
        self.hashes: list[str] = []
        self.missing = 0

    @property
    def repeated(self) -> bool:
        """Whether all samples are the same text: a sampler seed that was repeated, or no sampling at all."""
        return len(self.hashes) > 1 and len(set(self.hashes)) == 1

    @property
    def counts(self) -> tuple[int, int]:
        """Samples and right ones that count: identical samples count once."""
        n = 1 if self.repeated else len(self.correct)
        return n, min(n, sum(self.correct))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _collect(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, _Problem], Counter[str], Counter[str]]:
    """Problems by id, statuses, and other counts of the rows."""
    problems: dict[str, _Problem] = {}
    statuses: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for row in rows:
        if "error" in row:
            other["errors"] += 1
            continue
        problem = problems.setdefault(str(row["id"]), _Problem())
        problem.missing += row.get("missing", 0)
        problem.hashes += row["completions"]
        columns = (row["correct"], row["status"], row["extracted"], row["truncated"])
        for correct, status, extracted, truncated in zip(*map(_list, columns), strict=True):
            if status == "missing":
                continue
            statuses[status] += 1
            other["truncated"] += truncated
            other["finished_correct"] += bool(correct) and not truncated
            if correct is not None:
                problem.correct.append(correct)
                problem.votes.append(extracted)
        for correct, opinion in zip(_list(row["correct"]), _list(row.get("second_opinion")), strict=False):
            other["unavailable"] += opinion == "unavailable"
            if opinion in ("correct", "wrong") and correct is not None:
                other["opinions"] += 1
                other["disagreements"] += (opinion == "correct") != correct
    return problems, statuses, other


def _flags(problems: Mapping[str, _Problem], summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers."""
    flags = []
    missing = sum(p.missing for p in problems.values())
    if missing:
        flags.append(f"{missing} missing samples: n is what was graded")
    repeated = [name for name, p in problems.items() if p.repeated]
    if repeated:
        flags.append(
            f"duplicate_samples: all samples alike for {len(repeated)} problems ({', '.join(repeated[:3])}): "
            "they count once; was a sampler seed repeated?"
        )
    if len({len(p.correct) for p in problems.values()}) > 1:
        flags.append("n differs between problems")
    for key, words in (("truncation_rate", "cut by the token limit"), ("no_box_rate", "without a box")):
        if summary[key] > WARN_SHARE:
            flags.append(f"{summary[key]:.1%} of the responses {words}: check the prompt and the token limit")
    if summary["status"].get("gold_unparsable"):
        flags.append(f"{summary['status']['gold_unparsable']} responses have an unparsable gold: not counted")
    if summary["errors"]:
        flags.append(f"{summary['errors']} records could not be graded")
    return flags


def _at_k(problems: Mapping[str, _Problem], ks: Sequence[int] | None) -> dict[str, Any]:
    """Pass@k and maj@k for a grid of k; a k beyond some problem's n is refused, with the reason."""
    counts = {name: p.counts for name, p in problems.items() if p.correct}
    if not counts:
        return {"pass_at_k": {}, "maj_at_k": {}, "refused": {}, "avg_at_n": None, "problem_counts": {}}
    least = min(n for n, _ in counts.values())
    passed: dict[str, float | None] = {}
    majority: dict[str, float | None] = {}
    refused: dict[str, str] = {}
    for k in ks if ks is not None else default_ks(least):
        try:
            passed[str(k)] = mean_pass_at_k(counts, k)
        except ValueError as error:
            passed[str(k)] = majority[str(k)] = None
            refused[str(k)] = str(error)
            continue
        voted = [problems[name] for name in counts]
        shares = [majority_at_k(p.votes[: p.counts[0]], p.correct[: p.counts[0]], k) for p in voted]
        majority[str(k)] = sum(shares) / len(shares)
    return {
        "pass_at_k": passed,
        "maj_at_k": majority,
        "refused": refused,
        "avg_at_n": average_at_n(counts),
        "problem_counts": {name: list(pair) for name, pair in counts.items()},
    }


def summarise(
    rows: Iterable[Mapping[str, Any]], version: str, ks: Sequence[int] | None = None
) -> dict[str, Any]:
    """Accuracy, Pass@k and rates of the rows of `score_records`, with flags for what makes them doubtful.

    `ks` is the grid of k; by default the powers of two up to the least n. Rows with the same id are samples of one
    problem. `accuracy` is over graded samples, `accuracy_on_completed` over those that the token limit did
    not cut.
    """
    problems, statuses, other = _collect(rows)
    graded = sum(statuses.values()) - statuses["gold_unparsable"]
    right = statuses["correct"]
    completed = graded - other["truncated"]
    summary: dict[str, Any] = {
        "problems": len(problems),
        "graded": graded,
        "errors": other["errors"],
        "missing": sum(p.missing for p in problems.values()),
        "accuracy": right / graded if graded else None,
        "truncation_rate": other["truncated"] / graded if graded else 0.0,
        "accuracy_on_completed": other["finished_correct"] / completed if completed > 0 else None,
        "no_box_rate": (statuses["no_box"] + statuses["unbalanced"]) / graded if graded else 0.0,
        "status": {name: statuses[name] for name in STATUSES if statuses[name]},
        **_at_k(problems, ks),
        "grader_version": version,
    }
    if other["opinions"]:
        summary["second_opinion"] = {
            "asked": other["opinions"],
            "disagreements": other["disagreements"],
            "rate": other["disagreements"] / other["opinions"],
        }
    summary["flags"] = _flags(problems, summary)
    if other["unavailable"]:
        summary["flags"].append(
            f"{other['unavailable']} answers could be compared only by math-verify, which is not installed, and count "
            "as wrong: pip install 'creditbench[eval]'"
        )
    return summary
