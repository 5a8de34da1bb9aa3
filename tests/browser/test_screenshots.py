"""Screenshots in a real Chromium: what is seen, what is not, what hangs, and that nothing leaves the page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.base import Answer
from tasks.judges import PairRequest
from tasks.react import ReactTask
from tasks.react.browser import BrowserError, Picture, Screenshots, find_chromium, picture_facts
from tasks.react.pairs import make_pair_judge

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def react() -> Iterator[ReactTask]:
    task = ReactTask()
    yield task
    task.close()


@pytest.fixture(scope="module")
def camera() -> Iterator[Screenshots]:
    shots = Screenshots(timeout_seconds=20.0)
    yield shots
    shots.close()


def shoot(react: ReactTask, camera: Screenshots, *sources: str) -> list[Picture]:
    checked = react.check(list(sources), bare=True, levels=["renders"])
    return camera.take([{"js": c.static["js"], "props": c.static["props"]} for c in checked])


SEEN = {
    "text": "export default () => <h1>Hello</h1>;",
    "shown by an effect": (
        'import { useEffect, useState } from "react";\n'
        "export default () => { const [on, set] = useState(false); useEffect(() => set(true), []);"
        " return on ? <p>Loaded</p> : null; };"
    ),
    "browser globals": "export default () => <p>{window.innerWidth} wide</p>;",
    "given props": "export default (p: { title: string }) => <p>{p.title}</p>;",
    "box": 'export default () => <div style={{ height: 50, background: "teal" }} />;',
}
EMPTY = {
    "nothing": "export default () => null;",
    "white on white": 'export default () => <p style={{ color: "#fff", background: "#fff" }}>Hi</p>;',
    "moved away": 'export default () => <p style={{ position: "absolute", left: -9999 }}>Hi</p>;',
    "hidden by a style sheet": "export default () => <div><style>{`p { display: none }`}</style><p>Hi</p></div>;",
    "throws": 'export default (): any => { throw new Error("x"); };',
}


def test_what_is_seen_and_what_is_not(react: ReactTask, camera: Screenshots) -> None:
    pictures = shoot(react, camera, *SEEN.values(), *EMPTY.values())
    blank = [picture_facts(p.png).blank for p in pictures]
    assert blank == [False] * len(SEEN) + [True] * len(EMPTY)
    assert [p.status for p in pictures] == ["ok"] * (len(SEEN) + len(EMPTY) - 1) + ["threw"]


def test_the_same_component_gives_the_same_picture(react: ReactTask, camera: Screenshots) -> None:
    first, second = shoot(react, camera, SEEN["text"], SEEN["text"])
    assert first.png == second.png


def test_a_page_that_hangs_is_a_verdict(
    react: ReactTask, camera: Screenshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera, "_timeout", 5000)
    hung, after = shoot(react, camera, "export default (): any => { while (true) {} };", SEEN["text"])
    assert (hung.status, hung.png) == ("timeout", b"")
    assert after.status in {"ok", "timeout"}


def test_nothing_leaves_the_page(react: ReactTask, camera: Screenshots) -> None:
    hits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    source = (
        "export default () => {\n"
        f'  fetch("{url}/fetch").catch(() => 0); new Image().src = "{url}/image"; navigator.sendBeacon("{url}/beacon");\n'
        f'  try {{ new WebSocket("{url.replace("http", "ws")}/socket"); }} catch {{}}\n'
        f'  return <div>Hi<img src="{url}/tag" /><iframe src="{url}/frame" /></div>;\n}};'
    )
    (picture,) = shoot(react, camera, source)
    server.shutdown()
    server.server_close()
    assert hits == []
    assert not picture_facts(picture.png).blank


def test_one_page_cannot_touch_the_next(react: ReactTask, camera: Screenshots) -> None:
    setter = (
        "export default () => { try { localStorage.setItem('a', '1'); document.cookie = 'a=1'; } catch {}"
        " (window as any).name = 'x'; return <p>set</p>; };"
    )
    reader = (
        "export default () => { let seen = window.name; try { seen += localStorage.getItem('a') ?? ''; "
        "seen += document.cookie; } catch {} return seen ? <p>seen</p> : null; };"
    )
    _, second = shoot(react, camera, setter, reader)
    assert picture_facts(second.png).blank


def test_pixels_are_a_level(react: ReactTask, camera: Screenshots) -> None:
    task = ReactTask(levels=("pixels",))
    task.checks = react.checks
    react.checks.camera = camera
    sources = (SEEN["text"], EMPTY["white on white"], "export default 42;", "x")
    answers = [Answer(f"```tsx\n{source}\n```") for source in sources]
    scores = task.score([task.example("train", 0)] * 4, answers)
    react.checks.camera = None
    assert [s.metrics["pixels"] for s in scores] == [1.0, 0.0, 0.0, 0.0]
    assert [s.outcome for s in scores] == [1.0, 1.0, 0.0, 0.0]


def test_the_pair_judge_prefers_content_to_an_empty_page(react: ReactTask, camera: Screenshots) -> None:
    full, empty = shoot(react, camera, SEEN["box"], EMPTY["nothing"])
    (word,) = make_pair_judge().compare([PairRequest("a box", full.png, empty.png)])
    assert word.winner == "first"


def test_a_second_driver_is_one_clear_error(react: ReactTask, camera: Screenshots) -> None:
    shoot(react, camera, SEEN["text"])
    with pytest.raises(BrowserError, match="does not start"):
        shoot(react, Screenshots(), SEEN["text"])


def test_a_browser_that_is_none() -> None:
    with pytest.raises(BrowserError, match="not an executable file"):
        find_chromium("/nonexistent/chromium")
