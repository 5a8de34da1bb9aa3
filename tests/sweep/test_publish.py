"""Publishing: a folder that transformers loads offline, a card that the Hub reads, damage that is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness import publish as module
from harness.errors import EnvironmentProblem, UserError
from harness.publish import model_card, publish, to_folder
from harness.store.checksums import verify_checksums
from harness.store.reader import load_run
from harness.sweep.jobs import Job, job_for
from harness.sweep.worker import run_job
from harness.train import checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model_folder, letters_plugin) -> Path:
    """A finished run."""
    from harness.spec import parse_run

    spec = parse_run(
        {
            "algorithm": {"name": "grpo"},
            "task": {"name": "letters"},
            "model": {"name": str(tiny_model_folder)},
            "train": {
                "prompts_per_step": 2,
                "group_size": 4,
                "horizon": 3,
                "max_completion_tokens": 6,
                "learning_rate": 1e-2,
            },
            "evaluation": {"every": 1, "prompts": 6},
            "plugins": [str(letters_plugin)],
        }
    )
    made = job_for(spec, tmp_path_factory.mktemp("publish"))
    job = Job(
        made.spec, made.folder, {"name": "letters", "scale": "smoke", "hash": "h", "arm": "grpo"}, "grpo"
    )
    assert run_job(job) == "completed"
    return Path(job.folder)


@pytest.mark.parametrize("which", ["best", "last"])
def test_published_folder_holds_the_checkpoints_weights(folder, tmp_path, which):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = to_folder(folder, tmp_path / "out", which=which)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    newest = checkpoint.steps(folder / "checkpoints")[-1]
    state = checkpoint.load(folder / "checkpoints" / "best.pt" if which == "best" else newest)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state["model"][name])
    assert AutoTokenizer.from_pretrained(out).decode([0, 1])
    assert verify_checksums(out) == []
    assert {"README.md", "manifest.json", "evals.jsonl", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in out.iterdir()
    }


def test_card_says_what_the_manifest_and_the_records_say(folder):
    from huggingface_hub import ModelCard

    run = load_run(folder)
    text = model_card(run, 2)
    card = ModelCard(text)
    assert card.data.library_name == "transformers"
    assert "grpo" in card.data.tags
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results["correct"] == pytest.approx(run.evals[2]["metrics"]["correct"], abs=1e-6)
    assert run.evals[2]["optimizer_step"] == 2
    assert "for 2 optimizer steps (completed)" in card.text
    assert "One run of the claim `letters` at smoke scale" in card.text
    assert run.run_id in card.text
    assert json.dumps(run.spec["train"]["learning_rate"]) in card.text
    assert f"torch {run.manifest['versions']['torch']}" in card.text


def test_damaged_checkpoint_is_not_published(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = copy / "checkpoints" / "best.pt"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(
        EnvironmentProblem, match="best checkpoint is absent or damaged; try --checkpoint last"
    ):
        to_folder(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    to_folder(copy, tmp_path / "out", which="last")


def test_wrong_folders_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="holds no manifest"):
        to_folder(tmp_path, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(EnvironmentProblem, match="is not empty: choose another folder"):
        to_folder(folder, tmp_path / "full")


def test_upload_sends_the_folder_and_keeps_it_when_the_hub_refuses(folder, tmp_path, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, repo, *, private, exist_ok):
            calls.append(("create", repo, private, exist_ok))
            return f"hub:{repo}"

        def upload_folder(self, *, folder_path, repo_id, commit_message):
            calls.append(("upload", sorted(p.name for p in folder_path.iterdir()), repo_id))
            if repo_id == "org/full":
                raise ConnectionError("no route to host")

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    done = publish(folder, tmp_path / "out", repo="org/name", private=True)
    assert done.url == "hub:org/name"
    assert calls[0] == ("create", "org/name", True, True)
    assert "model.safetensors" in calls[1][1]
    with pytest.raises(EnvironmentProblem, match=r"out of reach \(no route to host\); the model is in"):
        publish(folder, tmp_path / "other", repo="org/full")
    assert (tmp_path / "other" / "README.md").exists()
    assert module.evaluation_at(load_run(folder), -1)["n"] == 0
