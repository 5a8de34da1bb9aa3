"""A judge's word on React answers: rubric from the prompt, remarks as spans, failures as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.base import Example, Span
from tasks.judges import Judge, Judgement, RubricItem, RubricRequest, make_judge
from tasks.judges.scripted import ScriptedJudge
from tasks.react.checks import Checked
from tasks.react.rubric import rubric_items

MAX_RENDERED = 4_000
DESCRIPTIONS = {
    "name": "the component exported by default has the requested name",
    "heading": "a heading is shown",
    "text": "a paragraph of text is shown",
    "list": "a list with items is shown",
    "button": "a button with a label is shown",
    "input": "an input field is shown",
    "image": "an image with a source and an alternative text is shown",
    "link": "a link with a target and a text is shown",
    "counter": "a number held in state is shown, with a way to change it",
}
NOT_JUDGED = Judgement(0.0, reason="does not compile")
"""What is no component earns nothing and is sent to nobody."""


def rubric_for(reference: Mapping[str, Any]) -> tuple[RubricItem, ...]:
    """The rubric of a prompt: its name and its features."""
    names: list[str] = (["name"] if "name" in reference else []) + list(reference.get("features", ()))
    return tuple(RubricItem(name, DESCRIPTIONS.get(name, name)) for name in names)


def request_for(example: Example, checked: Checked) -> RubricRequest:
    """What a judge is asked about one checked answer."""
    shown = str((checked.rendered or {}).get("text", ""))[:MAX_RENDERED]
    return RubricRequest(example.prompt, checked.extraction.code or "", rubric_for(example.reference), shown)


class ReactJudge:
    """Asks a judge about the answers that compile; `scripted` reads the AST and what is rendered."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.judge: Judge = make_judge(name, **options)

    def judge_all(self, examples: Sequence[Example], checked: Sequence[Checked]) -> list[Judgement]:
        """One judgement for each answer, in order."""
        places = [i for i, c in enumerate(checked) if c.compile]
        found = [NOT_JUDGED] * len(checked)
        for i, judgement in zip(
            places, self._judge([(examples[i], checked[i]) for i in places]), strict=True
        ):
            found[i] = judgement
        return found

    def _judge(self, pairs: Sequence[tuple[Example, Checked]]) -> list[Judgement]:
        requests = [request_for(example, checked) for example, checked in pairs]
        if not isinstance(self.judge, ScriptedJudge):
            return self.judge.rubric(requests)
        items = [
            {item.name: float(item.met) for item in rubric_items(example.reference, checked)}
            for example, checked in pairs
        ]
        return ScriptedJudge(grade=lambda _: items).rubric(requests)

    def close(self) -> None:
        """Ends what the judge started."""
        self.judge.close()


def comment_spans(judgement: Judgement, checked: Checked) -> tuple[Span, ...]:
    """The judge's remarks as spans, each at the first place where its quotation stands."""
    code = checked.extraction.code or ""
    places = [(code.find(c.quote), c) for c in judgement.comments if c.quote]
    start = checked.extraction.start
    return tuple(Span(start + at, start + at + len(c.quote), c.value, "judge") for at, c in places if at >= 0)


def judge_metrics(judgement: Judgement) -> dict[str, float]:
    """What a judgement adds to the metrics; a failed one has no score."""
    metrics = {
        "judge_failed": float(judgement.score is None),
        "judge_flagged": float(bool(judgement.flags)),
        "judge_calls": float(judgement.usage.calls),
        "judge_usd": judgement.usage.usd,
    }
    return metrics if judgement.score is None else {**metrics, "judge_score": judgement.score}
