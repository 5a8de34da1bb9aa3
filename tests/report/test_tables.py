from __future__ import annotations

import json
import math
import re

import pytest

from harness.report.tables import FORMATS, Column, Table, render, table, text_of, to_json, to_rich

HOSTILE = '<script>alert("x")</script> & | \\input{a} 50% $x_1$ #{}~^\nnext'


@pytest.fixture
def sample() -> Table:
    return table(
        ("arm", "rate", "runs", "remark"),
        [("grpo", 0.81234, 5, None), ("bot_grpo", math.nan, 1200, HOSTILE)],
        caption="Final rate & more",
        notes=("one note",),
        name="sample",
    )


def test_columns_of_numbers_line_up_right(sample):
    assert [column.align for column in sample.columns] == ["left", "right", "right", "left"]


@pytest.mark.parametrize(
    ("cell", "want"),
    [(0.81234, "0.812"), (81.234, "81.2"), (12345.6, "12,346"), (1200, "1,200"), (0.0, "0"), (None, "–"),
     (math.nan, "–"), (math.inf, "∞"), (True, "yes"), (False, "no"), ("x", "x"), (-0.5, "-0.500")],
)  # fmt: skip
def test_cells_as_text(cell, want):
    assert text_of(cell) == want


def test_markdown_snapshot():
    found = table(("a|b", "n"), [("x", 1), ("y\nz", 22)], caption="C", notes=("N",))
    assert render(found, "md") == "**C**\n\n| a\\|b | n |\n|:--|--:|\n| x | 1 |\n| y z | 22 |\n\nN  \n"


def test_latex_snapshot():
    found = table(("arm", "n"), [("bot_grpo", 5)], caption="50% of x", name="t")
    assert render(found, "latex") == (
        "\\begin{table}\n\\centering\n\\caption{50\\% of x}\n\\label{tab:t}\n\\begin{tabular}{lr}\n\\toprule\n"
        "arm & n \\\\\n\\midrule\nbot\\_grpo & 5 \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


def test_html_snapshot():
    found = table(("arm", "n"), [("grpo", 1234.5)], caption="C", name="t")
    assert render(found, "html") == (
        '<div class="table"><table id="t"><caption>C</caption><thead><tr><th scope="col" class="left">arm</th>'
        '<th scope="col" class="right">n</th></tr></thead><tbody>\n<tr><th scope="row" class="left">grpo</th>'
        '<td class="right" data-sort="1234.5" title="1234.5">1,234</td></tr>\n</tbody></table></div>\n'
    )


def test_hostile_cells_are_escaped_in_every_format(sample):
    html = render(sample, "html")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    latex = render(sample, "latex")
    assert r"\input" not in latex
    assert r"50\% \$x\_1\$ \#\{\}\textasciitilde{}\textasciicircum{}" in latex
    markdown = render(sample, "md")
    assert "<script>" not in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("| bot"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


def test_json_has_no_nan(sample):
    body = json.loads(render(sample, "json"))
    assert body == to_json(sample)
    assert body["rows"][1]["rate"] is None
    assert body["rows"][0] == {"arm": "grpo", "rate": 0.81234, "runs": 5, "remark": None}


def test_terminal_markup_in_cells_is_not_interpreted():
    found = table(("a",), [("[red]x[/red] [/]",)])
    assert "[red]x[/red] [/]" in render(found, "text")
    assert to_rich(found).columns[0].header.plain == "a"


def test_every_format_renders_an_empty_table():
    empty = Table((Column("a"),), ())
    for form in FORMATS:
        assert render(empty, form)


def test_mistakes_are_refused(sample):
    with pytest.raises(ValueError, match="choose one of"):
        render(sample, "docx")
    with pytest.raises(ValueError, match="2 cells for 1"):
        Table((Column("a"),), (("x", "y"),))
