from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.advise import (
    NOTHING,
    Facts,
    Near,
    advice_table,
    advise,
    confirmation,
    farmed_arms,
    nearest,
    start_words,
    verdict_of,
)
from harness.credit.measure import bench_of
from harness.report.tables import to_text
from harness.spec import parse_run

FACTS = Facts(
    answers=64, groups=8, successes=6, all_fail_groups=0.5, all_pass_groups=0.0, mean_tokens=16.0, mean_steps=8.0,
    truncated=0.0, unique=1.0, fractional=False, scored_tokens=0.9, kappa=0.7, sign_flips=0.1, local_predicts=0.9,
    local_cosine=0.5, local_noise=0.0, resolved_segments=40,
)  # fmt: skip


def point(cell: str, arm: str, regime: str, **more):
    factors = {"steps": 8.0, "log2_steps": 3.0, "noise": 0.0, "start_success": 0.0026, "log10_start": -2.58}
    base = {
        "cell": cell, "arm": arm, "regime": regime, "factors": factors, "estimate": 1.5, "low": 1.2, "high": 1.8,
        "hacked": 0.0, "task_options": {"outcome": "all_right", "steps": 8},
    }  # fmt: skip
    return {**base, **more}


LADDER = {
    "points": [
        point("all-8", "bot_keep", "wins"),
        point("all-8", "pure", "open"),
        point(
            "all-16", "bot_keep", "only it learns",
            factors={"steps": 16.0, "log2_steps": 4.0, "noise": 0.0, "start_success": 6.8e-6, "log10_start": -5.17},
        ),
        point(
            "fraction-8", "bot_keep", "loses", task_options={"outcome": "fraction", "steps": 8},
        ),
        point(
            "hackable", "bot_keep", "collapses", hacked=1.0,
            task_options={"family": "hackable", "outcome": "all_right", "steps": 8},
        ),
    ]
}  # fmt: skip


def bench(**task):
    return bench_of(
        parse_run(
            {
                "algorithm": {"name": "grpo"},
                "task": {"name": "ladder", "options": {"steps": 4, "start_logit": 1.5, **task}},
                "model": {"name": "table"},
            }
        )
    )


def advice(ladder=None, samples: int = 128, **task):
    return advise(
        bench(**task), task="ladder", model="table", samples=samples, continuations=0, most=8, ladder=ladder
    )


def test_evidence_needs_credit_here_and_the_ladder_to_agree():
    near = Near("all-8", {}, 0.2, 0.5, {"a": {"regime": "wins"}, "b": {"regime": "collapses"}})
    better, worse, unclear = (0.3, 0.1, 0.5), (-0.3, -0.5, -0.1), (0.1, -0.2, 0.4)
    assert verdict_of("a", better, near) == "for"
    assert verdict_of("b", worse, near) == "against"
    assert verdict_of("a", worse, near) == NOTHING
    assert verdict_of("b", better, near) == NOTHING
    assert verdict_of("a", unclear, near) == NOTHING
    assert verdict_of("a", None, near) == NOTHING
    assert verdict_of("a", better, None) == NOTHING
    assert verdict_of("a", better, replace(near, octaves=3.0)) == NOTHING
    assert verdict_of("absent", better, near) == NOTHING


def test_the_nearest_cell_is_of_the_same_kind_of_outcome_and_never_a_special_family():
    assert nearest(FACTS, LADDER).cell == "all-8"
    rare = replace(FACTS, successes=0, mean_steps=20.0)
    assert nearest(rare, LADDER).cell == "all-16"
    assert nearest(replace(FACTS, fractional=True), LADDER).cell == "fraction-8"
    assert nearest(FACTS, None) is None
    far = nearest(replace(FACTS, mean_steps=0.0, mean_tokens=400.0), LADDER)
    assert not far.close


def test_arms_that_farmed_are_named():
    assert farmed_arms(LADDER) == ["bot_keep flagged in 100% of runs"]
    assert farmed_arms(None) == []


def test_facts_in_words_with_their_figures():
    words = " ".join(start_words(FACTS))
    assert "6 of 64 answers are right (9.38%, 95% 4.37% to 19%)" in words
    assert "50% of 8 groups have no right answer" in words
    assert "beats a wrong one's in 90% of pairs" in words
    assert "nothing to place" in " ".join(start_words(replace(FACTS, scored_tokens=0.0)))


def test_the_cost_of_a_confirmation():
    found = confirmation(FACTS)
    assert found["runs"] == 2 * found["seeds_an_arm"]
    assert found["tokens_to_confirm"] == found["runs"] * 100 * 128 * 16
    assert 5 <= found["seeds_an_arm"] <= 15


def test_an_exact_local_reward_and_a_winning_cell_are_evidence():
    found = advice(LADDER, outcome="all_right")
    gain = found.gains["bot_keep"]
    assert found.facts.local_noise == 0.0
    assert found.near.cell == "all-8"
    assert found.verdicts["bot_keep"] == ("for" if gain[1] > 0 else NOTHING)
    json.dumps(found.to_json(), allow_nan=False)
    assert "bot_keep" in to_text(advice_table(found), 160)


def test_without_the_ladder_there_is_no_evidence_either_way():
    found = advice(None)
    assert set(found.verdicts.values()) == {NOTHING}
    assert any(s.startswith(f"Conclusion: {NOTHING}") for s in found.sentences)


def test_a_clear_gain_of_credit_is_seen_and_a_random_local_reward_is_not():
    clean = advice(LADDER, outcome="fraction", steps=8)
    assert clean.gains["bot_grpo"][1] > 0.2
    assert clean.facts.local_noise == 0.0
    assert clean.facts.local_predicts is None or clean.facts.local_predicts > 0.9
    random = advice(LADDER, outcome="fraction", steps=8, noise=0.5)
    assert random.gains["bot_grpo"][1] < 0.1
    assert random.facts.local_noise == pytest.approx(0.5, abs=0.08)


def test_no_success_at_all_is_said_and_the_danger_of_a_kept_local_reward_too():
    found = advice(LADDER, samples=32, steps=24, start_logit=0.0)
    words = " ".join(found.sentences)
    assert found.facts.successes == 0
    assert "0 of 32 answers are right" in words
    assert "bot_keep flagged in 100% of runs" in words
    assert found.gains == {} or found.gains["bot_keep"][0] > 0


def test_the_commands_print_tables_pages_and_json(tmp_path, capsys):
    from harness.commands.credit import AdviseOptions, CreditOptions
    from harness.commands.credit import advise as advise_command
    from harness.commands.credit import credit as credit_command

    settings = ["task.options.steps=3", "task.options.outcome=fraction"]
    shared = {"task": "ladder", "model": "table", "settings": settings}
    credit_command(
        CreditOptions(**shared, prompts=3, out=str(tmp_path), algorithms="grpo;bot_grpo:degenerate=keep")
    )
    shown = capsys.readouterr().out
    assert "bot_grpo:degenerate=keep" in shown
    assert "true credit" in shown
    assert "<html" in (tmp_path / "credit.html").read_text().lower()
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 3
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [r["algorithm"] for r in records] == ["grpo", "bot_grpo:degenerate=keep"]
    credit_command(CreditOptions(**shared, prompts=3, json=True))
    assert json.loads(capsys.readouterr().out)["skipped"] == {}
    advise_command(AdviseOptions(**shared, samples=32, json=True))
    assert json.loads(capsys.readouterr().out)["facts"]["answers"] == 32
    advise_command(AdviseOptions(**shared, samples=32))
    assert "Conclusion:" in capsys.readouterr().out
