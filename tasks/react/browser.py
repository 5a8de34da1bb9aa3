"""Screenshots of components in a system Chromium, and what can be said of a picture without a judge.

For evaluation only: twenty times slower than rendering to markup, and safe only without a network and, as
root, without Chromium's own sandbox.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.react.install import ensure_bundle

SIZE = (400, 300)
ORIGIN = "http://creditbench.invalid"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
POLICY = (
    f"default-src 'none'; script-src {ORIGIN}; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "form-action 'none'; base-uri 'none'"
)
PAGE = """<!doctype html><html><head><meta charset="utf-8"></head><body><div id="root"></div>
<script src="/react.js"></script><script src="/answer.js"></script></body></html>"""
SETTLE_MS = 50
INK_LEVEL = 8
"""A pixel differs from the background when a channel is further than this from it."""
MIN_INK = 2e-4
"""The share of such pixels below which a page is empty: 24 of 400 x 300."""


class BrowserError(ValueError):
    """No usable browser; one line that names the remedy."""


@dataclass(frozen=True)
class Picture:
    """One screenshot: PNG bytes (empty when there is none), and `ok`, `threw` or `timeout`."""

    png: bytes
    status: str


@dataclass(frozen=True)
class Facts:
    """What a picture shows: `ink` share of pixels off the background, `entropy` of its colours in bits."""

    ink: float
    entropy: float

    @property
    def blank(self) -> bool:
        """Whether the page looks empty."""
        return self.ink < MIN_INK


def find_chromium(path: str | Path | None = None) -> str:
    """Path of a Chromium: the argument, $CREDITBENCH_CHROMIUM, or PATH; BrowserError if there is none."""
    named = path or os.environ.get("CREDITBENCH_CHROMIUM")
    for name in (str(named),) if named else NAMES:
        found = shutil.which(name)
        if found:
            return found
    if named:
        raise BrowserError(f"browser={str(named)!r} is not an executable file: give the path of a Chromium")
    raise BrowserError("no Chromium found: install one (apt install chromium), or set CREDITBENCH_CHROMIUM")


def picture_facts(png: bytes) -> Facts:
    """Ink and colour entropy of a screenshot; the background is the colour of most pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        pixels = image.convert("RGB")
    total = pixels.width * pixels.height
    colours: list[tuple[int, tuple[int, ...]]] = pixels.getcolors(total) or []  # type: ignore[assignment]
    _, background = max(colours)
    off = sum(
        count
        for count, colour in colours
        if any(abs(a - b) > INK_LEVEL for a, b in zip(colour, background, strict=True))
    )
    entropy = -sum(count / total * math.log2(count / total) for count, _ in colours)
    return Facts(off / total, entropy)


def picture_merit(png: bytes) -> float:
    """A crude merit in [0, 1] for want of a judge: 0 for an empty page, more for more to see, levelling off."""
    if not png:
        return 0.0
    facts = picture_facts(png)
    return 0.0 if facts.blank else min(1.0, 0.5 + 0.25 * min(1.0, facts.ink / 0.05) + 0.05 * facts.entropy)


class Screenshots:
    """Takes screenshots of components, each in a browser context of its own; starts on first use.

    One at a time in a thread: the driver allows no second one.
    """

    def __init__(
        self,
        browser: str | Path | None = None,
        node: str | Path | None = None,
        *,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.path = find_chromium(browser)
        self._react = ensure_bundle("mount.cjs", node=node).read_text("utf-8")
        self._timeout = timeout_seconds * 1000
        self._playwright: Any = None
        self._browser: Any = None

    def _running(self) -> Any:
        if self._browser is not None:
            return self._browser
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError as error:
            raise BrowserError(
                "screenshots need the package playwright: pip install 'creditbench[browser]'"
            ) from error
        arguments = ["--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        # Chromium refuses to run its own sandbox as root
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        try:
            if self._playwright is None:
                self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=self.path, args=arguments)
        except Error as error:
            reason = str(error).splitlines()[0]
            raise BrowserError(f"browser={self.path!r} does not start ({reason}): name another") from error
        return self._browser

    def take(self, items: Sequence[Mapping[str, Any]]) -> list[Picture]:
        """One picture for each `{"js", "props"}` (see Checks); what throws or hangs gives an empty one."""
        return [self._take(item["js"], item["props"]) for item in items]

    def _take(self, js: str, props: Any) -> Picture:
        browser = self._running()
        from playwright.sync_api import Error

        try:
            return self._shoot(browser, js, props)
        except Error as error:
            self._stop()
            return Picture(b"", "timeout" if "imeout" in str(error) else "threw")

    def _shoot(self, browser: Any, js: str, props: Any) -> Picture:
        answer = f"__creditbench(function(exports,require,module){{{js}\n}},{json.dumps(props)})"
        served = {
            f"{ORIGIN}/": ("text/html", PAGE),
            f"{ORIGIN}/react.js": ("text/javascript", self._react),
            f"{ORIGIN}/answer.js": ("text/javascript", answer),
        }
        width, height = SIZE
        context = browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=True, service_workers="block"
        )
        context.set_default_timeout(self._timeout)
        errors: list[str] = []
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))

        def serve(route: Any) -> None:
            found = served.get(route.request.url)
            if found is None:
                route.abort()
            else:
                kind, body = found
                route.fulfill(content_type=kind, body=body, headers={"content-security-policy": POLICY})

        context.route("**/*", serve)
        page.goto(f"{ORIGIN}/", wait_until="load")
        page.wait_for_timeout(SETTLE_MS)
        png = page.screenshot(animations="disabled", caret="hide")
        context.close()
        return Picture(png, "threw" if errors else "ok")

    def _stop(self) -> None:
        """Ends the browser: a page that hangs may take it along."""
        from playwright.sync_api import Error

        browser, self._browser = self._browser, None
        if browser is not None:
            try:
                browser.close()
            except Error:
                return

    def close(self) -> None:
        """Ends the browser and its driver."""
        self._stop()
        if self._playwright is not None:
            self._playwright.stop()
            self._playwright = None
