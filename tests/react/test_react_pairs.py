"""Pairs in both orders, ties, failures, and the interval of the win rate."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from PIL import Image, ImageDraw

from harness.evaluate.win_rate import win_rate
from tasks.judges import PairRequest, Preference
from tasks.react import ReactTask
from tasks.react.browser import Picture, picture_facts, picture_merit
from tasks.react.pairs import Pair, PairResult, compare_pairs, make_pair_judge, nameless, picture_answers


def png(*boxes: tuple[int, int, int, int], colour: str = "black", background: str = "white") -> bytes:
    image = Image.new("RGB", (400, 300), background)
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill=colour)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


EMPTY, FULL, SOME = png(), png((0, 0, 199, 299)), png((10, 10, 60, 20))


class Biased:
    """Prefers what `better` names; without a preference, what is shown first."""

    name = "biased"

    def __init__(self, better: bytes | None = None, fail: str = "") -> None:
        self.better, self.fail = better, fail
        self.asked: list[PairRequest] = []

    def compare(self, requests: Sequence[PairRequest]) -> list[Preference]:
        self.asked += requests
        if self.fail:
            return [Preference(None, "failed", self.fail) for _ in requests]
        return [Preference("second" if r.second == self.better else "first") for r in requests]


def pair(treatment: bytes, baseline: bytes, prompt: str = "p", seed: int = 0) -> Pair:
    return Pair(prompt, seed, "a card", treatment, baseline)


def test_both_orders_are_shown_and_position_bias_is_a_tie() -> None:
    judge = Biased()
    (result,) = compare_pairs(judge, [pair(FULL, SOME)])
    assert [(r.first, r.second) for r in judge.asked] == [(FULL, SOME), (SOME, FULL)]
    assert (result.score, result.agreed) == (0.5, False)


def test_a_real_preference_wins_from_either_side() -> None:
    results = compare_pairs(Biased(FULL), [pair(FULL, SOME), pair(SOME, FULL)])
    assert [(r.score, r.agreed) for r in results] == [(1.0, True), (0.0, True)]


def test_what_needs_no_judge_is_not_sent() -> None:
    judge = Biased()
    results = compare_pairs(judge, [pair(b"", b""), pair(FULL, b""), pair(b"", FULL), pair(SOME, SOME)])
    assert [r.score for r in results] == [0.5, 1.0, 0.0, 0.5]
    assert judge.asked == []


def test_a_failed_judgement_is_left_out_and_counted() -> None:
    results = compare_pairs(Biased(fail="busy"), [pair(FULL, SOME), pair(FULL, b"")])
    assert [(r.score, r.status) for r in results] == [(None, "failed"), (1.0, "ok")]
    found = win_rate(results, judge="openai")
    assert (found.pairs, found.failed, found.estimate, found.note) == (1, 1, 1.0, "")


def test_facts_of_pictures() -> None:
    assert picture_facts(EMPTY).blank
    assert picture_facts(png(background="black")).blank
    assert picture_facts(png((0, 0, 399, 299), colour="#fdfdfd")).blank
    facts = picture_facts(FULL)
    assert (facts.ink, facts.entropy, facts.blank) == (0.5, 1.0, False)
    assert not picture_facts(SOME).blank
    assert (
        picture_merit(b"") == picture_merit(EMPTY) == 0.0 < picture_merit(SOME) < picture_merit(FULL) <= 1.0
    )


def test_the_scripted_pair_judge_and_its_note() -> None:
    judge = make_pair_judge()
    results = compare_pairs(judge, [pair(FULL, EMPTY, "a"), pair(EMPTY, SOME, "b")])
    assert [r.score for r in results] == [1.0, 0.0]
    assert "not by a model" in win_rate(results, judge=judge.name).note


def results_of(table: dict[tuple[str, int], float | None]) -> list[PairResult]:
    return [PairResult(prompt, seed, score, True, "ok") for (prompt, seed), score in table.items()]


def test_win_rate_by_hand() -> None:
    """Four prompts, one seed, scores 1 1 1/2 0: mean 5/8, CR1 variance 4/3 * (3*9+... )/64 / 16."""
    scores = [1.0, 1.0, 0.5, 0.0]
    found = win_rate(results_of({(f"p{i}", 0): s for i, s in enumerate(scores)}), judge="x")
    mean = 0.625
    variance = 4 / 3 * sum((s - mean) ** 2 for s in scores) / 16
    half = 3.182446305284263 * variance**0.5
    assert found.estimate == mean
    assert (found.low, found.high) == (pytest.approx(max(0.0, mean - half)), min(1.0, mean + half))
    assert (found.ties, found.method) == (0.25, "clustered_t")


def test_copies_of_a_pair_do_not_narrow_the_interval() -> None:
    table = {(f"p{i}", 0): float(i % 3 != 0) for i in range(12)}
    one = win_rate(results_of(table), judge="x")
    many = win_rate([*results_of(table)] * 5, judge="x")
    assert (many.low, many.high) == (pytest.approx(one.low), pytest.approx(one.high))


def test_seeds_that_differ_widen_the_interval_by_hand() -> None:
    """Two seeds win all, two lose all: the variance is that of four clusters of 20, 4/3 * 4 * 10^2 / 80^2."""
    table = {(f"p{i}", seed): float(seed < 2) for i in range(20) for seed in range(4)}
    found = win_rate(results_of(table), judge="x")
    assert (found.estimate, found.method) == (0.5, "two_way_clustered_t")
    half = 3.182446305284263 * (4 / 3 * 4 * 100 / 6400) ** 0.5
    assert (found.low, found.high) == (
        pytest.approx(max(0.0, 0.5 - half)),
        pytest.approx(min(1.0, 0.5 + half)),
    )


def test_two_way_interval_by_hand() -> None:
    """Prompts 1 1 0 and 1 0 0 under two seeds, mean 1/2.

    By prompt: sums 1, 0, -1, 3/2 * 2 / 36 = 1/12; by seed: sums 1/2, -1/2, 2 * 1/2 / 36 = 1/36;
    by cell: 6/5 * 6/4 / 36 = 1/20. Together 1/12 + 1/36 - 1/20 = 11/180, less than by prompt alone.
    """
    table = {("a", 0): 1.0, ("b", 0): 1.0, ("c", 0): 0.0, ("a", 1): 1.0, ("b", 1): 0.0, ("c", 1): 0.0}
    found = win_rate(results_of(table), judge="x")
    assert found.high == 1.0
    narrow = win_rate(results_of(table), judge="x", level=0.5)
    assert narrow.high - 0.5 == pytest.approx((1 / 12) ** 0.5 * 1.0)  # t(0.75, 1) = 1


def test_no_interval_from_too_little() -> None:
    found = win_rate(results_of({("p", 0): 1.0}), judge="x")
    assert (found.low, found.high) == (None, None)
    assert "fewer than 2" in found.reason
    assert win_rate([], judge="x").reason == "no pair was judged"


class Camera:
    """Takes the same picture of everything, and remembers how many were asked for."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, items: Sequence[dict]) -> list[Picture]:
        self.taken += len(items)
        assert all(set(item) == {"js", "props"} for item in items)
        return [Picture(SOME, "ok") for _ in items]


def test_only_what_compiles_is_photographed(react: ReactTask) -> None:
    camera = Camera()
    answers = ["```tsx\nexport default () => <p>cat</p>;\n```", "no code", "```tsx\nexport default 42;\n```"]
    pictures = picture_answers(react.checks, camera, answers)
    assert [p.status for p in pictures] == ["ok", "not_compiled", "not_compiled"]
    assert camera.taken == 1


def test_what_looks_the_same_is_photographed_once(react: ReactTask) -> None:
    camera = Camera()

    def tsx(code: str) -> str:
        return f"```tsx\n{code}\n```"

    answers = [
        tsx("export default function Pet() { return <p>cat</p>; }"),
        tsx("export default function Dog() { return <p>cat</p>; }"),  # another name, the same page
        tsx("export default function Dog() { return <p>Dog</p>; }"),  # its name is on the page
        tsx("export default function Pet() { return <p>Pet</p>; }"),
        tsx("const Pet = () => <p>cat</p>;\nexport default Pet;"),
        tsx("const Cat = () => <p>cat</p>;\nexport default Cat;"),
        tsx("export default function Pet() { return <p>{Pet.name}</p>; }"),  # its name is used
    ]
    assert len(picture_answers(react.checks, camera, answers)) == 7
    assert camera.taken == 5


@pytest.mark.parametrize(
    ("js", "name", "kept"),
    [
        ("default: () => Pet\nfunction Pet() {}", "Pet", False),
        ("default: () => Pet\nfunction Pet() { return Pet; }", "Pet", True),
        ("const Pet = 1; var stdin_default = Pet;", "Pet", False),
        ("function Pets() {}", "Pet", True),
        ("function $Pet() {}", "Pet", True),
        ("x", "", True),
    ],
)
def test_a_name_is_taken_out_only_where_nothing_depends_on_it(js: str, name: str, kept: bool) -> None:
    assert (nameless(js, name) == js) is kept
