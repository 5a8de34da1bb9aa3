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


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries (new and renamed files) to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that a reader or a crash sees the old content or the new, never a part.

    The temporary file stands beside its target, so that the rename never crosses file systems.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; UserError when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}): delete it to start afresh") from None


def run_lock(folder: Path) -> FileLock:
    """The lock of a run's folder, not yet acquired."""
    return FileLock(folder / ".lock", timeout=0)


class RunWriter:
    """The folder of one run, held by a lock until `close`.

    A line is written whole and flushed at once; `sync` forces it to disk. `rewind` cuts each file back to
    where a checkpoint left it, so that a resumed run writes the same bytes as an uninterrupted one.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = run_lock(folder)
            self._lock.acquire()
        except Timeout:
            raise EnvironmentProblem(
                f"{folder}: this run is being written by {owner_of(folder)}; wait for it or stop it"
            ) from None
        except OSError as error:
            raise EnvironmentProblem(
                f"{folder}: cannot be written ({error.strerror}): choose another --out"
            ) from error
        try:
            self._open(manifest)
        except BaseException:
            self.close()
            raise

    def _open(self, manifest: Mapping[str, Any]) -> None:
        folder = self.folder
        (folder / ".owner").write_text(f"process {os.getpid()} on {socket.gethostname()}")
        for stale in folder.rglob(".*.tmp"):  # of a writer that was killed; this one holds the lock
            stale.unlink(missing_ok=True)
        path = folder / "manifest.json"
        if path.exists():
            known = read_json(path)
            if known["run_id"] != manifest["run_id"]:
                raise EnvironmentProblem(
                    f"{folder} holds run {known['run_id']}, not {manifest['run_id']}: choose another --out"
                )
            self.manifest: Mapping[str, Any] = known
        else:
            self.manifest = manifest
            write_json(path, manifest)
        for name in RECORDS:
            self._files[name] = open(folder / f"{name}.jsonl", "ab", buffering=0)  # noqa: SIM115

    def append(self, kind: str, record: Mapping[str, Any]) -> None:
        """Appends one record to `steps`, `evals` or `timings`: the whole line, or none of it and an OSError."""
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        file = self._files[kind]
        start = os.fstat(file.fileno()).st_size
        rest = memoryview(line)
        try:
            while rest:  # a disk that fills up takes a part of a line without an error
                rest = rest[file.write(rest) :]
        except OSError:
            os.ftruncate(file.fileno(), start)
            raise

    def sync(self) -> None:
        """Forces all records to disk."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def offsets(self) -> dict[str, int]:
        """Size of each record file in bytes."""
        return {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}

    def holds(self, offsets: Mapping[str, int]) -> bool:
        """Whether the record files reach as far as `offsets` say, each with a line ending there."""
        for name, file in self._files.items():
            offset = offsets.get(name, 0)
            if os.fstat(file.fileno()).st_size < offset:
                return False
            if offset:
                with open(self.folder / f"{name}.jsonl", "rb") as reader:
                    reader.seek(offset - 1)
                    if reader.read(1) != b"\n":
                        return False
        return True

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
        try:
            (self.folder / ".owner").unlink(missing_ok=True)
        finally:
            self._lock.release()


def owner_of(folder: Path) -> str:
    """The process that holds a run's lock, in words."""
    try:
        return (folder / ".owner").read_text() or "another process"
    except FileNotFoundError:
        return "another process"


def read_status(folder: Path) -> dict[str, Any]:
    """The status record of a run folder; `absent` when there is none yet."""
    path = folder / "status.json"
    if not path.exists():
        return {"status": "absent", "reason": ""}
    return read_json(path)
