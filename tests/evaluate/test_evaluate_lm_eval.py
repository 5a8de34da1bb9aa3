"""lm-eval with our checkpoint as its model, on local YAML tasks, without a network."""

from __future__ import annotations

import importlib.util
import json

import pytest

from harness.errors import EnvironmentProblem, UserError
from harness.evaluate.lm_eval_bridge import evaluate_suite, metrics_of, save_suite
from harness.evaluate.target import Target, load_target

CHOICE = """\
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 3
"""
WRITE = """\
task: local_write
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{target}}}}"
generation_kwargs:
  until: ["\\n\\n"]
  max_gen_toks: 4
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


@pytest.fixture
def local_tasks(tmp_path):
    """A folder of two YAML tasks over one local file."""
    rows = [
        {"question": f"write {c}", "choices": [" cat", " hat"], "answer": i % 2, "target": "zzz"}
        for i, c in enumerate("abcdef")
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "choice.yaml").write_text(CHOICE.format(data=data), encoding="utf-8")
    (folder / "write.yaml").write_text(WRITE.format(data=data), encoding="utf-8")
    return folder


@pytest.mark.lmeval
def test_local_tasks_run_on_our_checkpoint(tiny_model_folder, local_tasks, tmp_path):
    target = load_target(tiny_model_folder, device="cpu")
    record = evaluate_suite(target, ["local_choice", "local_write"], include_path=local_tasks)
    assert record["n"] == {"local_choice": 6, "local_write": 6}
    assert 0.0 <= record["metrics"]["local_choice"]["acc"] <= 1.0
    assert record["metrics"]["local_write"]["exact_match"] == 0.0
    assert record["task_versions"]["local_choice"] == 3
    assert record["target"] == str(tiny_model_folder)
    save_suite(record, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "lm-eval.json").read_text()) == record
    assert evaluate_suite(target, ["local_choice"], include_path=local_tasks)["metrics"] == {
        "local_choice": record["metrics"]["local_choice"]
    }


@pytest.mark.lmeval
def test_choices_follow_our_model(tiny_model_folder, local_tasks):
    """The accuracy is that of our own log-likelihoods."""
    import torch

    target = load_target(tiny_model_folder, device="cpu")
    record = evaluate_suite(target, ["local_choice"], include_path=local_tasks)
    right = 0
    for i, c in enumerate("abcdef"):
        totals = []
        for choice in (" cat", " hat"):
            prompt = target.tokenizer(f"write {c}")["input_ids"]
            ids = target.tokenizer(f"write {c}{choice}")["input_ids"]
            with torch.no_grad():
                logits = target.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            totals.append(sum(float(logits[t - 1, ids[t]]) for t in range(len(prompt), len(ids))))
        right += totals.index(max(totals)) == i % 2
    assert record["metrics"]["local_choice"]["acc"] == pytest.approx(right / 6)


@pytest.mark.lmeval
def test_unknown_tasks_and_folders_are_named(tiny_model_folder, local_tasks):
    target = load_target(tiny_model_folder, device="cpu")
    with pytest.raises(UserError, match="did you mean 'local_choice'"):
        evaluate_suite(target, ["local_choise"], include_path=local_tasks)
    with pytest.raises(UserError, match="is not a folder"):
        evaluate_suite(target, ["local_choice"], include_path=local_tasks / "absent")


def test_absence_of_lm_eval_is_explained(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'creditbench\[eval\]'"):
        evaluate_suite(Target("m", None, None), ["gsm8k"])


def test_numbers_are_taken_from_a_result():
    results = {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.5,
            "exact_match_stderr,strict-match": 0.1,
            "acc,none": 1,
            "acc_stderr,none": "N/A",
            "odd,none": float("nan"),
        }
    }
    assert metrics_of(results) == {
        "gsm8k": {"exact_match:strict-match": 0.5, "exact_match_stderr:strict-match": 0.1, "acc": 1.0}
    }
