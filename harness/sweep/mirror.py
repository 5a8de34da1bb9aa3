"""Keeps a run's folder at home equal to one that is written on another machine, over any channel.

The order matters: a checkpoint is read before the records that it refers to, and lands after them, so that
the folder at home can continue the run at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.store.writer import RECORDS, write_atomic

MARK_BYTES = 256
"""So much of what was sent last is compared before more is sent."""
SMALL = ("manifest.json", "status.json", "error.log")


@dataclass(frozen=True)
class Delta:
    """What changed since the last delta; `records` holds (offset, bytes): cut there, then append."""

    records: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not self.records and not self.files


class Source:
    """The side that is written: collects deltas of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent: dict[str, tuple[int, bytes]] = dict.fromkeys(RECORDS, (0, b""))
        self._seen: dict[str, tuple[int, int]] = {}
        for path in self._files():
            self._seen[self._key(path)] = self._stamp(path)

    def _key(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _stamp(self, path: Path) -> tuple[int, int]:
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size

    def _files(self) -> list[Path]:
        found = [self.folder / name for name in SMALL if (self.folder / name).exists()]
        found += (self.folder / "checkpoints").glob("[!.]*")
        return found

    def _gained(self, name: str) -> tuple[int, bytes] | None:
        """Offset and whole lines that a record file gained; the whole file after a resume cut it."""
        path = self.folder / f"{name}.jsonl"
        known, mark = self._sent[name]
        if not path.exists():
            return None
        with open(path, "rb") as file:
            file.seek(known - len(mark))
            if file.read(len(mark)) != mark:  # cut, and perhaps grown past the old size meanwhile
                known, mark = 0, b""
                file.seek(0)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        if not data and (known, mark) == self._sent[name]:
            return None
        self._sent[name] = known + len(data), (mark + data)[-MARK_BYTES:]
        return known, data

    def collect(self) -> Delta:
        """What changed since the last call."""
        files = {}
        for path in self._files():
            key = self._key(path)
            try:
                stamp = self._stamp(path)
                if self._seen.get(key) == stamp:
                    continue
                files[key] = path.read_bytes()
            except FileNotFoundError:  # pruned meanwhile
                continue
            self._seen[key] = stamp
        records = {name: found for name in RECORDS if (found := self._gained(name))}
        kept = tuple(sorted(p.name for p in (self.folder / "checkpoints").glob("[!.]*")))
        return Delta(records, files, kept)


def apply(folder: Path, delta: Delta) -> None:
    """The side at home: records first, then files, then checkpoints that are gone there go here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (start, data) in delta.records.items():
        with open(folder / f"{name}.jsonl", "ab") as file:
            file.truncate(start)
            file.write(data)
    for name, data in delta.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomic(folder / name, data)
    if delta.checkpoints:
        for path in (folder / "checkpoints").glob("[!.]*"):
            if path.name not in delta.checkpoints:
                path.unlink(missing_ok=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run that a continuation needs, by its name in the folder."""
    names = [*(f"{name}.jsonl" for name in RECORDS), *SMALL]
    found = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    for path in (folder / "checkpoints").glob("[!.]*"):
        found[f"checkpoints/{path.name}"] = path.read_bytes()
    return found


def unpack(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes what `contents` gave into a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
