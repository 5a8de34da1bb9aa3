"""Every algorithm learns a task with a closed-form optimum; what is gamed is flagged."""

from __future__ import annotations

import math

import pytest

from algorithms.base import ALGORITHMS, Algorithm
from algorithms.bot_grpo import ABLATIONS
from algorithms.bpco import PARTS_OFF
from algorithms.grpo import Grpo
from algorithms.pure import PUBLISHED
from harness import registry
from harness.train.hacks import hack_metrics
from harness.train.toy import ToyPolicy, ToyTask, algorithm_of, train_toy

NAMES = sorted(registry.algorithms())
START = ToyPolicy(ToyTask()).success_probability()


def test_start_is_the_closed_form() -> None:
    """Four right tokens, each favoured by 1.5 among 5: (e^1.5 / (e^1.5 + 4))^4."""
    assert pytest.approx((math.exp(1.5) / (math.exp(1.5) + 4)) ** 4) == START


@pytest.mark.parametrize("name", NAMES)
def test_learns_towards_the_optimum_of_one(name: str) -> None:
    run = train_toy(ALGORITHMS[name](), rollouts=45)
    assert run.success[-1] >= 0.85, f"{START:.2f} -> {run.success[-1]:.2f}"
    assert run.success[0] < 0.3
    assert run.hacks()["flag_hacked"] == 0


VARIANTS = [
    ("bpco", {"critic_prompt": "privileged"}),
    ("bpco", {"trust_region": "dppo_kl", "delta": 0.05}),
    ("bpco", {"value_bound": "clamp"}),
    ("gspo", {"form": "token", "advantage": "bot"}),
    ("cort", {"weighting": "softmax_clip"}),
    ("cort", {"weighting": "centered"}),
    ("rloo", {"surrogate": "reinforce"}),
    ("reinforce_plus_plus", {"baseline": "group_mean"}),
    ("sage", {"mode": "light"}),
    ("cppo", {"prune_share": 0.875}),
    ("grpo", {"kl_coefficient": 0.01}),
    *(("bpco", options) for options in PARTS_OFF.values()),
    # the other published form silences step-final tokens, which here are part of the answer
    ("pure", PUBLISHED["verl"]),
    *(("bot_grpo", options) for options in ABLATIONS.values()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_named_variants_learn(name: str, options: dict) -> None:
    run = train_toy(algorithm_of(ALGORITHMS[name], options), rollouts=80)
    assert run.success[-1] >= 0.8, f"{START:.2f} -> {run.success[-1]:.2f}"


@pytest.mark.parametrize("name", ["grpo", "bot_grpo", "gspo", "dapo", "dppo", "bpco", "pure"])
def test_learns_with_several_updates_a_rollout(name: str) -> None:
    run = train_toy(ALGORITHMS[name](), rollouts=40, updates_per_rollout=4, learning_rate=0.05)
    assert run.success[-1] >= 0.8


def test_short_answers_do_not_stop_bpco() -> None:
    """On two tokens its lambda is 0 and the critic has to carry the credit: slower, not stuck."""
    run = train_toy(ALGORITHMS["bpco"](), ToyTask(horizon=1), rollouts=50)
    assert run.success[-1] >= 0.85


def test_an_alpha_made_for_long_answers_fails_on_short_ones() -> None:
    """VAPO's 0.05 means lambda 0 below 20 tokens: the toy's critic sees one token back, so credit never arrives."""
    run = train_toy(algorithm_of(ALGORITHMS["bpco"], {"alpha": 0.05}), rollouts=50)
    assert run.success[-1] < 0.5


def test_dynamic_sampling_pays_for_what_it_refuses() -> None:
    """At equal steps DAPO draws more completions than GRPO: the comparison needs both axes."""
    dapo, grpo = (train_toy(ALGORITHMS[name](), rollouts=20) for name in ("dapo", "grpo"))
    assert dapo.completions > grpo.completions


def test_two_runs_of_one_seed_agree_and_seeds_differ() -> None:
    runs = [train_toy(Grpo(), rollouts=3, seed=seed).success for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("name", ["grpo", "bot_grpo", "dapo", "rloo"])
def test_ending_at_once_is_learned_and_flagged(name: str) -> None:
    """A reward that is won by ending at once: it is won, length and variety collapse, the metric stays low."""
    options = {"dynamic_sampling": False} if name == "dapo" else {}
    if name == "bot_grpo":
        options = {"local_weight": 0.05}  # the toy's local reward speaks against ending early
    algorithm: Algorithm = algorithm_of(ALGORITHMS[name], options)
    run = train_toy(algorithm, ToyTask(outcome="end_at_once"), rollouts=60)
    assert run.rewards[-1] > 0.9
    assert run.correct[-1] < 0.1
    flags = run.hacks()
    assert flags["flag_length_collapse"] == 1
    assert flags["flag_unique_collapse"] == 1
    assert flags["flag_never_ends"] == 0
    assert flags["flag_hacked"] == 1


def test_never_ending_is_flagged() -> None:
    assert hack_metrics([5, 9], [0.1, 0.95], [0.9, 0.9], window=1)["flag_never_ends"] == 1
    assert hack_metrics([5, 9], [0.1, 0.9], [0.9, 0.9], window=1)["flag_never_ends"] == 0


def test_short_right_answers_are_no_hack() -> None:
    flags = hack_metrics([10, 3], [0, 0], [1, 1], correct=[0.1, 0.9], window=1)
    assert flags["flag_length_collapse"] == 1
    assert flags["flag_hacked"] == 0


def test_bad_series_are_refused() -> None:
    with pytest.raises(ValueError, match="one value a rollout"):
        hack_metrics([1.0], [], [1.0])
