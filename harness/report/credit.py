"""Token advantages of several algorithms side by side, as a heat map for the terminal and as a page.

Input is one JSON object for each group of answers to one prompt:

    {"prompt": "...", "answers": [
        {"tokens": ["expo", "rt ", ...], "outcome": 1.0, "truncated": false,
         "advantages": {"grpo": [0.7, 0.7, ...], "bot_grpo": [...]},
         "spans": [{"start": 0, "end": 3, "value": -1.0, "source": "typescript", "message": "..."}]}],
     "statistics": {"bot_grpo": {"kappa": 0.8}}}

`spans` count tokens, [start, end); `statistics` and `spans` may be absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.report.tables import Cell, Table, render, table

TEMPLATES = Path(__file__).parent / "templates"
NEGATIVE, POSITIVE = (213, 94, 0), (0, 114, 178)


@dataclass(frozen=True)
class CreditSpan:
    """What the task said about tokens [start, end): a value in [-1, 1], its source and message."""

    start: int
    end: int
    value: float
    source: str
    message: str = ""


@dataclass(frozen=True)
class CreditAnswer:
    """One answer of a group: its tokens, outcome, and each algorithm's advantage of every token."""

    tokens: tuple[str, ...]
    outcome: float
    advantages: Mapping[str, tuple[float, ...]]
    spans: tuple[CreditSpan, ...] = ()
    truncated: bool = False


@dataclass(frozen=True)
class CreditGroup:
    """Answers to one prompt and what each algorithm computed from them."""

    prompt: str
    answers: tuple[CreditAnswer, ...]
    statistics: Mapping[str, Mapping[str, float]]

    @property
    def algorithms(self) -> list[str]:
        """Names in the order of the first answer."""
        return list(self.answers[0].advantages) if self.answers else []

    def scale(self, algorithm: str) -> float:
        """Largest absolute advantage of an algorithm in the group; 1 where all are 0."""
        return max((abs(a) for x in self.answers for a in x.advantages[algorithm]), default=0.0) or 1.0


def _answer(data: Mapping[str, Any], where: str) -> CreditAnswer:
    tokens = tuple(str(token) for token in data["tokens"])
    advantages = {}
    for name, values in data["advantages"].items():
        if len(values) != len(tokens):
            raise UserError(
                f"{where}: advantages of {name!r} hold {len(values)} values for {len(tokens)} tokens"
            )
        if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            raise UserError(f"{where}: advantages of {name!r} hold a value that is no finite number")
        advantages[str(name)] = tuple(float(v) for v in values)
    spans = tuple(
        CreditSpan(
            int(s["start"]), int(s["end"]), float(s["value"]), str(s["source"]), str(s.get("message", ""))
        )
        for s in data.get("spans", ())
    )
    for span in spans:
        if not 0 <= span.start <= span.end <= len(tokens):
            raise UserError(f"{where}: span [{span.start}, {span.end}) lies outside the {len(tokens)} tokens")
    return CreditAnswer(tokens, float(data["outcome"]), advantages, spans, bool(data.get("truncated", False)))


def parse_group(data: Mapping[str, Any], where: str = "group") -> CreditGroup:
    """A group from plain data; UserError names what is missing or does not fit."""
    try:
        answers = tuple(
            _answer(item, f"{where}, answer {i}") for i, item in enumerate(data["answers"], start=1)
        )
        group = CreditGroup(str(data["prompt"]), answers, dict(data.get("statistics", {})))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where}: {error} is missing or of the wrong kind; see the documented form"
        ) from error
    if not answers:
        raise UserError(f"{where}: no answers")
    if len({tuple(answer.advantages) for answer in answers}) > 1:
        raise UserError(f"{where}: every answer needs the advantages of the same algorithms, in one order")
    return group


def read_groups(path: Path) -> list[CreditGroup]:
    """Groups from a JSONL file; UserError names the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise UserError(f"{str(path)!r} does not exist: give a JSONL file of groups") from error
    out = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path.name} line {number} is not JSON: {error}") from error
        out.append(parse_group(data, f"{path.name} line {number}"))
    return out


def colour(value: float, scale: float) -> tuple[int, int, int]:
    """Background of a token: white at 0, blue for credit, orange for blame; safe for colour-blind readers."""
    share = min(1.0, abs(value) / scale) * 0.75
    base = POSITIVE if value > 0 else NEGATIVE
    red, green, blue = (round(255 + (b - 255) * share) for b in base)
    return red, green, blue


def mark(value: float, scale: float) -> str:
    """Credit or blame without colour: the page underlines these classes differently."""
    if abs(value) < 0.05 * scale:
        return "zero"
    return "credit" if value > 0 else "blame"


def visible(token: str) -> str:
    """The token with its white space made visible where it is all there is."""
    return token.replace("\n", "⏎\n") if token.strip() else token.replace("\n", "⏎\n").replace(" ", "␣")


def statistics_table(group: CreditGroup) -> Table:
    """One row an algorithm: its own statistics, and what its advantages look like over the group."""
    names = list(dict.fromkeys(key for found in group.statistics.values() for key in found))
    rows: list[tuple[Cell, ...]] = []
    for algorithm in group.algorithms:
        values = [v for answer in group.answers for v in answer.advantages[algorithm]]
        spread = math.sqrt(sum(v * v for v in values) / len(values)) if values else None
        differs = sum(len(set(answer.advantages[algorithm])) > 1 for answer in group.answers)
        own = group.statistics.get(algorithm, {})
        largest = max(map(abs, values), default=None)
        rows.append(
            (algorithm, spread, largest, f"{differs}/{len(group.answers)}", *(own.get(n) for n in names))
        )
    return table(
        ("algorithm", "RMS", "largest", "answers with token-level credit", *names), rows,
        caption="Advantages over the group", name="credit",
    )  # fmt: skip


def to_rich(group: CreditGroup) -> Any:
    """A rich renderable: for each answer one coloured line an algorithm; blame is underlined."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for number, answer in enumerate(group.answers, start=1):
        cut = ", cut off" if answer.truncated else ""
        parts.append(Text(f"answer {number}: outcome {answer.outcome:g}{cut}", style="bold"))
        for algorithm in group.algorithms:
            scale, line = group.scale(algorithm), Text(f"{algorithm:>12}  ")
            for token, value in zip(answer.tokens, answer.advantages[algorithm], strict=True):
                red, green, blue = colour(value, scale)
                under = " underline" if mark(value, scale) == "blame" else ""
                line.append(
                    visible(token).replace("\n", ""), style=f"black on rgb({red},{green},{blue}){under}"
                )
            parts.append(line)
        for span in answer.spans:
            text = "".join(answer.tokens[span.start : span.end]).replace("\n", "⏎")
            parts.append(Text(f"{span.source:>12}  {span.value:+g} on {text!r} {span.message}", style="dim"))
    return Group(*parts)


def _rows(group: CreditGroup, answer: CreditAnswer) -> list[dict[str, Any]]:
    """What the page shows of an answer: for each algorithm its tokens with colour, mark and hover text."""
    out = []
    for algorithm in group.algorithms:
        scale, tokens = group.scale(algorithm), []
        for i, (token, value) in enumerate(zip(answer.tokens, answer.advantages[algorithm], strict=True)):
            why = "; ".join(
                f"{s.source} {s.value:+g} {s.message}".strip() for s in answer.spans if s.start <= i < s.end
            )
            tokens.append(
                {
                    "text": visible(token), "mark": mark(value, scale),
                    "colour": "rgb({},{},{})".format(*colour(value, scale)),
                    "title": f"{algorithm}: {value:+.3f}" + (f" ({why})" if why else ""),
                }
            )  # fmt: skip
        out.append({"algorithm": algorithm, "tokens": tokens})
    return out


def to_html(groups: Sequence[CreditGroup]) -> str:
    """One self-contained page: answers as rows of coloured tokens, one row an algorithm, values on hover."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    shown = [
        {
            "prompt": group.prompt,
            "table": Markup(
                render(statistics_table(group), "html").replace('id="credit"', f'id="credit-{i}"')
            ),
            "answers": [
                {
                    "outcome": answer.outcome,
                    "truncated": answer.truncated,
                    "rows": _rows(group, answer),
                    "spans": answer.spans,
                }
                for answer in group.answers
            ],
        }
        for i, group in enumerate(groups, start=1)
    ]
    return environment.get_template("credit.html.j2").render(groups=shown)
