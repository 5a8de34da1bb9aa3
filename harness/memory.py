"""What a run takes of a card, from the sizes of its model alone: before anything is loaded or downloaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.models.shape import ModelShape
from harness.report.tables import Cell, Table, table
from harness.spec import ModelSpec, RunSpec, TrainSpec

GIB = 1024**3
PROMPT_TOKENS = 256
"""Of a prompt where nothing is known of it."""
LOGITS_BYTES = 256 * 1024**2
MOST_CHUNK_TOKENS = 8192
"""Both as in harness.train.policy, which imports torch; a test compares them."""
SAMPLER_ROWS = 256
"""Completions that the native sampler decodes at a time at most."""
CUDA_CONTEXT = 600 * 1024**2
"""The context and the libraries' work space of a process on a card: chosen, not measured here."""
SLACK = 0.08
"""Share that the allocator loses to fragments: chosen, to be on the safe side."""
FUSED_SHARE = 0.75
"""Of the weights, what the native sampler keeps once more with the norms folded in (q, k, v, gate, up, head)."""
BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = {"adamw_8bit": 2 * (1 + 4 / 256), "paged_adamw_8bit": 2 * (1 + 4 / 256)}
"""Bytes an element of both moments: 8 bits each and a 32-bit scale for each block of 256."""


@dataclass(frozen=True)
class Part:
    """One line of a plan; `when` is `always`, `training` or `sampling`."""

    name: str
    bytes: float
    when: str = "always"
    how: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """What one run takes, in parts; sizes in bytes."""

    model: str
    algorithm: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    def of(self, *when: str) -> float:
        """The sum of the parts of these phases."""
        return sum(part.bytes for part in self.parts if part.when in when)

    @property
    def total(self) -> float:
        """The larger of training and sampling, on top of what is always there."""
        return self.of("always") + max(self.of("training"), self.of("sampling"))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "algorithm": self.algorithm,
            "parts": [vars(part) for part in self.parts],
            "total_bytes": self.total,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Situation:
    """What the plan is made for: a card, or the machine's own memory where `card_bytes` is 0."""

    prompt_tokens: int = PROMPT_TOKENS
    card_bytes: float = 0.0
    device: str = "cuda"


def layer_bytes(shape: ModelShape, element: int, *, autocast: bool = False) -> int:
    """What one block keeps for backward, in bytes a token, with values of `element` bytes.

    Attention keeps q, k and their turned halves and the turned result, v, and its output in two layouts; a
    gated MLP keeps both products, the activation and what goes into the last product (the other MLP: one and
    its activation). A norm keeps its input, the normalised and the scaled value: its input in 32 bits always,
    all three (and a 16-bit copy) with autocast.
    """
    inner, shared = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    wide = 4 if shape.gated else 2
    norm = 14 if autocast else 4 + 2 * element
    return 2 * norm * shape.hidden + element * (5 * inner + 4 * shared + wide * shape.intermediate)


def activation_bytes(
    shape: ModelShape, tokens: int, element: int, *, autocast: bool = False, checkpointing: bool = False
) -> float:
    """What one network keeps for backward; with checkpointing each block's input, and one block in full."""
    block = layer_bytes(shape, element, autocast=autocast) * tokens
    if checkpointing:
        return shape.layers * shape.hidden * tokens * (4 if autocast else element) + block
    return shape.layers * block


def logits_bytes(shape: ModelShape, tokens: int, element: int = 4) -> float:
    """Logits of one chunk, their log-softmax and their gradient in 32 bits, and both ends in 16 where they are."""
    chunk = min(tokens, max(1, min(MOST_CHUNK_TOKENS, LOGITS_BYTES // (4 * shape.vocabulary))))
    return (12.0 + (4 if element == 2 else 0)) * chunk * shape.vocabulary


def _element(spec: RunSpec) -> int:
    """Bytes of the values that matrix products give."""
    return 2 if spec.train.autocast == "bfloat16" else BYTES[spec.model.dtype]


def _trained(shape: ModelShape, model: ModelSpec, *, head: bool) -> tuple[int, int]:
    """(trained elements, bytes of each) of the policy, or of a critic where `head` is False."""
    if model.adapter is not None:
        return shape.adapter_parameters(model.adapter.rank, model.adapter.targets), 4
    return (shape.parameters if head else shape.backbone_parameters), BYTES[model.dtype]


def _states(train: TrainSpec, elements: int, size: int) -> float:
    return elements * MOMENTS.get(train.optimizer, 2 * size)


def _network_parts(shape: ModelShape, spec: RunSpec, requires: Collection[str], tokens: int) -> list[Part]:
    """Weights, gradients, optimizer states and activations of policy, reference and critic."""
    model, train = spec.model, spec.train
    size = BYTES[model.dtype]
    trained, trained_size = _trained(shape, model, head=True)
    adapter = trained * 4 if model.adapter is not None else 0
    parts = [
        Part(
            "weights", shape.parameters * size + adapter, how=f"{shape.parameters / 1e9:.2f} B x {size} bytes"
        ),
        Part("gradients", trained * trained_size, "training"),
        Part("optimizer states", _states(train, trained, trained_size), how=train.optimizer),
    ]
    if shape.tied and model.adapter is None:
        twice = shape.vocabulary * shape.hidden * trained_size
        parts.append(
            Part("embedding's second gradient", twice, "training", "as the head, before they are added")
        )
    activations = activation_bytes(
        shape,
        tokens,
        _element(spec),
        autocast=train.autocast != "none",
        checkpointing=model.gradient_checkpointing,
    )
    parts.append(Part("activations", activations, "training", f"{tokens} tokens in a micro-batch"))
    if train.autocast != "none" and model.dtype == "float32":
        matrices = shape.parameters - (0 if shape.tied else shape.embedding_parameters)
        parts.append(Part("bfloat16 copies of the weights", 2 * matrices, "training", "by autocast"))
    if "reference" in requires and model.adapter is None:
        parts.append(Part("reference", shape.parameters * size, how="a frozen copy of the start"))
    if "critic" in requires:
        mine, mine_size = _trained(shape, model, head=False)
        weights = mine * mine_size
        kind = "an adapter on the shared base" if model.adapter is not None else "a copy of the backbone"
        parts += [
            Part("critic's weights", weights, how=kind),
            Part("critic's gradients", weights, "training"),
            Part("critic's optimizer states", _states(train, mine, mine_size), how=train.optimizer),
            Part("critic's activations", activations, "training"),
        ]
    return parts


def _sampling_parts(shape: ModelShape, spec: RunSpec, situation: Situation) -> list[Part]:
    train, sampler = spec.train, spec.sampler
    size = BYTES[spec.model.dtype if sampler.dtype == "model" else sampler.dtype]
    rows = train.prompts_per_step * train.group_size
    width = situation.prompt_tokens + train.max_completion_tokens
    if sampler.name == "vllm":
        share = sampler.memory_share * situation.card_bytes
        need = shape.parameters * size + width * shape.cache_per_token * size
        when = "sampling" if sampler.sleep else "always"
        held = max(share, need) if situation.card_bytes else need * 1.2
        return [
            Part(
                "vLLM engine", held, when, f"weights and cache; sampler.memory_share={sampler.memory_share:g}"
            )
        ]
    rows = min(rows, SAMPLER_ROWS)
    parts = [
        Part(
            "KV cache",
            rows * width * shape.cache_per_token * size,
            "sampling",
            f"{rows} completions at a time",
        ),
        Part(
            "sampling logits",
            rows * shape.vocabulary * 24.0,
            "sampling",
            "with their cumulative sums in 64 bits",
        ),
    ]
    if spec.model.dtype == "float32":
        parts.append(Part("folded weights", FUSED_SHARE * shape.parameters * 4, how="of the native sampler"))
    return parts


def memory_plan(
    shape: ModelShape, spec: RunSpec, requires: Collection[str], situation: Situation | None = None
) -> MemoryPlan:
    """What a run of this specification takes; `requires` are its algorithm's needs (reference, critic)."""
    situation = situation or Situation()
    train = spec.train
    width = situation.prompt_tokens + train.max_completion_tokens
    tokens = train.micro_batch_size * width
    parts = _network_parts(shape, spec, requires, tokens)
    scored = min(tokens, train.micro_batch_size * train.max_completion_tokens)
    parts.append(Part("logits", logits_bytes(shape, scored, _element(spec)), "training", "of one chunk"))
    parts += _sampling_parts(shape, spec, situation)
    if situation.device == "cuda":
        so_far = MemoryPlan("", "", tuple(parts)).total
        parts.append(Part("CUDA context and fragments", CUDA_CONTEXT + SLACK * so_far, how="an allowance"))
    notes: list[str] = []
    if spec.model.dtype == "bfloat16" and spec.model.adapter is None:
        notes.append(
            "bfloat16 weights keep 8 bits: steps below 1/256 of a weight are lost; model.dtype=float32 with "
            "train.autocast=bfloat16 keeps them"
        )
    if train.optimizer == "paged_adamw_8bit":
        notes.append("paged optimizer states can move to the machine's memory when the card is full")
    return MemoryPlan(spec.model.name, spec.algorithm.name, tuple(parts), tuple(notes))


REMEDIES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("model.gradient_checkpointing=true", {"model": {"gradient_checkpointing": True}}),
    ("train.micro_batch_size=1", {"train": {"micro_batch_size": 1}}),
    ("sampler.memory_share=0.3", {"sampler": {"memory_share": 0.3}}),
    ("train.optimizer=adamw_8bit", {"train": {"optimizer": "adamw_8bit"}}),
    ("train.autocast=bfloat16", {"train": {"autocast": "bfloat16"}}),
    ('model.adapter={"rank": 16}', {"model": {"adapter": {"rank": 16}}}),
    ("model.dtype=bfloat16", {"model": {"dtype": "bfloat16"}, "train": {"autocast": "none"}}),
)
"""Settings that save memory, from the one that changes the arithmetic least."""


def amended(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """A copy with some sections' fields changed."""
    body = spec.model_dump(mode="json")
    for section, fields in changes.items():
        body[section] = {**body.get(section, {}), **fields}
    return RunSpec.model_validate(body)


def remedies(
    shape: ModelShape, spec: RunSpec, requires: Collection[str], situation: Situation
) -> list[str] | None:
    """The first settings, added one by one, with which the run fits its card; None when none of them do.

    A setting that saves nothing here is left out.
    """
    chosen: list[str] = []
    plan = memory_plan(shape, spec, requires, situation)
    for words, changes in REMEDIES:
        if plan.total <= situation.card_bytes:
            break
        tried = amended(spec, changes)
        found = memory_plan(shape, tried, requires, situation)
        if found.total < 0.995 * plan.total:
            spec, plan = tried, found
            chosen.append(words)
    return chosen if plan.total <= situation.card_bytes else None


@dataclass(frozen=True)
class CardAnswer:
    """Whether a plan fits one size of card, and what to change where it does not."""

    gib: float
    plan: MemoryPlan
    fits: bool
    change: tuple[str, ...] | None = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "card_gib": self.gib,
            "fits": self.fits,
            "change": None if self.change is None else list(self.change),
            **self.plan.to_json(),
        }


def answer(
    shape: ModelShape,
    spec: RunSpec,
    requires: Collection[str],
    gib: float,
    prompt_tokens: int = PROMPT_TOKENS,
) -> CardAnswer:
    """The plan on a card of `gib` GiB, and what to change where it does not fit."""
    situation = Situation(prompt_tokens, gib * GIB)
    plan = memory_plan(shape, spec, requires, situation)
    fits = plan.total <= situation.card_bytes
    change = () if fits else remedies(shape, spec, requires, situation)
    return CardAnswer(gib, plan, fits, None if change is None else tuple(change))


def memory_tables(answers: Sequence[CardAnswer]) -> list[Table]:
    """The parts of each algorithm's plan on the first card, and every card's answer."""
    first: dict[str, MemoryPlan] = {}
    for one in answers:
        first.setdefault(one.plan.algorithm, one.plan)
    names = list(dict.fromkeys(part.name for plan in first.values() for part in plan.parts))
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        held = {p.name: p for plan in first.values() for p in plan.parts if p.name == name}[name]
        sizes = [sum(p.bytes for p in plan.parts if p.name == name) / GIB for plan in first.values()]
        rows.append((name, held.when, *(f"{size:.2f}" for size in sizes), held.how))
    rows.append(
        ("in all", "", *(f"{plan.total / GIB:.2f}" for plan in first.values()), "always + the larger phase")
    )
    notes = tuple(dict.fromkeys(note for plan in first.values() for note in plan.notes))
    model = answers[0].plan.model
    parts = table(
        ("part (GiB)", "when", *first, "how"),
        rows,
        caption=f"Memory of {model} by part, on a card of {min(a.gib for a in answers):g} GiB",
        notes=notes,
        name="memory",
    )
    cards: list[tuple[Cell, ...]] = []
    for a in answers:
        if a.fits:
            words = "fits"
        elif a.change is None:
            words = "does not fit, with every setting that saves memory"
        else:
            words = "fits with " + ", ".join(a.change)
        cards.append((a.plan.algorithm, f"{a.gib:g}", f"{a.plan.total / GIB:.1f}", words))
    fit = table(
        ("algorithm", "card (GiB)", "needs (GiB)", "answer"),
        cards,
        caption=f"What fits of {model}",
        name="memory-cards",
    )
    return [parts, fit]
