"""Renders untrusted components in a process that can neither read, write, connect nor last.

Several fences, none trusted alone: a context without host objects for each component, Node's permission
model, resource limits, a namespace without network where the system allows one, and a deadline. Run it as
an ordinary user inside a container all the same: neither node:vm nor the permission model is a security
boundary. Linux only.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tasks.react.install import NODE_FOLDER, ensure_bundle, find_node, minimal_env, node_version
from tasks.react.worker import LineProcess, NodeWorker

VM_TIMEOUT_MS = 250
MAX_RESIDENT_BYTES = 300 * 2**20
MAX_SAMPLES = 1000
BATCH = 64
SECONDS_EACH = 0.3
"""What each component adds to the deadline of its batch: a hundred times what most take."""
LIMITS = {
    resource.RLIMIT_DATA: 2**30,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_CORE: 0,
}
"""Bytes of data, bytes of a file, open files, bytes of a core dump."""


@cache
def _network_fence() -> tuple[str, ...]:
    """The command prefix that takes the network away, or nothing where the system forbids it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    prefix = (unshare, "-Urn")
    done = subprocess.run([*prefix, "true"], capture_output=True, timeout=30, env=minimal_env())
    return prefix if done.returncode == 0 else ()


def weaknesses() -> list[str]:
    """What the sandbox lacks on this machine, one sentence each."""
    found = []
    if os.geteuid() == 0:
        found.append("components are rendered by root: run as an ordinary user in a container")
    if not _network_fence():
        found.append("network namespaces are not allowed here: the renderer could reach the network")
    return found


def _permission_flag(version: str) -> str:
    major, minor = (int(part) for part in version.removeprefix("v").split(".")[:2])
    return "--permission" if (major, minor) >= (23, 5) else "--experimental-permission"


class RenderWorker(NodeWorker):
    """Client of render.mjs; replaces its process when it has grown or served for long."""

    def __init__(self, node: str | Path | None = None, *, timeout_ms: int = VM_TIMEOUT_MS) -> None:
        # the worst component takes five times its limit: once as given, once more if it was starved
        seconds = 5 * timeout_ms / 1000
        super().__init__(node, item_seconds=4.0 + seconds)
        self.timeout_ms = timeout_ms
        self._served = 0

    def _command(self) -> list[str | Path]:
        guest = ensure_bundle("guest.cjs", node=self.node)
        readable = (NODE_FOLDER / "render.mjs", NODE_FOLDER / "markup.mjs", guest)
        return [
            *_network_fence(),
            find_node(self.node),
            _permission_flag(node_version(self.node)),
            *(f"--allow-fs-read={path}" for path in readable),
            "--disallow-code-generation-from-strings",
            "--disable-proto=delete",
            "--no-addons",
            "--max-old-space-size=128",
            "--disable-warning=ExperimentalWarning",
            readable[0],
            guest,
        ]

    def _started(self, process: LineProcess) -> None:
        self._served = 0
        for limit, value in LIMITS.items():
            resource.prlimit(process.process.pid, limit, (value, value))

    def _deadline(self, count: int) -> float:
        return self.item_seconds + SECONDS_EACH * count

    def _worn_out(self, answer: Mapping[str, Any]) -> bool:
        self._served += len(answer["results"])
        return self._served >= MAX_SAMPLES or int(answer.get("rss", 0)) > MAX_RESIDENT_BYTES

    def render(self, items: Sequence[Mapping[str, Any]], *, html: bool = False) -> list[dict[str, Any]]:
        """One result for each `{"js", "props"}`: status, blank, text, tags, roles, message, html on demand."""
        options = {"timeout": self.timeout_ms, "html": html}
        results: list[dict[str, Any]] = []
        for i in range(0, len(items), BATCH):
            results += self.run(items[i : i + BATCH], options)
        return [{"status": r["failure"], "blank": True, **r} if "failure" in r else r for r in results]
