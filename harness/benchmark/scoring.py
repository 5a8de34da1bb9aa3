"""Components a second through `non_blank`, against esbuild's transform of the same sources alone."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from harness.errors import EnvironmentProblem

BARE = """
const { transformSync } = require("esbuild");
const sources = JSON.parse(require("fs").readFileSync(0, "utf8"));
const all = () => { for (const s of sources) try { transformSync(s, { loader: "tsx" }); } catch { continue; } };
transformSync("let a = 1", { loader: "ts" });
const start = performance.now();
all();
console.log(JSON.stringify((performance.now() - start) / 1000));
"""
"""esbuild started and warm, one source after another, errors ignored."""


def sources(count: int) -> list[str]:
    """So many different right components of the task's own generator."""
    from tasks.react import generate

    problems = (generate.example("train", i) for i in range(count))
    return [generate.reference_component(p, generate.rng_for(7, i)) for i, p in enumerate(problems)]


def bare_esbuild(codes: list[str]) -> float:
    """Seconds of esbuild's transform of all sources in one Node process, start excluded."""
    from tasks.react.install import ensure_node_modules, find_node, minimal_env

    done = subprocess.run(
        [str(find_node()), "-e", BARE],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        cwd=ensure_node_modules().parent,
        env=minimal_env(),
        check=False,
    )
    if done.returncode:
        raise EnvironmentProblem(f"esbuild does not run: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return float(json.loads(done.stdout))


def scoring(*, quick: bool) -> dict[str, Any]:
    """The rate of `harness score` through non_blank (static checks and rendering), of the two alone, and the ratio."""
    from harness.setup import ensure_react
    from tasks.react import ReactTask

    ensure_react()
    codes = sources(24 if quick else 1024)
    records = [{"id": i, "source": code} for i, code in enumerate(codes)]
    task = ReactTask()
    rounds: list[dict[str, float]] = []
    try:
        list(task.score_records(records[:8]))  # starts the processes
        for _ in range(1 if quick else 3):
            start = time.perf_counter()
            rows = list(task.score_records(records))
            full = time.perf_counter() - start
            start = time.perf_counter()
            task.check(codes, bare=True)
            static = time.perf_counter() - start
            rounds.append({"full": full, "static": static, "esbuild": bare_esbuild(codes)})
    finally:
        task.close()
    best = {name: min(one[name] for one in rounds) for name in rounds[0]}
    return {
        "components": len(codes),
        "non_blank_share": sum(row["renders"] and not row["blank"] for row in rows) / len(rows),
        "components_per_second": len(codes) / best["full"],
        "compile_level_per_second": len(codes) / best["static"],
        "esbuild_per_second": len(codes) / best["esbuild"],
        "esbuild_over_ours": best["full"] / best["esbuild"],
        "rounds": rounds,
    }
