from __future__ import annotations

import copy
import json

import pytest

from harness.errors import UserError
from harness.report.credit import (
    colour,
    mark,
    parse_group,
    read_groups,
    statistics_table,
    to_html,
    to_rich,
    visible,
)
from harness.report.tables import text_of

GROUP = {
    "prompt": "Write <b>a button</b>",
    "answers": [
        {
            "tokens": ["export", " default", "\n", "<script>alert(1)</script>"],
            "outcome": 0.0,
            "advantages": {"grpo": [-0.5, -0.5, -0.5, -0.5], "bot_grpo": [0.1, 0.0, -0.2, -1.0]},
            "spans": [
                {"start": 3, "end": 4, "value": -1.0, "source": "typescript", "message": "'}' expected <i>"}
            ],
            "truncated": True,
        },
        {
            "tokens": ["ok"],
            "outcome": 1.0,
            "advantages": {"grpo": [1.0], "bot_grpo": [0.9]},
        },
    ],
    "statistics": {"bot_grpo": {"kappa": 0.8}},
}


@pytest.fixture
def data() -> dict:
    return copy.deepcopy(GROUP)


def test_page_escapes_answers_messages_and_prompts(data):
    html = to_html([parse_group(data)])
    assert "<script>alert" not in html
    assert "<b>a button" not in html
    assert "expected <i>" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "bot_grpo: -1.000 (typescript -1" in html
    assert ", cut off" in html


def test_credit_and_blame_differ_without_colour(data):
    html = to_html([parse_group(data)])
    assert 'class="blame"' in html
    assert 'class="credit"' in html
    assert mark(0.01, 1.0) == "zero"


def test_colours_are_white_at_zero_and_stay_readable():
    assert colour(0.0, 1.0) == (255, 255, 255)

    def luminance(rgb):
        parts = [c / 255 for c in rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for value in (-1.0, 1.0, 5.0):
        assert (luminance(colour(value, 1.0)) + 0.05) / 0.05 >= 4.5  # black text on it, WCAG AA


def test_terminal_view_shows_every_algorithm_and_span(data):
    from rich.console import Console

    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(to_rich(parse_group(data)))
    text = captured.get()
    assert text.count("grpo") >= 4
    assert "<script>alert(1)</script>" in text
    assert "typescript  -1" in text
    assert "outcome 0, cut off" in text


def test_statistics_tell_token_level_credit_from_broadcast(data):
    found = statistics_table(parse_group(data))
    rows = {row[0]: row for row in found.rows}
    assert rows["grpo"][3] == "0/2"
    assert rows["bot_grpo"][3] == "1/2"
    assert text_of(rows["bot_grpo"][4]) == "0.800"
    assert rows["grpo"][1] == pytest.approx(((4 * 0.25 + 1) / 5) ** 0.5)


def test_white_space_tokens_are_visible():
    assert visible("  ") == "␣␣"
    assert visible("a b") == "a b"
    assert "⏎" in visible("\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["answers"][0]["advantages"]["grpo"].pop(), "3 values for 4 tokens"),
        (lambda d: d["answers"][0]["advantages"].update(grpo=[float("nan")] * 4), "no finite number"),
        (lambda d: d["answers"][0]["spans"][0].update(end=9), "outside the 4 tokens"),
        (lambda d: d["answers"][1]["advantages"].pop("grpo"), "same algorithms"),
        (lambda d: d.pop("prompt"), "prompt"),
        (lambda d: d.update(answers=[]), "no answers"),
        (lambda d: d["answers"][0].pop("tokens"), "tokens"),
    ],
)
def test_mistakes_name_the_place(data, change, words):
    change(data)
    with pytest.raises(UserError, match=words):
        parse_group(data)


def test_files_are_read_line_by_line(data, tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps(data) + "\n\n" + json.dumps(data) + "\n")
    assert len(read_groups(path)) == 2
    path.write_text("{oops\n")
    with pytest.raises(UserError, match="line 1 is not JSON"):
        read_groups(path)
    with pytest.raises(UserError, match="does not exist"):
        read_groups(tmp_path / "none")
