"""The shared training loop: samples, scores, credits, updates, evaluates, records; names no algorithm."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from algorithms.base import Algorithm, Batch
from harness.spec import RunSpec
from harness.store.writer import RunWriter
from harness.train import checkpoint
from harness.train.costs import Costs
from harness.train.evaluation import evaluate
from harness.train.facade import MeteredModels
from harness.train.mismatch import MismatchMeter, corrected, flag_note, flagged
from harness.train.optimizers import make_optimizer
from harness.train.policy import completion_logprobs, micro_batches
from harness.train.prompts import PromptCodec
from harness.train.reduction import Reducer
from harness.train.rollout import Generator, RolloutCollector, assemble, describe
from harness.train.streams import generator as numpy_generator
from harness.train.streams import seed_of
from tasks.base import Example, Recipe, Task


class Diverged(Exception):
    """The loss or the gradient stopped being finite."""


@dataclass
class Parts:
    """What a run is built from; see harness.train.build."""

    spec: RunSpec
    task: Task
    recipe: Recipe
    model: Any
    codec: PromptCodec
    algorithm: Algorithm
    models: MeteredModels
    generator: Generator
    costs: Costs


@dataclass
class Progress:
    """Where a run stands; everything here goes into its checkpoints."""

    optimizer_step: int = 0
    rollout: int = 0
    cursor: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    best: float = -math.inf
    crossed: int = 0
    crossed_at: int = -1
    history: list[float] = field(default_factory=list)
    mismatch: dict[str, float] = field(default_factory=dict)


class Trainer:
    """Trains one run to its horizon, its stop rule, or a request to stop; `run` returns the status."""

    def __init__(
        self,
        parts: Parts,
        writer: RunWriter,
        should_stop: Callable[[], bool] = lambda: False,
        should_pause: Callable[[], str] = lambda: "",
    ) -> None:
        """`should_stop` is asked before every rollout, `should_pause` (a reason, or "") after every evaluation."""
        self.parts = parts
        self.spec = parts.spec
        self.writer = writer
        self.should_stop = should_stop
        self.should_pause = should_pause
        self.progress = Progress()
        train = self.spec.train
        own = parts.algorithm.param_groups()
        self.policy_parameters = [p for p in parts.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(train, self.policy_parameters, own)
        # an algorithm's own modules may learn at a multiple of the policy's rate
        self.base_rates = [group["lr"] * group.get("lr_scale", 1.0) for group in self.optimizer.param_groups]
        self.collector = RolloutCollector(
            parts.generator, parts.algorithm, train, parts.costs, self._draw_example
        )
        self._clock = time.perf_counter()
        self._evaluated = False
        self._permutation: tuple[int, np.ndarray] | None = None

    # ------------------------------------------------------------------ data
    def _draw_example(self, index: int) -> Example:
        """The training example at a position of this run's data order (a shuffle per epoch, or a stream)."""
        seed, size = self.spec.seeds.of("data"), self.parts.task.size("train")
        if size is None:
            return self.parts.task.example("train", int(numpy_generator("data", seed, index).integers(2**31)))
        epoch, position = divmod(index, size)
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (epoch, numpy_generator("data", seed, epoch).permutation(size))
        return self.parts.task.example("train", int(self._permutation[1][position]))

    # ------------------------------------------------------------------ main
    def run(self) -> tuple[str, str]:
        """Trains; returns (status, reason)."""
        self.damaged_checkpoints = self._resume()
        self.writer.status("running")
        horizon = self.spec.train.horizon
        try:
            if self.progress.optimizer_step == 0 and not self.progress.history:
                self._evaluate()
                self._save()
                self._evaluated = True
            while self.progress.optimizer_step < horizon:
                if self.should_stop():
                    self._save()
                    return "stopped", f"asked to stop at optimizer step {self.progress.optimizer_step}"
                if self._stop_rule_met():
                    return "completed", f"stop rule met at optimizer step {self.progress.optimizer_step}"
                if self._evaluated and (why := self.should_pause()):
                    return "stopped", f"{why}; paused at optimizer step {self.progress.optimizer_step}"
                self._rollout()
        except Diverged as error:
            self.writer.sync()
            return "diverged", str(error)
        return "completed", f"horizon of {horizon} optimizer steps"

    def _rollout(self) -> None:
        """One rollout and its optimizer steps, then evaluation and checkpoint where they are due."""
        every, before = self.spec.evaluation.every, self.progress.optimizer_step
        torch.manual_seed(seed_of("torch", self.spec.seeds.of("sampling"), before))
        record = self._train_step()
        self.optimizer.zero_grad(set_to_none=True)  # no gradients beside what sampling takes
        done = self.progress.optimizer_step
        self._record_time("train")
        self.writer.append(
            "steps", {"optimizer_step": done, "metrics": record, "costs": self.parts.costs.as_dict()}
        )
        evaluated = done // every > before // every or done >= self.spec.train.horizon
        self._evaluated = evaluated
        if evaluated:
            self._evaluate()
        due = self.spec.train.checkpoint_every
        if evaluated or done // due > before // due:
            self._save()

    def _train_step(self) -> dict[str, float]:
        parts, spec, progress = self.parts, self.spec, self.progress
        rollout = self.collector.collect(spec.seeds.of("sampling"), progress.rollout, progress.cursor)
        progress.cursor, progress.rollout = rollout.cursor, progress.rollout + 1
        parts.generator.sampler.rest()
        if not rollout.completions:
            # every group was refused within the bound: the step is spent, nothing is learned
            self._count_steps(spec.train.updates_per_rollout)
            return {"refused_groups": float(rollout.refused_groups), "skipped_update": 1.0}
        record = describe(rollout.completions)
        versions = [c.version for c in rollout.completions if c.version is not None]
        if versions:
            record["weights_version"] = float(min(versions))
        batch = assemble(
            rollout.completions,
            parts.recipe,
            pad_id=parts.codec.pad_id,
            max_completion_tokens=spec.train.max_completion_tokens,
            reward_range=parts.task.outcome_range,
            device=next(parts.model.parameters()).device,
        )
        meter = MismatchMeter(spec.train.importance_cap)
        batch, credit = self._credit(batch, meter)
        record.update(credit)
        record["refused_groups"] = float(rollout.refused_groups)
        record.update(self._update(batch, meter))
        record.update(self._mismatch(meter))
        return record

    def _credit(self, batch: Batch, meter: MismatchMeter | None = None) -> tuple[Batch, dict[str, float]]:
        """Old log-probs (measured against the sampler's), extra forwards, advantages and selection."""
        algorithm, models = self.parts.algorithm, self.parts.models
        if self.spec.train.old_logprobs == "recompute":
            batch = batch.replace(old_logprobs=models.logprobs(batch))
            if meter is not None:
                meter.add(batch.old_logprobs, batch.sampling_logprobs, batch.completion_mask)
        with torch.no_grad():
            batch = algorithm.prepare(batch, models)
            batch = batch.replace(advantages=algorithm.advantages(batch).detach())
        record = {**_group_metrics(batch), **algorithm.metrics(batch)}
        keep = algorithm.select(batch)
        if keep is not None:
            batch = batch.rows(keep.nonzero()[:, 0])
        record["trained_completions"] = float(len(batch))
        return batch, record

    def _mismatch(self, meter: MismatchMeter) -> dict[str, float]:
        """What a rollout's meter found, and whether it passed the limit; empty where nothing was measured."""
        found, step = meter.metrics(), self.progress.optimizer_step
        if not found:
            return {}
        if not math.isfinite(found["mismatch_max"]):
            raise Diverged(f"a sampled token has a log-prob that is not finite at optimizer step {step}")
        limit = self.spec.train.mismatch_limit
        self.progress.mismatch = flagged(self.progress.mismatch, found["mismatch_mean"], limit, step)
        return {**found, "mismatch_flag": float(found["mismatch_mean"] > limit)}

    @property
    def notes(self) -> dict[str, Any]:
        """What the status record holds beside status and reason: damaged checkpoints, a passed mismatch limit."""
        damaged = {"damaged_checkpoints": d} if (d := self.damaged_checkpoints) else {}
        return {**damaged, **flag_note(self.progress.mismatch, self.spec.train.mismatch_limit)}

    def _update(self, batch: Batch, meter: MismatchMeter) -> dict[str, float]:
        """The optimizer steps on one batch, each on its own share of the rows."""
        updates = self.spec.train.updates_per_rollout
        rows = torch.arange(len(batch))
        if updates > 1:
            order = numpy_generator("update", self.spec.seeds.of("sampling"), self.progress.rollout)
            rows = torch.from_numpy(order.permutation(len(batch)))
        # another engine's log-probs that were not recomputed are measured by the first update's own forward
        unmeasured = self.spec.sampler.name != "native" and self.spec.train.old_logprobs == "sampler"
        records: list[dict[str, float]] = []
        for share in torch.chunk(rows, updates):
            live = meter if unmeasured and not records else None
            records.append(self._optimizer_step(batch.rows(share), live))
        self._count_steps(updates - len(records))  # fewer rows than updates: the rest is spent idle
        return {name: float(np.mean([r[name] for r in records])) for name in records[0]}

    def _optimizer_step(self, batch: Batch, meter: MismatchMeter | None = None) -> dict[str, float]:
        """One step of the optimizer on these rows; `meter` measures the live log-probs against the sampler's."""
        reducer, cap = Reducer(batch), self.spec.train.importance_cap
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = {}
        for rows in micro_batches(batch.lengths, self.spec.train.micro_batch_size):
            part = batch.rows(rows).trim()
            logprobs = completion_logprobs(
                self.parts.model,
                part.prompt_ids,
                part.prompt_mask,
                part.completion_ids,
                part.completion_mask,
                temperature=self.spec.train.temperature,
                autocast=self.spec.train.autocast,
            )
            tokens = int(part.prompt_mask.sum() + part.completion_mask.sum())
            self.parts.costs.forward_tokens += tokens
            self.parts.costs.backward_tokens += tokens
            if meter is not None:
                meter.add(logprobs, part.sampling_logprobs, part.completion_mask)
            terms = corrected(self.parts.algorithm.loss(logprobs, part), part, cap)
            values = reducer.values(terms, rows)
            loss = torch.stack([values[name] * term.weight for name, term in terms.items()]).sum()
            if not torch.isfinite(loss):
                raise Diverged(f"loss is {loss.item()} at optimizer step {self.progress.optimizer_step + 1}")
            loss.backward()
            for name, value in values.items():
                totals[f"loss_{name}"] = totals.get(f"loss_{name}", 0.0) + float(value.detach())
        # the policy and an algorithm's own modules are clipped apart: a noisy critic must not shrink the policy's step
        limit = self.spec.train.max_grad_norm
        norms = [
            float(torch.nn.utils.clip_grad_norm_(group["params"], limit))
            for group in self.optimizer.param_groups
        ]
        if not all(map(math.isfinite, norms)):
            raise Diverged(
                f"gradient norm is {max(norms)} at optimizer step {self.progress.optimizer_step + 1}"
            )
        warmup = self.spec.train.warmup_steps
        factor = min(1.0, (self.progress.optimizer_step + 1) / warmup) if warmup else 1.0
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.parts.generator.sampler.refresh(self.progress.optimizer_step + 1)
        self._count_steps(1)
        return {**totals, "grad_norm": norms[0]}

    def _count_steps(self, count: int) -> None:
        self.progress.optimizer_step += count
        self.parts.costs.optimizer_steps += count

    # ------------------------------------------------------------ evaluation
    def _evaluate(self) -> None:
        spec, progress = self.spec, self.progress
        self._record_time("train", write=False)
        record = evaluate(
            self.parts.generator,
            self.parts.task,
            spec.evaluation,
            seed=spec.seeds.of("evaluation"),
            step=progress.optimizer_step,
        )
        self._record_time("eval")
        self.writer.append(
            "evals",
            {"optimizer_step": progress.optimizer_step, **record, "costs": self.parts.costs.as_dict()},
        )
        self.writer.sync()
        metric = record["metrics"].get(spec.stop.metric or self.parts.task.primary_metric, 0.0)
        progress.history.append(metric)
        if spec.stop.rule == "sustained":
            progress.crossed = progress.crossed + 1 if metric >= spec.stop.threshold else 0
            if progress.crossed >= spec.stop.sustain and progress.crossed_at < 0:
                progress.crossed_at = progress.optimizer_step
        if metric > progress.best:
            progress.best = metric
            state = {"model": self.parts.model.state_dict(), "optimizer_step": progress.optimizer_step}
            checkpoint.save(self.writer.folder / "checkpoints", "best", state)

    def _stop_rule_met(self) -> bool:
        progress = self.progress
        return (
            progress.crossed_at >= 0 and progress.optimizer_step >= progress.crossed_at + self.spec.stop.after
        )

    def _record_time(self, phase: str, *, write: bool = True) -> None:
        """Adds the time since the last call to its phase; training seconds exclude evaluation."""
        now = time.perf_counter()
        elapsed, self._clock = max(0.0, now - self._clock), now
        if phase == "train":
            self.progress.seconds += elapsed
        else:
            self.progress.evaluation_seconds += elapsed
        if write:
            record = {
                "optimizer_step": self.progress.optimizer_step,
                "phase": phase,
                "seconds": round(self.progress.seconds, 4),
                "evaluation_seconds": round(self.progress.evaluation_seconds, 4),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            sampler = self.parts.generator.sampler
            record.update({f"sampler_{name}_seconds": round(s, 4) for name, s in sampler.seconds.items()})
            self.writer.append("timings", record)

    # ------------------------------------------------------------ checkpoint
    def _save(self) -> None:
        self.writer.sync()
        state = {
            "model": self.parts.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": dict(self.parts.algorithm.state_dict()),
            "progress": dict(self.progress.__dict__),
            "costs": self.parts.costs.as_dict(),
            "offsets": self.writer.offsets(),
        }
        checkpoint.save_step(self.writer.folder / "checkpoints", self.progress.optimizer_step, state)

    def _resume(self) -> list[str]:
        """Continues from the last sound checkpoint, cutting records back to it; else starts afresh.

        Returns the names of checkpoints that were damaged, or older than records that are lost.
        """
        state, damaged = checkpoint.load_last(
            self.writer.folder / "checkpoints", lambda state: self.writer.holds(state["offsets"])
        )
        self._clock = time.perf_counter()
        if state is None:
            self.writer.rewind({})
            return damaged
        self.writer.rewind(state["offsets"])
        self.parts.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.parts.algorithm.load_state_dict(state["algorithm"])
        self.progress = Progress(**state["progress"])
        for name, value in state["costs"].items():
            setattr(self.parts.costs, name, value)
        self.parts.generator.sampler.refresh(self.progress.optimizer_step)
        return damaged


def _group_metrics(batch: Batch) -> dict[str, float]:
    """Shares of groups without a success and without a failure, by the untouched metric."""
    _, group = batch.group_ids.unique(return_inverse=True)
    size = torch.zeros(int(group.max()) + 1, device=group.device).index_add_(
        0, group, torch.ones_like(batch.rewards)
    )
    right = torch.zeros_like(size).index_add_(0, group, batch.correct.to(size.dtype))
    return {
        "all_fail_groups": float((right == 0).float().mean()),
        "all_pass_groups": float((right == size).float().mean()),
    }
