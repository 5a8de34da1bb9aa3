"""What is evaluated: a run's checkpoint, or a model by preset, folder or Hub id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.spec import ModelSpec, RunSpec, parse_run
from harness.store.writer import read_json
from harness.train import checkpoint
from harness.train.load import load_policy
from harness.train.prompts import PromptCodec, codec_of


@dataclass(frozen=True)
class Target:
    """A policy ready to sample, and where it comes from; `spec` is None for a model outside any run."""

    name: str
    model: Any
    tokenizer: Any
    run_id: str = ""
    seed: int = -1
    optimizer_step: int = 0
    spec: RunSpec | None = None

    def codec(self) -> PromptCodec:
        """How this model's prompts are written and its answers end."""
        spec = ModelSpec(name=self.name) if self.spec is None else self.spec.model
        return codec_of(spec, self.tokenizer, self.model.config, self.model.generation_config)


def _checkpoint_state(folder: Path, which: str) -> dict[str, Any]:
    """The state of the `last` or the `best` checkpoint; UserError when there is no sound one."""
    checkpoints = folder / "checkpoints"
    if which == "last":
        state, damaged = checkpoint.load_last(checkpoints)
        note = f" ({', '.join(damaged)} damaged)" if damaged else ""
    else:
        state, note = checkpoint.load(checkpoints / f"{which}.pt"), ""
    if state is None:
        raise UserError(
            f"run {str(folder)!r} has no sound checkpoint {which!r}{note}: let the run reach one, or name another"
        )
    return state


def _load_run(folder: Path, which: str, device: str) -> Target:
    manifest = read_json(folder / "manifest.json")
    spec = parse_run(manifest["spec"])
    state = _checkpoint_state(folder, which)
    place = spec.model.model_copy(update={"device": device})
    model, tokenizer = load_policy(place, spec.seeds.of("initialisation"))
    model.load_state_dict(state["model"])
    step = state["optimizer_step"] if which == "best" else state["progress"]["optimizer_step"]
    return Target(str(folder), model, tokenizer, str(manifest["run_id"]), spec.seeds.seed, int(step), spec)


def load_target(name: str | Path, *, which: str = "last", device: str = "auto") -> Target:
    """A run directory's checkpoint (`last` or `best`), or a model by preset, folder or Hub id; UserError otherwise."""
    if which not in ("last", "best"):
        raise UserError(f"checkpoint={which!r}: choose last or best")
    folder = Path(name)
    if (folder / "manifest.json").is_file():
        return _load_run(folder, which, device)
    model, tokenizer = load_policy(ModelSpec(name=str(name), device=device), 0)
    return Target(str(name), model, tokenizer)
