from __future__ import annotations

import copy
import json
import tomllib

import pytest

from harness.claims.schema import FOLDER, SCALES, claim_names, load_claim, load_claim_file, parse_claim
from harness.errors import UserError


@pytest.fixture
def data() -> dict:
    return tomllib.loads((FOLDER / "compile-speedup.toml").read_text())


@pytest.mark.parametrize("name", claim_names())
def test_every_claim_is_valid_and_named_like_its_file(name):
    claim = load_claim(name)
    assert claim.name == name
    assert {"smoke", "tiny"} & set(claim.scales)
    for scale in claim.scales:
        assert scale in SCALES
        assert claim.comparisons_at(scale)
        assert json.loads(claim.definition(scale))["name"] == name
        assert len(claim.hash(scale)) == 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["endpoint"].update(treshold=1), "endpoint.treshold.*did you mean 'threshold'"),
        (lambda d: d["scales"]["tiny"].update(horizn=1), "scales.tiny.horizn.*did you mean 'horizon'"),
        (lambda d: d.update(basline="grpo"), "did you mean 'baseline'"),
        (lambda d: d.update(baseline="grop"), "unknown arm 'grop': did you mean 'grpo'"),
        (lambda d: d["scales"].update(tny=d["scales"]["tiny"]), "unknown scale 'tny': did you mean 'tiny'"),
        (lambda d: d["scales"]["tiny"].update(horizon=-1), "horizon=-1"),
        (lambda d: d["arms"].append(d["arms"][0]), "names must differ"),
        (lambda d: d.update(tuning_seeds=[3]), "overlap"),
        (lambda d: d["endpoint"].update(kind="magic"), "endpoint"),
        (lambda d: d.pop("version"), "version is missing"),
        (lambda d: d["endpoint"].update(threshold=float("nan")), "finite"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(data, change, words):
    broken = copy.deepcopy(data)
    change(broken)
    with pytest.raises(UserError, match=words) as caught:
        parse_claim(broken, "mine.toml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("mine.toml: ")


def test_unknown_claim_and_file(tmp_path):
    with pytest.raises(UserError, match="did you mean 'compile-speedup'"):
        load_claim("compile-speed")
    with pytest.raises(UserError, match="does not exist"):
        load_claim_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(UserError, match="not valid TOML"):
        load_claim(str(tmp_path / "bad.toml"))


def test_hash_follows_the_definition_of_its_scale_only(data):
    before = parse_claim(data, "a")
    changed = copy.deepcopy(data)
    changed["scales"]["paper"]["horizon"] = 999
    after = parse_claim(changed, "a")
    assert before.hash("tiny") == after.hash("tiny")
    assert before.hash("paper") != after.hash("paper")
    assert before.hash() != after.hash()
    changed["endpoint"]["threshold"] = 0.9
    assert before.hash("tiny") != parse_claim(changed, "a").hash("tiny")


def test_hash_does_not_depend_on_the_order_of_keys(data):
    turned = dict(reversed(list(data.items())))
    assert parse_claim(turned, "a").hash() == parse_claim(data, "a").hash()


def test_scale_options_reach_the_arm():
    claim = load_claim("compile-speedup")
    options = {arm.name: arm.options for arm in claim.arms_at("tiny")}
    assert options["bot_grpo"]["degenerate"] == "zero_if_global_const"
    assert options["grpo"] == {}
    assert claim.arm("bot_grpo").options == {}


def test_confirmation_never_uses_tuning_seeds():
    claim = load_claim("compile-speedup")
    assert claim.seeds() == (0, 1, 2, 3, 4)
    assert claim.seeds(scale="smoke") == (0, 1)
    assert claim.seeds(3, scale="smoke") == (0, 1, 2)
    assert not set(claim.seeds(100)) & set(claim.tuning_seeds)
    with pytest.raises(UserError, match="tuning seeds"):
        claim.seeds(9005)


def test_absent_scale_is_told():
    with pytest.raises(UserError, match="unknown scale 'huge'"):
        load_claim("compile-speedup").scale("huge")
