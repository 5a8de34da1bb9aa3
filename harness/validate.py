"""The conformance suite for algorithms: what the shared loop relies on, each failure in one line."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from algorithms.base import ALGORITHMS, Algorithm, Batch
from harness.train.reduction import AGGREGATIONS, Reducer
from harness.train.toy import ToyModels, ToyPolicy, ToyTask, ToyTrainer, gather, train_toy

__all__ = ["CHECKS", "Finding", "validate"]

TOLERANCE = 1e-7
LEARNED = 0.8
ROLLOUTS_TO_LEARN = 80


@dataclass(frozen=True)
class Finding:
    """The result of one check; `message` says what to mend, or what was seen."""

    check: str
    ok: bool
    message: str


class Broken(Exception):
    """A property that does not hold; the message says what to mend."""


def validate(algorithm: type[Algorithm], options: Any = None) -> list[Finding]:
    """Runs every check on an algorithm class (with its default options unless given), on CPU, in seconds."""
    return [_run(name, check, algorithm, options) for name, check in CHECKS.items()]


def _run(
    name: str, check: Callable[[type[Algorithm], Any], str], algorithm: type[Algorithm], options: Any
) -> Finding:
    try:
        return Finding(name, True, check(algorithm, options))
    except Broken as broken:
        return Finding(name, False, str(broken))
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything, and each failure is a finding
        at = inspect.trace()[-1]
        where = f"{at.filename.rsplit('/', 1)[-1]}:{at.lineno}"
        return Finding(
            name, False, f"raised {type(error).__name__} at {where}: {' '.join(str(error).split())}"
        )


# --- the material ------------------------------------------------------------------------------------------


class _Bench:
    """An algorithm set up on the toy, in float64, and a batch that its own rollout plan produced."""

    def __init__(self, algorithm: type[Algorithm], options: Any, *, seed: int = 1) -> None:
        self.algorithm = algorithm(options)
        self.trainer = ToyTrainer(self.algorithm, ToyTask(outcome="fraction"), seed=seed)
        for group in self.algorithm.param_groups():
            for parameter in group["params"]:
                parameter.data = parameter.data.double()
        self.raw = self.trainer.rollout(prompts=3, group_size=4)
        # the policy has moved since it sampled, so that ratios and clips act
        noise = torch.randn(self.trainer.policy.table.shape, generator=torch.Generator().manual_seed(7))
        with torch.no_grad():
            self.trainer.policy.table.add_(0.3 * noise)
        self.batch = self.credit(self.raw)

    def credit(self, batch: Batch) -> Batch:
        return self.trainer.credit(batch)

    def kept(self, batch: Batch) -> Batch:
        keep = self.algorithm.select(batch)
        return batch if keep is None else batch.rows(keep.nonzero()[:, 0])

    def gradients(self, batch: Batch, parts: list[Tensor]) -> tuple[float, list[Tensor]]:
        """Loss and gradients (policy first, then the algorithm's own parameters) of one optimizer step."""
        own = [p for group in self.algorithm.param_groups() for p in group["params"]]
        parameters = [self.trainer.policy.table, *own]
        for parameter in parameters:
            parameter.grad = None
        loss = self.trainer.gradients(batch, parts)
        return loss, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


def _poison(batch: Batch) -> Batch:
    """The batch with NaN in every float, and wild ids, under the mask."""
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if (
            isinstance(value, Tensor)
            and value.shape == batch.completion_mask.shape
            and value.is_floating_point()
        ):
            changes[item.name] = torch.where(batch.completion_mask, value, torch.nan)
    changes["completion_ids"] = torch.where(batch.completion_mask, batch.completion_ids, 3)
    return batch.replace(**changes)


def _clean(batch: Batch) -> Batch:
    """The batch with 0 in every float under the mask."""
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if (
            isinstance(value, Tensor)
            and value.shape == batch.completion_mask.shape
            and value.is_floating_point()
        ):
            changes[item.name] = torch.where(batch.completion_mask, value, 0.0)
    return batch.replace(**changes)


def _differ(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().nan_to_num(nan=math.inf).max()) if a.numel() else 0.0


def _close(a: Tensor, b: Tensor, what: str) -> None:
    scale = 1 + float(b.abs().nan_to_num().max()) if b.numel() else 1.0
    if a.shape != b.shape or _differ(a, b) > TOLERANCE * scale:
        raise Broken(f"{what} (largest difference {_differ(a, b):.3g})" if a.shape == b.shape else what)


def _finite(x: Tensor, what: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise Broken(
            f"{what}: guard divisions by 0 and pick with torch.where instead of multiplying by the mask"
        )


# --- the checks --------------------------------------------------------------------------------------------


def _declares(algorithm: type[Algorithm], options: Any) -> str:
    """name, source, requires, extra_cost, Options and a docstring."""
    name = getattr(algorithm, "name", None)
    if not isinstance(name, str) or not name:
        raise Broken('no name: add `name = "my_algorithm"` to the class')
    if ALGORITHMS.get(name) is not algorithm:
        raise Broken(f"{name!r} is not registered: decorate the class with @register from algorithms.base")
    if not algorithm.source:
        raise Broken('no source: add `source = "arXiv ..."` or the address of the code')
    known = {"groups", "token_rewards", "steps", "rubric", "reward_range", "critic", "reference", "hints"}
    known |= {"privileged_prompt"}
    if unknown := set(algorithm.requires) - known:
        raise Broken(f"requires has {sorted(unknown)}: choose from {', '.join(sorted(known))}")
    made = algorithm.Options() if options is None else options
    frozen = getattr(vars(type(made)).get("__dataclass_params__"), "frozen", False)
    if not frozen:
        raise Broken("Options must be a frozen dataclass with a default for every field")
    if not (algorithm.__doc__ or "").strip():
        raise Broken(
            "no class docstring: state the equation, its source, shapes and what differs from the paper"
        )
    return f"{name}, {algorithm.source}"


def _accepts_setting(algorithm: type[Algorithm], options: Any) -> str:
    algorithm(options).check(ToyTask().setting(group_size=8))
    return "check() accepts a task that provides everything"


def _shape(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    advantages = bench.algorithm.advantages(bench.batch)
    expected = tuple(bench.batch.completion_mask.shape)
    if tuple(advantages.shape) != expected:
        raise Broken(
            f"advantages has shape {tuple(advantages.shape)}: return [B, T] = {expected}, also for outcomes"
        )
    if not advantages.is_floating_point():
        raise Broken(f"advantages has dtype {advantages.dtype}: return a floating-point tensor")
    if _differ(advantages, bench.algorithm.advantages(bench.batch)) > 0:
        raise Broken("advantages differs between two calls: it must be deterministic and keep no state")
    return f"advantages is {expected}, and the same twice"


def _mask(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    clean = _clean(bench.batch)
    own = bench.algorithm.advantages(clean)
    clean = clean.replace(advantages=own)
    if _differ(own, clean.masked_advantages) > 0:
        raise Broken("advantages is not 0 outside completion_mask: end with torch.where(mask, a, 0.0)")
    dirty = _poison(bench.batch)
    advantages = bench.algorithm.advantages(dirty)
    what = "NaN under the mask reaches advantages: pick with torch.where, as NaN * 0 is NaN"
    _close(advantages, clean.masked_advantages, what)
    dirty = dirty.replace(advantages=torch.where(dirty.completion_mask, advantages, torch.nan))
    clean, dirty = bench.kept(clean), bench.kept(dirty)
    everything = [torch.arange(len(clean))]
    loss, gradients = bench.gradients(clean, everything)
    poisoned_loss, poisoned = bench.gradients(dirty, everything)
    what = "NaN under the mask reaches the loss or its gradient: mask log-ratios before exp (functional.log_ratio)"
    _close(torch.tensor(poisoned_loss), torch.tensor(loss), what)
    for a, b in zip(poisoned, gradients, strict=True):
        _close(a, b, what)
    leaf = gather(bench.trainer.policy, dirty.prompt_ids, dirty).detach().requires_grad_()
    Reducer(dirty).value(bench.algorithm.loss(leaf, dirty), everything[0]).backward()
    assert leaf.grad is not None
    _close(
        leaf.grad[~dirty.completion_mask], torch.zeros(()).expand(int((~dirty.completion_mask).sum())), what
    )
    return "nothing under the mask is noticed"


def _padding(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    batch = bench.batch
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor) and value.shape == batch.completion_mask.shape:
            fill = math.nan if value.is_floating_point() else (False if value.dtype == torch.bool else 0)
            changes[item.name] = torch.cat([value, torch.full_like(value[:, :2], fill)], 1)
    longer = bench.algorithm.advantages(batch.replace(**changes))
    _close(
        longer[:, : batch.completion_mask.shape[1]],
        bench.algorithm.advantages(batch),
        "advantages changes with the padded width: take lengths and means from completion_mask only",
    )
    return "advantages does not depend on the padded width"


def _degenerate_batches(bench: _Bench) -> Iterator[tuple[str, Batch]]:
    raw = bench.raw
    yield "all outcomes equal", raw.replace(rewards=torch.full_like(raw.rewards, 0.1))
    everywhere = torch.zeros_like(raw.local_rewards)
    yield (
        "outcomes and local rewards equal",
        raw.replace(rewards=everywhere[:, 0] + 0.1, local_rewards=everywhere),
    )
    first = torch.zeros_like(raw.completion_mask)
    first[:, 0] = True
    yield "answers of one token", raw.replace(completion_mask=first)
    yield "a group of one", raw.rows(torch.tensor([0]))
    hole = raw.completion_mask.clone()
    hole[1] = False
    yield "an answer without tokens", raw.replace(completion_mask=hole)
    yield "no token at all", raw.replace(completion_mask=torch.zeros_like(hole))
    unknown = raw.rewards.clone()
    unknown[2] = math.nan
    yield "an answer that could not be scored (NaN)", raw.replace(rewards=unknown)
    yield "no steps", raw.replace(step_ids=torch.full_like(raw.step_ids, -1))
    yield "nothing scored", raw.replace(scored=torch.zeros_like(raw.scored))


def _finite_always(algorithm: type[Algorithm], options: Any) -> str:
    bench, count = _Bench(algorithm, options), 0
    for what, raw in _degenerate_batches(bench):
        batch = bench.credit(raw)
        assert batch.advantages is not None
        _finite(batch.advantages, f"advantages is not finite for {what}")
        kept = bench.kept(batch)
        if len(kept):
            loss, gradients = bench.gradients(kept, [torch.arange(len(kept))])
            _finite(torch.tensor([loss]), f"the loss is not finite for {what}")
            for gradient in gradients:
                _finite(gradient, f"a gradient is not finite for {what}")
        for name, value in bench.algorithm.metrics(batch).items():
            if not math.isfinite(value):
                raise Broken(f"metric {name!r} is {value} for {what}: log a finite number")
        count += 1
    return f"finite on {count} degenerate batches"


def _row_order(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    order = torch.randperm(len(bench.raw), generator=torch.Generator().manual_seed(3))
    permuted = bench.credit(bench.raw.rows(order))
    assert permuted.advantages is not None
    assert bench.batch.advantages is not None
    what = "advantages changes with the order of rows: group by group_ids, never by position"
    _close(permuted.advantages, bench.batch.advantages[order], what)
    if (keep := bench.algorithm.select(bench.batch)) is not None:
        again = bench.algorithm.select(permuted)
        if again is None or bool((again != keep[order]).any()):
            raise Broken(
                "select keeps other rows when rows are reordered: break ties by content, not by position"
            )
    return "rows may come in any order"


def _group_names(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    renamed = bench.credit(bench.raw.replace(group_ids=100 - 7 * bench.raw.group_ids))
    assert renamed.advantages is not None
    assert bench.batch.advantages is not None
    what = "advantages changes when groups are renumbered: use group_ids only to tell groups apart"
    _close(renamed.advantages, bench.batch.advantages, what)
    return "groups may have any ids"


def _micro_batches(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    batch = bench.kept(bench.batch)
    loss, whole = bench.gradients(batch, [torch.arange(len(batch))])
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(5))
    split_loss, split = bench.gradients(batch, list(order.split(2)))
    what = "the loss depends on the micro-batch split: return per-token terms and let the loop divide"
    _close(torch.tensor(split_loss), torch.tensor(loss), what)
    for a, b in zip(split, whole, strict=True):
        _close(a, b, what)
    return "any split of rows gives the same loss and gradients"


def _terms(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    batch = bench.kept(bench.batch)
    terms = bench.algorithm.loss(gather(bench.trainer.policy, batch.prompt_ids, batch), batch)
    if not terms:
        raise Broken("loss returned no terms: return {'policy': LossTerm(per_token, 'seq_mean_token_mean')}")
    for name, term in terms.items():
        if term.aggregation not in AGGREGATIONS:
            raise Broken(
                f"loss term {name!r} asks for {term.aggregation!r}: choose from {', '.join(AGGREGATIONS)}"
            )
    Reducer(batch).value(terms, torch.arange(len(batch)))
    return ", ".join(f"{name}: {term.aggregation}" for name, term in terms.items())


def _detached(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    changes = {
        item.name: getattr(bench.batch, item.name).clone().requires_grad_()
        for item in fields(bench.batch)
        if isinstance(getattr(bench.batch, item.name), Tensor)
        and getattr(bench.batch, item.name).is_floating_point()
        and item.name != "advantages"
    }
    batch = bench.batch.replace(**changes)
    with torch.no_grad():
        advantages = bench.algorithm.advantages(batch)
    batch = bench.kept(batch.replace(advantages=advantages))
    terms = bench.algorithm.loss(gather(bench.trainer.policy, batch.prompt_ids, batch), batch)
    # the critic learns from targets that are held fixed: only the policy's own input may carry gradient
    Reducer(batch).value(terms, torch.arange(len(batch))).backward()
    leaks = sorted(name for name, leaf in changes.items() if _leaks(leaf))
    leaks = [
        name for name in leaks if name not in ("old_logprobs", "sampling_logprobs", "reference_logprobs")
    ]
    if leaks:
        raise Broken(
            f"gradients reach {', '.join(leaks)}: detach rewards, values, returns and replays in the loss"
        )
    return "no gradient reaches rewards, values or replays"


def _leaks(leaf: Tensor) -> bool:
    return leaf.grad is not None and bool((leaf.grad.nan_to_num() != 0).any())


def _pushes_the_policy(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    batch = bench.batch
    for _ in range(100):
        _, gradients = bench.gradients(bench.kept(batch), [torch.arange(len(bench.kept(batch)))])
        if float(gradients[0].abs().max()) > 0:
            return "the loss moves the policy"
        batch = bench.credit(bench.raw)  # a warm-up counts rollouts
    raise Broken(
        "the loss has no gradient in the policy: use logprobs, not old_logprobs, and do not detach it"
    )


def _save_load(algorithm: type[Algorithm], options: Any) -> str:
    first, second = _Bench(algorithm, options), _Bench(algorithm, options)
    trainer = first.trainer
    for _ in range(3):
        trainer.step(first.kept(first.credit(first.raw)))
    buffer = io.BytesIO()
    torch.save(first.algorithm.state_dict(), buffer)
    buffer.seek(0)
    second.algorithm.load_state_dict(torch.load(buffer, weights_only=True))
    second.trainer.policy.load_state_dict(trainer.policy.state_dict())
    second.trainer.models.start.load_state_dict(trainer.models.start.state_dict())
    a, b = first.credit(first.raw), second.credit(first.raw)
    assert a.advantages is not None
    assert b.advantages is not None
    what = (
        "a loaded copy behaves otherwise: put every parameter and counter into state_dict and load_state_dict"
    )
    _close(b.advantages, a.advantages, what)
    everything = [torch.arange(len(first.kept(a)))]
    loss, gradients = first.gradients(first.kept(a), everything)
    other_loss, others = second.gradients(second.kept(b), everything)
    _close(torch.tensor(other_loss), torch.tensor(loss), what)
    for x, y in zip(others, gradients, strict=True):
        _close(x, y, what)
    return "state_dict restores everything"


def _learns(algorithm: type[Algorithm], options: Any) -> str:
    start = ToyPolicy(ToyTask()).success_probability()
    run = train_toy(algorithm(options), rollouts=ROLLOUTS_TO_LEARN)
    crossed = next((i + 1 for i, p in enumerate(run.success) if p >= LEARNED), None)
    if crossed is None:
        raise Broken(
            f"does not learn the toy: success {start:.2f} -> {run.success[-1]:.2f} in {ROLLOUTS_TO_LEARN} rollouts "
            f"(optimum 1.00, asked {LEARNED:g}): check the sign of the loss and where the reward is placed"
        )
    return f"toy success {start:.2f} -> {run.success[-1]:.2f}, {LEARNED:g} after {crossed} rollouts"


def _meters(algorithm: type[Algorithm], options: Any) -> str:
    bench = _Bench(algorithm, options)
    calls = dict(bench.trainer.models.calls)
    declared = algorithm.extra_cost != "none"
    if calls and not declared:
        raise Broken(f"prepare pays for {sorted(calls)}, but extra_cost is 'none': say so in extra_cost")
    assert isinstance(bench.trainer.models, ToyModels)
    return f"extra forwards: {', '.join(sorted(calls)) or 'none'}"


CHECKS: dict[str, Callable[[type[Algorithm], Any], str]] = {
    "declares": _declares,
    "accepts-setting": _accepts_setting,
    "shape": _shape,
    "mask": _mask,
    "padding": _padding,
    "finite": _finite_always,
    "row-order": _row_order,
    "group-names": _group_names,
    "micro-batches": _micro_batches,
    "loss-terms": _terms,
    "detached": _detached,
    "moves-policy": _pushes_the_policy,
    "save-load": _save_load,
    "extra-cost": _meters,
    "learns": _learns,
}
