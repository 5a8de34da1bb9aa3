"""The levels of checking, from a fenced block to the visible content of the rendered component.

`extract` one usable fence; `syntax` parsed by TypeScript and transformed by esbuild; `compile` that, allowed
imports and a default-exported component with a body that returns JSX; `types` by the TypeScript checker;
`lint` without a finding of ESLint with its React rules; `renders` to static markup in the sandbox;
`non_blank` with something to see; `task` with the requested name, features and given props in what is seen;
`pixels` with more than an empty page in a Chromium (evaluation only: it is slow).
Static levels are always checked, the others when asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.base import Diagnostic
from tasks.react.browser import Picture, Screenshots, picture_facts
from tasks.react.extract import Extraction
from tasks.react.install import LINT_FOLDER, NODE_FOLDER, ensure_node_modules, find_node
from tasks.react.sandbox import RenderWorker
from tasks.react.spans import locate
from tasks.react.worker import NodeWorker

LEVELS = ("extract", "syntax", "compile", "types", "lint", "renders", "non_blank", "task", "pixels")
RENDERED = frozenset({"renders", "non_blank", "task"})
ALLOWED_IMPORTS = ("react", "react/jsx-runtime", "react/jsx-dev-runtime", "react-dom")
MAX_CODE_CHARS = 100_000
TYPES_BATCH = 64
UNPARSED: Mapping[str, Any] = {"types": False, "diagnostics": [None]}
"""The verdict of the type checker and of ESLint on what does not parse; neither is asked."""
NOT_RENDERED: Mapping[str, Any] = {"status": "not_code", "blank": True}

FEATURE_TAGS: Mapping[str, frozenset[str]] = {
    "heading": frozenset({"h1", "h2", "h3", "h4", "h5", "h6"}),
    "text": frozenset({"p"}),
    "list": frozenset({"ul", "ol"}),
    "button": frozenset({"button"}),
    "input": frozenset({"input"}),
    "image": frozenset({"img"}),
    "link": frozenset({"a"}),
}
"""The tags that show a feature; any of them will do."""
FEATURE_CALLS: Mapping[str, frozenset[str]] = {"counter": frozenset({"useState"})}
"""The called names that show a feature."""


@dataclass(frozen=True)
class Checked:
    """One answer with what the checkers said of its code; a level that was not asked for is None."""

    extraction: Extraction
    static: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    typed: Mapping[str, Any] | None = None
    linted: Mapping[str, Any] | None = None
    rendered: Mapping[str, Any] | None = None
    picture: Picture | None = None

    @property
    def extracted(self) -> bool:
        return self.extraction.code is not None

    @property
    def syntax(self) -> bool:
        return bool(self.static.get("syntax"))

    @property
    def compile(self) -> bool:
        return bool(self.static.get("compile"))

    @property
    def types(self) -> bool | None:
        return None if self.typed is None else bool(self.typed.get("types"))

    @property
    def lint(self) -> bool | None:
        return None if self.linted is None else self.linted.get("diagnostics") == []

    @property
    def renders(self) -> bool | None:
        return None if self.rendered is None else self.rendered["status"] == "ok"

    @property
    def blank(self) -> bool | None:
        return None if self.rendered is None else bool(self.rendered["blank"])

    @property
    def pixels(self) -> bool | None:
        return (
            None
            if self.picture is None
            else bool(self.picture.png) and not picture_facts(self.picture.png).blank
        )

    @property
    def failure(self) -> str:
        """Why a checker gave no verdict: `died`, `hung`, `too_long`, or nothing."""
        return str(self.static.get("failure", ""))


def is_named(reference: Mapping[str, Any], checked: Checked) -> bool:
    """Whether the component has the name that its prompt asked for."""
    component = checked.static.get("component") or {}
    return "name" in component and component["name"] == reference.get("name", component["name"])


def feature_places(reference: Mapping[str, Any], checked: Checked) -> dict[str, tuple[int, int] | None]:
    """Where each requested feature first stands in the code (UTF-16 start and length), by AST, or None."""
    facts = checked.static.get("facts") or {"tags": {}, "calls": {}}
    places: dict[str, tuple[int, int] | None] = {}
    for name in reference.get("features", ()):
        found = [facts["tags"][tag] for tag in FEATURE_TAGS.get(name, ()) if tag in facts["tags"]]
        found += [facts["calls"][call] for call in FEATURE_CALLS.get(name, ()) if call in facts["calls"]]
        places[name] = min(found, default=None)
    return places


def features_shown(reference: Mapping[str, Any], checked: Checked) -> dict[str, bool]:
    """Whether each requested feature is seen in what is rendered; what is not a tag is looked up in the code."""
    tags = frozenset((checked.rendered or {}).get("tags", ()))
    places = feature_places(reference, checked)
    return {
        name: not FEATURE_TAGS[name].isdisjoint(tags) if name in FEATURE_TAGS else place is not None
        for name, place in places.items()
    }


def on_task(reference: Mapping[str, Any], checked: Checked) -> bool:
    """Whether the code has the name and every feature that the prompt asked for, by AST."""
    return is_named(reference, checked) and None not in feature_places(reference, checked).values()


def sentinels(props: Any) -> list[str]:
    """All strings within props: what a component that uses its props would show."""
    if isinstance(props, str):
        return [props]
    if isinstance(props, Mapping):
        return [text for value in props.values() for text in sentinels(value)]
    return [text for value in props for text in sentinels(value)] if isinstance(props, list) else []


def uses_props(checked: Checked) -> bool | None:
    """Whether some given string is seen in the markup; None when no string was given or nothing rendered."""
    texts = sentinels((checked.rendered or {}).get("props") or {})
    if not texts or not checked.renders:
        return None
    return any(text in (checked.rendered or {})["html"] for text in texts)


def meets_task(reference: Mapping[str, Any], checked: Checked) -> bool:
    """Whether what is seen holds the requested features, the given props are used, and the name is right."""
    if not checked.renders or checked.blank or not is_named(reference, checked):
        return False
    return uses_props(checked) is not False and all(features_shown(reference, checked).values())


class TypeWorker(NodeWorker):
    """Client of types.mjs."""

    def _command(self) -> list[str | Path]:
        return [find_node(self.node), NODE_FOLDER / "types.mjs", ensure_node_modules(node=self.node).parent]


class LintWorker(NodeWorker):
    """Client of eslint/lint.mjs, whose packages are installed on first use."""

    def _command(self) -> list[str | Path]:
        modules = ensure_node_modules(node=self.node, source=LINT_FOLDER)
        return [find_node(self.node), LINT_FOLDER / "lint.mjs", modules.parent]


def _units(code: str) -> int:
    return len(code.encode("utf-16-le", "surrogatepass")) // 2


def _whole(code: str, source: str, kind: str, message: str) -> dict[str, Any]:
    """A report on all of a source."""
    return {"source": source, "code": kind, "message": message, "start": 0, "length": _units(code)}


def _static_reports(code: str, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "failure" in result:
        return [_whole(code, "checker", result["failure"], result["message"])]
    return list(result["diagnostics"])


def _more_reports(code: str, source: str, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Reports of the type checker or ESLint."""
    if "failure" in result:
        return [_whole(code, source, result["failure"], result["message"])]
    return list(result["diagnostics"])


def _render_reports(
    code: str, static: Mapping[str, Any], result: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """A failure to render, or a blank page, reported on the component."""
    if result["status"] == "ok" and not result["blank"]:
        return []
    blank = result["status"] == "ok"
    kind = "blank" if blank else result["status"]
    message = "nothing to see" if blank else result.get("message") or kind
    report = _whole(code, "render", kind, message)
    component = static.get("component")
    if component:
        report |= {"start": component["start"], "length": component["end"] - component["start"]}
    return [report]


class Checks:
    """The checkers as one; each process starts on first use."""

    def __init__(
        self,
        node: str | Path | None = None,
        *,
        timeout_seconds: float = 30.0,
        allowed_imports: Sequence[str] = ALLOWED_IMPORTS,
        browser: str | Path | None = None,
    ) -> None:
        self.allowed_imports = tuple(allowed_imports)
        self.checker = NodeWorker(node, batch_seconds=timeout_seconds)
        self.typer = TypeWorker(node, batch_seconds=120.0, item_seconds=30.0)
        self.linter = LintWorker(node, batch_seconds=120.0, item_seconds=30.0)
        self.renderer = RenderWorker(node)
        self.camera: Screenshots | None = None
        self._browser = browser

    def run(
        self,
        found: Sequence[Extraction],
        levels: Iterable[str] = (),
        props: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Checked]:
        """Checks extracted codes, equal ones once; `props` overrides the invented props of each answer."""
        wanted = frozenset(levels)
        rendering = not RENDERED.isdisjoint(wanted)
        js = rendering or "pixels" in wanted
        static = self._static([x.code for x in found], js=js)
        clean = [code for code, result in static.items() if result.get("syntax")]
        typed = self._batched(self.typer, clean) if "types" in wanted else None
        linted = self._batched(self.linter, clean) if "lint" in wanted else None
        items = self._items(found, static, props or [None] * len(found)) if js else {}
        rendered = self._render(items) if rendering else None
        checked = [
            self._checked(
                x,
                static.get(x.code or "", {}),
                self._of(typed, x),
                self._of(linted, x),
                None if rendered is None else rendered.get(i, NOT_RENDERED),
            )
            for i, x in enumerate(found)
        ]
        return self._photographed(checked, items) if "pixels" in wanted else checked

    @staticmethod
    def _of(results: Mapping[str, Mapping[str, Any]] | None, found: Extraction) -> Mapping[str, Any] | None:
        """The result for a code; a verdict without diagnostics of its own for what does not parse."""
        return None if results is None else results.get(found.code or "", UNPARSED)

    def _static(self, codes: Sequence[str | None], *, js: bool) -> dict[str, dict[str, Any]]:
        results: dict[str, dict[str, Any]] = {}
        short = []
        for code in dict.fromkeys(c for c in codes if c is not None):
            if len(code) > MAX_CODE_CHARS:
                results[code] = {"failure": "too_long", "message": f"longer than {MAX_CODE_CHARS} characters"}
            else:
                short.append(code)
        options = {"imports": self.allowed_imports, "facts": True, "js": js}
        return results | dict(zip(short, self.checker.run(short, options), strict=True))

    @staticmethod
    def _batched(worker: NodeWorker, clean: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Only what parses is sent: with one syntax error in a program, no type error is shown."""
        results: list[dict[str, Any]] = []
        for i in range(0, len(clean), TYPES_BATCH):
            results += worker.run(clean[i : i + TYPES_BATCH], {})
        return dict(zip(clean, results, strict=True))

    @staticmethod
    def _items(
        found: Sequence[Extraction],
        static: Mapping[str, Mapping[str, Any]],
        given: Sequence[Mapping[str, Any] | None],
    ) -> dict[int, dict[str, Any]]:
        """What can be rendered, by the place of its answer: JavaScript, and given or invented props."""
        items = {}
        for i, (x, props) in enumerate(zip(found, given, strict=True)):
            result = static.get(x.code or "", {})
            if result.get("js") is not None:
                items[i] = {"js": result["js"], "props": result["props"] if props is None else props}
        return items

    def _render(self, items: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        shown = self.renderer.render(list(items.values()), html=True)
        return {
            i: {"html": "", **result, "props": item["props"]}
            for (i, item), result in zip(items.items(), shown, strict=True)
        }

    def _photographed(self, checked: list[Checked], items: Mapping[int, Mapping[str, Any]]) -> list[Checked]:
        if self.camera is None:
            self.camera = Screenshots(self._browser, self.checker.node)
        taken = dict(zip(items, self.camera.take(list(items.values())), strict=True))
        empty = Picture(b"", "not_code")
        return [replace(c, picture=taken.get(i, empty)) for i, c in enumerate(checked)]

    @staticmethod
    def _checked(
        found: Extraction,
        static: Mapping[str, Any],
        typed: Mapping[str, Any] | None,
        linted: Mapping[str, Any] | None,
        rendered: Mapping[str, Any] | None,
    ) -> Checked:
        if found.code is None:
            reason = (Diagnostic("extract", "no_code", found.reason, 0, 0),)
            return Checked(found, static, reason, typed, linted, rendered)
        reports = _static_reports(found.code, static)
        if static.get("syntax"):
            for source, result in (("types", typed), ("eslint", linted)):
                reports += [] if result is None else _more_reports(found.code, source, result)
            reports += [] if rendered is None else _render_reports(found.code, static, rendered)
        return Checked(found, static, locate(found.code, found.start, reports), typed, linted, rendered)

    def close(self) -> None:
        """Ends all processes."""
        for worker in (self.checker, self.typer, self.linter, self.renderer):
            worker.close()
        if self.camera is not None:
            self.camera.close()
