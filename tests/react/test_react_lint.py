"""ESLint as a source of spans; slow, since its packages may have to be installed first."""

from __future__ import annotations

import pytest

from tasks.base import Answer
from tasks.react import ReactTask

pytestmark = pytest.mark.slow

LINTED = {
    "clean": ("export default () => <p>ok</p>;", []),
    "key": (
        "export default (p: { a: string[] }) => <ul>{p.a.map((x) => <li>{x}</li>)}</ul>;",
        [("react/jsx-key", "<li>{x}</li>")],
    ),
    "hook in a condition": (
        'import { useState } from "react";\n'
        "export default function A(p: { on: boolean }) { if (p.on) { useState(0); } return <p>ok</p>; }",
        [("react-hooks/rules-of-hooks", "useState")],
    ),
    "unknown component": ("export default () => <p><Foo /></p>;", [("react/jsx-no-undef", "Foo")]),
    "unknown attribute after emoji": (
        'export default () => <p>😀<b class="x">y</b></p>;',
        [("react/no-unknown-property", 'class="x"')],
    ),
    "disabled in a comment": (
        '/* eslint-disable */ export default () => <p class="x">y</p>;',
        [("react/no-unknown-property", 'class="x"')],
    ),
    "line separator": (
        'const a = "\u2028";\nexport default () => <p class="x">{a}</p>;',
        [("react/no-unknown-property", 'class="x"')],
    ),
}


def test_findings_with_their_places(react: ReactTask) -> None:
    answers = [f"é😀\n```tsx\n{source}\n```" for source, _ in LINTED.values()]
    checked = react.check(answers, levels=["lint"])
    for (name, (_, findings)), answer, result in zip(LINTED.items(), answers, checked, strict=True):
        found = [(d.code, answer[d.start : d.end]) for d in result.diagnostics if d.source == "eslint"]
        assert found == findings, name
        assert result.lint == (not findings)


def test_what_does_not_parse_is_not_linted(react: ReactTask) -> None:
    (checked,) = react.check(["export default () => <p>;"], bare=True, levels=["lint"])
    assert checked.lint is False
    assert {d.source for d in checked.diagnostics} == {"typescript"}


def test_findings_are_evidence(react: ReactTask) -> None:
    task = ReactTask(levels=("lint",))
    task.checks = react.checks
    answer = Answer('```tsx\nexport default () => <p class="x">y</p>;\n```')
    (score,) = task.score([task.example("train", 0)], [answer])
    assert (score.outcome, score.metrics["lint"]) == (1.0, 0.0)
    local = task.recipes["evidence"](answer, score)
    assert [answer.text[s.start : s.end] for s in local.spans if s.value < 0] == ['class="x"']
