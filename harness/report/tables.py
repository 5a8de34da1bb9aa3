"""One table object, rendered for the terminal, Markdown, LaTeX, HTML and JSON alike."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | int | float | bool | None
FORMATS = ("text", "md", "latex", "html", "json")
MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and whether its cells line up right (numbers) or left.

    One with a `width` (of LaTeX, "4cm") holds running text: it wraps there, and line breaks are kept everywhere.
    """

    name: str
    align: Literal["left", "right"] = "left"
    width: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; numbers stay numbers until rendered, None shows as a dash."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    name: str = "table"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.name!r}: a row has {len(row)} cells for {len(self.columns)} columns"
                )


def table(
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    notes: Sequence[str] = (),
    name: str = "table",
) -> Table:
    """A table whose columns line up right where all their cells are numbers."""
    body = tuple(tuple(row) for row in rows)
    heads = []
    for i, column in enumerate(columns):
        if isinstance(column, Column):
            heads.append(column)
            continue
        cells = [row[i] for row in body if row[i] is not None]
        numeric = bool(cells) and all(
            isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
        )
        heads.append(Column(column, "right" if numeric else "left"))
    return Table(tuple(heads), body, caption, tuple(notes), name)


def text_of(cell: Cell) -> str:
    """A cell as plain text: three significant digits, thousands separated, a dash for what is unknown."""
    if cell is None:
        return MISSING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if math.isnan(cell):
            return MISSING
        if math.isinf(cell):
            return "∞" if cell > 0 else "-∞"
        if cell == 0:
            return "0"
        places = max(0, 2 - math.floor(math.log10(abs(cell))))
        return f"{cell:,.{places}f}"
    return cell


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it stands, also in a table cell: no markup, no HTML, no line break."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _broken(clean: Callable[[str], str], cell: Cell, column: Column, mark: str) -> str:
    """A cell's text; line breaks become `mark` in a column of running text."""
    text = text_of(cell)
    return mark.join(map(clean, text.split("\n"))) if column.width else clean(text)


def to_markdown(found: Table) -> str:
    """A pipe table; pipes and line breaks in cells are escaped."""
    clean = markdown_escape
    lines = [f"**{clean(found.caption)}**", ""] if found.caption else []
    lines.append("| " + " | ".join(clean(column.name) for column in found.columns) + " |")
    lines.append("|" + "|".join("--:" if c.align == "right" else ":--" for c in found.columns) + "|")
    for row in found.rows:
        cells = [_broken(clean, cell, c, "<br>") for cell, c in zip(row, found.columns, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"{clean(note)}  " for note in found.notes)] if found.notes else []
    return "\n".join(lines) + "\n"


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "∞": r"$\infty$", "≥": r"$\geq$",
    "≤": r"$\leq$", "±": r"$\pm$", "×": r"$\times$", "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ",
    "σ": r"$\sigma$", "λ": r"$\lambda$",
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(LATEX.get(character, character) for character in text)


def to_latex(found: Table) -> str:
    r"""A booktabs table; needs \usepackage{booktabs} only."""
    layout = "".join(
        f"p{{{c.width}}}" if c.width else "r" if c.align == "right" else "l" for c in found.columns
    )
    lines = [r"\begin{table}", r"\centering"]
    if found.caption:
        lines.append(rf"\caption{{{latex_escape(found.caption)}}}")
    lines += [rf"\label{{tab:{found.name}}}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
    lines.append(" & ".join(latex_escape(column.name) for column in found.columns) + r" \\")
    lines.append(r"\midrule")
    for row in found.rows:
        cells = [
            _broken(latex_escape, cell, c, r"\newline ") for cell, c in zip(row, found.columns, strict=True)
        ]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {latex_escape(note)}" for note in found.notes]
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def to_html(found: Table) -> str:
    """A `<table>` with caption and header scopes; each number keeps its full value for sorting."""
    heads = "".join(
        f'<th scope="col" class="{column.align}">{html.escape(column.name)}</th>' for column in found.columns
    )
    body = []
    for row in found.rows:
        cells = []
        for i, (cell, column) in enumerate(zip(row, found.columns, strict=True)):
            sort, title = "", ""
            if isinstance(cell, int | float) and not isinstance(cell, bool):
                sort, title = f' data-sort="{cell!r}"', f' title="{cell!r}"'
            text = _broken(html.escape, cell, column, "<br>")
            tag = f'th scope="row" class="{column.align}"' if i == 0 else f'td class="{column.align}"'
            cells.append(f"<{tag}{sort}{title}>{text}</{tag[:2]}>")
        body.append("<tr>" + "".join(cells) + "</tr>")
    caption = f"<caption>{html.escape(found.caption)}</caption>" if found.caption else ""
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in found.notes)
    rows = "\n".join(body)
    return (
        f'<div class="table"><table id="{html.escape(found.name)}">{caption}<thead><tr>{heads}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table></div>{notes}\n"
    )


def to_json(found: Table) -> dict[str, Any]:
    """Columns, rows as objects, caption and notes; numbers that are not finite become null."""

    def plain(cell: Cell) -> Cell:
        return None if isinstance(cell, float) and not math.isfinite(cell) else cell

    names = [column.name for column in found.columns]
    return {
        "name": found.name,
        "caption": found.caption,
        "columns": names,
        "rows": [dict(zip(names, map(plain, row), strict=True)) for row in found.rows],
        "notes": list(found.notes),
    }


def to_rich(found: Table) -> Any:
    """A rich.table.Table for the terminal."""
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(title=Text(found.caption) if found.caption else None, caption_justify="left")
    if found.notes:
        out.caption = Text("\n".join(found.notes))
    for column in found.columns:
        out.add_column(Text(column.name), justify=column.align)
    for row in found.rows:
        out.add_row(*(Text(text_of(cell)) for cell in row))
    return out


def to_text(found: Table, width: int = 120) -> str:
    """The table as plain text of a given width."""
    from rich.console import Console

    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(to_rich(found))
    return captured.get()


def render(found: Table, form: str) -> str:
    """The table in one of FORMATS as text."""
    import json

    if form not in FORMATS:
        raise ValueError(f"format={form!r}: choose one of {', '.join(FORMATS)}")
    if form == "json":
        return json.dumps(to_json(found), indent=2, ensure_ascii=False) + "\n"
    renderers: Mapping[str, Any] = {"text": to_text, "md": to_markdown, "latex": to_latex, "html": to_html}
    return renderers[form](found)
