"""math-verify as a second opinion, in a child process that is killed at a deadline.

Symbolic comparison can hang or eat the memory on one expression, and signal-based timeouts fail in
threads: so the comparison runs in a process of its own, one request at a time, and the answer to a hung
one is `timeout`, counted and never taken for "wrong".
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
from collections import Counter
from typing import IO

__all__ = ["OPINIONS", "OpinionUnavailable", "SecondOpinion"]

OPINIONS = ("correct", "wrong", "unparsable", "timeout", "crashed")
START_SECONDS = 120.0
MEMORY_BYTES = 4 << 30
"""Address space of the child; beyond it an expression counts as a timeout."""


class OpinionUnavailable(ValueError):
    """math-verify is not installed or its process does not start; the message says what to do."""


class _Child:
    """One process that answers JSON lines, read with a deadline."""

    def __init__(self, command: list[str], start_seconds: float) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._pipe(self.process.stdout), selectors.EVENT_READ)
        self.buffer = b""
        if self.read(start_seconds) != b"ready":
            self.kill()
            raise OpinionUnavailable(
                "second opinion: the math-verify process did not start; check that "
                f"`{' '.join(command)}` prints ready"
            )

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def write(self, line: bytes) -> None:
        pipe = self._pipe(self.process.stdin)
        pipe.write(line + b"\n")
        pipe.flush()

    def read(self, seconds: float) -> bytes | None:
        """The next line; None at the deadline; EOFError when the process has ended."""
        while b"\n" not in self.buffer:
            if not self.selector.select(seconds):
                return None
            chunk = os.read(self._pipe(self.process.stdout).fileno(), 65536)
            if not chunk:
                raise EOFError
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.selector.close()
        for pipe in (self.process.stdin, self.process.stdout):
            self._pipe(pipe).close()


class SecondOpinion:
    """Compares an answer with a gold by math-verify; safe to call from several threads.

    `deadline_seconds` bounds one comparison. `counts` tells how often each opinion was given. Raises
    OpinionUnavailable at the first question when math-verify is not installed.
    """

    def __init__(self, deadline_seconds: float = 5.0, command: list[str] | None = None) -> None:
        self.deadline_seconds = deadline_seconds
        self.command = command or [sys.executable, "-m", "tasks.aime.math_verify_child", str(MEMORY_BYTES)]
        self.counts: Counter[str] = Counter()
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._own_command = command is not None

    def ask(self, answer: str, gold: str) -> str:
        """One of OPINIONS on whether the answer equals the gold."""
        with self._lock:
            opinion = self._ask(json.dumps({"answer": answer, "gold": gold}).encode())
            self.counts[opinion] += 1
            return opinion

    def _ask(self, request: bytes) -> str:
        if self._child is None:
            self._child = self._start()
        try:
            self._child.write(request)
            reply = self._child.read(self.deadline_seconds)
        except (EOFError, BrokenPipeError):
            self._drop()
            return "crashed"
        if reply is None:
            self._drop()
            return "timeout"
        opinion = reply.decode()
        return opinion if opinion in OPINIONS else "crashed"

    @functools.cached_property
    def available(self) -> bool:
        """Whether math-verify is installed; starts nothing."""
        return self._own_command or importlib.util.find_spec("math_verify") is not None

    def check(self) -> None:
        """OpinionUnavailable when math-verify is not installed."""
        if not self.available:
            raise OpinionUnavailable(
                "second opinion: math-verify is not installed; pip install 'creditbench[eval]'"
            )

    def _start(self) -> _Child:
        self.check()
        try:
            return _Child(self.command, START_SECONDS)
        except (EOFError, OSError) as error:
            raise OpinionUnavailable(
                f"second opinion: `{' '.join(self.command)}` ended at once ({error}); check the installation"
            ) from error

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def close(self) -> None:
        """Ends the child process; a later question starts a new one."""
        with self._lock:
            self._drop()
