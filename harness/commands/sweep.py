"""Commands on runs in progress and their records: watch, index, compact, track, publish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.common import command, print_json, say
from harness.errors import EnvironmentProblem, UserError


@dataclass(frozen=True)
class WatchOptions:
    """Options of `harness watch`."""

    folder: Annotated[str, typer.Argument(help="A results folder, also of a sweep that runs elsewhere.")]
    metric: Annotated[str, typer.Option(help="The rate to show; the claim's own by default.")] = ""
    once: Annotated[bool, typer.Option("--once", help="Print the table once and stop.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list once.")] = False
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0


def watch(options: WatchOptions) -> None:
    """Show the runs of a folder as they go: steps, rate, time left, tokens, cost, warning signs."""
    from harness.watch import Watch
    from harness.watch import watch as show

    if options.json:
        print_json(Watch(Path(options.folder), options.metric).to_json())
        return
    show(Path(options.folder), metric=options.metric, seconds=options.seconds, once=options.once)


@dataclass(frozen=True)
class IndexOptions:
    """Options of `harness index`."""

    folder: Annotated[str, typer.Argument(help="A results folder.")]
    json: Annotated[bool, typer.Option("--json", help="Print the rows as a JSON list as well.")] = False


def index(options: IndexOptions) -> None:
    """Rebuild index.jsonl, one line a run, from the folders of the runs."""
    from harness.store.index import NAME, write_index

    folder = Path(options.folder)
    if not folder.is_dir():
        raise UserError(f"results folder {options.folder!r} does not exist: give a folder that holds runs")
    rows = write_index(folder, fresh=True)
    say(f"{folder / NAME}: {len(rows)} runs")
    if options.json:
        print_json(rows)


@dataclass(frozen=True)
class CompactOptions:
    """Options of `harness compact`."""

    folder: Annotated[str, typer.Argument(help="A results folder.")]
    out: Annotated[str, typer.Option(help="Folder for the tables; FOLDER/tables by default.")] = ""
    check: Annotated[
        bool, typer.Option("--check", help="Check the tables that are there against their checksums.")
    ] = False


def compact(options: CompactOptions) -> None:
    """Write the records of all runs as Parquet tables (runs, evals, steps, timings) with checksums."""
    from harness.store.checksums import verify_checksums
    from harness.store.compact import compact as run

    out = Path(options.out) if options.out else Path(options.folder) / "tables"
    if options.check:
        if problems := verify_checksums(out):
            raise EnvironmentProblem(f"{out}: {'; '.join(problems)}; write them anew with `harness compact`")
        say(f"{out}: sound")
        return
    for path in run(Path(options.folder), out).values():
        say(f"written: {path}")


@dataclass(frozen=True)
class TrackOptions:
    """Options of `harness track`."""

    folder: Annotated[str, typer.Argument(help="A results folder.")]
    to: Annotated[list[str], typer.Option(help="tensorboard, trackio, wandb or mlflow.")]
    follow: Annotated[bool, typer.Option("--follow", help="Go on until no run is open.")] = False
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 5.0


def track(options: TrackOptions) -> None:
    """Feed the records of runs, finished or not, to a tracker; what was sent before is not sent again."""
    import time

    from harness.trackers import Trackers
    from harness.watch import Watch

    state = Watch(Path(options.folder))
    with Trackers(list(state.views), options.to) as trackers:
        trackers()
        while options.follow and not state.over:
            time.sleep(options.seconds)
            trackers()
            state.refresh()
    if trackers.problems:
        raise EnvironmentProblem("; ".join(f"{name}: {why}" for name, why in trackers.problems.items()))
    say(f"{len(state.views)} runs sent to {', '.join(options.to)}")


@dataclass(frozen=True)
class PublishOptions:
    """Options of `harness publish`."""

    run: Annotated[str, typer.Argument(help="The folder of one run.")]
    to: Annotated[str, typer.Option(help="folder or hub.")] = "folder"
    out: Annotated[str, typer.Option(help="The folder to write; RUN/published by default.")] = ""
    repo: Annotated[str, typer.Option(help="The Hub repository (org/name) for --to hub.")] = ""
    checkpoint: Annotated[str, typer.Option(help="best or last.")] = "best"
    public: Annotated[bool, typer.Option("--public", help="A public repository; private otherwise.")] = False


def publish(options: PublishOptions) -> None:
    """Write a run's model with a model card to a folder (no network), or upload it to the Hub."""
    from harness.names import lookup
    from harness.publish import publish as run

    lookup("--to", options.to, {"folder": 0, "hub": 0})
    lookup("--checkpoint", options.checkpoint, {"best": 0, "last": 0})
    if options.to == "hub" and options.repo.count("/") != 1:
        raise UserError(f"--repo {options.repo!r}: name the Hub repository as org/name")
    if options.to == "folder" and options.repo:
        raise UserError(f"--repo {options.repo!r}: add --to hub to upload")
    out = Path(options.out) if options.out else Path(options.run) / "published"
    done = run(
        Path(options.run),
        out,
        which=options.checkpoint,  # type: ignore[arg-type]  # looked up above
        repo=options.repo,
        private=not options.public,
    )
    say(f"published: {done.url or done.folder}")


def add(app: typer.Typer) -> None:
    """Adds these commands."""
    command(app, "watch", WatchOptions)(watch)
    command(app, "index", IndexOptions)(index)
    command(app, "compact", CompactOptions)(compact)
    command(app, "track", TrackOptions)(track)
    command(app, "publish", PublishOptions)(publish)
