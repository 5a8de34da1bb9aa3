"""Judges pairs of answers: both runs' last checkpoints answer the same prompts, a judge compares pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from harness.claims.schema import Claim
from harness.errors import EnvironmentProblem, UserError
from harness.evaluate.pair_records import (
    PAIRS,
    Cell,
    PairRecord,
    cells,
    current_pairs,
    end_steps,
    pair_notes,
    read_pairs,
    run_of,
    with_win_rates,
    write_pairs,
)
from harness.evaluate.runner import PROBLEMS_PER_CALL
from harness.evaluate.sheet import Shot, write_sheet
from harness.evaluate.target import Target, load_target
from harness.spec import RunSpec, parse_run
from harness.store.reader import RunRecord
from harness.train.alignment import TextAligner
from harness.train.build import build_task
from harness.train.sampler import NativeSampler
from harness.train.streams import Address
from tasks.base import Answer, Example
from tasks.judges import Judge
from tasks.react.browser import BrowserError, Screenshots, find_chromium
from tasks.react.pairs import Pair, Photographer, compare_pairs, make_pair_judge, picture_answers
from tasks.react.task import ReactTask

READY = ("completed", "diverged")
"""Runs that will not train on: their last checkpoint is what they came to."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PairSettings:
    """Who judges; `retry` asks again for cells with pairs that the judge gave no word on."""

    judge: str = "scripted"
    judge_options: Mapping[str, Any] = field(default_factory=dict)
    retry: bool = False

    @property
    def label(self) -> str:
        """The judge's name as it stands in records: with its model, where it has one."""
        model = self.judge_options.get("model")
        return f"{self.judge}/{model}" if model else self.judge


def open_judge(settings: PairSettings) -> Judge:
    """The pair judge; UserError for an unknown one, a wrong option, or a key that is not set."""
    try:
        return make_pair_judge(settings.judge, settings.judge_options)
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from None


def check_ready(settings: PairSettings, browser: str | None, warn: Progress) -> None:
    """Before anything is trained: UserError for a judge that cannot be had, a warning where there is no browser."""
    open_judge(settings).close()
    try:
        find_chromium(browser)
    except BrowserError as error:
        warn(f"warning: {error}; it is needed once all runs are finished")


def last_answers(target: Target, examples: Sequence[Example]) -> list[Answer]:
    """One answer of a run's checkpoint to each prompt, at its evaluation's temperature.

    Runs of one seed draw from the same random streams: two equal policies give equal answers.
    """
    spec = target.spec
    assert spec is not None
    codec, aligner = target.codec(), TextAligner(target.tokenizer)
    sampler = NativeSampler(target.model, eos_ids=codec.eos_ids, pad_id=codec.pad_id)
    limit, seed = spec.train.max_completion_tokens, spec.seeds.of("evaluation")
    answers: list[Answer] = []
    for first in range(0, len(examples), PROBLEMS_PER_CALL):
        part = examples[first : first + PROBLEMS_PER_CALL]
        prompts = [codec.encode(example.prompt, room=limit, shots=example.shots) for example in part]
        streams: list[Address] = [("pairs", seed, first + i) for i in range(len(part))]
        found = sampler.sample(
            prompts, [1] * len(part), streams, max_tokens=limit, temperature=spec.evaluation.temperature
        )
        for row, mask, cut in zip(found.ids, found.mask, found.truncated, strict=True):
            text, _ = aligner.decode(row[mask].tolist())
            answers.append(Answer(text=text, finished=not bool(cut)))
    return answers


def picture_all(
    task: ReactTask, camera: Photographer, answers: Mapping[str, Sequence[Answer]]
) -> dict[str, list[Shot]]:
    """What each arm's answers show, equal answers photographed once; an answer cut off shows nothing."""
    texts = list(dict.fromkeys(a.text for own in answers.values() for a in own if a.finished))
    pictures = dict(zip(texts, picture_answers(task.checks, camera, texts), strict=True))
    cut = Shot(b"", "unfinished")
    return {
        arm: [Shot(pictures[a.text].png, pictures[a.text].status) if a.finished else cut for a in own]
        for arm, own in answers.items()
    }


class PairJudging:
    """Judges the open cells of a claim's runs, seed by seed; what it starts ends with `close`."""

    def __init__(
        self, claim: Claim, scale: str, runs: Sequence[RunRecord], out: Path, settings: PairSettings
    ) -> None:
        self.claim, self.scale, self.out, self.settings = claim, scale, out, settings
        self.runs = run_of(claim, scale, runs)
        self.notes: list[str] = []
        self.known = read_pairs(out / PAIRS)
        specs = [parse_run(run.spec) for run in runs]
        self._refuse_unlike(specs)
        self.task = self._task(specs[0])
        size, count = self.task.size("test"), specs[0].evaluation.prompts
        self.examples = [
            self.task.example("test", i) for i in range(count if size is None else min(count, size))
        ]
        self._camera: Screenshots | None = None

    @staticmethod
    def _refuse_unlike(specs: Sequence[RunSpec]) -> None:
        if len({(spec.task.name, spec.evaluation.prompts) for spec in specs}) > 1:
            raise UserError("win rate: the arms differ in task or evaluation prompts: give them the same")

    @staticmethod
    def _task(spec: RunSpec) -> ReactTask:
        task = build_task(spec)
        if not isinstance(task, ReactTask):
            task.close()
            raise UserError(
                f"win rate: task {spec.task.name!r} has no screenshots to compare; use task react"
            )
        return task

    def open_cells(self) -> list[Cell]:
        """Cells that are still to be judged; those that cannot be are noted."""
        counts: dict[Cell, int] = {}
        for pair in self.pairs():
            asked_again = self.settings.retry and pair.score is None
            counts[pair.cell] = counts.get(pair.cell, 0) + (not asked_again)
        found = []
        for cell in cells(self.claim, self.scale, list(self.runs.values())):
            lacking = [arm for arm in cell[:2] if not self._ready(arm, cell[2])]
            if lacking:
                self.notes.append(self._why_not(cell, lacking[0]))
            elif counts.get(cell, 0) < len(self.examples):
                found.append(cell)
        return found

    def _ready(self, arm: str, seed: int) -> bool:
        run = self.runs.get((arm, seed))
        return run is not None and run.status in READY and any((run.path / "checkpoints").glob("step-*.pt"))

    def _why_not(self, cell: Cell, arm: str) -> str:
        run = self.runs.get((arm, cell[2]))
        state = "has no run" if run is None else f"is {run.status}"
        state += " and has no checkpoint" if run is not None and run.status in READY else ""
        return f"{cell[0]} against {cell[1]}, seed {cell[2]}: not judged, {arm} {state}"

    def judge_seed(self, todo: Sequence[Cell], judge: Judge, progress: Progress) -> None:
        """Samples, photographs and judges the cells of one seed, and keeps each as soon as it is judged."""
        seed = todo[0][2]
        compared = {
            name for pair in self.claim.comparisons_at(self.scale) for name in (pair.treatment, pair.baseline)
        }
        arms = [arm.name for arm in self.claim.arms_at(self.scale) if arm.name in compared]
        answers = {}
        # also arms whose cells are all judged: the sheet shows every arm
        for arm in (arm for arm in arms if self._ready(arm, seed)):
            progress(f"pairs, seed {seed}: sampling {len(self.examples)} answers of {arm}")
            answers[arm] = last_answers(load_target(self.runs[arm, seed].path), self.examples)
        progress(f"pairs, seed {seed}: taking screenshots")
        shots = self._photograph(answers)
        write_sheet(
            self.out / f"screenshots-seed-{seed}.png", [example.prompt for example in self.examples], shots
        )
        for cell in todo:
            self._keep(cell, self._judge_cell(cell, shots, judge))

    def _photograph(self, answers: Mapping[str, Sequence[Answer]]) -> dict[str, list[Shot]]:
        try:
            if self._camera is None:
                self._camera = Screenshots(self.task.options.browser, self.task.options.node)
            return picture_all(self.task, self._camera, answers)
        except BrowserError as error:
            raise EnvironmentProblem(
                f"win rate: {error}; all runs are kept, and the same command goes on from here"
            ) from None

    def _judge_cell(self, cell: Cell, shots: Mapping[str, Sequence[Shot]], judge: Judge) -> list[PairRecord]:
        treatment, baseline, seed = cell
        rows = zip(self.examples, shots[treatment], shots[baseline], strict=True)
        pairs = [Pair(example.id, seed, example.prompt, a.png, b.png) for example, a, b in rows]
        steps = end_steps(self.runs, cell)
        return [
            PairRecord(
                treatment=treatment,
                baseline=baseline,
                seed=seed,
                prompt_id=result.prompt_id,
                score=result.score,
                agreed=result.agreed,
                status=result.status,
                judge=self.settings.label,
                optimizer_steps=steps,
                judge_calls=result.calls,
                judge_usd=result.usd,
            )
            for result in compare_pairs(judge, pairs)
        ]

    def _keep(self, cell: Cell, found: Sequence[PairRecord]) -> None:
        label = self.settings.label
        self.known = [pair for pair in self.known if (pair.cell, pair.judge) != (cell, label)] + [*found]
        write_pairs(self.out / PAIRS, self.known)

    def pairs(self) -> list[PairRecord]:
        """The pairs by this judge, of the runs as they are now."""
        return current_pairs(self.known, self.runs, self.settings.label)

    def close(self) -> None:
        """Ends the browser and the checkers."""
        if self._camera is not None:
            self._camera.close()
        self.task.close()


def judge_pairs(
    claim: Claim,
    scale: str,
    runs: Sequence[RunRecord],
    out: Path,
    settings: PairSettings,
    progress: Progress = lambda line: None,
) -> tuple[list[RunRecord], list[str]]:
    """Judges what is not yet in `<out>/pairs.jsonl`; the runs with their win rates, and notes for the report.

    EnvironmentProblem without a usable browser: nothing is lost, the same command goes on.
    """
    with closing(PairJudging(claim, scale, runs, out, settings)) as judging:
        todo = judging.open_cells()
        if todo:
            disable_progress_bar()  # a bar for each model that is loaded says nothing
            with closing(open_judge(settings)) as judge:
                for seed in dict.fromkeys(cell[2] for cell in todo):
                    judging.judge_seed([cell for cell in todo if cell[2] == seed], judge, progress)
        pairs = judging.pairs()
    notes = [*pair_notes(claim, scale, pairs), *judging.notes]
    return with_win_rates(claim, scale, runs, pairs), notes
