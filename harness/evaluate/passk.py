"""Sampled answers kept as a 0/1 matrix, so that Pass@k can be recomputed for any k, and compared between arms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import UserError
from harness.stats.compare import Difference, holm, two_way, welch
from tasks.passk import average_at_n, majority_at_k, mean_pass_at_k, pass_at_k

Counts = Mapping[str, tuple[int, int]]
"""Graded samples and right ones by problem."""
Population = Literal["these_problems", "such_problems"]

MIN_UNIQUE = 0.5
"""Below this share of different completions at a temperature above 0 a repeated seed or a collapse is likely."""


@dataclass(frozen=True)
class SampleRow:
    """One graded sample: where it comes from, whether it was right, and a hash that tells texts apart."""

    run: str
    seed: int
    optimizer_step: int
    problem: str
    sample: int
    correct: bool
    status: str
    extracted: str | None
    truncated: bool
    completion: str
    grader_version: str


@dataclass(frozen=True)
class PassAtK:
    """Pass@k and maj@k by k, avg@n, the counts they come from, and what makes them doubtful."""

    pass_at_k: Mapping[int, float]
    maj_at_k: Mapping[int, float]
    avg_at_n: float
    counts: Counts
    truncation_rate: float
    flags: tuple[str, ...] = ()

    @property
    def least_n(self) -> int:
        """Samples of the problem that has the fewest."""
        return min(n for n, _ in self.counts.values())


@dataclass(frozen=True)
class PassAtKDifference:
    """Treatment minus baseline of Pass@k for one k; `p_adjusted` is Holm's over the whole grid."""

    k: int
    difference: Difference
    p_adjusted: float | None


def _schema() -> Any:
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_(), "str | None": pa.string()}
    return pa.schema([(f.name, types[str(f.type)]) for f in fields(SampleRow)])


def write_samples(path: Path, rows: Iterable[SampleRow]) -> None:
    """Writes samples as Parquet, one row each, next to its final name first so that no reader sees half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=_schema())
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    pq.write_table(table, part)
    part.replace(path)


def read_samples(path: Path) -> list[SampleRow]:
    """Samples from Parquet; UserError when the file cannot be read or lacks a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f.name for f in fields(SampleRow)]
    try:
        table = pq.read_table(path, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise UserError(
            f"samples={str(path)!r} cannot be read ({error}); give a file of write_samples"
        ) from error
    if table.column_names != names:
        raise UserError(f"samples={str(path)!r} lacks columns of {names}; give a file of write_samples")
    return [SampleRow(**row) for row in table.to_pylist()]


def by_run(rows: Iterable[SampleRow]) -> dict[tuple[str, int], list[SampleRow]]:
    """Samples by run and optimizer step."""
    found: dict[tuple[str, int], list[SampleRow]] = defaultdict(list)
    for row in rows:
        found[row.run, row.optimizer_step].append(row)
    return dict(found)


def _by_problem(rows: Iterable[SampleRow]) -> dict[str, list[SampleRow]]:
    found: dict[str, list[SampleRow]] = {}
    seen: set[tuple[str, int]] = set()
    for row in rows:
        if (row.problem, row.sample) in seen:
            raise UserError(
                f"samples: problem {row.problem!r} has sample {row.sample} twice: give the rows of one run at "
                "one optimizer step"
            )
        seen.add((row.problem, row.sample))
        found.setdefault(row.problem, []).append(row)
    return found


def counts_of(rows: Iterable[SampleRow]) -> dict[str, tuple[int, int]]:
    """Graded samples and right ones by problem, of one run at one step; UserError for a sample given twice."""
    return {name: (len(found), sum(r.correct for r in found)) for name, found in _by_problem(rows).items()}


def matrix_of(rows: Iterable[SampleRow]) -> tuple[list[str], np.ndarray]:
    """Problem names and the matrix [problems, samples] of 1, 0, and -1 where there is no sample."""
    problems = _by_problem(rows)
    width = max((row.sample + 1 for found in problems.values() for row in found), default=0)
    matrix = np.full((len(problems), width), -1, dtype=np.int8)
    for i, found in enumerate(problems.values()):
        for row in found:
            matrix[i, row.sample] = row.correct
    return list(problems), matrix


def _flags(
    problems: Mapping[str, Sequence[SampleRow]], requested: int | None, temperature: float
) -> list[str]:
    flags = []
    most = requested or max(len(found) for found in problems.values())
    missing = sum(max(0, most - len(found)) for found in problems.values())
    if missing:
        flags.append(f"{missing} missing samples: n is the number graded")
    shares = {
        name: len({r.completion for r in found}) / len(found)
        for name, found in problems.items()
        if len(found) > 1
    }
    repeated = [name for name, found in problems.items() if name in shares and shares[name] == 1 / len(found)]
    if temperature > 0 and shares and sum(shares.values()) / len(shares) < MIN_UNIQUE:
        flags.append(
            f"duplicate_samples: {sum(shares.values()) / len(shares):.0%} of the completions of a problem differ; "
            "a repeated sampler seed, or a policy that has collapsed"
        )
    elif repeated and temperature > 0:
        flags.append(f"duplicate_samples: all samples alike for {len(repeated)} problems")
    return flags


def summarise_samples(
    rows: Iterable[SampleRow], ks: Sequence[int], *, requested: int | None = None, temperature: float = 1.0
) -> PassAtK:
    """Pass@k, maj@k and avg@n of one run at one step for a grid of k named beforehand.

    `requested` samples were asked for of each problem: fewer shrink n and are flagged. UserError when some k
    exceeds the samples of a problem, and when there are no samples.
    """
    problems = _by_problem(rows)
    if not problems:
        raise UserError("samples: none; evaluate at least one problem")
    counts = {name: (len(found), sum(r.correct for r in found)) for name, found in problems.items()}
    try:
        passed = {k: mean_pass_at_k(counts, k) for k in ks}
    except ValueError as error:
        raise UserError(f"k={list(ks)}: {error}") from error
    majority = {
        k: float(
            np.mean(
                [
                    majority_at_k([r.extracted for r in p], [r.correct for r in p], k)
                    for p in problems.values()
                ]
            )
        )
        for k in ks
    }
    everything = [row for found in problems.values() for row in found]
    return PassAtK(
        pass_at_k=passed,
        maj_at_k=majority,
        avg_at_n=average_at_n(counts),
        counts=counts,
        truncation_rate=sum(r.truncated for r in everything) / len(everything),
        flags=tuple(_flags(problems, requested, temperature)),
    )


def identical_replicates(runs: Mapping[str, Iterable[SampleRow]]) -> list[tuple[str, str]]:
    """Pairs of runs with the very same completions: copies, which are one replicate and not two."""
    prints = {
        name: tuple(sorted((r.problem, r.sample, r.completion) for r in rows)) for name, rows in runs.items()
    }
    names = sorted(prints)
    return [
        (a, b) for i, a in enumerate(names) for b in names[i + 1 :] if prints[a] and prints[a] == prints[b]
    ]


def _values(arm: Sequence[Counts], problems: Sequence[str], k: int) -> np.ndarray:
    return np.array([[pass_at_k(*run[name], k) for name in problems] for run in arm])


def pass_at_k_differences(
    treatment: Sequence[Counts],
    baseline: Sequence[Counts],
    ks: Sequence[int],
    *,
    population: Population = "these_problems",
    level: float = 0.95,
) -> list[PassAtKDifference]:
    """Treatment minus baseline for every k of a grid named beforehand; one `Counts` for each training run.

    `these_problems`: Welch's t on run means. `such_problems`: two-way variance, runs and problems both
    random. P-values are adjusted by Holm over the grid. UserError when the runs were evaluated on different
    problems or k exceeds the samples of one.
    """
    runs = [*treatment, *baseline]
    problems = sorted(runs[0]) if runs else []
    if any(sorted(run) != problems for run in runs):
        raise UserError("arms: the runs were evaluated on different problems; compare runs on the same ones")
    found = []
    for k in ks:
        try:
            a, b = _values(treatment, problems, k), _values(baseline, problems, k)
        except ValueError as error:
            raise UserError(f"k={list(ks)}: {error}") from error
        one = (
            two_way(a, b, level=level)
            if population == "such_problems"
            else welch(a.mean(1), b.mean(1), level=level)
        )
        found.append(PassAtKDifference(k, one, None))
    tested = [i for i, one in enumerate(found) if one.difference.p_value is not None]
    adjusted = holm([found[i].difference.p_value or 0.0 for i in tested]) if tested else []
    for i, p in zip(tested, adjusted, strict=True):
        found[i] = replace(found[i], p_adjusted=p)
    return found
