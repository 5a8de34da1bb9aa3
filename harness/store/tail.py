"""Follows the records of runs that are being written, here or elsewhere; reads only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.store.reader import supersede
from harness.store.writer import RECORDS, read_status


class Tail:
    """Reads what a record file has gained since the last look; a line that is not whole yet is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New records; all of them again after the file was cut back by a resume.

        A line that is not a record (a resume may have cut and refilled the file between two looks) is passed over.
        """
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self.offset:
            self.offset = 0
        if size == self.offset:
            return []
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [row for line in whole.splitlines() if (row := _record(line))]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return row if isinstance(row, dict) and "optimizer_step" in row else None


class RunView:
    """What is known of one run so far, from its folder alone."""

    def __init__(self, folder: Path, name: str = "", horizon: int = 0) -> None:
        self.folder = folder
        self._name, self._horizon = name, horizon
        self._tails = {kind: Tail(folder / f"{kind}.jsonl") for kind in RECORDS}
        self.evals: list[dict[str, Any]] = []
        self.step = 0
        self.seconds = 0.0
        self.costs: dict[str, float] = {}
        self.metrics: dict[str, float] = {}

    def refresh(self) -> list[dict[str, Any]]:
        """Reads new records; returns the new evaluations."""
        if not self._name or not self._horizon:
            self._identify()
        for record in self._tails["steps"].read():
            self.step, self.metrics, self.costs = record["optimizer_step"], record["metrics"], record["costs"]
        for record in self._tails["timings"].read():
            self.seconds = record["seconds"] + record["evaluation_seconds"]
        new = self._tails["evals"].read()
        if new:
            self.evals, _ = supersede([*self.evals, *new])
            if new[-1]["optimizer_step"] >= self.step:
                self.costs = new[-1]["costs"]
        return new

    def _identify(self) -> None:
        path = self.folder / "manifest.json"
        if not path.exists():
            return
        manifest = json.loads(path.read_text(encoding="utf-8"))
        spec = manifest.get("spec", {})
        arm = manifest.get("arm") or spec.get("algorithm", {}).get("name", "run")
        self._name = f"{arm} seed {spec.get('seeds', {}).get('seed', '?')}"
        self._horizon = int(spec.get("train", {}).get("horizon", 0))

    @property
    def name(self) -> str:
        """Arm and seed, for people; the folder's name before its manifest is there."""
        return self._name or self.folder.name

    @property
    def horizon(self) -> int:
        """Optimizer steps that the run may take; 0 while it is not known."""
        return self._horizon

    def status(self) -> str:
        """The recorded status, `absent` before the run starts."""
        return read_status(self.folder)["status"]

    def eta_seconds(self) -> float | None:
        """Seconds to the horizon at the pace so far; None before the first step."""
        return self.seconds / self.step * (self.horizon - self.step) if self.step and self.seconds else None

    def tokens_per_second(self) -> float | None:
        """Generated training tokens a second, evaluation included in the time; None before the first step."""
        return self.costs.get("generated_tokens", 0) / self.seconds if self.costs and self.seconds else None
