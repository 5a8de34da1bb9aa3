from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from harness.claims import load_claim
from harness.claims.measure import cumulative, identical_replicates
from harness.claims.rules import Limits, agree, as_mechanism, at_scale, decide, finite, number, span, together
from harness.claims.simulate import simulated_sweep
from harness.claims.verdict import holm_levels, judge
from harness.claims.words import _published_words
from harness.errors import UserError

CLAIM = load_claim("compile-speedup")
RULE = {"published": 1.9, "smallest": 1.1, "width": 1.6}


def sweep(grpo, bot, seed=0, scale="paper"):
    return simulated_sweep(CLAIM, scale, {"grpo": grpo, "bot_grpo": bot}, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (1.6, 2.3, "supported_size"),
        (1.1, 1.7, "supported_direction_smaller"),
        (1.1, 3.0, "supported_direction"),
        (2.0, 3.0, "supported_direction"),
        (1.2, math.inf, "supported_direction"),
        (0.8, 1.05, "refuted"),
        (0.7, 0.95, "reversed"),
        (0.9, 1.3, "inconclusive"),
        (0.0, math.inf, "inconclusive"),
        (1.0, 1.2, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_table_of_verdicts(low, high, want):
    assert decide(Limits(1.5, low, high), **RULE) == want


def test_an_order_only_claim_has_no_size():
    assert decide(Limits(1.5, 1.2, 1.6), published=None, smallest=1.1, width=1.6) == "supported_direction"


def test_differences_use_zero():
    rule = {"published": 8.1, "smallest": 1.0, "width": 8.0}
    assert decide(Limits(8, 5, 11, ratio=False), **rule) == "supported_size"
    assert decide(Limits(0, -3, 0.5, ratio=False), **rule) == "refuted"
    assert decide(Limits(-2, -3, -1, ratio=False), **rule) == "reversed"


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        ("supported_size", "supported_size", "supported_size"),
        ("supported_size", "supported_direction", "supported_direction"),
        ("supported_direction", "inconclusive", "inconclusive"),
        ("refuted", "supported_direction", "inconclusive"),
        ("refuted", "reversed", "refuted"),
        ("inconclusive", "supported_size", "inconclusive"),
    ],
)
def test_methods_that_disagree_conclude_nothing(one, other, want):
    assert agree(one, other) == want


def test_scales_limit_what_may_be_said():
    for verdict in ("supported_size", "refuted", "reversed", "inconclusive", "not_testable"):
        assert at_scale(verdict, "smoke") == "not_testable"
        assert at_scale(verdict, "tiny") in {
            "mechanism_passed", "mechanism_failed", "mechanism_inconclusive", "not_testable",
        }  # fmt: skip
        assert at_scale(verdict, "paper") == verdict
    assert as_mechanism("reversed") == "mechanism_failed"


def test_a_claim_holds_only_if_all_its_comparisons_do():
    assert together(["supported_size", "supported_direction"]) == "supported_direction"
    assert together(["supported_size", "inconclusive"]) == "inconclusive"
    assert together(["inconclusive", "refuted"]) == "refuted"
    assert together([]) == "not_testable"


def test_a_published_figure_is_called_one_run_only_where_it_was():
    found = {name: _published_words(load_claim(name)) for name in ("compile-speedup", "cort-gain", "cost")}
    assert found["compile-speedup"] == " The paper's 1.9 was one run."
    assert found["cort-gain"] == " The paper's 0.044: +4.4 points on average over many cells."
    assert found["cost"] == ""


def test_large_speed_up_is_supported_at_paper_scale_and_only_a_mechanism_at_tiny():
    slow, fast = [85, 92, 98, 90, 105], [44, 47, 52, 46, 50]
    paper = judge(CLAIM, "paper", sweep(slow, fast))
    assert paper.verdict == "supported_size"
    assert paper.sentence.startswith("In our setting (Qwen2.5-3B, 200 prompts every 5 optimizer steps")
    assert "the paper's 1.9 was one run" in paper.sentence.lower()
    main = paper.speedup["optimizer_steps"]
    assert main.low < 94 / 47.8 < main.high
    tiny = judge(CLAIM, "tiny", sweep([55, 58, 62, 57, 60], [30, 28, 33, 31, 29], scale="tiny"))
    assert tiny.verdict == "mechanism_passed"
    assert "neither supports nor refutes" in tiny.sentence


def test_equal_arms_do_not_reproduce_or_stay_open():
    close = judge(CLAIM, "paper", sweep([60, 61, 62, 60, 61], [60, 62, 61, 61, 60]))
    assert close.verdict == "refuted"
    assert "did not reproduce here" in close.sentence
    wide = judge(CLAIM, "paper", sweep([40, 60, 80, 100, 55], [45, 62, 85, 90, 50]))
    assert wide.verdict == "inconclusive"
    assert "seeds an arm would" in wide.sentence


def test_reversed_is_said():
    assert judge(CLAIM, "paper", sweep([40, 42, 41, 43, 44], [80, 82, 85, 90, 84])).verdict == "reversed"


def test_an_arm_that_never_reaches_is_kept_and_bounded():
    found = judge(CLAIM, "paper", sweep([900] * 5, [50, 52, 55, 48, 51]))
    assert found.verdict == "supported_direction"
    assert [arm.reached for arm in found.arms] == [0, 5]
    assert found.speedup["optimizer_steps"].estimate is None
    assert "at least" in found.sentence


def test_no_arm_reaching_is_not_testable():
    found = judge(CLAIM, "tiny", sweep([900] * 5, [900] * 5, scale="tiny"))
    assert found.verdict == "not_testable"
    assert "no run of either arm" in found.sentence


def test_too_few_seeds_are_not_testable():
    found = judge(CLAIM, "paper", sweep([90, 95, 99], [45, 40, 44]))
    assert found.verdict == "not_testable"
    assert "at least 4 seeds" in found.sentence


def test_smoke_never_gives_a_verdict():
    found = judge(CLAIM, "smoke", sweep([3, 3, 3, 3, 3], [2, 2, 2, 2, 2], scale="smoke"))
    assert found.verdict == "not_testable"
    assert "a look, never a verdict" in found.sentence


def test_identical_replicates_are_an_error_not_certainty():
    runs = sweep([60] * 5, [40, 42, 44, 41, 43])
    copies = [replace(runs[0], seed=i, run_id=f"c{i}") for i in range(5)]
    assert identical_replicates(copies)
    found = judge(CLAIM, "paper", copies + runs[5:])
    assert found.verdict == "not_testable"
    assert "identical records" in found.sentence


def test_a_diverged_run_never_reached_at_the_horizon():
    runs = sweep([60, 62, 64, 61, 63], [40, 42, 44, 41, 43])
    runs[5] = replace(runs[5], status="diverged", evals=runs[5].evals[:4], reason="NaN loss")
    found = judge(CLAIM, "paper", runs)
    bot = found.arms[1]
    assert (bot.reached, bot.censored, len(bot.seeds)) == (4, 1, 5)
    assert bot.measured[0].crossings["optimizer_steps"].time == 170
    assert bot.statuses == {"completed": 4, "diverged": 1}
    assert any("never reached" in note for note in found.notes)


def test_a_failed_run_is_censored_at_its_last_evaluation_and_noted():
    runs = sweep([60, 62, 64, 61, 63], [40, 42, 44, 41, 43])
    runs[0] = replace(runs[0], status="failed", reason="out of memory", evals=runs[0].evals[:8])
    found = judge(CLAIM, "paper", runs)
    assert found.arms[0].measured[0].crossings["optimizer_steps"].time == 25
    assert any("out of memory" in note for note in found.notes)
    runs[0] = replace(runs[0], evals=[])
    assert len(judge(CLAIM, "paper", runs).arms[0].seeds) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"claim": {"name": "compile-speedup", "hash": "0" * 16}}, "another definition"),
        ({"claim": {"name": "win-rate"}}, "belongs to claim"),
        ({"claim": {"scale": "tiny"}}, "is of scale"),
        ({"seed": 9001}, "tuning seed"),
        ({"seed": 1}, "keep one"),
        ({"arm": "dapo"}, "lacks"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(change, words):
    runs = sweep([60, 62, 64, 61, 63], [40, 42, 44, 41, 43])
    runs[0] = replace(runs[0], **change)
    with pytest.raises(UserError, match=words):
        judge(CLAIM, "paper", runs)


def test_runs_of_this_definition_are_accepted():
    stamp = {"name": CLAIM.name, "hash": CLAIM.hash("paper"), "scale": "paper"}
    runs = [replace(run, claim=stamp) for run in sweep([60, 62, 64, 61, 63], [40, 42, 44, 41, 43])]
    assert judge(CLAIM, "paper", runs).claim_hash == CLAIM.hash("paper")


def test_every_cost_axis_has_a_speed_up():
    found = judge(CLAIM, "paper", sweep([60, 62, 64, 61, 63], [40, 42, 44, 41, 43]))
    assert list(found.speedup) == [
        "optimizer_steps", "completions", "generated_tokens", "processed_tokens", "train_seconds",
    ]  # fmt: skip
    steps, completions = found.speedup["optimizer_steps"], found.speedup["completions"]
    assert completions.estimate == pytest.approx(steps.estimate)
    run = found.arms[0].measured[0].run
    assert cumulative(run, "judge_usd") is None


def test_json_is_plain_and_has_the_documented_keys():
    for grpo in ([60, 62, 64, 61, 63], [900] * 5):
        body = judge(CLAIM, "paper", sweep(grpo, [40, 42, 44, 41, 43])).to_json()
        text = json.dumps(body, allow_nan=False)
        assert set(body) >= {"claim", "scale", "verdict", "sentence", "arms", "speedup", "run_ids"}
        assert set(body["arms"][0]) >= {"name", "seeds", "reached", "final_compile_rate"}
        assert set(body["speedup"]["optimizer_steps"]) >= {"estimate", "low", "high", "method"}
        assert json.loads(text) == body


def test_holm_levels_step_down():
    assert holm_levels([0.01, 0.001, 0.04]) == pytest.approx([1 - 0.05 / 2, 1 - 0.05 / 3, 0.95])
    # 0.03 > 0.05 / 2 is not rejected, so the step-down stops there
    assert holm_levels([0.03, 0.001, None]) == pytest.approx([0.975, 1 - 0.05 / 3, 0.975])


def test_words_for_numbers():
    assert [number(x) for x in (1.2345, 12.345, 1234.5, 0.0123, 0.0, None, math.inf)] == [
        "1.23", "12.3", "1,234", "0.0123", "0", "unknown", "open",
    ]  # fmt: skip
    assert span(1.2, math.inf) == "at least 1.20"
    assert span(0.0, 1.5) == "at most 1.50"
    assert span(0.0, math.inf) == span(None, None) == "no interval"
    assert finite({"a": [math.nan, (1.0, math.inf)]}) == {"a": [None, [1.0, None]]}
