"""Degraded recipes: each knob by itself, and the same noise for the same answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import Answer, LocalReward, Score, Span
from tasks.react import ReactTask
from tasks.react.noise import Noise, degrade
from tasks.react.recipes import RECIPES, character_values

ANSWER = Answer("abcdefghijklmnop")
SCORE = Score(0.0, False)


def step(answer: Answer, score: Score) -> LocalReward:
    """-1 from the ninth character on."""
    return LocalReward((Span(8, len(answer.text), -1.0, "x"),), end_token=-0.5)


def values(noise: Noise, answer: Answer = ANSWER) -> list[float]:
    local = degrade(step, noise, character_values)(answer, SCORE)
    return [*character_values(local, len(answer.text)), local.end_token]


def test_no_noise_is_the_recipe_itself() -> None:
    assert degrade(step, Noise(), character_values) is step


def test_scale_breaks_the_bound_on_purpose() -> None:
    assert values(Noise(scale=10.0)) == [0.0] * 8 + [-10.0] * 8 + [-5.0]


def test_delay_moves_values_towards_the_end() -> None:
    assert values(Noise(delay=4)) == [0.0] * 12 + [-1.0] * 5
    assert values(Noise(delay=100)) == [0.0] * 16 + [-1.0]


def test_drop_out_removes_a_share() -> None:
    assert values(Noise(drop_out=1.0))[:16] == [0.0] * 16
    kept = [v for i in range(200) for v in values(Noise(drop_out=0.5, seed=i))[8:16:4]]
    assert 0.4 < sum(v == 0.0 for v in kept) / len(kept) < 0.6


@given(st.text(max_size=40), st.floats(0.0, 2.0), st.integers(0, 9))
def test_bounded_noise_stays_bounded(text: str, amplitude: float, seed: int) -> None:
    assert all(-1.0 <= v <= 1.0 for v in values(Noise(amplitude=amplitude, seed=seed), Answer(text)))


def test_noise_depends_on_the_answer_and_the_seed_alone() -> None:
    noise = Noise(amplitude=0.5, seed=3)
    assert values(noise) == values(noise)
    assert values(noise) != values(Noise(amplitude=0.5, seed=4))
    assert values(noise)[:8] != values(noise, Answer("abcdefghijklmnoq"))[:8]
    values(noise, Answer("\ud800"))


def test_noise_is_centred() -> None:
    drawn = [v for seed in range(400) for v in values(Noise(amplitude=0.5, seed=seed))[0:8:4]]
    assert abs(sum(drawn) / len(drawn)) < 0.05
    assert max(map(abs, drawn)) <= 0.5


def test_the_task_degrades_every_recipe() -> None:
    noisy = ReactTask(noise={"scale": 3.0})
    assert noisy.recipes.keys() == RECIPES.keys()
    local = noisy.recipes["first_error_to_end"](Answer("x", finished=False), SCORE)
    assert local.end_token == -3.0
    assert ReactTask().recipes is RECIPES


@pytest.mark.parametrize("wrong", [{"amplitude": 3.0}, {"drop_out": 1.5}, {"scale": -1.0}, {"delay": -2}])
def test_wrong_noise_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=f"noise.{next(iter(wrong))}="):
        Noise(**wrong)
