"""A local HTTP server that speaks both vendors' protocols and misbehaves on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class FakeVendor(ThreadingHTTPServer):
    """Answers each request with what `script` says: `(status, body)`, where the body is bytes or an object."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict] = []
        self.script: Callable[[dict, int], tuple[int, object]] = lambda request, n: (200, {})
        self.release = threading.Event()
        self._count = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def note(self, request: dict) -> int:
        with self._count:
            self.requests.append(request)
            return len(self.requests)


class _Handler(BaseHTTPRequestHandler):
    server: FakeVendor
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = self.server.note(request)
        status, body = self.server.script(request, number)
        if status == 0:  # hangs until the test is over
            self.server.release.wait(30)
            self.close_connection = True
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(abs(status))
        self.send_header("content-type", "application/json")
        self.send_header("retry-after-ms", "1")
        # a negative status: more is promised than sent
        self.send_header("content-length", str(len(data) + (100 if status < 0 else 0)))
        self.end_headers()
        self.wfile.write(data)
        if status < 0:
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def vendor() -> Iterator[FakeVendor]:
    server = FakeVendor()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()
