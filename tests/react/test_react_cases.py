"""The recorded cases: every verdict of the levels that need no rendering."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.react import ReactTask

CASES = Path(__file__).parents[2] / "../shared/cases/react_cases.json"


@pytest.fixture(scope="module")
def cases() -> list[dict]:
    if not CASES.is_file():
        pytest.skip("the recorded cases are not beside this checkout")
    return json.loads(CASES.read_text("utf-8"))


def test_syntax_verdicts(react: ReactTask, cases: list[dict]) -> None:
    checked = react.check([case["source"] for case in cases], bare=True)
    wrong = [c["name"] for c, r in zip(cases, checked, strict=True) if r.syntax != c["syntax_ok"]]
    assert wrong == []


def test_errors_are_typescript_s_own(react: ReactTask, cases: list[dict]) -> None:
    broken = [c for c in cases if not c["verified"]["syntax_by_tool"]["ts"]]
    checked = react.check([case["source"] for case in broken], bare=True)
    for case, result in zip(broken, checked, strict=True):
        # the record keeps six codes a case
        assert [d.code for d in result.diagnostics][:6] == case["verified"]["ts_codes"], case["name"]


def test_good_components_compile(react: ReactTask, cases: list[dict]) -> None:
    good = [case for case in cases if case["name"].startswith("good_")]
    assert good
    assert all(r.compile for r in react.check([case["source"] for case in good], bare=True))
