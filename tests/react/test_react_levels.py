"""Levels beyond the static ones: what is seen, invented props, types, rubric items, options of the task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.base import Answer, Example
from tasks.react import ReactOptions, ReactTask
from tasks.react.checks import uses_props

CASES = Path(__file__).parents[2] / "../shared/cases/react_cases.json"

SEEN = {
    "text": "<p>cat</p>",
    "number zero": "<p>{0}</p>",
    "image": '<img src="/a.png" />',
    "svg shape": '<svg width="9" height="9"><path d="M0 0h9" /></svg>',
    "input": "<input />",
    "select": "<select><option>a</option></select>",
    "rule": "<div><hr /></div>",
    "coloured box": '<div style={{ height: 20, backgroundColor: "red" }} />',
    "bordered box": '<div style={{ border: "1px solid black" }} />',
    "text beside a hidden part": "<div><p hidden>a</p>cat</div>",
    "text after a nested hidden part of the same tag": "<div><div hidden><div>a</div></div>cat</div>",
    "open dialog": "<dialog open>cat</dialog>",
    "summary of closed details": "<details><summary>cat</summary>dog</details>",
    "raw markup": '<div dangerouslySetInnerHTML={{ __html: "<b>cat</b>" }} />',
    "raw markup left open": '<div dangerouslySetInnerHTML={{ __html: "<b>cat" }} />',
    "less-than in text": '<p>{"<"}</p>',
    "one hidden size is not all": "<div style={{ width: 0 }}>cat</div>",
}
BLANK = {
    "nothing": "null",
    "fragment": "<></>",
    "empty elements": "<div><div /><span /></div>",
    "white space": '<p>{"  \\n\\t "}</p>',
    "no-break spaces": '<p>{"\\u00a0\\u00a0"}</p>',
    "entities": "<p>&nbsp;&#160;&#8203;</p>",
    "zero-width characters": '<p>{"\\u200b\\u200d\\ufeff\\u2060\\u00ad"}</p>',
    "braille blank": '<p>{"\\u2800\\u3164"}</p>',
    "direction marks": '<p>{"\\u202e\\u2066"}</p>',
    "commented out": "<div>{/* <h1>cat</h1> */}</div>",
    "dead branch": "<div>{false && <h1>cat</h1>}</div>",
    "hidden attribute": "<div hidden><h1>cat</h1></div>",
    "display none": '<div style={{ display: "none" }}><h1>cat</h1></div>',
    "display none with importance": '<div style={{ display: "none !important" }}><h1>cat</h1></div>',
    "visibility hidden": '<div style={{ visibility: "hidden" }}>cat</div>',
    "transparent": "<div style={{ opacity: 0 }}>cat</div>",
    "no size": '<div style={{ overflow: "hidden", height: 0 }}>cat</div>',
    "tiny font": "<p style={{ fontSize: 0 }}>cat</p>",
    "deep within hidden": "<div hidden><div><div><div>cat</div></div></div></div>",
    "hidden input": '<input type="hidden" value="cat" />',
    "script": '<script>{"cat"}</script>',
    "style": "<style>{`p { color: red }`}</style>",
    "template": "<template><p>cat</p></template>",
    "noscript": "<noscript>cat</noscript>",
    "title": "<title>cat</title>",
    "closed dialog": "<dialog>cat</dialog>",
    "image without a source": "<img />",
    "image without size": '<img src="/a.png" width={0} height={0} />',
    "empty svg": '<svg width="9" height="9" />',
    "white box": '<div style={{ height: 20, background: "white" }} />',
    "attributes only": '<div title="cat" data-x="cat" aria-label="cat" />',
    "comment in raw markup": '<div dangerouslySetInnerHTML={{ __html: "<!-- cat -->" }} />',
    "unfinished comment in raw markup": '<div dangerouslySetInnerHTML={{ __html: "<!-- cat" }} />',
    "hidden in raw markup": '<div dangerouslySetInnerHTML={{ __html: "<p hidden>cat</p>" }} />',
    "quoted attribute in raw markup": "<div dangerouslySetInnerHTML={{ __html: \"<p title='>cat' hidden></p>\" }} />",
}


def component(jsx: str) -> str:
    return f"export default function A(): any {{ return {jsx}; }}"


def test_what_can_be_seen_is_not_blank(react: ReactTask) -> None:
    checked = react.check([component(jsx) for jsx in SEEN.values()], bare=True, levels=["non_blank"])
    assert {n: (c.renders, c.blank) for n, c in zip(SEEN, checked, strict=True)} == dict.fromkeys(
        SEEN, (True, False)
    )


def test_what_cannot_be_seen_is_blank(react: ReactTask) -> None:
    checked = react.check([component(jsx) for jsx in BLANK.values()], bare=True, levels=["non_blank"])
    assert {n: (c.renders, c.blank) for n, c in zip(BLANK, checked, strict=True)} == dict.fromkeys(
        BLANK, (True, True)
    )


def test_hostile_markup_is_read_in_bounded_time(react: ReactTask) -> None:
    parts = ["<!--", "<p", "<p a=", '<p a="', "</", "<", "<b>", "&", "&#x", "<![CDATA[", "<p style='", "</b>"]
    sources = [
        component(f"<div dangerouslySetInnerHTML={{{{ __html: {json.dumps(part)}.repeat(15000) }}}} />")
        for part in parts
    ]
    checked = react.check(sources, bare=True, levels=["non_blank"])
    assert [c.renders for c in checked] == [True] * len(parts)
    assert react.checks.renderer.restarts == 0


PROPS = {
    "interface": (
        "interface P { a: string; n: number; ok: boolean; o?: string }\n"
        "export default function A(p: P) { return <p>{p.a}</p>; }",
        {"a": "Sample a", "n": 3, "ok": True},
    ),
    "alias, inheritance and intersection": (
        "interface R { c: boolean } interface Q extends R { b: number } type P = { a: string } & Q;\n"
        "const A = ({ a }: P) => <p>{a}</p>;\nexport default A;",
        {"a": "Sample a", "b": 3, "c": True},
    ),
    "lists, objects, literals, unions": (
        "type P = { xs: string[]; u: { name: string }; k: 'x' | 'y'; s: string | null; t: [number, string] };\n"
        "export default ({ xs }: P) => <p>{xs}</p>;",
        {
            "xs": ["Sample xs 1", "Sample xs 2"],
            "u": {"name": "Sample name"},
            "k": "x",
            "s": "Sample s",
            "t": [3, "Sample t"],
        },
    ),
    "functions and nodes": (
        'import type { ReactNode } from "react";\n'
        "export default (p: { f: () => void; children: ReactNode; m(): void }) => <p>{p.children}</p>;",
        {"f": {"$function": True}, "children": "Sample children", "m": {"$function": True}},
    ),
    "enum": ("enum K { X = 'x' }\nexport default (p: { k: K }) => <p>{p.k}</p>;", {"k": "x"}),
    "defaults are left alone": (
        "export default ({ a = 1, b }: { a: number; b: string }) => <p>{a}{b}</p>;",
        {"b": "Sample b"},
    ),
    "typed constant": (
        'import type { FC } from "react";\nconst A: FC<{ a: string }> = ({ a }) => <p>{a}</p>;\nexport default A;',
        {"a": "Sample a"},
    ),
    "memo": (
        'import { memo } from "react";\nfunction A({ a }: { a: string }) { return <p>{a}</p>; }\nexport default memo(A);',
        {"a": "Sample a"},
    ),
    "forwardRef": (
        'import { forwardRef } from "react";\n'
        "export default forwardRef<HTMLElement, { a: string }>((p, r) => <p>{p.a}</p>);",
        {"a": "Sample a"},
    ),
    "class": (
        'import { Component } from "react";\n'
        "export default class A extends Component<{ a: string }> { render() { return <p>{this.props.a}</p>; } }",
        {"a": "Sample a"},
    ),
    "by use": (
        "export default function A({ t, f, xs }) { return <p onClick={() => f()}>{t}{xs.map((x) => <b>{x.id}</b>)}</p>; }",
        {"t": "Sample t", "f": {"$function": True}, "xs": [{"id": "Sample id"}, {"id": "Sample id"}]},
    ),
    "by use of the whole": (
        "export default function A(props) { return <p>{props.user.name}</p>; }",
        {"user": {"name": "Sample name"}},
    ),
    "any promises nothing": ("export default (p: any) => <p>{p.a}</p>;", {}),
    "none": ("export default () => <p>cat</p>;", {}),
    "recursive type": (
        "interface N { v: string; kids: N[] }\nexport default (p: { n: N }) => <p>{p.n.v}</p>;",
        None,
    ),
}


def test_props_are_invented_from_what_is_declared(react: ReactTask) -> None:
    checked = react.check([source for source, _ in PROPS.values()], bare=True, levels=["renders"])
    for (name, (_, props)), result in zip(PROPS.items(), checked, strict=True):
        if props is not None:
            assert result.rendered["props"] == props, name
        assert result.renders, (name, result.rendered)


def test_given_props_replace_invented_ones(react: ReactTask) -> None:
    source = "export default ({ a }: { a: string }) => <p>{a}</p>;"
    (checked,) = react.check([source], bare=True, levels=["renders"], props=[{"a": "dog"}])
    assert checked.rendered["text"] == "dog"


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("export default (p: { a: string }) => <p>{p.a}</p>;", True),
        ("export default (p: { a: string }) => <p title={p.a}>x</p>;", True),
        ("export default (_: { a: string }) => <p>x</p>;", False),
        ("export default () => <p>x</p>;", None),
        ("export default (_: { n: number }) => <p>x</p>;", None),
    ],
)
def test_use_of_props_is_seen(react: ReactTask, source: str, used: bool | None) -> None:
    (checked,) = react.check([source], bare=True, levels=["task"])
    assert uses_props(checked) is used


TYPED = {
    "right": ("const n: number = 1; export default () => <p>{n}</p>;", True),
    "wrong": ('const n: number = "x"; export default () => <p>{n}</p>;', False),
    "unknown name": ("export default () => <p>{nope}</p>;", False),
    "unknown attribute": ('export default () => <p class="x">a</p>;', False),
    "implicit any": ("export default ({ a }) => <p>{a}</p>;", False),
    "nocheck": ("// @ts-nocheck\nexport default () => <p>{nope}</p>;", False),
    "ignore": ("export default () => {\n  // @ts-ignore\n  return <p>{nope}</p>;\n};", False),
    "ignore in JSX": ("export default () => <p>\n{/* @ts-ignore */}\n{nope}</p>;", False),
    "expect error": ("// @ts-expect-error\nconst n: number = 'x'; export default () => <p>{n}</p>;", False),
    "declare": ("declare const nope: any; export default () => <p>{nope}</p>;", False),
    "declare in a namespace": (
        "namespace N { export declare const a: any; } export default () => <p>{N.a}</p>;",
        False,
    ),
    "reference": ('/// <reference types="node" />\nexport default () => <p>x</p>;', False),
    "global declaration": (
        "declare global { interface Window { a: number } }\nexport default () => <p>{window.a}</p>;",
        False,
    ),
    "not helped by a neighbour": ("export default () => <p>{window.a}</p>;", False),
    "module declaration": (
        'declare module "react" { export function useX(): number; }\nexport default () => <p/>;',
        False,
    ),
    "not helped by another": ('import { useX } from "react"; export default () => <p>{useX()}</p>;', False),
    "import of a neighbour": ('import x from "./0"; export default () => <p>{String(x)}</p>;', False),
    "same names as a neighbour": ('const n = "x"; export default () => <p>{n}</p>;', True),
    "text that speaks of directives": ('export default () => <p>{"// @ts-ignore"}</p>;', True),
    "syntax error": ("export default () => <p>;", False),
}


def test_types_are_checked_and_never_switched_off(react: ReactTask) -> None:
    checked = react.check([source for source, _ in TYPED.values()], bare=True, levels=["types"])
    assert {n: c.types for n, c in zip(TYPED, checked, strict=True)} == {
        n: ok for n, (_, ok) in TYPED.items()
    }
    wrong = checked[list(TYPED).index("wrong")]
    assert [(d.source, d.code, d.start) for d in wrong.diagnostics] == [("types", "TS2322", 6)]


def test_recorded_types_and_rendering(react: ReactTask) -> None:
    if not CASES.is_file():
        pytest.skip("the recorded cases are not beside this checkout")
    cases = json.loads(CASES.read_text("utf-8"))
    sources, props = [c["source"] for c in cases], [c["props"] for c in cases]
    checked = react.check(sources, bare=True, levels=["types", "non_blank"], props=props)
    for case, result in zip(cases, checked, strict=True):
        assert (result.renders, result.blank) == (case["renders"], case["blank"]), case["name"]
        # the record is what the tool said; a file that switches the tool off is refused here, as its note asks
        types = case["types_ok"] and "@ts-nocheck" not in case["source"]
        assert result.types == types, case["name"]
        if case["uses_props"] is not None:
            assert uses_props(result) == case["uses_props"], case["name"]


def problem(*features: str) -> Example:
    return Example("x", "", {"name": "Pet", "features": features})


def scored(task: ReactTask, jsx: str, *features: str, args: str = "", name: str = "Pet"):
    text = f"```tsx\nexport default function {name}({args}): any {{ return {jsx}; }}\n```"
    return task.score([problem(*features)], [Answer(text)])[0], text


@pytest.fixture(scope="module")
def content(react: ReactTask) -> ReactTask:
    """The task with an outcome that asks for content; it shares the processes of the plain one."""
    task = ReactTask(outcome_level="task", levels=("types",))
    task.checks = react.checks
    return task


def test_content_decides_when_asked_to(content: ReactTask) -> None:
    assert scored(content, "<div><h1>a</h1><p>b</p></div>", "heading", "text")[0].outcome == 1.0
    assert scored(content, "<div><h1>a</h1></div>", "heading", "text")[0].outcome == 0.0
    assert scored(content, "<div>{false && <p>b</p>}<h1>a</h1></div>", "heading", "text")[0].outcome == 0.0
    assert scored(content, "<h1>a</h1>", "heading", name="Dog")[0].outcome == 0.0
    assert scored(content, "<h1>a</h1>", "heading", args="_: { a: string }")[0].outcome == 0.0
    assert scored(content, "<h1>{p.a}</h1>", "heading", args="p: { a: string }")[0].outcome == 1.0


def test_static_outcome_is_blind_to_content(react: ReactTask) -> None:
    assert scored(react, "<></>", "heading")[0].outcome == 1.0


def test_metrics_of_all_levels(content: ReactTask) -> None:
    score, _ = scored(content, "<div>{false && <p>b</p>}<h1>a</h1></div>", "heading", "text")
    wanted = {"compile": 1.0, "types": 1.0, "renders": 1.0, "non_blank": 1.0, "task": 0.0, "features": 0.5}
    assert {k: score.metrics[k] for k in wanted} == wanted
    assert score.metrics["on_task"] == 1.0


def test_rubric_items_are_located(content: ReactTask) -> None:
    score, text = scored(content, "<div><h1>a</h1><h1>b</h1></div>", "heading", "list")
    (found,) = [s for s in score.spans if s.source == "rubric" and s.value > 0]
    assert text[found.start : found.end] == "<h1>"
    assert found.start == text.index("<h1>")
    (missing,) = [d for d in score.diagnostics if d.source == "rubric"]
    assert missing.code == "list"


def test_evidence_combines_and_filler_does_not_pay(content: ReactTask) -> None:
    recipe = content.recipes["evidence"]

    def total(jsx: str) -> float:
        score, text = scored(content, jsx, "heading", "list")
        return sum(max(0.0, s.value) * (s.end - s.start) for s in recipe(Answer(text), score).spans)

    assert total("<div><h1>a</h1></div>") > 0.0
    assert total("<div><h1>a</h1></div>") == total(f"<div>{'<h1>a</h1>' * 30}</div>")
    broken, text = scored(content, "<div><h1>a</h1>", "heading")
    assert recipe(Answer(text), broken) == content.recipes["first_error_to_end"](Answer(text), broken)


def test_blank_pages_are_blamed_on_the_component(content: ReactTask) -> None:
    score, text = scored(content, "<></>", "heading")
    (blank,) = [d for d in score.diagnostics if d.source == "render"]
    assert (blank.code, text[blank.start : blank.start + 14]) == ("blank", "export default")
    local = content.recipes["first_error_to_end"](Answer(text), score)
    assert local.end_token == 0.0
    assert min(s.value for s in local.spans) == -1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome_level": "pretty"},
        {"levels": ("pretty",)},
        {"noise": {"amplitude": -1.0}},
        {"noise": {"delay": -1}},
    ],
)
def test_wrong_options_are_one_clear_line(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"use .*|0 or more") as caught:
        ReactTask(ReactOptions(**wrong))
    assert "\n" not in str(caught.value)
