"""Optional sinks for the records of runs: tensorboard, trackio, wandb, mlflow; fed from the JSONL files alone.

Training never knows of them: they follow the same records that a report reads, here or on a cluster.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from harness.errors import EnvironmentProblem
from harness.names import lookup
from harness.store.reader import read_json
from harness.store.tail import Tail
from harness.store.writer import read_status, write_json

PROJECT = "creditbench"
ENDED = frozenset({"completed", "failed", "diverged"})


class Sink(Protocol):
    """One run in a tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values of one optimizer step; steps never go back."""
        ...

    def finish(self, status: str) -> None:
        """Closes the run; `status` is `completed`, `failed`, `diverged`, or `stopped` when it may go on."""
        ...


class TensorboardSink:
    """Event files in the run's folder: `tensorboard --logdir DIR` shows a whole sweep."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        """See Sink.finish."""
        self._writer.close()


class TrackioSink:
    """A local trackio project, or a Space when trackio is configured so."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        import trackio

        self._run = trackio.init(
            PROJECT, name=folder.name, config=dict(manifest.get("spec", {})), resume="allow", embed=False
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        self._run.log(dict(values), step=step)

    def finish(self, status: str) -> None:
        """See Sink.finish."""
        self._run.finish()


class WandbSink:
    """A Weights & Biases run with the run's own id; WANDB_MODE=offline keeps it here."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            id=str(manifest.get("run_id", folder.name)),
            name=folder.name,
            config=dict(manifest.get("spec", {})),
            dir=str(folder),
            resume="allow",
            reinit="create_new",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        self._run.log(dict(values), step=step)

    def finish(self, status: str) -> None:
        """See Sink.finish."""
        self._run.finish(exit_code=1 if status == "failed" else 0)


class MlflowSink:
    """A run of the experiment `creditbench` on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(PROJECT)
        key = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        run_id = str(manifest.get("run_id", folder.name))
        known = self._client.search_runs([key], f"tags.creditbench_run_id = '{run_id}'")
        run = (
            known[0]
            if known
            else self._client.create_run(key, tags={"creditbench_run_id": run_id}, run_name=folder.name)
        )
        self._run_id = run.info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Sink.log."""
        for name, value in values.items():
            self._client.log_metric(self._run_id, name, value, step=step)

    def finish(self, status: str) -> None:
        """See Sink.finish."""
        ends = {"completed": "FINISHED", "stopped": "KILLED"}
        self._client.set_terminated(self._run_id, ends.get(status, "FAILED"))


MakeSink = Callable[[Path, Mapping[str, Any]], Sink]
TRACKERS: Mapping[str, MakeSink] = {
    "tensorboard": TensorboardSink,
    "trackio": TrackioSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}


def find_tracker(name: str) -> MakeSink:
    """The tracker of a name; UserError for an unknown one, EnvironmentProblem when its package is absent."""
    sink = lookup("tracker", name, TRACKERS)
    if name in TRACKERS and importlib.util.find_spec(name) is None:
        raise EnvironmentProblem(f"--tracker {name}: not installed; pip install 'creditbench[trackers]'")
    return sink


class Feed:
    """Feeds one run's records to one tracker; what was sent is remembered, so that nothing is sent twice."""

    def __init__(self, folder: Path, name: str, make: MakeSink) -> None:
        self.folder = folder
        self.name = name
        self._make = make
        self._sink: Sink | None = None
        self._tails = {kind: Tail(folder / f"{kind}.jsonl") for kind in ("steps", "evals")}
        self._marker = folder / f"tracked-{name}.json"
        known = read_json(self._marker, []) if self._marker.exists() else {}
        self._sent = {kind: int(known.get(kind, -1)) for kind in self._tails}

    def send(self) -> None:
        """Sends what is new; a resumed run repeats its records exactly, so that steps sent are passed over."""
        rows = []
        for kind in ("steps", "evals"):  # in this order, an evaluation never comes after a later step
            for record in self._tails[kind].read():
                if record["optimizer_step"] > self._sent[kind]:
                    rows.append((record["optimizer_step"], kind, record))
        for step, kind, record in sorted(rows, key=lambda row: row[0]):
            self._sink = self._sink or self._make(self.folder, read_json(self.folder / "manifest.json", []))
            self._sink.log(step, values_of(kind, record))
            self._sent[kind] = step
        if rows:
            write_json(self._marker, self._sent)

    def finish(self) -> None:
        """Closes the run in the tracker, if anything was sent."""
        if self._sink is not None:
            status = read_status(self.folder)["status"]
            self._sink.finish(status if status in ENDED else "stopped")
            self._sink = None


def values_of(kind: str, record: Mapping[str, Any]) -> dict[str, float]:
    """A record under the names of trackers: `train/*` or `eval/*`, and `cost/*`."""
    head = "train" if kind == "steps" else "eval"
    values = {f"{head}/{name}": float(value) for name, value in record["metrics"].items()}
    return values | {f"cost/{name}": float(value) for name, value in record["costs"].items()}


class Trackers(AbstractContextManager["Trackers"]):
    """Feeds many runs to many trackers; one that fails is left out from then on, and never stops a run."""

    def __init__(self, folders: Sequence[Path], names: Sequence[str]) -> None:
        makers = {name: find_tracker(name) for name in names}
        self.feeds = [Feed(folder, name, make) for folder in folders for name, make in makers.items()]
        self.problems: dict[str, str] = {}

    def __call__(self) -> None:
        """Sends what is new."""
        for feed in self.feeds:
            self._guard(feed, feed.send)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends what is new and closes the runs."""
        for feed in self.feeds:
            self._guard(feed, feed.send)
            self._guard(feed, feed.finish)

    def _guard(self, feed: Feed, action: Callable[[], None]) -> None:
        if feed.name in self.problems:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a tracker is a courtesy: whatever ails it, the runs go on
            self.problems[feed.name] = f"{type(error).__name__}: {error}"
            print(f"tracker {feed.name} is left out: {self.problems[feed.name]}", file=sys.stderr)
