"""What this machine has, and what each scale needs and lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.sweep.jobs import versions

GIB = 1024**3
RESULTS = Path("results/runs")
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
NEEDS = {
    "smoke": {"memory_gib": 2, "disk_gib": 1, "gpu": False, "packages": ()},
    "tiny": {"memory_gib": 4, "disk_gib": 1, "gpu": False, "packages": ()},
    "small": {"memory_gib": 8, "disk_gib": 5, "gpu": False, "packages": ()},
    "paper": {"memory_gib": 64, "disk_gib": 100, "gpu": True, "packages": ("vllm",)},
}


@dataclass(frozen=True)
class Report:
    """The findings; `lacks` lists per scale what is missing, in words."""

    facts: dict[str, Any]
    lacks: dict[str, list[str]] = field(default_factory=dict)

    @property
    def default_job_runs(self) -> bool:
        """Whether the default job (tiny scale) can run here."""
        return not self.lacks["tiny"]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"facts": self.facts, "lacks": self.lacks, "ok": self.default_job_runs}

    def lines(self) -> list[str]:
        """For people."""
        out = [f"{name:<22}{value}" for name, value in self.facts.items()]
        for scale, missing in self.lacks.items():
            out.append(
                f"{'scale ' + scale:<22}" + ("ready" if not missing else "lacks " + "; ".join(missing))
            )
        return out


def _memory_gib() -> float:
    """The machine's memory, or the limit of this process's control group where that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        found = min(found, int(text))
    return found / GIB


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _launchers() -> str:
    """The launchers that work here."""
    found = ["local"]
    if _installed("ray"):
        found.append("ray")
    if _installed("submitit") and shutil.which("sbatch"):
        found.append("slurm")
    return ", ".join(found)


def _writable(folder: Path) -> bool:
    """Whether a folder, or the nearest one above it that exists, can be written."""
    here = folder.absolute()
    while not here.exists():
        here = here.parent
    return os.access(here, os.W_OK)


def _node() -> tuple[str, str]:
    """Node's version and the state of the npm packages, in words; the second is empty when all is well."""
    from tasks.react.install import NodeError, node_version, packages_folder

    try:
        version = node_version()
    except NodeError as error:
        return "absent", str(error)
    return version, "" if (
        packages_folder() / "node_modules"
    ).is_dir() else "npm packages (run: harness setup)"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    return (
        f"{torch.cuda.get_device_name(0)}, {torch.cuda.get_device_properties(0).total_memory / GIB:.0f} GiB"
    )


def examine() -> Report:
    """Looks at everything; values of keys are never read out, only whether they are set."""
    node, node_problem = _node()
    disk = shutil.disk_usage(Path.cwd()).free / GIB
    memory, gpu, writable = _memory_gib(), _gpu(), _writable(RESULTS)
    chromium = next(
        (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), "none"
    )
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": f"{memory:.1f} GiB",
        "free disk": f"{disk:.1f} GiB",
        "gpu": gpu,
        "node": node,
        "npm packages": node_problem or "ready",
        "chromium": chromium,
        "launchers": _launchers(),
        "trackers": ", ".join(name for name in TRACKERS if _installed(name)) or "none",
        "results folder": f"{RESULTS} ({'writable' if writable else 'not writable'})",
        "keys set": ", ".join(name for name in KEYS if os.environ.get(name)) or "none",
        **versions(),
    }
    lacks: dict[str, list[str]] = {}
    for scale, need in NEEDS.items():
        missing = [f"node: {node_problem}"] if node == "absent" else []
        if memory < need["memory_gib"]:  # type: ignore[operator]
            missing.append(f"{need['memory_gib']} GiB of memory")
        if disk < need["disk_gib"]:  # type: ignore[operator]
            missing.append(f"{need['disk_gib']} GiB of free disk")
        if not writable:
            missing.append(f"a writable {RESULTS} (or give --out)")
        if need["gpu"] and gpu == "none":
            missing.append("a CUDA GPU")
        missing += [f"package {name}" for name in need["packages"] if not _installed(name)]  # type: ignore[attr-defined]
        lacks[scale] = missing
    return Report(facts, lacks)
