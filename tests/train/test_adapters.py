"""LoRA: only the adapter trains and is saved, sampling equals training, the base is the reference, runs resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import build_model

from algorithms.base import ALGORITHMS
from harness.errors import EnvironmentProblem, UserError
from harness.publish import to_folder
from harness.registry import algorithms
from harness.spec import AdapterSpec, ModelSpec, RunSpec, parse_run
from harness.store.writer import RunWriter, read_json
from harness.sweep.jobs import job_for, manifest_of
from harness.train.adapters import (
    MARK,
    adapter_layers,
    adapter_off,
    add_adapter,
    merge_adapter,
    merged_state,
    twin,
)
from harness.train.build import build
from harness.train.decoders import FusedDecoder, decoder_for
from harness.train.load import load_policy
from harness.train.loop import Trainer
from harness.train.policy import backbone_of, completion_logprobs
from harness.train.rollout import assemble
from harness.train.sampler import NativeSampler, left_pad

pytest.importorskip("peft", reason="LoRA needs the extra gpu (peft)")
FAMILIES = ("qwen2", "llama", "gpt2")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
ADAPTER = {"rank": 4, "alpha": 8.0}
ALONE = {"bpco": 1, "ppo": 1}


def adapted(family: str, *, moved: bool = True, targets: tuple[str, ...] = ()):
    """A random model with an adapter that (where `moved`) changes what it computes."""
    model = build_model(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    torch.manual_seed(3)
    add_adapter(model, AdapterSpec(rank=4, alpha=8.0, targets=targets))
    if moved:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.2)
    return model.eval()


def logprobs(model, found) -> torch.Tensor:
    with torch.no_grad():
        return completion_logprobs(
            model, *left_pad([p for p in PROMPTS for _ in range(2)], 0), found.ids, found.mask
        )


def sample(model):
    sampler = NativeSampler(model, eos_ids=[1], pad_id=0)
    streams = [("t", i, k) for i in range(len(PROMPTS)) for k in range(2)]
    return sampler.sample(PROMPTS, [2] * len(PROMPTS), streams, max_tokens=16, temperature=1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_with_an_adapter_has_the_trainers_logprobs(family):
    model = adapted(family)
    found = sample(model)
    assert isinstance(decoder_for(model), FusedDecoder) == (family != "gpt2")
    assert (found.logprobs - logprobs(model, found))[found.mask].abs().max() < 1e-4
    with adapter_off(model):
        base = logprobs(model, found)
    assert (base - logprobs(model, found)).abs().max() > 0.1, "the adapter must change something here"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_starts_as_the_base_and_only_it_trains(family):
    plain, model = build_model(family), adapted(family, moved=False)
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    found = sample(plain)
    assert torch.equal(logprobs(plain, found), logprobs(model, found))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all(MARK in name for name in trained)
    assert set(model.state_dict()) == set(trained)


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_are_those_of_a_plain_model(family):
    model = adapted(family)
    found = sample(model)
    wanted = logprobs(model, found)
    plain = build_model(family)
    plain.load_state_dict(merged_state(model))
    assert (logprobs(plain, found) - wanted).abs().max() < 1e-4
    merge_adapter(model)
    assert not adapter_layers(model)
    assert (logprobs(model, found) - wanted).abs().max() < 1e-4
    assert set(model.state_dict()) == set(plain.state_dict())


def test_turning_an_adapter_off_leaves_it_trainable():
    model = adapted("llama")
    before = {name: p.clone() for name, p in model.named_parameters()}
    with adapter_off(model):
        pass
    after = dict(model.named_parameters())
    assert all(p.requires_grad == (MARK in name) for name, p in after.items())
    assert all(torch.equal(before[name], p) for name, p in after.items())


def test_a_twin_shares_the_base_and_owns_its_adapter():
    backbone = backbone_of(adapted("qwen2"))
    copy = twin(backbone)
    for (name, own), (_, other) in zip(backbone.named_parameters(), copy.named_parameters(), strict=True):
        assert (own.data_ptr() == other.data_ptr()) == (MARK not in name), name
    state = copy.state_dict()
    assert state
    assert all(MARK in name for name in state)
    holder = torch.nn.ModuleDict({"backbone": copy, "head": torch.nn.Linear(2, 1)})
    holder.load_state_dict(holder.state_dict())
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        holder.load_state_dict({k: v for k, v in holder.state_dict().items() if k != "head.weight"})


def test_a_state_without_the_adapter_is_refused():
    model = adapted("llama")
    with pytest.raises(RuntimeError, match="lora_A"):
        model.load_state_dict({})


def test_an_unknown_target_is_refused_with_the_layers_there_are():
    with pytest.raises(UserError, match=r"model\.adapter\.targets=\['qkv'\].*q_proj"):
        add_adapter(build_model("llama"), AdapterSpec(targets=("qkv",)))


def test_a_head_that_is_the_embedding_takes_no_adapter_and_another_does():
    with pytest.raises(UserError, match=r"model\.adapter\.targets=.*lm_head is the embedding's own matrix"):
        add_adapter(build_model("qwen2"), AdapterSpec(targets=("q_proj", "lm_head")))
    model = adapted("llama", targets=("q_proj", "lm_head"))
    found = sample(model)
    assert (found.logprobs - logprobs(model, found))[found.mask].abs().max() < 1e-4


def test_named_targets_alone_are_adapted():
    model = adapted("llama", targets=("q_proj",))
    assert len(adapter_layers(model)) == model.config.num_hidden_layers


def test_without_peft_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(EnvironmentProblem, match=r"creditbench\[gpu\]"):
        add_adapter(build_model("llama"), AdapterSpec())


def test_the_adapter_of_16_bit_weights_has_32_bits(tiny_model_folder: Path):
    spec = ModelSpec(name=str(tiny_model_folder), dtype="bfloat16", adapter=AdapterSpec())
    model, _ = load_policy(spec, 0)
    kinds = {MARK in name: p.dtype for name, p in model.named_parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


# --- whole runs -----------------------------------------------------------------------------------------


def train(spec, root: Path, stop_after: int | None = None):
    job = job_for(spec, root)
    writer = RunWriter(Path(job.folder), manifest_of(job))
    trainer = Trainer(build(spec), writer)
    if stop_after is not None:
        trainer.should_stop = lambda: trainer.progress.optimizer_step >= stop_after
    status, reason = trainer.run()
    writer.status(status, reason)
    writer.close()
    return trainer, Path(job.folder)


def with_options(spec: RunSpec, **options) -> RunSpec:
    return parse_run(
        {**spec.model_dump(mode="json"), "algorithm": {"name": spec.algorithm.name, "options": options}}
    )


def records(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("steps.jsonl", "evals.jsonl")]


@pytest.mark.parametrize("algorithm", ["grpo", "bpco"])
def test_a_run_with_an_adapter_resumes_to_the_same_bytes(tiny_spec, tmp_path, algorithm):
    spec = tiny_spec(algorithm, model={"adapter": ADAPTER})
    if algorithm == "bpco":
        spec = with_options(
            tiny_spec(algorithm, model={"adapter": ADAPTER}, train={"group_size": 1, "prompts_per_step": 4}),
            critic_warmup=1,
        )
    whole, whole_folder = train(spec, tmp_path / "whole")
    _, folder = train(spec, tmp_path / "parts", stop_after=2)
    again, folder = train(spec, tmp_path / "parts")
    assert records(folder) == records(whole_folder)
    for (name, a), (_, b) in zip(
        whole.parts.model.named_parameters(), again.parts.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    state = torch.load(max((folder / "checkpoints").glob("step-*.pt")), weights_only=True)
    assert all(MARK in name for name in state["model"])
    if algorithm == "bpco":
        names = set(state["algorithm"]["critic"])
        assert {"head.weight", "head.bias"} < names
        assert all(MARK in name or name.startswith("head") for name in names)


def test_the_base_does_not_move_and_is_the_reference(tiny_spec, tmp_path):
    spec = with_options(tiny_spec(model={"adapter": ADAPTER}), kl_coefficient=0.1)
    start, _ = load_policy(spec.model.model_copy(update={"adapter": None}), 0)
    trainer, _ = train(spec, tmp_path)
    plain = dict(start.named_parameters())
    moved = 0.0
    for name, parameter in trainer.parts.model.named_parameters():
        if MARK in name:
            moved += float(parameter.abs().sum()) if "lora_B" in name else 0.0
        else:
            assert torch.equal(parameter, plain[name.replace(".base_layer.", ".")]), name
    assert moved > 0
    rollout = trainer.collector.collect(1, 0, 0)
    batch = assemble(
        rollout.completions,
        trainer.parts.recipe,
        pad_id=0,
        max_completion_tokens=8,
        reward_range=trainer.parts.task.outcome_range,
    )
    with torch.no_grad():
        wanted = completion_logprobs(
            start, batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask
        )
    found = trainer.parts.models.reference_logprobs(batch)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(trainer.parts.models.logprobs(batch), wanted, atol=1e-3)


@pytest.mark.slow
def test_every_algorithm_trains_an_adapter_or_says_why_not(tiny_spec, tmp_path):
    algorithms()
    trained: list[str] = []
    refused: list[str] = []
    for name in sorted(ALGORITHMS):
        spec = tiny_spec(
            name,
            model={"adapter": ADAPTER},
            train={"horizon": 1, "group_size": ALONE.get(name, 4), "prompts_per_step": 4},
            evaluation={"every": 1, "prompts": 1},
        )
        try:
            trainer, folder = train(spec, tmp_path / name)
        except UserError as error:
            refused.append(str(error))
            continue
        steps = [json.loads(line) for line in (folder / "steps.jsonl").open()]
        assert len(steps) == 1, name
        assert all(p.requires_grad == (MARK in n) for n, p in trainer.parts.model.named_parameters()), name
        trained.append(name)
    assert {"grpo", "bot_grpo", "bpco", "ppo"} <= set(trained)
    assert all("model.adapter" not in words for words in refused), "refused for what the task lacks alone"


def test_a_published_adapter_run_is_a_plain_model(tiny_spec, tmp_path):
    trainer, folder = train(tiny_spec(model={"adapter": ADAPTER}), tmp_path)
    out = to_folder(folder, tmp_path / "published", which="last")
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(out).eval()
    assert read_json(out / "config.json")["model_type"] == "qwen2"
    wanted = merged_state(trainer.parts.model)
    assert set(wanted) == set(dict(plain.named_parameters(remove_duplicate=False)))
    assert all(torch.allclose(p, wanted[n], atol=1e-6) for n, p in plain.named_parameters())
