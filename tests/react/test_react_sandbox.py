"""Attacks on the renderer: none gets out, forges a result, touches a neighbour, or hangs."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.react import ReactTask
from tasks.react.install import NodeError, find_node, node_version
from tasks.react.sandbox import LIMITS, MAX_SAMPLES, RenderWorker, weaknesses

GOOD = 'import { useState } from "react";\nexport default function Pet() { const [n] = useState(7); return <p>cat {n}</p>; }'
HELD = {"ok", "threw", "timeout", "no_export", "died", "hung"}


def attack(body: str, *, top: str = "") -> str:
    """A component that shows ESCAPED when `body` returns something true, and `held` otherwise."""
    return (
        f"declare const process: any, globalThis: any, require: any;\n{top}\n"
        f"function attack(): any {{ {body} }}\n"
        "export default function A() { const found = attack(); "
        'return <p>{found ? "ESCAPED " + String(found) : "held"}</p>; }'
    )


ESCAPES = {
    "function constructor": attack('return (attack as any).constructor("return process")();'),
    "constructor of this": attack('return (globalThis as any).constructor.constructor("return process")();'),
    "arrow constructor": attack('return ((() => 1) as any).constructor("return globalThis.process")();'),
    "async constructor": attack('return (async () => 1).constructor("return process")();'),
    "generator constructor": attack('return (function* () {}).constructor("return process")().next().value;'),
    "constructor of props": attack('return ({} as any).constructor.constructor("return this")().process;'),
    "eval": attack('return (0, eval)("typeof process !== \\"undefined\\" && process");'),
    "process": attack('return typeof process !== "undefined" && process.version;'),
    "process exit": attack("process.exit(0); return true;"),
    "global process": attack("return (globalThis as any).process || (globalThis as any).global;"),
    "require fs": attack('return require("fs").readFileSync("/etc/passwd", "utf8");'),
    "require node:fs": attack('return require("node:fs").readFileSync("/etc/passwd", "utf8");'),
    "require child_process": attack('return require("child_process").execSync("id").toString();'),
    "require by path": attack('return require("../../../../etc/passwd");'),
    "require __proto__": attack('return require("__proto__") || require("constructor");'),
    "require with a changing name": attack(
        'let n = 0; return require({ toString: () => (n++ ? "fs" : "react") }).readFileSync;'
    ),
    "module paths": attack(
        "return (module as any).require || (module as any).paths;", top="declare const module: any;"
    ),
    "caller": attack("return (attack as any).caller || (arguments as any).callee.caller;"),
    "dynamic import": attack(
        "return false;", top='import("fs").then((fs) => fs.readFileSync("/etc/passwd"));'
    ),
    "dynamic import error": attack(
        "return leaked && leaked.constructor.constructor('return process')();",
        top="let leaked: any; try { (import('x') as any).catch((e: any) => { leaked = e; }); } catch (e) { leaked = e; }",
    ),
    "call sites": attack(
        "let got: any; (Error as any).prepareStackTrace = (_: any, sites: any) => { got = sites; return ''; };"
        " String(new Error('x').stack); return got && got.some((s: any) => s.getThis() || s.getFunction());"
    ),
    "call sites redefined": attack(
        "let got: any; Object.defineProperty(Error, 'prepareStackTrace', { value: (_: any, s: any) => { got = s; } });"
        " String(new Error('x').stack); return got;"
    ),
    "capture stack trace": attack("const o: any = {}; (Error as any).captureStackTrace(o); return o.stack;"),
    "deep stack error": attack(
        "const dig = (): any => { try { return dig(); } catch (e: any) { return e; } };"
        " return dig().constructor.constructor('return process')();"
    ),
    "fetch": attack('return typeof fetch !== "undefined" && fetch("http://127.0.0.1:1");'),
    "sockets": attack('return typeof WebSocket !== "undefined" || typeof XMLHttpRequest !== "undefined";'),
    "timers": attack('return typeof setTimeout !== "undefined" || typeof queueMicrotask !== "undefined";'),
    "shared memory": attack(
        'return typeof SharedArrayBuffer !== "undefined" || typeof Atomics !== "undefined";'
    ),
    "web assembly": attack('return typeof WebAssembly !== "undefined" && WebAssembly;'),
    "typed arrays": attack('return typeof Uint8Array !== "undefined" || typeof ArrayBuffer !== "undefined";'),
    "buffer": attack(
        'return typeof (globalThis as any).Buffer !== "undefined" && Buffer;',
        top="declare const Buffer: any;",
    ),
    "worker": attack('return typeof Worker !== "undefined" && Worker;'),
    "renderer of the host": attack(
        "return (__creditbench as any).constructor('return process')();",
        top="declare const __creditbench: any;",
    ),
}

FORGERIES = {
    "line on stdout": attack(
        'console.log("\\n{\\"id\\":1,\\"results\\":[{\\"status\\":\\"ok\\"}]}"); return false;'
    ),
    "JSON.stringify": attack(
        "return false;",
        top='JSON.stringify = () => "{\\"forged\\":true}"; JSON.parse = () => ({ forged: 1 });',
    ),
    "toJSON": attack(
        "return false;",
        top="(Object.prototype as any).toJSON = () => ({ status: 'ok', blank: false, text: 'forged' });",
    ),
    "string methods": attack(
        "return false;",
        top="const s: any = String.prototype; for (const k of ['slice', 'indexOf', 'replace']) s[k] = () => 'forged';",
    ),
    "array methods": attack(
        "return false;", top="Array.prototype.map = Array.prototype.join = (() => 'forged') as any;"
    ),
    "has own": attack(
        "return false;", top="Object.prototype.hasOwnProperty = Reflect.apply = (() => true) as any;"
    ),
    "react": attack(
        "return false;", top='import React from "react"; (React as any).createElement = () => "forged";'
    ),
    "renderer called again": attack(
        "return false;",
        top="declare const __creditbench: any; __creditbench((e: any) => { e.default = () => 'forged'; }, '{}');",
    ),
    "renderer replaced": attack(
        "return false;", top="(globalThis as any).__creditbench = () => 'ok:forged';"
    ),
    "proxy as component": "export default new Proxy(function () { return 'forged' as any; }, { get: () => 'forged' });",
    "markup in text": 'export default function A() { return <p>{\'</p>","blank":false,"status":"ok"\'}</p>; }',
    "error instance check": attack(
        "throw { message: 'ok:<p>forged</p>' };",
        top="Object.defineProperty(Error, Symbol.hasInstance, { value: () => true });",
    ),
}

HANGS = {
    "loop": attack("while (true) {} "),
    "loop at the top": "while (true) {}\nexport default () => <p/>;",
    "recursion": attack("return attack();"),
    "endless component": "export default function A(): any { return <A />; }",
    "endless children": attack(
        "return Array.from({ [Symbol.iterator]: function* () { while (true) yield 1; } } as any);"
    ),
    "endless iterable child": (
        "const all = { [Symbol.iterator]: function* () { while (true) yield 'x'; } };\n"
        "export default function A() { return <p>{all as any}</p>; }"
    ),
    "regular expression": attack('return /^(a+)+$/.test("a".repeat(40) + "b");'),
    "microtasks": attack("const go = (): any => Promise.resolve().then(go); go(); return false;"),
    "async loop": attack("(async () => { while (true) await null; })(); return false;"),
    "getter of the message": attack("throw { get message() { while (true) {} } };"),
    "getter of an error": attack(
        "const e = new Error('x'); Object.defineProperty(e, 'message', { get() { while (true) {} } }); throw e;"
    ),
    "proxy thrown": attack(
        "throw new Proxy({}, { get() { while (true) {} }, getPrototypeOf() { while (true) {} } });"
    ),
    "getter of the export": "module.exports = { get default() { while (true) {} } };\ndeclare const module: any;",
    "proxy of the exports": (
        "declare const module: any;\n"
        "module.exports = new Proxy({}, { getOwnPropertyDescriptor() { while (true) {} }, get() { while (true) {} } });"
    ),
    "endless toString": attack("return { toString() { while (true) {} } };"),
    "sorting": attack("return [3, 2, 1].sort(() => { while (true) {} });"),
    "big integer": attack("let x = 3n; while (true) x = x * x;"),
}

BOMBS = {
    "array": attack("const a: any[] = []; while (true) a.push(new Array(1e6).fill(1)); "),
    "array length": attack("return new Array(2 ** 32 - 1).fill(0).length;"),
    "array join": attack('return new Array(2 ** 28).join("xxxx").length;'),
    "string": attack('let s = "x"; while (true) s += s;'),
    "string repeat": attack('return "x".repeat(2 ** 29 - 24).split("").length;'),
    "objects": attack("const a: any[] = []; while (true) a.push({ a: [{}] });"),
    "map": attack("const m = new Map(); let i = 0; while (true) m.set(i++, {});"),
    "closures": attack("let f: any = () => 1; while (true) { const g = f; f = () => g; }"),
    "symbols": attack("let i = 0; while (true) Symbol.for('s' + i++);"),
    "huge markup": "export default function A() { return <p>{'x'.repeat(5e6)}</p>; }",
    "many elements": "const xs = Array.from({ length: 1e6 }, (_, i) => <b key={i}>x</b>);\nexport default () => <p>{xs}</p>;",
    "deep elements": (
        "export default function A() { let e: any = <b/>; for (let i = 0; i < 1e5; i++) e = <b>{e}</b>; return e; }"
    ),
}

ODD = {
    "throws null": attack("throw null;"),
    "throws undefined": attack("throw undefined;"),
    "throws a symbol": attack("throw Symbol('x');"),
    "throws a function": attack("throw attack;"),
    "returns a symbol": "export default function A(): any { return Symbol('x'); }",
    "returns a promise": "export default async function A() { return <p>x</p>; }",
    "returns an object": "export default function A(): any { return { a: 1 }; }",
    "debugger": attack("debugger; return false;"),
    "freezes everything": attack(
        "return false;", top="Object.freeze(globalThis); Object.freeze(Object.prototype);"
    ),
}

POISONS = {
    "object prototype": "(Object.prototype as any).status = 'forged'; (Object.prototype as any).children = 'forged';",
    "array prototype": "(Array.prototype as any)[0] = 'forged'; Array.prototype.push = () => 0;",
    "react internals": 'import * as r from "react"; for (const k of Object.keys(r)) try { (r as any)[k] = null; } catch {}',
    "jsx runtime": 'import * as r from "react/jsx-runtime"; (r as any).jsx = () => "forged";',
    "global names": "(globalThis as any).useState = (globalThis as any).Pet = 'forged';",
    "string prototype": "String.prototype.replace = () => 'forged';",
    "promise": "Promise.prototype.then = () => 'forged' as any;",
    "date and random": "Math.random = () => 0.5; Date.now = () => 0;",
}


def nodes() -> list:
    """The Node of the project and, where there is one of another version, the Node on PATH."""
    version = node_version()
    found = [pytest.param(str(find_node()), id=version)]
    other = shutil.which("node")
    try:
        if other and node_version(other) != version:
            found.append(pytest.param(other, id=node_version(other), marks=pytest.mark.slow))
    except NodeError:
        return found
    return found


@pytest.fixture(scope="module", params=nodes())
def renderer(request: pytest.FixtureRequest) -> Iterator[RenderWorker]:
    worker = RenderWorker(request.param)
    yield worker
    worker.close()


def compiled(react: ReactTask, *sources: str) -> list[dict]:
    results = react.checks.checker.run(list(sources), {"imports": [], "facts": False, "js": True})
    assert all(r["js"] is not None for r in results), [r["diagnostics"] for r in results]
    return [{"js": r["js"], "props": {}} for r in results]


def run(react: ReactTask, renderer: RenderWorker, source: str) -> dict:
    """The verdict on a hostile component, after checking that both neighbours kept theirs in bounded time."""
    before, item, after = compiled(react, GOOD, source, GOOD)
    began = time.monotonic()
    first, verdict, last = renderer.render([before, item, after])
    assert (first["status"], first["text"]) == (last["status"], last["text"]) == ("ok", "cat 7")
    assert time.monotonic() - began < 60
    assert verdict["status"] in HELD
    return verdict


@pytest.mark.parametrize("name", ESCAPES)
def test_no_escape(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    verdict = run(react, renderer, ESCAPES[name])
    assert verdict["status"] in {"ok", "threw"}
    assert "ESCAPED" not in verdict.get("text", "")


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forged_result(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    verdict = run(react, renderer, FORGERIES[name])
    assert set(verdict) <= {"status", "message", "blank", "text", "tags", "roles"}
    if verdict["status"] == "ok":
        assert verdict["blank"] == (not verdict["text"])
    if name == "markup in text":
        assert verdict["text"] == '</p>","blank":false,"status":"ok"'
    if name == "error instance check":
        assert verdict["status"] == "threw"


@pytest.mark.parametrize("name", HANGS)
def test_no_hang(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    verdict = run(react, renderer, HANGS[name])
    assert verdict["blank"] or verdict["text"] == "held"
    assert renderer.restarts == 0 or verdict["status"] != "ok"


@pytest.mark.parametrize("name", BOMBS)
def test_no_flood(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    verdict = run(react, renderer, BOMBS[name])
    assert verdict["status"] in {"threw", "timeout", "died", "hung"}


@pytest.mark.parametrize("name", ODD)
def test_odd_endings_are_verdicts(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    verdict = run(react, renderer, ODD[name])
    assert verdict["status"] in {"ok", "threw"}


@pytest.mark.parametrize("name", POISONS)
def test_nothing_reaches_the_next_component(react: ReactTask, renderer: RenderWorker, name: str) -> None:
    run(react, renderer, f"{POISONS[name]}\nexport default function A() {{ return <p>done</p>; }}")


def test_a_dynamic_import_that_is_left_is_refused(renderer: RenderWorker) -> None:
    js = "exports.default = () => { import ('fs'); return 'x'; }"
    assert renderer.render([{"js": js, "props": {}}]) == [
        {"status": "threw", "message": "a dynamic import", "blank": True}
    ]


def test_what_is_no_script_is_a_verdict(renderer: RenderWorker) -> None:
    results = renderer.render(
        [{"js": js, "props": {}} for js in ("}", "}); process.exit(); (function(){", "")]
    )
    assert [r["status"] for r in results] == ["threw", "threw", "no_export"]


def test_the_process_is_limited_and_sees_no_environment(react: ReactTask, renderer: RenderWorker) -> None:
    renderer.render(compiled(react, GOOD))
    pid = renderer._process.process.pid
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert re.search(rf"Max data size\s+{2**30}\s+{2**30}", limits)
    assert re.search(r"Max file size\s+0\s+0", limits)
    assert re.search(r"Max open files\s+64\s+64", limits)
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert {item.split(b"=")[0] for item in environment if item} <= {b"PATH", b"NO_COLOR"}
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"permission" in command
    assert os.getsid(pid) == pid
    assert len(LIMITS) == 4


def test_the_process_has_no_network_where_namespaces_are_allowed(
    react: ReactTask, renderer: RenderWorker
) -> None:
    renderer.render(compiled(react, GOOD))
    own, theirs = (
        os.readlink("/proc/self/ns/net"),
        os.readlink(f"/proc/{renderer._process.process.pid}/ns/net"),
    )
    shared = any("network" in line for line in weaknesses())
    assert (own == theirs) == shared


def test_the_process_is_replaced_when_it_has_served_long(
    react: ReactTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.react.sandbox.MAX_SAMPLES", 3)
    worker = RenderWorker()
    (item,) = compiled(react, GOOD)
    worker.render([item])
    first = worker._process
    worker.render([item, item])
    assert worker._process is None
    assert worker.render([item])[0]["text"] == "cat 7"
    assert worker._process is not first
    assert worker.restarts == 0
    worker.close()
    assert MAX_SAMPLES == 1000


def test_the_process_is_replaced_when_it_has_grown(react: ReactTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.react.sandbox.MAX_RESIDENT_BYTES", 1)
    worker = RenderWorker()
    worker.render(compiled(react, GOOD))
    assert worker._process is None
    worker.close()
