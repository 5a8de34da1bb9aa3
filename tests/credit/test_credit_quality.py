from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithms.bot_grpo import BotGrpo
from algorithms.dr_grpo import DrGrpo
from algorithms.grpo import Grpo
from harness.credit.measure import TRUTH, bench_of, flipped, measure
from harness.credit.monte_carlo import Credit
from harness.credit.quality import (
    bot_alignment,
    cosine,
    gradient_snr,
    group_gradients,
    grpo_alignment,
    quality,
    segments,
)
from harness.credit.report import quality_table
from harness.credit.truth import exact_credit
from harness.ladder.policy import TablePolicy, batch_logprobs
from harness.ladder.sampling import assemble, sample
from harness.report.credit import parse_group
from harness.report.tables import to_text
from harness.spec import parse_run
from tasks.ladder import LadderOptions


def lot(groups: int, size: int, **options):
    """Batch, answers and exact credit of the ladder's start."""
    policy, rng = TablePolicy(LadderOptions(problems=2, **options)), np.random.default_rng(1)
    numbers = np.repeat(rng.integers(0, 2, groups), size)
    ids = np.repeat(np.arange(groups), size)
    answers = sample(policy, np.stack([numbers, np.zeros_like(numbers)], 1), rng)
    credit = exact_credit(policy, answers)
    truth = segments([Credit.exact(r[:n]) for r, n in zip(credit, answers.lengths, strict=True)], ids)
    return policy, assemble(answers, ids, policy), truth


def agreement(algorithm, batch, truth) -> float:
    found = quality(algorithm.name, algorithm.advantages(batch).numpy(), truth).cosine
    assert found is not None
    return found


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16, 32])
def test_alignment_follows_the_derived_curves(steps):
    # BoT with an exact local reward approaches true credit as H grows; GRPO falls as 1 / sqrt(H)
    _, batch, truth = lot(24, 64, steps=steps, outcome="fraction")
    assert agreement(Grpo(Grpo.Options()), batch, truth) == pytest.approx(grpo_alignment(steps), abs=0.025)
    assert agreement(BotGrpo(BotGrpo.Options()), batch, truth) == pytest.approx(
        bot_alignment(steps), abs=0.01
    )


@pytest.mark.parametrize("family", ["independent", "chain"])
def test_grpos_alignment_is_one_over_root_h_whatever_the_rule(family):
    # the theorem asks for nothing but answers of H tokens: all-or-nothing outcomes and chains too
    _, batch, truth = lot(24, 64, steps=4, family=family, start_logit=1.5)
    # without the division by each group's own deviation, which is noisy
    algorithm = DrGrpo(DrGrpo.Options())
    assert agreement(algorithm, batch, truth) == pytest.approx(0.5, abs=0.04)


def test_the_curves_at_their_ends():
    assert grpo_alignment(1) == bot_alignment(1) == pytest.approx(1.0)
    assert bot_alignment(10**6) == pytest.approx(1.0, abs=1e-3)
    least = min(range(1, 40), key=bot_alignment)
    assert least == 4  # near 1 / lambda
    values = [bot_alignment(h) for h in range(4, 200)]
    assert values == sorted(values)
    assert bot_alignment(64, local_weight=1e-9) == pytest.approx(grpo_alignment(64))


def test_noise_in_the_local_reward_lowers_agreement_and_grpo_does_not_care():
    _, batch, truth = lot(16, 16, steps=8, outcome="fraction")
    worse = flipped(batch, 0.3, (0,))
    bot, grpo = BotGrpo(BotGrpo.Options()), Grpo(Grpo.Options())
    assert agreement(bot, worse, truth) < agreement(bot, batch, truth) - 0.2
    assert agreement(grpo, worse, truth) == agreement(grpo, batch, truth)
    assert torch.equal(flipped(batch, 0.3, (0,)).local_rewards, worse.local_rewards)


# --- the numbers by hand ---------------------------------------------------------------------------------------


def by_hand(error: float = 0.0):
    """Two answers of two tokens: credit (1, -1) and (0, 1)."""
    rows = [np.array([1.0, -1.0]), np.array([0.0, 1.0])]
    credits = [Credit(np.arange(3), np.zeros(3), r, np.full(2, error), r, r) for r in rows]
    return segments(credits, [0, 1])


def test_agreement_by_hand():
    truth = by_hand()
    found = quality("x", np.array([[1.0, 1.0], [0.0, 1.0]]), truth)
    assert found.cosine == pytest.approx((1 - 1 + 0 + 1) / 3)  # both norms are sqrt(3)
    assert found.sign_agreement == pytest.approx(2 / 3)
    assert found.resolved == pytest.approx(3 / 4)
    assert found.nonzero == pytest.approx(3 / 4)
    assert found.cosine_low is None  # two prompts are too few for a jackknife
    same = quality("x", np.array([[2.0, -2.0], [0.0, 2.0]]), truth)
    assert same.cosine == pytest.approx(1.0)
    assert same.variance_explained == pytest.approx(1.0)


def test_no_credit_at_all_agrees_with_nothing():
    found = quality("x", np.zeros((2, 2)), by_hand())
    assert (found.cosine, found.variance_explained, found.nonzero) == (None, None, 0.0)


def test_the_error_of_true_credit_is_taken_out_of_its_norm():
    a = np.array([1.0, -1.0, 0.0, 1.0])
    everything = np.ones(4, bool)
    assert cosine(a, by_hand(), everything) == pytest.approx(1.0)
    # norm^2 3 less 4 x 0.25: the estimate may exceed 1, as an unbiased one must
    assert cosine(a, by_hand(0.5), everything) == pytest.approx(3 / np.sqrt(3 * 2))


def test_segments_compare_means_over_their_tokens():
    credit = Credit(
        np.array([0, 2, 3]), np.zeros(3), np.array([1.0, -0.5]), np.zeros(2), np.zeros(2), np.zeros(2)
    )
    truth = segments([credit], [0])
    assert truth.credit.tolist() == [0.5, -0.5]
    assert truth.means(np.array([[1.0, 3.0, 5.0]])).tolist() == [2.0, 5.0]


def test_signal_to_noise_by_hand_and_unbiased():
    gradients = torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double()
    # mean (2, 0), S = 2, |mean|^2 - S / 2 = 3
    assert gradient_snr(gradients) == pytest.approx(3 / 2)
    assert gradient_snr(gradients[:1]) is None
    assert gradient_snr(torch.zeros(3, 2)) is None
    noise = torch.randn(200, 4, 50, generator=torch.Generator().manual_seed(0))
    found = [gradient_snr(g) for g in noise.double()]
    assert abs(float(np.mean(found))) < 0.01


def test_group_gradients_average_to_that_of_the_batch():
    policy, batch, _ = lot(3, 8, steps=3, outcome="fraction")
    algorithm = Grpo(Grpo.Options())
    batch = batch.replace(advantages=algorithm.advantages(batch))
    rows = group_gradients(algorithm, batch, lambda part: batch_logprobs(policy, part), [policy.table])
    whole = group_gradients(
        algorithm, batch.replace(group_ids=torch.zeros(24, dtype=torch.long)),
        lambda part: batch_logprobs(policy, part), [policy.table],
    )  # fmt: skip
    assert rows.shape == (3, policy.table.numel())
    assert torch.allclose(rows.mean(0), whole[0], atol=1e-12)


# --- every algorithm on the same answers ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    spec = parse_run(
        {
            "algorithm": {"name": "grpo"},
            "task": {"name": "ladder", "options": {"steps": 4, "outcome": "fraction"}},
            "model": {"name": "table"},
            "train": {"group_size": 4},
        }
    )
    return measure(bench_of(spec), [], prompts=4, samples=0, most=99)


def test_every_registered_algorithm_is_measured_or_left_out_with_a_reason(measured):
    from harness import registry

    assert {q.algorithm for q in measured.qualities} | set(measured.skipped) == set(registry.algorithms())
    assert all(measured.skipped.values())
    best = max(measured.qualities, key=lambda q: q.cosine or -1)
    assert best.algorithm == "bot_grpo"
    by_name = {q.algorithm: q for q in measured.qualities}
    assert by_name["grpo"].degraded_bias == pytest.approx(0.0, abs=1e-9)
    assert by_name["bot_grpo"].degraded_bias > 0.1


def test_groups_are_what_the_heat_map_reads_with_true_credit_first(measured):
    groups = [parse_group(group) for group in measured.groups]
    assert len(groups) == 4
    assert groups[0].algorithms[0] == TRUTH
    answer = groups[0].answers[0]
    assert len(answer.tokens) == 4
    total = sum(answer.advantages[TRUTH])
    expected = LadderOptions(steps=4).start_probability
    assert total == pytest.approx(answer.outcome - expected, abs=1e-9)


def test_records_and_table(measured):
    records = measured.records()
    assert {"algorithm", "cosine", "snr", "degraded_bias", "credit_cost"} <= set(records[0])
    assert "true credit is exact" in to_text(quality_table(measured), 160)
