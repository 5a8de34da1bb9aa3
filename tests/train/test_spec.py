"""Run specifications: strict, typed, hashed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.spec import RunSpec, apply_settings, parse_run, parse_value
from harness.store.manifests import read_manifests

BASE = {"algorithm": {"name": "grpo"}}


def test_hash_changes_with_every_setting_and_with_nothing_else():
    one, two = parse_run(BASE), parse_run({**BASE, "train": {"group_size": 8}})
    assert one.run_id == two.run_id
    assert parse_run({**BASE, "train": {"group_size": 4}}).run_id != one.run_id
    assert parse_run({**BASE, "seeds": {"seed": 1}}).run_id != one.run_id


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {**BASE, "train": {"learning_rat": 1}},
            "unknown key in train 'learning_rat': did you mean 'learning_rate'",
        ),
        ({**BASE, "trian": {}}, "unknown key 'trian': did you mean 'train'"),
        ({**BASE, "train": {"learning_rate": -1.0}}, "train.learning_rate=-1.0"),
        ({**BASE, "train": {"group_size": "many"}}, "train.group_size='many'"),
        ({**BASE, "train": {"updates_per_rollout": 3}}, "does not divide the 128 completions"),
        ({}, "algorithm"),
    ],
)
def test_wrong_values_are_named_in_one_line(value, words):
    with pytest.raises(UserError) as caught:
        parse_run(value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_typed_and_leave_the_original_alone():
    value = apply_settings(
        BASE, ["train.learning_rate=1e-4", "algorithm.options.dominance=none", "train.group_size=4"]
    )
    assert value["train"] == {"learning_rate": 1e-4, "group_size": 4}
    assert value["algorithm"]["options"] == {"dominance": "none"}
    assert BASE == {"algorithm": {"name": "grpo"}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1e-3", 1e-3), ("true", True), ("False", False), ("x", "x"), ("[1,2]", [1, 2])],
)
def test_values_are_json_where_they_parse(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("setting", ["nothing", "=1", "algorithm.name.x=1"])
def test_malformed_settings_are_refused(setting):
    with pytest.raises(UserError, match="--set"):
        apply_settings(BASE, [setting])


def test_seeds_of_purposes_differ_and_can_be_fixed():
    seeds = parse_run(BASE).seeds
    values = {seeds.of(purpose) for purpose in ("data", "sampling", "initialisation", "evaluation")}
    assert len(values) == 4
    fixed = parse_run({**BASE, "seeds": {"seed": 0, "data": 7}}).seeds
    assert fixed.of("data") == 7
    assert fixed.of("sampling") == seeds.of("sampling")


def test_a_field_added_after_publication_changes_no_id_until_it_is_used() -> None:
    plain = RunSpec(algorithm={"name": "grpo"})
    assert not {"sampler"} & set(plain.model_dump(mode="json"))
    assert not {"adapter", "thinking"} & set(plain.model_dump(mode="json")["model"])
    used = RunSpec(algorithm={"name": "grpo"}, model={"adapter": {"rank": 8}}, sampler={"name": "vllm"})
    assert used.model_dump(mode="json")["model"]["adapter"]["rank"] == 8
    assert used.run_id != plain.run_id
    assert RunSpec.model_validate(used.model_dump(mode="json")) == used


def test_the_id_of_a_published_run_is_what_its_manifest_says() -> None:
    folder = Path(__file__).parents[2] / "results" / "published"
    manifests = sorted(folder.rglob("manifests.json"))
    assert manifests
    for path in manifests:
        for run in read_manifests(path):
            assert parse_run(run["spec"]).run_id == run["run_id"]
