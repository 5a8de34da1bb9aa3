"""Writes one run's folder: manifest, append-only records, status; one writer at a time."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness.errors import EnvironmentProblem, UserError

RECORDS = ("steps", "evals", "timings")


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that a reader or a crash sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; UserError when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error}): delete it to start afresh") from None


class RunWriter:
    """The folder of one run, held by a lock until `close`.

    A line is written whole and flushed at once; `sync` forces it to disk. `rewind` cuts each file back to
    where a checkpoint left it, so that a resumed run writes the same bytes as an uninterrupted one.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            owner = (folder / ".owner").read_text() if (folder / ".owner").exists() else "another process"
            raise EnvironmentProblem(
                f"{folder}: this run is being written by {owner}; wait for it or stop it"
            ) from None
        (folder / ".owner").write_text(f"process {os.getpid()} on {socket.gethostname()}")
        path = folder / "manifest.json"
        if path.exists():
            known = read_json(path)
            if known["run_id"] != manifest["run_id"]:
                self._lock.release()
                raise EnvironmentProblem(
                    f"{folder} holds run {known['run_id']}, not {manifest['run_id']}: choose another --out"
                )
            self.manifest: Mapping[str, Any] = known
        else:
            self.manifest = manifest
            write_json(path, manifest)
        self._files = {name: open(folder / f"{name}.jsonl", "ab", buffering=0) for name in RECORDS}  # noqa: SIM115

    def append(self, kind: str, record: Mapping[str, Any]) -> None:
        """Appends one record to `steps`, `evals` or `timings`."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
        self._files[kind].write(line.encode())

    def sync(self) -> None:
        """Forces all records to disk."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def offsets(self) -> dict[str, int]:
        """Size of each record file in bytes."""
        return {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Cuts each record file to a size that `offsets` gave."""
        for name, file in self._files.items():
            os.ftruncate(file.fileno(), offsets.get(name, 0))

    def status(self, status: str, reason: str = "", **more: Any) -> None:
        """Writes the run's status: running, completed, failed, diverged or stopped."""
        write_json(self.folder / "status.json", {"status": status, "reason": reason, **more})

    def close(self) -> None:
        """Closes the files and releases the lock."""
        for file in self._files.values():
            file.close()
        (self.folder / ".owner").unlink(missing_ok=True)
        self._lock.release()


def read_status(folder: Path) -> dict[str, Any]:
    """The status record of a run folder; `absent` when there is none yet."""
    path = folder / "status.json"
    if not path.exists():
        return {"status": "absent", "reason": ""}
    return read_json(path)
