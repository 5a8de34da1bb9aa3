"""The fence scanner: what it takes, what it refuses, and that its offsets point into the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.react.extract import extract, find_blocks

CODE = "export default function Pet() {\n  return <p>cat</p>;\n}"
OTHER = "export default function Old() {\n  return <p>dog</p>;\n}"
HELPER = "const n = 1;"

FOUND = {
    "tsx": (f"```tsx\n{CODE}\n```", CODE),
    "text around": (f"Here it is:\n\n```tsx\n{CODE}\n```\nEnjoy!", CODE),
    "untagged": (f"```\n{CODE}\n```", CODE),
    "jsx": (f"```jsx\n{CODE}\n```", CODE),
    "upper case": (f"```TSX\n{CODE}\n```", CODE),
    "long tag": (f"```typescript\n{CODE}\n```", CODE),
    "tag with a title": (f'```tsx title="Pet.tsx"\n{CODE}\n```', CODE),
    "tag with line numbers": (f"```tsx {{1,3}}\n{CODE}\n```", CODE),
    "space before the tag": (f"``` tsx\n{CODE}\n```", CODE),
    "tildes": (f"~~~tsx\n{CODE}\n~~~", CODE),
    "four ticks": (f"````tsx\n{CODE}\n````", CODE),
    "four ticks hold three": (f"````tsx\n{CODE}\n```\nx\n```\n````", f"{CODE}\n```\nx\n```"),
    "longer closing fence": (f"```tsx\n{CODE}\n`````", CODE),
    "tildes do not close ticks": (f"```tsx\n{CODE}\n~~~\n```", f"{CODE}\n~~~"),
    "indented fence": (f"  ```tsx\n{CODE}\n  ```", CODE),
    "trailing space on the closing fence": (f"```tsx\n{CODE}\n```  ", CODE),
    "prefers tagged": (f"```\n{OTHER}\n```\n```tsx\n{CODE}\n```\n```\n{OTHER}\n```", CODE),
    "prefers code to shell": (f"```bash\nnpm i\n```\n```tsx\n{CODE}\n```", CODE),
    "untagged beside shell": (f"```bash\nnpm i\n```\n```\n{CODE}\n```", CODE),
    "last with a default export": (
        f"```tsx\n{OTHER}\n```\nBetter:\n```tsx\n{CODE}\n```\n```tsx\n{HELPER}\n```",
        CODE,
    ),
    "last when none exports": (f"```tsx\nlet a;\n```\n```tsx\n{HELPER}\n```", HELPER),
    "after thinking": (f"<think>```tsx\n{OTHER}\n```</think>\n```tsx\n{CODE}\n```", CODE),
    "after the last closing think tag": (
        f"<think>a</think> b <think>```\nx\n```</think>```tsx\n{CODE}\n```",
        CODE,
    ),
    "closing think tag alone": (f"let me see </think>\n```tsx\n{CODE}\n```", CODE),
    "CRLF": ("```tsx\r\nlet a;\r\nlet b;\r\n```\r\n", "let a;\r\nlet b;\r"),
    "blank edges kept": ("```tsx\n\n  let a;  \n\n```", "\n  let a;  \n"),
    "inline ticks are no fence": (f"Use ```tsx``` here\n```tsx\n{CODE}\n```", CODE),
    "ticks within a line stay code": ("```tsx\nconst s = `a```b`;\n```", "const s = `a```b`;"),
    "empty block": ("```tsx\n```", ""),
    "line separator is no line end": ("```tsx\nlet a = '\u2028```';\n```", "let a = '\u2028```';"),
}

NONE = {
    "nothing": "",
    "prose": "Sure! Here is a card.",
    "bare code": CODE,
    "open thinking": f"<think>\n```tsx\n{CODE}\n```",
    "reopened thinking": f"<think>a</think> <think>\n```tsx\n{CODE}\n```",
    "only shell": "```bash\nnpm i\n```",
    "code on the fence line": f"```tsx {CODE}\n```",
    "code on an untagged fence line": f"```{CODE}\n```",
    "four spaces": f"    ```tsx\n    {HELPER}\n    ```",
    "two ticks": f"``tsx\n{CODE}\n``",
}


@pytest.mark.parametrize("name", FOUND)
def test_the_right_block_is_found_exactly(name: str) -> None:
    answer, code = FOUND[name]
    found = extract(answer)
    assert found.code == code
    assert answer[found.start : found.end] == code
    assert found.closed


@pytest.mark.parametrize("name", NONE)
def test_no_code_is_found_and_the_reason_given(name: str) -> None:
    found = extract(NONE[name])
    assert found.code is None
    assert found.reason


@pytest.mark.parametrize("tail", ["", "\n", "\n  return <p>", "\n``"])
def test_an_unclosed_fence_keeps_everything_and_is_flagged(tail: str) -> None:
    answer = f"```tsx\nfunction Pet() {{{tail}"
    found = extract(answer)
    assert (found.code, found.start, found.end, found.closed) == (answer[7:], 7, len(answer), False)


def test_a_fence_at_the_very_end_is_an_empty_unclosed_block() -> None:
    assert extract("```tsx") == extract("```tsx").__class__("", 6, 6, False)


LINES = st.sampled_from(
    ["```tsx", "```", "~~~", "````", "let a;", "", "<think>", "</think>", "x```", "\r", "é😀\u2028"]
)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_offsets_always_point_at_the_code(answer: str) -> None:
    found = extract(answer)
    if found.code is not None:
        assert answer[found.start : found.end] == found.code
    previous = 0
    for block in find_blocks(answer):
        assert previous <= block.start <= block.end <= len(answer)
        previous = block.end


@given(st.text())
def test_any_text_is_handled(answer: str) -> None:
    found = extract(answer)
    assert (found.code is None) == bool(found.reason)


def test_a_million_fences_take_little_time() -> None:
    assert extract("```\n" * 250_000).code is not None
