"""AIME problems by year from pinned revisions, other sets by Hub id, and local JSONL; checked before use.

Every year set is fetched by an exact revision and its file is compared with a recorded SHA-256, so that two
copies of "AIME" that differ in a problem or a gold cannot pass for each other.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tasks.aime.grader import ESCAPE_DAMAGE, parse_gold
from tasks.aime.math_grader import gold_text

__all__ = [
    "HUB_SETS",
    "DataError",
    "HubSet",
    "Problem",
    "check_aime",
    "check_manifest",
    "load_problems",
    "manifest_of",
    "split_by_date",
]

MANIFESTS = Path(__file__).parent / "data"


class DataError(ValueError):
    """A data set that is absent, malformed, or not the one that was pinned; one line with the fix."""


@dataclass(frozen=True)
class Problem:
    """One problem with its gold answer; `released` is the day it became public, where known."""

    id: str
    problem: str
    answer: str
    level: str = ""
    released: date | None = None


@dataclass(frozen=True)
class HubSet:
    """A data set on the Hub: repository, revision, file and its SHA-256, and the names of its columns."""

    repository: str
    revision: str
    filename: str
    sha256: str
    problem: str = "problem"
    answer: str = "answer"
    year: int | None = None
    released: date | None = None
    levels: tuple[str, ...] = ()


HUB_SETS: Mapping[str, HubSet] = {
    "aime-2024": HubSet(
        "HuggingFaceH4/aime_2024",
        "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        "data/train-00000-of-00001.parquet",
        "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf",
        year=2024,
        released=date(2024, 2, 1),
    ),
    "aime-2025": HubSet(
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        "test.jsonl",
        "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
        year=2025,
        released=date(2025, 2, 6),
    ),
    "aime-2026": HubSet(
        "math-ai/aime26",
        "79037aebdb6580008fb960d17cb21fd3099083e3",
        "aime2026.jsonl",
        "52822957957a3f577d1e9706c36a66a8108a3f99b6aff424cfb72dff0094a9ee",
        year=2026,
        released=date(2026, 2, 5),
    ),
    "math-3to5": HubSet(
        "DigitalLearningGmbH/MATH-lighteval",
        "0530c78699ea5e8eb5530600900e1f328b48acad",
        "data/train-00000-of-00001.parquet",
        "eca6e667f4305dd5e5ba09b4fd55e7f3174a0fbe361cdfd4c44758b593a76933",
        answer="solution",
        levels=("Level 3", "Level 4", "Level 5"),
    ),
    "dapo-17k": HubSet(
        "YouJiacheng/DAPO-Math-17k-dedup",
        "6e26a33abdabd3e6aaa1d742326b790758f7dbc5",
        "distinct-prompts-with-rewards.parquet",
        "c65f47247b9b13cb62321462243c2d1fe8d4ede2d800644a7dda61fea76d4286",
        problem="prompt",
        answer="reward_model",
    ),
}
"""Sets by name. Dates are the first day of the contest of a year (AIME I; AIME II is some days later)."""

_DAPO_FRAME = re.compile(
    r"\A\s*Solve the following math problem step by step\..*?\n\n(?P<problem>.*?)(?:\n\nRemember to put your answer.*)?\Z",
    re.DOTALL,
)


def _text_hash(problem: str) -> str:
    """SHA-256 of a problem's text, white space and Unicode composition aside."""
    plain = " ".join(unicodedata.normalize("NFC", problem).split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def manifest_of(problems: Iterable[Problem]) -> dict[str, dict[str, str]]:
    """What pins a problem set: answer and text hash by id."""
    return {p.id: {"answer": p.answer, "sha256": _text_hash(p.problem)} for p in problems}


def check_manifest(
    problems: Sequence[Problem], manifest: Mapping[str, Mapping[str, str]], where: str
) -> None:
    """DataError when a set differs from its manifest in an id, an answer or a text."""
    found = manifest_of(problems)
    for missing in sorted(set(manifest) - set(found)):
        raise DataError(
            f"{where}: problem {missing!r} of the pinned manifest is missing; use the pinned copy"
        )
    for name, entry in found.items():
        pinned = manifest.get(name)
        if pinned is None:
            raise DataError(f"{where}: problem {name!r} is not in the pinned manifest; use the pinned copy")
        if parse_gold(entry["answer"]) != parse_gold(pinned["answer"]):
            raise DataError(
                f"{where}: problem {name!r}: content hash mismatch against the pinned manifest: answer "
                f"{entry['answer']} where {pinned['answer']} is pinned; use the pinned copy"
            )
        if entry["sha256"] != pinned.get("sha256", entry["sha256"]):
            raise DataError(
                f"{where}: problem {name!r}: content hash mismatch against the pinned manifest: the text "
                "differs; use the pinned copy"
            )


def read_manifest(name: str) -> dict[str, dict[str, str]]:
    """A manifest that comes with the task (`aime-2024`) or a JSON file; DataError when it cannot be read."""
    path = (
        MANIFESTS / f"{name}.manifest.json" if (MANIFESTS / f"{name}.manifest.json").is_file() else Path(name)
    )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"manifest={name!r} cannot be read ({error}); give aime-2024 or a JSON file"
        ) from error


def check_aime(problems: Sequence[Problem], where: str) -> None:
    """DataError unless there are 30 problems with different texts and whole answers from 0 to 999."""
    if len(problems) != 30 or len({_text_hash(p.problem) for p in problems}) != 30:
        raise DataError(f"{where}: {len(problems)} problems; a year of AIME has 30 different ones")
    for problem in problems:
        gold = parse_gold(problem.answer)
        if gold is None or gold.denominator != 1 or not 0 <= gold <= 999:
            raise DataError(
                f"{where}: problem {problem.id!r} has answer {problem.answer!r}; it must be an integer 0 to 999"
            )


def _checked(problems: Sequence[Problem], where: str, *, integers: bool) -> list[Problem]:
    """Refuses repeated ids and golds that the grader could not read, before anything is graded."""
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise DataError(f"{where}: id {problem.id!r} appears twice; ids must differ")
        seen.add(problem.id)
        readable = parse_gold(problem.answer) if integers else gold_text(problem.answer)
        if readable is None:
            hint = "answers=math reads other golds" if integers else "give a number or LaTeX"
            damage = (
                "; it shows escape damage (\\f, \\b or \\t in a string)"
                if ESCAPE_DAMAGE.search(problem.answer)
                else ""
            )
            raise DataError(
                f"{where}: problem {problem.id!r}: gold {problem.answer!r} is unparsable{damage}; {hint}"
            )
    if not problems:
        raise DataError(f"{where}: no problems; give a file with at least one")
    return list(problems)


def _field(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _problem_text(value: Any) -> str:
    """A problem's text from a string or a list of chat messages, without the frame of the DAPO set."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1].get("content", "")
    frame = _DAPO_FRAME.match(str(value))
    return frame["problem"].strip() if frame else str(value)


def _answer_text(value: Any) -> str:
    """A gold from a string, a number, a reward record or a solution whose last box holds it."""
    from tasks.aime.extract import find_answer

    if isinstance(value, Mapping):
        value = value.get("ground_truth", "")
    text = str(value)
    if "boxed" in text:
        return find_answer(text).text or ""
    return text


def _from_rows(rows: Iterable[Mapping[str, Any]], where: str, chosen: HubSet | None) -> list[Problem]:
    problem_names = [chosen.problem] if chosen else ["problem", "question", "prompt", "Problem", "Question"]
    answer_names = [chosen.answer] if chosen else ["answer", "gold", "Answer", "reward_model", "solution"]
    found = []
    for i, row in enumerate(rows):
        if chosen and chosen.levels and row.get("level") not in chosen.levels:
            continue
        text, answer = _field(row, problem_names), _field(row, answer_names)
        if text is None or answer is None:
            raise DataError(
                f"{where}: row {i + 1} lacks {problem_names[0] if text is None else answer_names[0]!r}; "
                "each row needs a problem and an answer"
            )
        released = _date(row.get("date") or row.get("released"), where) or (
            chosen.released if chosen else None
        )
        name = _field(row, ["id", "ID", "problem_idx", "unique_id"])
        found.append(
            Problem(
                str(i if name is None else name),
                _problem_text(text),
                _answer_text(answer),
                str(row.get("level", "")),
                released,
            )
        )
    return found


def _date(value: Any, where: str) -> date | None:
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError as error:
        raise DataError(f"{where}: date {value!r}: write it as YYYY-MM-DD") from error


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"source={str(path)!r} cannot be read ({error}); give a JSONL file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path.name} line {number} is not JSON ({error.msg}); mend that line") from error
        if not isinstance(row, dict):
            raise DataError(f"{path.name} line {number} is not an object; each line holds one problem")
        rows.append(row)
    return rows


def _reach(source: str, repository: str, revision: str) -> None:
    """DataError at once when the Hub cannot be reached: the download itself would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        HfApi().dataset_info(repository, revision=revision, timeout=10)
    except (HTTPError, OSError) as error:
        raise DataError(
            f"source={source!r}: {repository} is not in the cache and the Hub does not give it "
            f"({type(error).__name__}); connect once, or give a local JSONL file"
        ) from error


def _fetch(chosen: HubSet, name: str) -> list[Mapping[str, Any]]:
    """The rows of a pinned set, its file compared with the recorded hash."""
    from datasets import load_dataset
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    pinned: dict[str, Any] = {"repo_type": "dataset", "revision": chosen.revision}
    try:
        path = hf_hub_download(chosen.repository, chosen.filename, local_files_only=True, **pinned)
    except LocalEntryNotFoundError:
        _reach(name, chosen.repository, chosen.revision)
        path = hf_hub_download(chosen.repository, chosen.filename, **pinned)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if digest != chosen.sha256:
        raise DataError(
            f"source={name!r}: content hash mismatch: {chosen.filename} is {digest[:12]}..., pinned is "
            f"{chosen.sha256[:12]}...; clear the cached copy"
        )
    kind = "parquet" if path.endswith(".parquet") else "json"
    return list(load_dataset(kind, data_files=path, split="train"))


def _fetch_other(source: str) -> list[Mapping[str, Any]]:
    """The rows of `hub:owner/name@revision[:split]`; with HF_HUB_OFFLINE=1 from the cache alone."""
    found = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})(?::([\w.\[\]%-]+))?", source)
    if not found:
        raise DataError(
            f"source={source!r}: write it as hub:owner/name@revision:split, the revision a full commit hash, "
            "so that the set cannot change"
        )
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub.constants import HF_HUB_OFFLINE

    repository, revision, split = found.groups()
    if not HF_HUB_OFFLINE:
        _reach(source, repository, revision)
    try:
        return list(load_dataset(repository, revision=revision, split=split or "train"))
    except (DatasetsError, OSError, ValueError) as error:
        raise DataError(
            f"source={source!r}: cannot be loaded ({error}); check it, or give a local JSONL file"
        ) from error


def load_problems(source: str, *, integers: bool = True, manifest: str = "") -> list[Problem]:
    """Problems of a named set (see HUB_SETS), of `hub:owner/name@revision:split`, or of a local JSONL file.

    A local line needs `problem` and `answer` (or `question`, `gold`), perhaps `id`, `level`, `date`. With
    `manifest` the set must equal it in every id, answer and text. DataError, one line, when it does not, when a
    gold cannot be graded, and when the Hub is needed but cannot be reached.
    """
    chosen = HUB_SETS.get(source)
    if chosen is not None:
        rows: Sequence[Mapping[str, Any]] = _fetch(chosen, source)
    elif source.startswith("hub:"):
        rows = _fetch_other(source)
    elif source.endswith((".jsonl", ".json")):
        rows = _read_jsonl(Path(source))
    else:
        raise DataError(
            f"source={source!r} is unknown: choose generated, {', '.join(HUB_SETS)}, hub:owner/name@revision, "
            "or a .jsonl file"
        )
    where = source if chosen or source.startswith("hub:") else Path(source).name
    problems = _checked(_from_rows(rows, where, chosen), where, integers=integers)
    if chosen is not None and chosen.year is not None:
        check_aime(problems, where)
        manifest = manifest or (source if (MANIFESTS / f"{source}.manifest.json").is_file() else "")
    if manifest:
        check_manifest(problems, read_manifest(manifest), where)
    return problems


def split_by_date(problems: Iterable[Problem], cutoff: date) -> tuple[list[Problem], list[Problem]]:
    """Problems released before a day (a model may have seen them) and from that day on.

    DataError names a problem without a date: it cannot be called unseen.
    """
    before: list[Problem] = []
    after: list[Problem] = []
    for problem in problems:
        if problem.released is None:
            raise DataError(
                f"problem {problem.id!r} has no date; a split by date needs one for every problem"
            )
        (before if problem.released < cutoff else after).append(problem)
    return before, after
