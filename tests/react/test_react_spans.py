"""Places: UTF-16 units to code points, blame for errors without a length, weights of a cascade."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import Diagnostic
from tasks.react import ReactTask
from tasks.react.spans import Utf16Table, error_spans, line_steps, locate


@given(st.text(alphabet=st.sampled_from("a\né😀\u2028\ud800\udc00\ufeff")), st.integers(-2, 30))
def test_table_agrees_with_encoding(text: str, units: int) -> None:
    table = Utf16Table(text)
    widths = [len(c.encode("utf-16-le", "surrogatepass")) // 2 for c in text]
    place, left = 0, units
    while place < len(text) and left >= widths[place]:
        left -= widths[place]
        place += 1
    assert table.code_point(units) == place


def report(start: int, length: int) -> dict[str, object]:
    return {"source": "typescript", "code": "TS1", "message": "m", "start": start, "length": length}


@pytest.mark.parametrize(
    ("code", "start", "length", "blamed"),
    [
        ("let a = ;", 8, 1, ";"),
        ("function f() {\n  return (x\n", 27, 0, "x"),
        ("let total_2\n\n", 13, 0, "total_2"),
        ("f(\n", 3, 0, "("),
        ("   \n", 4, 0, "   \n"),
        ("😀😀 x !", 6, 1, "!"),
    ],
)
def test_blame_is_a_visible_range(code: str, start: int, length: int, blamed: str) -> None:
    (found,) = locate(code, 10, [report(start, length)])
    assert code[found.start - 10 : found.end - 10] == blamed


ODD = {
    "emoji": 'const a = "😀😀";\nconst b = ;\n',
    "byte order mark": "\ufeffconst b = ;\n",
    "CRLF": "const a = 1;\r\nconst b = ;\r\n",
    "line separator": 'const a = "\u2028";\nconst b = ;\n',
    "lone surrogate": 'const a = "\ud800";\nconst b = ;\n',
    "null byte": 'const a = "\0";\nconst b = ;\n',
}


@pytest.mark.parametrize("name", ODD)
def test_typescript_errors_land_on_the_spot(react: ReactTask, name: str) -> None:
    answer = f"😀 text\n```tsx\n{ODD[name]}```"
    (checked,) = react.check([answer])
    first = min(d.start for d in checked.diagnostics)
    assert first == answer.index(";", answer.index("const b"))


DUPLICATE = {
    "plain": "const a = 1;\nconst a = 2;\n",
    "emoji": 'const s = "😀é"; const a = 1;\nconst t = "😀é"; const a = 2;\n',
    "line separator": "const a = 1;\u2028\nconst a = 2;\n",
    "CRLF": "const a = 1;\r\nconst a = 2;\r\n",
}


@pytest.mark.parametrize("name", DUPLICATE)
def test_esbuild_errors_land_on_the_spot(react: ReactTask, name: str) -> None:
    answer = f"é\n```tsx\n{DUPLICATE[name]}export default () => <p/>;\n```"
    (checked,) = react.check([answer])
    (found,) = checked.diagnostics
    assert found.source == "esbuild"
    assert (found.start, found.end) == (answer.rindex("const a") + 6, answer.rindex("const a") + 7)


def test_await_outside_async_is_an_esbuild_error(react: ReactTask) -> None:
    source = "export default function Pet() { const x = await f(); return <p>{x}</p>; }"
    (checked,) = react.check([source], bare=True)
    assert (checked.syntax, checked.diagnostics[0].source) == (False, "esbuild")
    assert source[checked.diagnostics[0].start :].startswith(("await", "f()", "(", "function"))


def test_cascade_is_weighted_and_capped() -> None:
    diagnostics = [Diagnostic("typescript", "TS1", "m", s, s + 1) for s in (9, 3, 7, 5)]
    assert [(s.start, s.value) for s in error_spans(diagnostics)] == [(3, -1.0), (5, -0.5), (7, -0.25)]


def test_steps_are_the_lines_that_hold_something() -> None:
    code = "let a;\n\n  let b;\r\n \n}"
    steps = line_steps(code, 100)
    assert [code[s - 100 : e - 100] for s, e in steps] == ["let a;", "  let b;\r", "}"]
