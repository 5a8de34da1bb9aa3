"""Published evidence: small, whole, and enough to judge and explain the claim anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.archive import archive
from harness.claims import load_claim
from harness.claims.simulate import simulated_sweep
from harness.claims.verdict import judge
from harness.report import dynamics
from harness.report.study import evidence_below
from harness.store.manifests import merged, own_part, read_manifests, shared_part
from harness.store.reader import load_runs

CLAIM = load_claim("compile-speedup")


def with_steps(folder: Path) -> None:
    """Steps and timings as real runs leave them: token credit logs kappa, GRPO does not."""
    for run in (folder / "runs").iterdir():
        bot = run.name.startswith("bot")
        rows = []
        for step in range(1, 31):
            metrics = {
                "mean_tokens": 40.0 + step if bot else 60.0 - step / 10,
                "truncated": 0.0,
                "unseen": 1.0,
            }
            metrics |= {"kappa": 0.9, "frac_sign_flips": 0.1} if bot else {}
            rows.append({"optimizer_step": step, "metrics": metrics, "costs": {"some": 100 * step}})
        evals = [json.loads(line)["optimizer_step"] for line in (run / "evals.jsonl").open()]
        timings = [{"optimizer_step": step, "phase": "eval", "seconds": 1.4 * step} for step in evals]
        (run / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timings))
        (run / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def published(tmp_path_factory, writer) -> tuple[Path, Path]:
    """A results folder, and the evidence made of it."""
    runs = simulated_sweep(CLAIM, "tiny", {"grpo": [55, 58, 62, 57, 300], "bot_grpo": [30, 28, 33, 31, 29]},
                           np.random.default_rng(4))  # fmt: skip
    out = writer(tmp_path_factory.mktemp("sweep"), runs, CLAIM)
    with_steps(out)
    (out / "verdict.json").write_text("{}")
    return out, archive(out, tmp_path_factory.mktemp("published"))


def test_evidence_holds_all_that_is_promised_and_is_small(published):
    _, target = published
    files = {path.name for path in target.iterdir()}
    assert files == {
        "claim.json", "manifests.json", "evaluations.parquet", "steps.parquet", "verdict.json", "summary.txt",
        "report.md", "table.tex", "learning-curve.png", "dynamics.png",
    }  # fmt: skip
    assert sum(path.stat().st_size for path in target.iterdir()) < 500_000
    report = (target / "report.md").read_text()
    for name in ("learning-curve.png", "dynamics.png"):
        assert f"({name})" in report
    assert r"\begin{tabular}" in (target / "table.tex").read_text()


def test_the_verdict_of_the_evidence_is_that_of_the_runs(published):
    out, target = published
    first = judge(CLAIM, "tiny", load_runs(out / "runs")).to_json()
    assert json.loads((target / "verdict.json").read_text()) == first
    assert judge(CLAIM, "tiny", load_runs(target)).to_json() == first
    (found,) = evidence_below(target.parents[1])
    assert found.claim.hash("tiny") == CLAIM.hash("tiny")


def test_steps_are_kept_as_far_as_they_explain(published):
    _, target = published
    run = next(run for run in load_runs(target) if run.arm == "bot_grpo")
    assert set(run.steps[0]["metrics"]) == {"mean_tokens", "truncated", "kappa", "frac_sign_flips"}
    assert [row["costs"]["some"] for row in run.steps] == [100 * step for step in range(1, 31)]


def test_what_the_runs_did_is_told_in_words(published):
    _, target = published
    (line,) = dynamics.explain([("bot_grpo", "grpo")], load_runs(target))
    assert line == (
        "bot_grpo against grpo: ends with longer answers (68.0 against 57.2); kappa was 0.900; 10.0% of its tokens "
        "were credited against their outcome."
    )


def test_equal_arms_are_told_apart_by_nothing(published):
    _, target = published
    runs = [run for run in load_runs(target) if run.arm == "grpo"]
    twins = [*runs, *(type(run)(**{**vars(run), "arm": "twin"}) for run in runs)]
    assert dynamics.explain([("twin", "grpo")], twins) == ["twin against grpo: no logged metric differs."]


def test_means_are_over_the_steps_that_every_run_has(published):
    _, target = published
    runs = load_runs(target)
    short = next(run for run in runs if run.arm == "bot_grpo")
    short.steps[:] = short.steps[:10]
    assert dynamics.common_steps(runs) == 10
    kappa = next(d for d in dynamics.DYNAMICS if d.metric == "kappa")
    for row in short.steps[5:]:
        row["metrics"]["kappa"] = 0.0
    assert dynamics.summed_up(short, kappa, 5) == pytest.approx(0.9)
    assert dynamics.summed_up(short, kappa, 10) == pytest.approx(0.45)


def test_runs_that_logged_nothing_have_no_picture(tmp_path, published):
    out, _ = published
    runs = [
        type(run)(**{**vars(run), "steps": [], "evals": run.evals[:1]}) for run in load_runs(out / "runs")
    ]
    assert dynamics.dynamics_picture({"": runs}, ["grpo", "bot_grpo"], tmp_path / "dynamics") == []
    assert not list(tmp_path.iterdir())


VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@settings(deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=4))
def test_manifests_come_back_whole(tmp_path_factory, objects):
    shared = shared_part(objects)
    assert [merged(shared, own_part(item, shared)) for item in objects] == objects
    path = tmp_path_factory.mktemp("m") / "manifests.json"
    path.write_text(json.dumps({"shared": shared, "runs": [own_part(item, shared) for item in objects]}))
    assert read_manifests(path) == objects
    path.write_text(json.dumps(objects))
    assert read_manifests(path) == objects


def test_metrics_of_groups_are_not_compared_between_group_sizes(published):
    _, target = published
    runs = [run for run in load_runs(target) if run.arm == "grpo"]

    def varied(run, arm, size, share):
        steps = [{**row, "metrics": {**row["metrics"], "unique_share": share}} for row in run.steps]
        train = {**run.spec["train"], "group_size": size}
        return replace(run, arm=arm, steps=steps, spec={**run.spec, "train": train})

    def told(size):
        both = [varied(run, "grpo", 8, 0.5 + i / 100) for i, run in enumerate(runs)]
        both += [varied(run, "other", size, 0.9 + i / 100) for i, run in enumerate(runs)]
        (line,) = dynamics.explain([("other", "grpo")], both)
        return line

    assert "ends with more varied answers" in told(8)
    assert "varied" not in told(1)
    assert "don't compare" in told(1)
