"""Watching and tracking: from the records alone, while they grow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import EnvironmentProblem, UserError
from harness.store.writer import RunWriter
from harness.trackers import TRACKERS, Trackers, find_tracker, values_of
from harness.watch import Watch, metric_of, sparkline, warning_signs

SPEC = {
    "seeds": {"seed": 4},
    "train": {"horizon": 20},
    "algorithm": {"name": "grpo"},
    "stop": {"metric": "compile"},
}


def write_step(writer: RunWriter, step: int, usd: float = 0.0) -> None:
    costs = {"generated_tokens": 1000 * step, "judge_usd": usd * step}
    writer.append("steps", {"optimizer_step": step, "metrics": {"loss": 0.5}, "costs": costs})
    writer.append(
        "timings",
        {"optimizer_step": step, "phase": "train", "seconds": 10.0 * step, "evaluation_seconds": 0.0},
    )


def write_eval(
    writer: RunWriter,
    step: int,
    rate: float,
    *,
    tokens: float = 30.0,
    truncated: float = 0.0,
    usd: float = 0.0,
) -> None:
    metrics = {
        "compile": rate,
        "correct": rate,
        "mean_tokens": tokens,
        "truncated": truncated,
        "unique_share": 1.0,
    }
    writer.append(
        "evals",
        {
            "optimizer_step": step,
            "n": 8,
            "metrics": metrics,
            "costs": {"generated_tokens": 1000 * step, "judge_usd": usd * step},
        },
    )


@pytest.fixture
def run(tmp_path):
    writer = RunWriter(tmp_path / "runs" / "a", {"run_id": "a1", "arm": "grpo", "spec": SPEC})
    writer.status("running")
    write_eval(writer, 0, 0.0)
    for step in range(1, 6):
        write_step(writer, step)
    write_eval(writer, 5, 0.5)
    yield writer
    writer.close()


def shown(watch: Watch) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(watch.table())
    return console.export_text()


def test_a_run_is_described_from_its_folder(run, tmp_path):
    found = Watch(tmp_path).to_json()
    assert found == [
        {
            "run": "grpo seed 4",
            "folder": str(tmp_path / "runs" / "a"),
            "status": "running",
            "optimizer_step": 5,
            "horizon": 20,
            "compile": 0.5,
            "mean_tokens": 30.0,
            "truncated": 0.0,
            "seconds": 50.0,
            "eta_seconds": 150.0,
            "generated_tokens": 5000,
            "tokens_per_second": 100.0,
            "judge_usd": 0.0,
            "signs": [],
        }
    ]
    text = shown(Watch(tmp_path))
    for part in ("grpo seed 4", "5/20", "0.500", "▁▅", "0:50", "2:30", "100", "5k", "0 of 1 runs done"):
        assert part in text


def test_watching_follows_growth_and_new_runs(run, tmp_path, monkeypatch):
    watch = Watch(tmp_path)
    assert not watch.over
    for step in range(6, 11):
        write_step(run, step, usd=0.01)
    write_eval(run, 10, 0.75, usd=0.01)
    other = RunWriter(tmp_path / "runs" / "b", {"run_id": "b1", "arm": "bot_grpo", "spec": SPEC})
    other.status("completed")
    other.close()
    monkeypatch.setattr("harness.watch.DISCOVER_SECONDS", 0.0)
    watch.refresh()
    rows = watch.to_json()
    assert [row["run"] for row in rows] == ["grpo seed 4", "bot_grpo seed 4"]
    assert rows[0]["optimizer_step"] == 10
    assert "$0.10" in shown(watch)
    run.status("completed")
    assert watch.over


def test_watching_writes_nothing(run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    shown(Watch(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_signs_of_a_hack_are_shown(run, tmp_path):
    write_eval(run, 10, 0.0, tokens=5.0, truncated=0.95)
    watch = Watch(tmp_path)
    view = next(iter(watch.views.values()))
    assert warning_signs(view) == ["length_collapse", "never_ends", "hacked"]
    assert "never_ends" in shown(watch)


def test_metric_is_the_claims_then_the_stop_rules(run, tmp_path):
    runs = [tmp_path / "runs" / "a"]
    assert metric_of(tmp_path, runs) == "compile"
    (tmp_path / "claim.json").write_text(json.dumps({"definition": {"endpoint": {"metric": "win_rate"}}}))
    assert metric_of(tmp_path, runs) == "win_rate"
    assert metric_of(tmp_path / "runs", []) == "correct"
    assert Watch(tmp_path, "truncated").metric == "truncated"


def test_folder_that_is_not_there():
    with pytest.raises(UserError, match="does not exist"):
        Watch(Path("/nowhere"))


def test_sparkline_clips_and_keeps_the_last():
    assert sparkline([0.0, 0.5, 1.0, 2.0, -1.0]) == "▁▅██▁"
    assert len(sparkline([0.1] * 40)) == 16


# ---------------------------------------------------------------------------- trackers


class Recorder:
    """A tracker that keeps what it gets."""

    log_of: list

    def __init__(self, folder, manifest):
        self.log_of.append(("start", folder.name, manifest["run_id"]))

    def log(self, step, values):
        self.log_of.append((step, sorted(values)))

    def finish(self, status):
        self.log_of.append(("finish", status))


@pytest.fixture
def recorder(monkeypatch):
    Recorder.log_of = []
    monkeypatch.setitem(TRACKERS, "recorder", Recorder)
    original = find_tracker
    monkeypatch.setattr(
        "harness.trackers.find_tracker", lambda n: Recorder if n == "recorder" else original(n)
    )
    return Recorder.log_of


def test_records_go_out_once_and_in_order(run, tmp_path, recorder):
    folders = [tmp_path / "runs" / "a"]
    with Trackers(folders, ["recorder"]) as trackers:
        trackers()
        write_step(run, 6)
        trackers()
    steps = [entry[0] for entry in recorder]
    assert steps == ["start", 0, 1, 2, 3, 4, 5, 5, 6, "finish"]
    assert recorder[-1] == ("finish", "stopped")  # it may go on
    assert recorder[1][1][:3] == ["cost/generated_tokens", "cost/judge_usd", "eval/compile"]
    recorder.clear()
    offsets = run.offsets()
    run.rewind({**offsets, "steps": 0})  # a resume repeats what was there
    for step in range(1, 8):
        write_step(run, step)
    run.status("completed")
    with Trackers(folders, ["recorder"]) as trackers:
        trackers()
    assert [entry[0] for entry in recorder] == ["start", 7, "finish"]
    assert recorder[-1] == ("finish", "completed")


def test_a_tracker_that_fails_is_left_out_and_named(run, tmp_path, recorder, monkeypatch, capsys):
    def fail(self, step, values):
        raise ConnectionError("no network")

    monkeypatch.setattr(Recorder, "log", fail)
    with Trackers([tmp_path / "runs" / "a"], ["recorder"]) as trackers:
        trackers()
        trackers()
    assert trackers.problems == {"recorder": "ConnectionError: no network"}
    assert capsys.readouterr().err == "tracker recorder is left out: ConnectionError: no network\n"


def test_unknown_and_absent_trackers_are_refused(monkeypatch):
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        find_tracker("wandbb")
    monkeypatch.setattr("harness.trackers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'creditbench\[trackers\]'"):
        find_tracker("trackio")


def test_names_of_values():
    record = {"optimizer_step": 1, "metrics": {"loss": 1}, "costs": {"prompts": 2}}
    assert values_of("steps", record) == {"train/loss": 1.0, "cost/prompts": 2.0}
    assert values_of("evals", record) == {"eval/loss": 1.0, "cost/prompts": 2.0}


def test_a_line_of_a_run_that_counts_no_tokens(capsys):
    from types import SimpleNamespace

    from harness.watch import Display

    display = Display([], "success")
    display._line(
        SimpleNamespace(name="table", horizon=5), {"optimizer_step": 1, "metrics": {"success": 0.5}}
    )
    said = capsys.readouterr().err
    assert "success 0.500" in said
    assert "tokens -" in said


class FakeView:
    """A run as the display sees it."""

    def __init__(self, number: int) -> None:
        self.folder, self.name, self.horizon, self.state = (
            Path(f"run-{number}"),
            f"grpo seed {number}",
            2,
            "absent",
        )
        self.new: list[dict] = []

    def refresh(self) -> list[dict]:
        found, self.new = self.new, []
        return found

    def status(self) -> str:
        return self.state


def finish(views: list[FakeView], state: str = "completed") -> None:
    for view in views:
        view.state = state
        view.new = [{"optimizer_step": 2, "metrics": {"success": 1.0}}]


@pytest.fixture
def sweep(monkeypatch):
    """A display of 50 runs, the first 5 finished before it begins; its clock is set by hand."""
    from harness.watch import Display

    now = [0.0]
    monkeypatch.setattr("harness.watch.time.monotonic", lambda: now[0])
    display = Display([], "success")
    display.views = [FakeView(i) for i in range(50)]
    finish(display.views[:5])
    with display:
        yield display, now


def test_a_large_sweep_is_told_as_a_whole_and_now_and_then(sweep, capsys):
    display, now = sweep
    finish(display.views[5:10])
    display([])
    assert capsys.readouterr().err == ""  # not yet due
    now[0] = 20.0
    display([])
    assert capsys.readouterr().err == "   0:20  10 of 50 runs done, about 2:40 left\n"
    now[0] = 40.0
    display([])
    assert capsys.readouterr().err == ""  # nothing has finished since
    finish(display.views[10:11], "failed")
    display([])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "   0:40  grpo seed 10 failed"
    assert said[1].startswith("   0:40  11 of 50 runs done, 1 failed or diverged, about")


def test_a_large_sweep_ends_with_its_count(sweep, capsys):
    display, now = sweep
    finish(display.views[5:])
    now[0] = 5.0
    display.__exit__(None, None, None)
    assert capsys.readouterr().err == "   0:05  50 of 50 runs done\n"


def test_a_small_sweep_is_told_by_evaluations(capsys):
    from harness.watch import Display

    display = Display([], "success")
    display.views = [FakeView(i) for i in range(3)]
    finish(display.views)
    with display:
        finish(display.views)
        display([])
    assert capsys.readouterr().err.count("success 1.000") == 3


def test_a_live_table_keeps_what_runs_and_what_failed_in_sight():
    from harness.watch import fitting

    views = [FakeView(i) for i in range(30)]
    finish(views[:20])
    views[7].state, views[25].state = "failed", "running"
    shown = fitting(views, 4)
    assert [v.name for v in shown] == [f"grpo seed {i}" for i in (7, 20, 21, 25)]
    assert fitting(views, 30) == views


@pytest.mark.parametrize("width", [72, 80, 120, 200])
def test_a_narrow_terminal_gets_fewer_columns_not_cut_ones(width):
    from harness.watch import table_of

    views = [FakeView(i) for i in range(3)]
    for view in views:
        view.evals = [
            {"optimizer_step": s, "metrics": {"success": 0.1 * s, "mean_tokens": 3.0}} for s in range(10)
        ]
        view.step, view.seconds, view.costs, view.folder = 9, 75.0, {"generated_tokens": 9e5}, Path("run")
        view.eta_seconds = view.tokens_per_second = lambda: 61.0
        view.state = "running"
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table_of(views, "success", wide=True, width=width))
    shown = captured.get()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert "1:01" in shown  # the time left always stays
    assert ("tokens/s" in shown) == (width >= 120)
