"""Scoring a file: rows in order, bad lines as rows, the summary, other tasks refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.evaluate.score import score_file
from tasks.react import ReactTask, generate

GOOD = "export default function Pet() { return <p>cat</p>; }"
ROW = {"id", "extracted", "syntax", "compile", "types", "renders", "blank", "spans", "diagnostics"}


def run(react: ReactTask, folder: Path, lines: list, *, types: bool = False) -> tuple[list[dict], dict]:
    path = folder / "answers.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + b"\n")
    rows: list[dict] = []
    summary = score_file(react, path, types=types, write=rows.append)
    json.dumps([rows, summary])
    return rows, summary


def test_answers_and_bare_sources(react: ReactTask, tmp_path: Path) -> None:
    rows, summary = run(
        react,
        tmp_path,
        [
            {"id": "a", "answer": f"```tsx\n{GOOD}\n```"},
            {"id": 2, "source": GOOD},
            {"id": "c", "answer": GOOD},
            {"id": "d", "source": "export default () => <p>;"},
            {"id": "e", "source": "export default () => <></>;"},
        ],
    )
    assert all(set(row) == ROW for row in rows)
    keys = ("id", "extracted", "syntax", "compile", "types", "renders", "blank")
    assert [tuple(row[k] for k in keys) for row in rows] == [
        ("a", True, True, True, None, True, False),
        (2, True, True, True, None, True, False),
        ("c", False, False, False, None, False, True),
        ("d", True, False, False, None, False, True),
        ("e", True, True, True, None, True, True),
    ]
    assert rows[3]["spans"][0]["source"] == "typescript"
    assert rows[3]["diagnostics"][0]["code"].startswith("TS")
    assert summary["task"] == "react"
    assert (summary["records"], summary["errors"]) == (5, 0)
    assert summary["rates"]["compile"] == 0.6
    assert summary["compile_and_visible"] == 0.4
    assert "types" not in summary["rates"]


def test_types_on_demand(react: ReactTask, tmp_path: Path) -> None:
    rows, summary = run(
        react,
        tmp_path,
        [
            {"id": 1, "source": GOOD},
            {"id": 2, "source": "export default () => <p>{x}</p>;"},
            {"id": 3, "answer": ""},
        ],
        types=True,
    )
    assert [row["types"] for row in rows] == [True, False, False]
    assert summary["rates"]["types"] == pytest.approx(1 / 3)


def test_given_props_are_shown(react: ReactTask, tmp_path: Path) -> None:
    source = "export default (p: any) => <p>{p.a.b}</p>;"
    rows, _ = run(
        react,
        tmp_path,
        [{"id": 1, "source": source}, {"id": 2, "source": source, "props": {"a": {"b": "x"}}}],
    )
    assert [(row["renders"], row["blank"]) for row in rows] == [(False, True), (True, False)]


BAD_LINES = [
    b"not JSON",
    b"[1, 2]",
    b"\xff\xfe",
    b'{"answer": "x"}',
    b'{"id": 1}',
    b'{"id": 1, "answer": "x", "source": "y"}',
    b'{"id": 1, "answer": null}',
    b'{"id": 1, "source": "x", "props": 3}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_a_row_with_an_error(react: ReactTask, tmp_path: Path, line: bytes) -> None:
    good = {"id": "g", "source": GOOD}
    rows, summary = run(react, tmp_path, [good, line, good])
    assert [row.get("compile") for row in rows] == [True, None, True]
    assert rows[1]["error"]
    assert "\n" not in rows[1]["error"]
    assert (summary["records"], summary["errors"]) == (3, 1)
    assert summary["rates"]["compile"] == 1.0


def test_order_is_kept_over_many_batches(react: ReactTask, tmp_path: Path) -> None:
    lines = [{"id": i, "source": GOOD if i % 3 else "x"} for i in range(300)]
    rows, _ = run(react, tmp_path, lines)
    assert [row["id"] for row in rows] == list(range(300))
    assert [row["compile"] for row in rows] == [bool(i % 3) for i in range(300)]


def test_only_bad_lines_still_give_a_summary(react: ReactTask, tmp_path: Path) -> None:
    _, summary = run(react, tmp_path, [b"x"])
    assert (summary["errors"], summary["rates"]["compile"], summary["compile_and_visible"]) == (1, None, None)


def test_files_that_cannot_be_scored(react: ReactTask, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        score_file(react, tmp_path / "none.jsonl", write=print)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="no records"):
        score_file(react, tmp_path / "empty.jsonl", write=print)

    class Other:
        name = "other"

    with pytest.raises(UserError, match="task='other'"):
        score_file(Other(), tmp_path / "empty.jsonl", write=print)


@pytest.mark.slow
def test_throughput_beside_bare_esbuild(
    react: ReactTask, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Components a second through non-blank, and the cost as a ratio to the static checks alone."""
    rng = generate.rng_for(11)
    sources = [generate.reference_component(react.example("train", i), rng) for i in range(1024)]
    lines = [{"id": i, "source": source} for i, source in enumerate(sources)]
    run(react, tmp_path, lines[:128])
    began = time.monotonic()
    run(react, tmp_path, lines)
    full = len(lines) / (time.monotonic() - began)
    began = time.monotonic()
    react.check(sources, bare=True)
    static = len(sources) / (time.monotonic() - began)
    with capsys.disabled():
        print(f"\nthrough non-blank {full:.0f}/s, static {static:.0f}/s, ratio {static / full:.2f}")
    assert full > 60  # 235 on two idle cores; the rest is room for a busy machine
