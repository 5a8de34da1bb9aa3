"""What counts as a default-exported component whose body returns JSX."""

from __future__ import annotations

import pytest

from tasks.react import ReactTask

COMPONENTS = {
    "function": ("export default function Pet() { return <p>cat</p>; }", "Pet"),
    "anonymous function": ("export default function () { return <p>cat</p>; }", None),
    "anonymous arrow": ("export default () => <p>cat</p>;", None),
    "arrow with block": ("export default (x: {n: number}) => { const y = x.n; return <p>{y}</p>; };", None),
    "exported later": ("const Pet = () => (<p>cat</p>);\nexport default Pet;", "Pet"),
    "exported before": ("export default Pet;\nfunction Pet() { return <p>cat</p>; }", "Pet"),
    "export as default": ("function Pet() { return <p>cat</p>; }\nexport { Pet as default };", "Pet"),
    "export list": ("const Pet = () => <p/>; const n = 1;\nexport { n, Pet as default };", "Pet"),
    "function expression": ("const Pet = function () { return <p/>; };\nexport default Pet;", "Pet"),
    "typed constant": (
        'import type { FC } from "react";\n'
        "const Pet: FC<{n: number}> = ({ n }) => <p>{n}</p>;\nexport default Pet;",
        "Pet",
    ),
    "satisfies": ("const Pet = (() => <p/>) satisfies () => unknown;\nexport default Pet;", "Pet"),
    "memo": (
        'import { memo } from "react";\nfunction Pet() { return <p/>; }\nexport default memo(Pet);',
        "Pet",
    ),
    "React.memo inline": (
        'import React from "react";\nexport default React.memo(function Pet() { return <p/>; });',
        "Pet",
    ),
    "memo of forwardRef": (
        'import { memo, forwardRef } from "react";\n'
        "const Pet = memo(forwardRef<HTMLInputElement>((props, ref) => <input ref={ref} />));\n"
        "export default Pet;",
        "Pet",
    ),
    "class": (
        'import React from "react";\n'
        "export default class Pet extends React.Component { render() { return <p/>; } }",
        "Pet",
    ),
    "class with arrow render": (
        'import { Component } from "react";\n'
        "class Pet extends Component { render = () => <p/>; }\nexport default Pet;",
        "Pet",
    ),
    "class with helper method": (
        'import { Component } from "react";\n'
        "export default class Pet extends Component { "
        "row() { return <li/>; } render() { return this.row(); } }",
        "Pet",
    ),
    "early return of null": (
        "export default function Pet({ on }: any) { if (!on) return null; return <p/>; }",
        "Pet",
    ),
    "early return of JSX": (
        "export default function Pet({ on }: any) { if (on) { return <p/>; } return null; }",
        "Pet",
    ),
    "ternary": ("export default function Pet({ on }: any) { return on ? <p/> : null; }", "Pet"),
    "and": ("export default function Pet({ on }: any) { return on && <p/>; }", "Pet"),
    "or": ("export default function Pet({ on }: any) { return on || <p/>; }", "Pet"),
    "fragment": ("export default function Pet() { return <><p/><p/></>; }", "Pet"),
    "variable": ("export default function Pet() { const tree = <p/>; return tree; }", "Pet"),
    "assigned later": (
        "export default function Pet({ on }: any) { let tree = null; if (on) tree = <p/>; return tree; }",
        "Pet",
    ),
    "switch": (
        "export default function Pet({ k }: any) { "
        "switch (k) { case 1: return <p/>; default: return null; } }",
        "Pet",
    ),
    "try": ("export default function Pet() { try { return <p/>; } catch { return null; } }", "Pet"),
    "list of elements": (
        "export default function Pet({ xs }: any) { return xs.map((x: any) => <li key={x}/>); }",
        "Pet",
    ),
    "useMemo": (
        'import { useMemo } from "react";\nexport default function Pet() { return useMemo(() => <p/>, []); }',
        "Pet",
    ),
    "createElement": (
        'import { createElement } from "react";\n'
        'export default function Pet() { return createElement("p"); }',
        "Pet",
    ),
    "helper function": (
        "export default function Pet() { const row = () => <li/>; return row(); }",
        "Pet",
    ),
    "generic": ("export default function Pet<T,>({ x }: { x: T }) { return <p>{String(x)}</p>; }", "Pet"),
    "overloads with a body": (
        "function Pet(a: number): unknown;\nfunction Pet(a: any) { return <p>{a}</p>; }\nexport default Pet;",
        "Pet",
    ),
    "own higher-order component": (
        "const framed = (C: any) => (p: any) => <div><C {...p} /></div>;\n"
        "const Pet = () => <p/>;\nexport default framed(Pet);",
        "Pet",
    ),
    "nested functions do not hide it": (
        "export default function Pet() { function f() { "
        "return 1; } const g = () => 2; return <p>{f() + g()}</p>; }",
        "Pet",
    ),
}

NO_COMPONENTS = {
    "empty file": "",
    "comment only": "// the component comes here\n/* soon */",
    "overload without a body": "export default function Pet()",
    "overload without a body, with types": "export default function Pet(x: {a: number}): unknown;",
    "number": "export default 42;",
    "string": 'export default "div";',
    "element": "export default <p>cat</p>;",
    "object": "export default { render() { return <p/>; } };",
    "no export": "function Pet() { return <p/>; }",
    "named export only": "export function Pet() { return <p/>; }",
    "bare JSX": "<p>cat</p>",
    "empty body": "export default function Pet() {}",
    "returns nothing": "export default function Pet() { return; }",
    "returns null": "export default function Pet() { return null; }",
    "returns text": 'export default function Pet() { return "cat"; }',
    "JSX thrown away": "export default function Pet() { <p/>; return null; }",
    "JSX only in a nested function": "export default function Pet() { const f = () => <p/>; return null; }",
    "JSX only in a nested function, returned": "export default function Pet() { return () => <p/>; }",
    "JSX only after a plain return": "export default function Pet() { return null; return <p/>; }",
    "JSX only after a throw": 'export default function Pet() { throw new Error("x"); return <p/>; }',
    "unknown name": "export default Pet;",
    "type": "interface Pet { n: number }\nexport default Pet;",
    "class without render": (
        'import { Component } from "react";\nexport default class Pet extends Component {}'
    ),
    "class with abstract render": "export default abstract class Pet { abstract render(): unknown; }",
    "memo of a number": 'import { memo } from "react";\nexport default memo(42);',
    "memo of nothing": 'import { memo } from "react";\nexport default memo();',
    "generator": "export default function* Pet() { return <p/>; }",
    "refers to itself": "const Pet = Pet2; const Pet2 = Pet; export default Pet;",
    "calls itself": "export default function Pet() { return Pet(); }",
    "code fences left in": "```tsx\nexport default function Pet() { return <p/>; }\n```",
    "export in a comment": "// export default Pet\nfunction Pet() { return <p/>; }",
    "default of another thing": "function Pet() { return <p/>; }\nconst n = 1;\nexport { n as default };",
}


def test_components_are_recognised_with_their_names(react: ReactTask) -> None:
    checked = react.check([source for source, _ in COMPONENTS.values()], bare=True)
    found = {
        name: (c.compile, c.static.get("component") and c.static["component"]["name"])
        for name, c in zip(COMPONENTS, checked, strict=True)
    }
    assert found == {name: (True, component) for name, (_, component) in COMPONENTS.items()}


def test_what_is_no_component_does_not_compile(react: ReactTask) -> None:
    checked = react.check(list(NO_COMPONENTS.values()), bare=True)
    assert [name for name, c in zip(NO_COMPONENTS, checked, strict=True) if c.compile] == []


def test_no_component_is_still_clean_syntax_where_it_parses(react: ReactTask) -> None:
    checked = react.check([NO_COMPONENTS["overload without a body"], NO_COMPONENTS["empty file"]], bare=True)
    assert [(c.syntax, c.compile) for c in checked] == [(True, False), (True, False)]
    assert {d.source for c in checked for d in c.diagnostics} == {"component"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('import fs from "fs";', "refused"),
        ('import { readFileSync } from "node:fs";', "refused"),
        ('import "./style.css";', "refused"),
        ('import _ from "lodash";', "refused"),
        ('import type { X } from "./types";', "refused"),
        ('export * from "other";', "refused"),
        ('import fs = require("fs");', "refused"),
        ('const fs = require("fs");', "refused"),
        ('const fs = require("f" + "s");', "computed"),
        ("const fs = require();", "computed"),
        ('const fs = import("react");', "computed"),
        ('const fs = () => import("f" + "s");', "computed"),
        ('type F = typeof import("fs");', "refused"),
    ],
)
def test_imports_off_the_list_are_refused_where_they_stand(react: ReactTask, line: str, code: str) -> None:
    source = f"{line}\nexport default function Pet() {{ return <p>cat</p>; }}\n"
    (checked,) = react.check([source], bare=True)
    assert checked.syntax
    assert not checked.compile
    assert [(d.source, d.code) for d in checked.diagnostics] == [("imports", code)]
    assert checked.diagnostics[0].end <= len(line)


def test_imports_of_react_are_allowed(react: ReactTask) -> None:
    source = (
        'import React, { useState } from "react";\nimport type { FC } from "react";\n'
        'import { createPortal } from "react-dom";\nexport default function Pet() { return <p>cat</p>; }\n'
    )
    assert react.check([source], bare=True)[0].compile
