"""Every kind of endpoint, from simulated records to its verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.claims import claim_names, load_claim
from harness.claims.measure import at_cost, metric_of, shown_metric
from harness.claims.schema import Claim
from harness.claims.simulate import simulated_run, simulated_sweep
from harness.claims.verdict import judge
from harness.conclude import write_files
from harness.report import dynamics
from harness.report.claim import amount, arm_table
from harness.store.reader import RunRecord


def final_run(
    arm: str, seed: int, value: float, claim: Claim, scale: str, metrics: dict | None = None, **row
) -> RunRecord:
    """A run whose metrics end at `value` after a straight rise, at a cost of 1000 tokens a step."""
    setting, own = claim.scale(scale), claim.arm(arm)
    horizon = max(1, round(setting.horizon * own.horizon_fraction))
    evals = []
    for step in sorted({*range(0, horizon, setting.eval_every), horizon}):
        share = step / horizon
        found = {
            name: v * share if share < 1 else v
            for name, v in (metrics or {claim.endpoint.metric: value}).items()
        }
        costs = {
            "generated_tokens": 1000 * step,
            "forward_tokens": 0,
            "backward_tokens": 0,
            "completions": step,
        }
        evals.append({"optimizer_step": step, "n": 200, "metrics": found, "costs": costs})
    evals[-1].update(row)
    return RunRecord(f"{arm}-{seed}", Path(arm), arm, own.algorithm, seed, status="completed", evals=evals)


def sweep(claim: Claim, scale: str, values: dict[str, list[float]]) -> list[RunRecord]:
    return [final_run(arm, i, v, claim, scale) for arm, found in values.items() for i, v in enumerate(found)]


NEAR = [0.50, 0.52, 0.49, 0.51, 0.53]


def test_final_difference_is_supported_refuted_or_open():
    claim = load_claim("cort-gain")
    better = judge(claim, "paper", sweep(claim, "paper", {"grpo": NEAR, "cort": [v + 0.045 for v in NEAR]}))
    assert better.verdict == "supported_size"
    pair = better.comparisons[0]
    assert pair.effects["on_task"].estimate == pytest.approx(0.045, rel=0.05)
    assert pair.exact_effects["on_task"].low < 0.045 < pair.exact_effects["on_task"].high
    worse = judge(claim, "paper", sweep(claim, "paper", {"grpo": NEAR, "cort": [v - 0.06 for v in NEAR]}))
    assert worse.verdict == "reversed"
    wild = judge(
        claim,
        "tiny",
        sweep(claim, "tiny", {"grpo": [0.2, 0.8, 0.5, 0.4, 0.7], "cort": [0.3, 0.9, 0.6, 0.5, 0.7]}),
    )
    assert wild.verdict == "mechanism_inconclusive"
    assert "seeds an arm would settle it" in wild.sentence


def test_a_diverged_run_counts_with_its_lowest_value():
    claim = load_claim("cort-gain")
    runs = sweep(claim, "tiny", {"grpo": NEAR, "cort": [v + 0.045 for v in NEAR]})
    runs[5] = replace(runs[5], status="diverged")
    found = judge(claim, "tiny", runs)
    assert found.arms[1].measured[0].value == 0.0
    assert any("diverged" in note for note in found.notes)
    assert found.verdict == "mechanism_inconclusive"


def test_equivalence_needs_evidence_and_equal_cost():
    claim = load_claim("bpco-parity")
    same = judge(claim, "paper", sweep(claim, "paper", {"grpo": NEAR, "bpco": [v + 0.002 for v in NEAR]}))
    assert same.verdict == "supported_size"
    assert "equivalent within the margin" in same.sentence
    wide = judge(
        claim,
        "paper",
        sweep(claim, "paper", {"grpo": [0.3, 0.7, 0.5, 0.6, 0.4], "bpco": [0.4, 0.6, 0.5, 0.7, 0.3]}),
    )
    assert wide.verdict == "inconclusive"
    far = judge(claim, "paper", sweep(claim, "paper", {"grpo": NEAR, "bpco": [v - 0.2 for v in NEAR]}))
    assert far.verdict == "refuted"
    assert "not equivalent here" in far.sentence
    run = same.arms[0].measured[0].run
    assert at_cost(run, "compile", "generated_tokens", 90_000) == pytest.approx(NEAR[0] / 2, rel=0.01)


def test_a_cheaper_arm_is_compared_at_the_common_budget():
    claim = load_claim("bpco-parity")
    runs = sweep(claim, "paper", {"grpo": NEAR, "bpco": NEAR})
    for i in range(5, 10):
        for row in runs[i].evals:
            row["costs"]["generated_tokens"] *= 2
    found = judge(claim, "paper", runs)
    assert found.comparisons[0].effects["compile"].estimate == pytest.approx(-np.mean(NEAR) / 2, rel=0.02)


def passk_runs(claim, scale, rates, n=32, problems=30, seeds=5):
    rng = np.random.default_rng(3)
    out = []
    for arm, rate in rates.items():
        for seed in range(seeds):
            table = {f"p{i}": [n, int(rng.binomial(n, rate))] for i in range(problems)}
            out.append(final_run(arm, seed, rate + 0.001 * seed, claim, scale, problems=table))
    return out


def test_pass_at_k_grid_is_a_family():
    claim = load_claim("aime-passk")
    found = judge(claim, "paper", passk_runs(claim, "paper", {"grpo": 0.1, "bot_grpo": 0.2}))
    pair = found.comparisons[0]
    assert list(pair.effects) == ["pass@1", "pass@2", "pass@4", "pass@8"]
    assert pair.effects["pass@1"].estimate == pytest.approx(0.1, abs=0.03)
    assert found.verdict.startswith("supported")
    assert max(effect.level for effect in pair.effects.values()) == pytest.approx(1 - 0.05 / 4)
    none = judge(claim, "paper", passk_runs(claim, "paper", {"grpo": 0.1, "bot_grpo": 0.1}))
    assert none.verdict in ("inconclusive", "refuted")


def test_pass_at_k_refuses_k_above_n_and_missing_samples():
    claim = load_claim("aime-passk")
    few = judge(claim, "tiny", passk_runs(claim, "tiny", {"grpo": 0.1, "bot_grpo": 0.2}, n=4))
    assert few.verdict == "not_testable"
    assert "k=8 > n=4" in few.sentence
    none = judge(claim, "tiny", sweep(claim, "tiny", {"grpo": NEAR, "bot_grpo": NEAR}))
    assert "several samples" in none.sentence


def test_win_rate_is_tested_against_one_half():
    claim = load_claim("win-rate")
    metrics = {f"win_rate_vs_{name}": 0.7 for name in ("grpo", "gspo", "dapo", "pure")}
    runs = []
    for arm in ("bot_grpo", "grpo", "gspo", "dapo", "pure"):
        for seed in range(10):
            own = (
                {name: v + 0.01 * (seed - 4.5) for name, v in metrics.items()}
                if arm == "bot_grpo"
                else {"compile": 0.5 + seed / 100}
            )
            runs.append(final_run(arm, seed, 0.0, claim, "paper", own))
    found = judge(claim, "paper", runs)
    assert found.verdict == "supported_direction"
    assert found.comparisons[0].effects["win_rate_vs_grpo"].estimate == pytest.approx(0.2)
    nothing = judge(
        claim,
        "tiny",
        [final_run(a.name, s, 0.5, claim, "tiny", {"compile": 0.5}) for a in claim.arms for s in range(5)],
    )
    assert nothing.verdict == "not_testable"
    assert "judge the pairs" in nothing.sentence


def test_factorial_names_the_half_that_works():
    claim = load_claim("what-helps")
    rng = np.random.default_rng(1)

    def times(mean):
        return (mean * np.exp(rng.normal(0, 0.06, 5))).tolist()

    runs = simulated_sweep(claim, "tiny", {
        "length_weighted": times(56), "grpo": times(56), "pooled": times(35), "bot_grpo": times(35),
        "off_scalarised": times(56), "token_shuffle": times(56),
    }, rng)  # fmt: skip
    found = judge(claim, "tiny", runs)
    assert found.verdict == "mechanism_passed"
    effects = {pair.treatment: pair for pair in found.comparisons[:3]}
    assert effects["token_reward on"].speedup["optimizer_steps"].low > 1.3
    second = effects["balancing on"].speedup["optimizer_steps"]
    assert second.low < 1 < second.high
    assert effects["token_reward with balancing"].reason == "the interaction is reported, not judged"
    controls = {pair.baseline: pair for pair in found.comparisons[3:]}
    assert controls["token_shuffle"].speedup["optimizer_steps"].low > 1.2
    assert not any(pair.primary for pair in found.comparisons[3:])


def overhead_runs(claim, power):
    rng = np.random.default_rng(2)
    runs = []
    for arm in claim.arms:
        for seed in range(3):
            tokens = 10_000 * arm.train["prompts_per_step"]
            run = final_run(arm.name, seed, 0.5, claim, "tiny", {"compile": 0.5})
            for row in run.evals:
                row["costs"]["generated_tokens"] = tokens * row["optimizer_step"]
            seconds = (
                1e-4 * tokens ** (power if arm.algorithm == "bot_grpo" else 1.0) * np.exp(rng.normal(0, 0.02))
            )
            timings = [{"optimizer_step": 10, "phase": "train", "seconds": float(seconds)}]
            runs.append(replace(run, timings=timings))
    return runs


def test_growth_of_cost_with_tokens():
    claim = load_claim("overhead")
    linear = judge(claim, "tiny", overhead_runs(claim, 1.0))
    assert linear.verdict == "mechanism_passed"
    assert linear.comparisons[0].treatment == "bot_grpo"
    assert linear.comparisons[0].effects["exponent"].estimate == pytest.approx(1.0, abs=0.03)
    assert judge(claim, "tiny", overhead_runs(claim, 1.5)).verdict == "mechanism_failed"


def test_shares_of_another_metric():
    row = {"metrics": {"non_blank": 0.2, "compile": 0.5, "zero": 0.0}}
    assert metric_of(row, "non_blank/compile") == pytest.approx(0.4)
    assert metric_of(row, "non_blank/zero") == 0.0
    assert metric_of(row, "non_blank/absent") is None
    assert metric_of(row, "absent") is None


def test_hollow_components_compare_shares_and_report_the_secondary():
    claim = load_claim("hollow-components")
    runs = []
    for arm in claim.arms:
        for seed in range(5):
            share = 0.9 if "content" in arm.name else 0.2
            metrics = {
                "compile": 0.8,
                "non_blank": 0.8 * share + 0.005 * seed,
                "task": 0.4 * share + 0.004 * seed,
            }
            runs.append(final_run(arm.name, seed, 0.0, claim, "tiny", metrics))
    found = judge(claim, "tiny", runs)
    assert found.verdict == "mechanism_passed"
    assert [pair.primary for pair in found.comparisons] == [True, True, False, False]
    assert "task/compile" in found.comparisons[2].effects


def test_the_cost_claim_decides_on_generated_tokens():
    claim = load_claim("cost")
    rng = np.random.default_rng(0)
    runs = simulated_sweep(
        claim, "tiny", {"grpo": [60, 62, 64, 61, 63], "bot_grpo": [40, 42, 44, 41, 43]}, rng
    )
    for run in runs[5:]:
        for row in run.evals:
            row["costs"]["generated_tokens"] *= 3
    found = judge(claim, "tiny", runs)
    assert found.comparisons[0].speedup["optimizer_steps"].low > 1
    assert found.verdict == "mechanism_failed"
    assert "generated tokens than" in found.sentence


def test_a_control_repeats_the_baseline_on_other_seeds():
    claim = load_claim("compile-speedup").with_control()
    control = claim.arm("grpo_control")
    assert control.algorithm == "grpo"
    assert control.seed_offset > 0
    assert claim.hash("tiny") != load_claim("compile-speedup").hash("tiny")
    rng = np.random.default_rng(0)
    times = {
        "grpo": [60, 62, 64, 61, 63],
        "bot_grpo": [40, 42, 44, 41, 43],
        "grpo_control": [61, 60, 65, 62, 62],
    }
    found = judge(claim, "paper", simulated_sweep(claim, "paper", times, rng))
    assert found.verdict.startswith("supported")
    assert found.notes == ()
    times["grpo_control"] = [30, 31, 32, 30, 31]
    assert "doubt" in judge(claim, "paper", simulated_sweep(claim, "paper", times, rng)).notes[0]


@pytest.mark.parametrize("name", claim_names())
def test_every_claim_judges_smoke_runs_without_a_verdict(name):
    claim = load_claim(name)
    rng = np.random.default_rng(7)
    runs = [
        simulated_run(
            arm.name, seed, 4.0 + 0.1 * seed, rng, horizon=claim.scale("smoke").horizon, cadence=2, prompts=48
        )
        for arm in claim.arms_at("smoke")
        for seed in claim.seeds(scale="smoke")
    ]
    found = judge(claim, "smoke", runs)
    assert found.verdict == "not_testable"
    assert "never a verdict" in found.sentence
    json.dumps(found.to_json(), allow_nan=False)


def test_no_runs_at_all_are_not_testable():
    for name in claim_names():
        found = judge(load_claim(name), "tiny", [])
        assert found.verdict == "not_testable", name
        json.dumps(found.to_json(), allow_nan=False)


def test_a_scaling_claim_leaves_costs_and_a_picture_of_their_growth(tmp_path):
    claim = load_claim("overhead")
    runs = overhead_runs(claim, 1.2)
    verdict = judge(claim, "tiny", runs)
    table = arm_table(verdict)
    names = [column.name for column in table.columns]
    assert names[:3] == ["arm", "generated tokens", "training seconds"]
    assert not {"reached", "censored"} & set(names)
    spent = {row[0]: row[1] for row in table.rows}
    ends = {run.arm: run.evals[-1]["costs"]["generated_tokens"] for run in runs}
    assert spent == {arm: amount(tokens) for arm, tokens in ends.items()}
    written = write_files(claim, "tiny", tmp_path, verdict, runs)
    picture = Path(written["growth"])
    assert picture.stat().st_size > 5_000
    found = next(pair for pair in verdict.comparisons if pair.treatment == "bot_grpo")
    assert (
        f"bot_grpo: size^{found.effects['exponent'].estimate:.3g}" in picture.with_suffix(".svg").read_text()
    )
    report = (tmp_path / "report.md").read_text()
    assert "(growth.png)" in report
    assert "compile rate on held-out prompts" in (tmp_path / "learning-curve.svg").read_text()
    assert "reached" not in report
    assert dynamics.pairs_of(claim, verdict) == [(f"bot_{size}", f"grpo_{size}") for size in (4, 8, 16, 32)]


def test_costs_are_not_shown_over_steps():
    assert shown_metric("train_seconds") == "compile"
    assert shown_metric("on_task") == "on_task"
