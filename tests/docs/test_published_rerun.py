"""One published seed run again gives the published curve, to the last bit on the same platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.report.pages import latest
from harness.spec import parse_run
from harness.store.reader import load_run, load_runs
from harness.sweep.jobs import job_for
from harness.sweep.local import run_local

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arm"), [("what-helps-ladder-tiny", "bot_grpo"), ("reward-stability-ladder-tiny", "clean")]
)
def test_a_published_seed_gives_the_published_curve(name, arm, tmp_path):
    kept = next(run for run in load_runs(latest(PUBLISHED, name)) if run.arm == arm and run.seed == 0)
    job = job_for(parse_run(dict(kept.spec)), tmp_path, arm=arm, claim=dict(kept.claim))
    assert job.run_id == kept.run_id
    assert run_local([job], parallel=1)[job.run_id] == "completed"
    found = load_run(Path(job.folder))
    assert [row["optimizer_step"] for row in found.evals] == [row["optimizer_step"] for row in kept.evals]
    curves = [[row["metrics"]["correct"] for row in run.evals] for run in (found, kept)]
    same = all(kept.manifest[part] == found.manifest[part] for part in ("machine", "versions"))
    if same:
        assert curves[0] == curves[1]
        assert [row["costs"] for row in found.evals] == [row["costs"] for row in kept.evals]
    else:  # another platform adds in another order: the curve is that of a replicate
        assert curves[0] == pytest.approx(curves[1], abs=0.15)
