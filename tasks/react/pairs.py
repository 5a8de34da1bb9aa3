"""Pairs of answers of two runs to the same prompts, judged by their screenshots in both orders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.judges import Judge, PairRequest, Preference, make_judge
from tasks.judges.scripted import ScriptedJudge
from tasks.react.browser import Picture, picture_merit
from tasks.react.checks import Checks
from tasks.react.extract import extract


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt by runs of one seed; pictures are PNG, empty where there is none."""

    prompt_id: str
    seed: int
    problem: str
    treatment: bytes
    baseline: bytes


@dataclass(frozen=True)
class PairResult:
    """The treatment's score of a pair: 1 won, 0 lost, 1/2 tied, the mean of both orders; None if not judged.

    `agreed` says whether both orders gave the same answer.
    """

    prompt_id: str
    seed: int
    score: float | None
    agreed: bool
    status: str
    calls: int = 0
    usd: float = 0.0


class Photographer(Protocol):
    """What takes screenshots; see tasks.react.browser.Screenshots."""

    def take(self, items: Sequence[Mapping[str, Any]]) -> list[Picture]:
        """One picture for each item."""
        ...


def make_pair_judge(name: str = "scripted", options: Mapping[str, Any] | None = None) -> Judge:
    """A judge of pictures by name; `scripted` measures ink and colours, and is no judge of taste."""
    if name == "scripted":
        return ScriptedJudge(merit=picture_merit, **(options or {}))
    return make_judge(name, **(options or {}))


def nameless(js: str, name: str) -> str:
    """Compiled code with the component's own name taken out, where it stands only in its declaration and export.

    What is left decides the picture: two components that differ in their names alone look the same.
    """
    if not name:
        return js
    own = re.escape(name)
    places = (
        rf"(?<=default: \(\) => ){own}\b|(?<=function ){own}(?=\()|(?<=const ){own}(?= = )"
        rf"|(?<=var stdin_default = ){own}(?=;)"
    )
    bare = re.sub(places, "\0", js)
    return js if re.search(rf"(?<![\w$]){own}(?![\w$])", bare) else bare


def picture_answers(checks: Checks, photographer: Photographer, answers: Sequence[str]) -> list[Picture]:
    """A picture of each answer, taken once for what looks the same; an answer that does not compile has none."""
    checked = checks.run([extract(answer) for answer in answers], ("renders",))
    different: dict[tuple[str, str], Mapping[str, Any]] = {}
    keys: list[tuple[str, str] | None] = []
    for c in checked:
        js = c.static.get("js") if c.compile else None
        if js is None:
            keys.append(None)
            continue
        props = c.static["props"]
        name = str((c.static.get("component") or {}).get("name") or "")
        keys.append((nameless(js, name), json.dumps(props, sort_keys=True)))
        different.setdefault(keys[-1], {"js": js, "props": props})  # type: ignore[arg-type]
    taken = dict(zip(different, photographer.take(list(different.values())), strict=True))
    return [Picture(b"", "not_compiled") if key is None else taken[key] for key in keys]


SCORES = {"first": 1.0, "tie": 0.5, "second": 0.0}


def _result(pair: Pair, forward: Preference, backward: Preference) -> PairResult:
    calls, usd = (forward.usage.calls + backward.usage.calls, forward.usage.usd + backward.usage.usd)
    if forward.winner is None or backward.winner is None:
        status = forward.status if forward.winner is None else backward.status
        return PairResult(pair.prompt_id, pair.seed, None, False, status, calls, usd)
    first, second = SCORES[forward.winner], 1.0 - SCORES[backward.winner]
    return PairResult(pair.prompt_id, pair.seed, (first + second) / 2, first == second, "ok", calls, usd)


def _without_judge(pair: Pair) -> PairResult | None:
    """What needs no judge: a picture beats none, two equal pictures tie."""
    if pair.treatment and pair.baseline and pair.treatment != pair.baseline:
        return None
    score = 0.5 + 0.5 * (bool(pair.treatment) - bool(pair.baseline))
    return PairResult(pair.prompt_id, pair.seed, score, True, "ok")


def compare_pairs(judge: Judge, pairs: Sequence[Pair]) -> list[PairResult]:
    """Judges each pair twice, once in each order, and takes the mean; in the order of the pairs."""
    results = [_without_judge(pair) for pair in pairs]
    open_pairs = [pair for pair, result in zip(pairs, results, strict=True) if result is None]
    forward = [PairRequest(p.problem, p.treatment, p.baseline) for p in open_pairs]
    backward = [PairRequest(p.problem, p.baseline, p.treatment) for p in open_pairs]
    words = judge.compare([*forward, *backward])
    half = len(open_pairs)
    judged = iter(_result(pair, words[i], words[half + i]) for i, pair in enumerate(open_pairs))
    return [next(judged) if result is None else result for result in results]
