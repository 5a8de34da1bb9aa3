"""SHA-256 lists in the form of the program sha256sum, and their verification."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from harness.errors import UserError
from harness.store.writer import write_atomic

NAME = "SHA256SUMS"
BLOCK_BYTES = 1 << 20


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_checksums(folder: Path, files: Iterable[Path]) -> Path:
    """Writes `folder/SHA256SUMS` over files below it, in name order; `sha256sum -c SHA256SUMS` checks it."""
    lines = [f"{digest_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in sorted(files)]
    write_atomic(folder / NAME, "".join(lines).encode())
    return folder / NAME


def verify_checksums(folder: Path) -> list[str]:
    """What does not fit `folder/SHA256SUMS`, in words; empty when all does. UserError when there is no list."""
    path = folder / NAME
    if not path.exists():
        raise UserError(f"{folder}: holds no {NAME}; write one with `harness compact`")
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        expected, sep, name = line.partition("  ")
        if not sep or len(expected) != 64:
            problems.append(f"{NAME} line {number} is not a checksum")
        elif not (folder / name).exists():
            problems.append(f"{name} is missing")
        elif digest_of(folder / name) != expected:
            problems.append(f"{name} differs from its checksum")
    return problems
