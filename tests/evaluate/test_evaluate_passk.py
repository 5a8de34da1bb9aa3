"""Samples in Parquet, Pass@k from them, flags, and differences between arms."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import UserError
from harness.evaluate.passk import (
    SampleRow,
    by_run,
    counts_of,
    identical_replicates,
    matrix_of,
    pass_at_k_differences,
    read_samples,
    summarise_samples,
    write_samples,
)
from harness.stats.compare import holm, two_way, welch
from tasks.passk import pass_at_k


def row(problem="p", sample=0, correct=True, *, run="r", step=0, text=None, extracted="5", truncated=False):
    return SampleRow(
        run=run,
        seed=0,
        optimizer_step=step,
        problem=problem,
        sample=sample,
        correct=bool(correct),
        status="correct" if correct else "wrong",
        extracted=extracted,
        truncated=truncated,
        completion=text or f"{problem}{sample}{run}",
        grader_version="v",
    )


def rows(table, **options):
    return [row(p, i, good, **options) for p, goods in table.items() for i, good in enumerate(goods)]


TABLE = {"a": [1, 1, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]}


def test_samples_survive_parquet(tmp_path):
    path = tmp_path / "deep" / "samples.parquet"
    found = [*rows(TABLE), row("d", 0, False, extracted=None)]
    write_samples(path, found)
    assert read_samples(path) == found
    assert [p.name for p in path.parent.iterdir()] == ["samples.parquet"]


def test_files_that_are_none_are_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(UserError, match="cannot be read"):
        read_samples(tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UserError, match="cannot be read"):
        read_samples(tmp_path / "text.parquet")
    pq.write_table(pa.table({"run": ["r"]}), tmp_path / "short.parquet")
    with pytest.raises(UserError, match=r"short\.parquet"):
        read_samples(tmp_path / "short.parquet")


def test_any_k_can_be_recomputed(tmp_path):
    path = tmp_path / "s.parquet"
    write_samples(path, rows(TABLE))
    again = read_samples(path)
    assert counts_of(again) == {"a": (4, 2), "b": (4, 0), "c": (4, 4)}
    for k in range(1, 5):
        expected = np.mean([pass_at_k(4, c, k) for c in (2, 0, 4)])
        assert summarise_samples(again, [k]).pass_at_k[k] == pytest.approx(expected)


def test_summary_by_hand():
    found = summarise_samples(rows(TABLE), [1, 2, 4])
    assert found.avg_at_n == pytest.approx(0.5)
    assert found.pass_at_k[2] == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert found.maj_at_k[4] == pytest.approx((1 + 0 + 1) / 3 - 1 / 6)  # problem a: right and "5" tie
    assert found.least_n == 4
    assert found.flags == ()


def test_k_beyond_n_is_refused():
    with pytest.raises(UserError, match="k=8 exceeds n=4 of problem 'a'"):
        summarise_samples(rows(TABLE), [1, 8])
    with pytest.raises(UserError, match="none"):
        summarise_samples([], [1])


def test_missing_samples_shrink_n_and_are_flagged():
    found = summarise_samples(rows({"a": [1, 1, 1, 0, 0, 0]}), [1], requested=16)
    assert found.pass_at_k[1] == 0.5
    assert found.flags == ("10 missing samples: n is the number graded",)
    uneven = summarise_samples(rows({"a": [1, 0], "b": [1]}), [1])
    assert uneven.flags == ("1 missing samples: n is the number graded",)


def test_repeated_samples_are_flagged():
    same = [row("p", i, text="same") for i in range(8)]
    assert "duplicate_samples" in summarise_samples(same, [1]).flags[0]
    assert summarise_samples(same, [1], temperature=0.0).flags == ()
    mixed = same + [row(f"q{j}", i) for j in range(5) for i in range(8)]
    assert "all samples alike for 1 problems" in summarise_samples(mixed, [1]).flags[0]


def test_truncation_is_reported():
    found = summarise_samples([row("p", 0), row("p", 1, False, truncated=True)], [1])
    assert found.truncation_rate == 0.5


def test_a_sample_given_twice_is_refused():
    with pytest.raises(UserError, match="sample 0 twice"):
        counts_of([row(), row()])


def test_the_matrix_marks_what_is_not_there():
    names, matrix = matrix_of([row("a", 0), row("a", 2, False), row("b", 1)])
    assert names == ["a", "b"]
    assert matrix.tolist() == [[1, -1, 0], [-1, 1, -1]]


def test_runs_are_kept_apart_and_copies_found():
    first, second, third = (
        rows(TABLE, run="x", text="t"),
        rows(TABLE, run="y", text="t"),
        rows(TABLE, run="z"),
    )
    parts = by_run([*first, *second, *third, row(run="z", step=5)])
    assert set(parts) == {("x", 0), ("y", 0), ("z", 0), ("z", 5)}
    assert identical_replicates({"x": first, "y": second, "z": third}) == [("x", "y")]


def arm(rng, runs, shift, problems=12, n=16):
    return [
        {f"p{i}": (n, int(rng.binomial(n, min(0.95, 0.1 + 0.05 * i + shift)))) for i in range(problems)}
        for _ in range(runs)
    ]


def test_differences_use_the_shared_statistics():
    rng = np.random.default_rng(0)
    treatment, baseline = arm(rng, 4, 0.2), arm(rng, 5, 0.0)
    ks = [1, 2, 4]
    found = pass_at_k_differences(treatment, baseline, ks)
    wide = pass_at_k_differences(treatment, baseline, ks, population="such_problems")
    names = sorted(treatment[0])
    for k, one, other in zip(ks, found, wide, strict=True):
        a, b = (
            np.array([[pass_at_k(*run[p], k) for p in names] for run in x]) for x in (treatment, baseline)
        )
        assert one.difference == welch(a.mean(1), b.mean(1))
        assert other.difference == two_way(a, b)
        assert one.difference.estimate == pytest.approx(a.mean() - b.mean())
        assert other.difference.high - other.difference.low > one.difference.high - one.difference.low
    assert [d.p_adjusted for d in found] == holm([d.difference.p_value for d in found])
    assert found[0].p_adjusted >= found[0].difference.p_value


def test_one_run_has_no_interval_and_no_p():
    rng = np.random.default_rng(1)
    (found,) = pass_at_k_differences(arm(rng, 1, 0.2), arm(rng, 3, 0.0), [1])
    assert found.difference.estimate is not None
    assert not found.difference.has_interval
    assert found.p_adjusted is None


def test_arms_on_different_problems_are_refused():
    rng = np.random.default_rng(2)
    with pytest.raises(UserError, match="different problems"):
        pass_at_k_differences(arm(rng, 2, 0, problems=3), arm(rng, 2, 0, problems=4), [1])
    with pytest.raises(UserError, match="k=17"):
        pass_at_k_differences(arm(rng, 2, 0), arm(rng, 2, 0), [17])
