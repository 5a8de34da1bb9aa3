"""Every claim file names things that exist: algorithms and their options, models, tasks, recipes, settings."""

from __future__ import annotations

import pytest

from harness.claims import claim_names, load_claim
from harness.models import PRESETS
from harness.registry import algorithms, tasks
from harness.reproduce import run_spec

CELLS = [(name, scale) for name in claim_names() for scale in load_claim(name).scales]


@pytest.fixture(scope="module")
def known():
    """Registered algorithms and tasks, looked up once."""
    return algorithms(), tasks()


@pytest.mark.parametrize(("name", "scale"), CELLS)
def test_every_run_of_every_scale_has_a_valid_specification(name, scale, known):
    claim, (methods, problems) = load_claim(name), known
    for arm in claim.arms_at(scale):
        spec = run_spec(claim, scale, arm, claim.first_seed)
        assert spec.algorithm.name in methods
        methods[spec.algorithm.name].Options(**spec.algorithm.options)
        assert spec.task.name in problems
        assert spec.task.recipe in ("", *problems[spec.task.name].recipes)
        assert spec.model.name in PRESETS or claim.scale(scale).task == "ladder", spec.model.name
        problems[spec.task.name].Options(**spec.task.options)


@pytest.mark.parametrize("name", claim_names())
def test_arms_of_a_scale_differ_in_what_they_run(name):
    claim = load_claim(name)
    for scale in claim.scales:
        specs = [run_spec(claim, scale, arm, 0).model_dump(mode="json") for arm in claim.arms_at(scale)]
        assert all(specs.count(spec) == 1 for spec in specs), scale


@pytest.mark.parametrize("name", claim_names())
def test_a_stop_rule_needs_a_threshold(name):
    claim = load_claim(name)
    for scale in claim.scales.values():
        assert scale.stop_rule == "none" or hasattr(claim.endpoint, "threshold")
