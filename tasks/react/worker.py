"""A long-lived Node process that answers batches in JSON lines, and survives what is sent to it."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.react.install import NODE_FOLDER, NodeError, ensure_node_modules, find_node, minimal_env

START_SECONDS = 60.0
READ_BYTES = 1 << 16
MAX_ERROR_BYTES = 20_000


class WorkerDied(Exception):
    """The process ended, or said something that is not an answer."""


class WorkerHung(Exception):
    """The process did not answer before the deadline."""


def kill_group(pid: int) -> None:
    """Kills a process that leads a session of its own, and all it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a process, unless this is a fork of the one that started it."""
    if os.getpid() != owner:
        return
    kill_group(process.pid)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class LineProcess:
    """One child process that speaks JSON lines; killed with its descendants on a missed deadline."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        try:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=minimal_env(),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise NodeError(f"node cannot be started ({error}): harness setup") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdin, self._stdout, self._stderr = (
            pipe.fileno() for pipe in (self.process.stdin, self.process.stdout, self.process.stderr)
        )
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self._pending = b""
        self._errors = b""
        self.end = weakref.finalize(self, _end, self.process, os.getpid())

    def exchange(
        self, message: Mapping[str, Any] | None, seconds: float, limit: int = 1 << 28
    ) -> dict[str, Any]:
        """Sends a message (None: only listens) and returns the next line; WorkerDied or WorkerHung."""
        data = memoryview(b"" if message is None else json.dumps(message).encode("ascii") + b"\n")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            if data:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WorkerHung(f"no answer within {seconds:g} s")
                for key, _ in selector.select(left):
                    if key.fd == self._stdout:
                        self._read(limit)
                    elif key.fd == self._stderr:
                        if not self._read_errors():
                            selector.unregister(self._stderr)
                    else:
                        data = self._write(data)
                        if not data:
                            selector.unregister(self._stdin)
        line, _, self._pending = self._pending.partition(b"\n")
        return self._parse(line)

    def _read_errors(self) -> bool:
        """Keeps the last of what the process says on stderr; False at its end."""
        try:
            chunk = os.read(self._stderr, READ_BYTES)
        except BlockingIOError:
            return True
        self._errors = (self._errors + chunk)[-MAX_ERROR_BYTES:]
        return bool(chunk)

    def _died(self) -> WorkerDied:
        """The reason why the process ended, on one line."""
        self._read_errors()
        text = " ".join(self._errors.decode("utf-8", "replace").split())
        return WorkerDied(text[:400] or "the process ended")

    def _read(self, limit: int) -> None:
        chunk = os.read(self._stdout, READ_BYTES)
        if not chunk:
            raise self._died()
        self._pending += chunk
        if len(self._pending) > limit:
            raise WorkerDied("the process wrote too much")

    def _write(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._stdin, data) :]
        except BrokenPipeError as error:
            raise self._died() from error

    @staticmethod
    def _parse(line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise WorkerDied("the process answered something that is not JSON") from error
        if not isinstance(answer, dict):
            raise WorkerDied("the process answered something that is not an object")
        return answer


class NodeWorker:
    """Client of checker.mjs: one result for each item, whatever the items do to the process.

    When the process dies or hangs, its batch is sent again one item at a time, so that only the item at
    fault gets `{"failure": "died" | "hung", "message": ...}`. The process starts on first use, anew in
    each fork.
    """

    def __init__(
        self, node: str | Path | None = None, *, batch_seconds: float = 30.0, item_seconds: float = 8.0
    ) -> None:
        self.node = node
        self.batch_seconds = batch_seconds
        self.item_seconds = item_seconds
        self.restarts = 0
        self._process: LineProcess | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        return {**state, "_process": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _command(self) -> list[str | Path]:
        modules = ensure_node_modules(node=self.node)
        return [find_node(self.node), NODE_FOLDER / "checker.mjs", modules.parent]

    def _started(self, process: LineProcess) -> None:
        """Called once for each process, before the first item is sent to it."""

    def _deadline(self, count: int) -> float:
        """Seconds that a batch of so many items may take before it is sent again one by one."""
        return self.batch_seconds

    def _worn_out(self, answer: Mapping[str, Any]) -> bool:
        """Whether the process should be replaced after this answer."""
        return False

    def _start(self) -> LineProcess:
        process = LineProcess(self._command())
        try:
            process.exchange(None, START_SECONDS)
        except (WorkerDied, WorkerHung) as error:
            process.end()
            raise NodeError(f"a process of the React task does not start ({error}): harness setup") from error
        self._started(process)
        return process

    def _running(self) -> LineProcess:
        if self._process is None:
            self._process = self._start()
        return self._process

    def _stop(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.end()
        self._process = None

    def _send(self, items: Sequence[Any], options: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
        process = self._running()
        nonce = secrets.token_hex(8)
        try:
            answer = process.exchange({"id": nonce, "items": list(items), "options": dict(options)}, seconds)
            results = answer.get("results")
            if answer.get("id") != nonce or not isinstance(results, list) or len(results) != len(items):
                raise WorkerDied("the process answered another question")
        except (WorkerDied, WorkerHung):
            self._stop()
            self.restarts += 1
            raise
        if self._worn_out(answer):
            self._stop()
        return results

    def _one(self, item: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._send([item], options, self.item_seconds)[0]
        except WorkerDied as error:
            return {"failure": "died", "message": str(error)}
        except WorkerHung as error:
            return {"failure": "hung", "message": str(error)}

    def run(self, items: Sequence[Any], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One result for each item, in order."""
        if not items:
            return []
        if self._owner != os.getpid():
            # a fork shares its parent's pipes, where two writers would tear the lines, and perhaps a held lock
            self._process, self._owner, self._lock = None, os.getpid(), threading.Lock()
        with self._lock:
            try:
                return self._send(items, options, self._deadline(len(items)))
            except (WorkerDied, WorkerHung):
                return [self._one(item, options) for item in items]

    def close(self) -> None:
        """Ends the process; the next `run` starts another."""
        with self._lock:
            self._stop()
