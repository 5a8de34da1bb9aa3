"""Keeps results as files, and fills the blocks `<!-- benchmark: PART -->` of a Markdown file from them."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.benchmark.setting import cores
from harness.errors import UserError
from harness.names import lookup
from harness.report.tables import Table, table, to_markdown
from harness.store.writer import read_json, write_atomic, write_json

Result = Mapping[str, Any]
BLOCK = re.compile(r"(<!-- benchmark: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)
MIB = 2**20
CONTEXT = ("machine", "setting", "quick")
"""What every kept file says beside its own figures."""


def machine() -> dict[str, Any]:
    """What the figures hold for."""
    from harness.sweep.jobs import versions

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": cores(),
        "python": platform.python_version(),
        "versions": versions(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def save(part: str, result: Result, folder: Path) -> Path:
    """Keeps one part of a call as `<part>-<time>.json`, with setting and machine; its path."""
    path = folder / f"{part}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {**{key: result[key] for key in CONTEXT}, **result[part]})
    return path


def calls(folder: Path, part: str) -> list[dict[str, Any]]:
    """The kept calls of a part, oldest first, those of --quick left out; UserError where there is none."""
    found = [read_json(path) for path in sorted(folder.glob(f"{part}-*.json"))]
    found = [one for one in found if not one["quick"]]
    if not found:
        flag = "--against trl" if part == "against" else f"--{part}"
        raise UserError(
            f"{folder}: holds no {part}-*.json of a full call; first harness benchmark {flag} --out {folder}"
        )
    return found


def _notes(one: Result, *more: str) -> tuple[str, ...]:
    made, setting = one["machine"], one["setting"]
    torch, trl = made["versions"]["torch"], one.get("trl_version")
    threads = one.get("threads", setting["threads"])
    return (
        f"{made['processor']}, {made['cores']} cores, torch {torch}{f', TRL {trl}' if trl else ''}, {made['time']}.",
        f"{setting['prompts_per_step']} prompts x {setting['group_size']} completions, at most "
        f"{setting['max_completion_tokens']} tokens, {setting['model']}, fp32, threads: {threads}.",
        *more,
    )


def against_table(found: Sequence[Result]) -> Table:
    """Every call: the ratio at like token counts with its spread."""
    rows: list[tuple[Any, ...]] = []
    for number, one in enumerate(found, 1):
        at = one["seconds_at_like_tokens"]
        rows.append(
            (
                f"{number}, huge pages for TRL too" if one["trl_tunables"] else number,
                one["ratio_to_trl"],
                f"{one['ratio_low']:.2f} to {one['ratio_high']:.2f}",
                one["cpu_ratio"],
                round(one["like_tokens"]),
                at["ours"],
                at["trl"],
                round(one["peak_memory_bytes"]["ours"] / MIB),
                round(one["peak_memory_bytes"]["trl"] / MIB),
            )
        )
    own = [one["ratio_to_trl"] for one in found if not one["trl_tunables"]]
    middle = f" {statistics.geometric_mean(own):.2f}" if own else " none"
    heads = ("call", "ratio", "95%", "of CPU time", "tokens a step", "s a step", "TRL s", "MiB", "TRL MiB")
    return table(
        heads,
        rows,
        caption="Completion tokens a second of one run over TRL's, at like token counts",
        notes=_notes(found[-1], f"Geometric mean of the {len(own)} calls with TRL as it comes:{middle}."),
        name="against",
    )


def sweep_table(found: Sequence[Result]) -> Table:
    """The newest call: each way of running the seeds."""
    last = found[-1]
    rows = [
        (way["way"], way["seconds"], way["seeds_per_hour"], round(way["tokens_per_second"]))
        for way in last["ways"]
    ]
    start = last["start_up"]
    ratios = [one["sweep_ratio_to_trl"] for one in found]
    several = f"By tokens a second, the {len(found)} calls kept: {', '.join(f'{r:.2f}' for r in ratios)}; "
    several += f"geometric mean {statistics.geometric_mean(ratios):.2f}."
    return table(
        ("way", "seconds", "seeds an hour", "tokens/s"),
        rows,
        caption=f"{last['seeds']} seeds of {last['optimizer_steps']} optimizer steps, start-up included",
        notes=_notes(
            last,
            f"Ours over the better of TRL's: {last['sweep_ratio_to_trl']:.2f} by tokens a second, "
            f"{last['seeds_ratio_to_trl']:.2f} by seeds an hour.",
            f"A run of one token, start to end: {start['first_run_seconds']:.1f} s for the first of a sweep, "
            f"{start['next_run_seconds']:.1f} s for the next ones.",
            *([several] if len(found) > 1 else []),
        ),
        name="sweep",
    )


def floor_table(found: Sequence[Result]) -> Table:
    """The newest call: peaks, shares and the decode step."""
    last = found[-1]
    rows = [
        ("matmul peak, fp32", f"{last['matmul_peak_gflops']:.0f} GFLOP/s"),
        ("copy in memory", f"{last['copy_gb_per_second']:.1f} GB/s"),
        ("sampling, share of the peak", f"{last['sampling_share_of_peak']:.0%}"),
        ("training, share of the peak", f"{last['training_share_of_peak']:.0%}"),
        ("decode step", f"{1e3 * last['decode_step_seconds']:.2f} ms"),
        ("its memory floor", f"{1e3 * last['decode_memory_floor_seconds']:.2f} ms"),
        ("its compute floor", f"{1e3 * last['decode_compute_floor_seconds']:.2f} ms"),
        ("decode step over the sum of both floors", f"{last['decode_step_over_floors']:.2f}"),
    ]
    return table(("what", "measured"), rows, caption="Against the machine", notes=_notes(last), name="floor")


def scaling_table(found: Sequence[Result]) -> Table:
    """The newest call: exponents."""
    last = found[-1]
    rows = [
        (
            fit["axis"].replace("_", "-"),
            fit["cost"].replace("_", " "),
            fit["points"],
            f"{fit['exponent']:.2f}",
            None if fit["low"] is None else f"{fit['low']:.2f} to {fit['high']:.2f}",
        )
        for fit in last["fits"]
    ]
    return table(
        ("axis", "cost", "points", "exponent", "95%"),
        rows,
        caption="Cost = factor x size^exponent",
        notes=(*_notes(last)[:1], "One thread; bytes are growth over the loaded model, in processes of their own."),
        name="scaling",
    )  # fmt: skip


def scoring_table(found: Sequence[Result]) -> Table:
    """The newest call: rates."""
    last = found[-1]
    rows = [
        ("extract to non_blank, rendered", round(last["components_per_second"])),
        ("extract to compile", round(last["compile_level_per_second"])),
        ("esbuild's transform alone", round(last["esbuild_per_second"])),
    ]
    return table(
        ("what", "components/s"),
        rows,
        caption=f"Scoring {last['components']} different components",
        notes=_notes(last)[:1],
        name="scoring",
    )


def advantages_table(found: Sequence[Result]) -> Table:
    """The newest call: milliseconds at the largest batch, exponents."""
    last = found[-1]
    rows = [
        (row["algorithm"], round(row["tokens"][-1]), 1e3 * row["seconds"][-1], f"{row['exponent']:.2f}")
        for row in last["rows"]
    ]
    heads = ("algorithm", "tokens", "ms", "exponent")
    return table(heads, rows, caption="Advantages against tokens", notes=_notes(last)[:1], name="advantages")


def variants_table(found: Sequence[Result]) -> Table:
    """The newest call: what was tried."""
    last = found[-1]
    rows = [(row["part"], row["variant"], row["seconds"], row["ratio"]) for row in last["rows"]]
    share, compiling = last["scoring_share_of_step"], last["compiling"]
    more = [f"Scoring is {share:.1%} of a step: no more than that could be hidden by overlapping it."]
    if compiling:
        steps = compiling["compile_pays_after_steps"]
        after = f"pays after {steps:.0f} optimizer steps" if steps else "never pays"
        more.append(f"Compiling takes {compiling['compile_seconds']:.0f} s and {after}.")
    else:
        more.append("Compiling was not measured: it needs a C++ compiler.")
    return table(
        ("part", "variant", "CPU s", "speed over default"),
        rows,
        caption="Variants of one step, in turn",
        notes=_notes(last, *more),
        name="variants",
    )


def interface_table(found: Sequence[Result]) -> Table:
    """The newest call: seconds of each command."""
    last = found[-1]
    rows = [(row["command"], row["cpu_seconds"], row["wall_seconds"]) for row in last["rows"]]
    return table(
        ("command", "CPU s", "wall s"),
        rows,
        caption="Commands, in fresh processes",
        notes=_notes(last)[:1],
        name="interface",
    )


PARTS: Mapping[str, Callable[[Sequence[Result]], Table]] = {
    "against": against_table,
    "sweep": sweep_table,
    "floor": floor_table,
    "scaling": scaling_table,
    "scoring": scoring_table,
    "advantages": advantages_table,
    "variants": variants_table,
    "interface": interface_table,
}


def headline(folder: Path) -> str:
    """One sentence from the kept calls of `against` and `sweep`, for a page that has no room for tables."""
    ratios = [one["ratio_to_trl"] for one in calls(folder, "against") if not one["trl_tunables"]]
    last = calls(folder, "sweep")[-1]
    trl = max(way["seeds_per_hour"] for way in last["ways"][1:])
    return (
        f"On {last['machine']['cores']} cores ({last['machine']['processor']}), one run makes {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the completion tokens a second of TRL {last['trl_version']} ({len(ratios)} calls), "
        f"and a sweep gives {last['ways'][0]['seeds_per_hour']:.0f} seeds of {last['optimizer_steps']} optimizer "
        f"steps an hour against {trl:.0f}.\n"
    )


def tables_of(result: Result) -> Iterator[Table]:
    """The tables of one call, for the terminal."""
    context = {key: result[key] for key in CONTEXT}
    for part, make in PARTS.items():
        if part in result:
            yield make([{**context, **result[part]}])


def write_document(path: Path, folder: Path) -> bool:
    """Fills the benchmark blocks (a part's table, or `headline`) of a Markdown file; whether anything changed."""

    def block(part: str) -> str:
        if part == "headline":
            return headline(folder)
        return "\n" + to_markdown(lookup("benchmark", part, PARTS)(calls(folder, part))) + "\n"

    if not path.is_file():
        raise UserError(
            f"--write {str(path)!r}: not a file; give a Markdown file with <!-- benchmark: PART --> blocks"
        )
    before = path.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda m: m[1] + block(m["name"]) + m[3], before)
    if after != before:
        write_atomic(path, after.encode())
    return after != before


def to_plain(result: Result) -> dict[str, Any]:
    """A result as JSON holds it: tuples as lists, numbers that are not finite as null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.loads(json.dumps(plain(result), allow_nan=False))
