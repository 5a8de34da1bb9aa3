"""Scoring a file: rows in order, bad lines as rows, the summary, other tasks refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.evaluate.score import score_file
from tasks.react import ReactTask, generate
from tasks.react.install import ensure_node_modules, find_node
from tasks.react.worker import NodeWorker

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


ESBUILD_ALONE = """
const esbuild = require(process.argv[1] + "/node_modules/esbuild");
const options = { loader: "tsx", format: "cjs", jsx: "automatic", target: "es2022", tsconfigRaw: "{}" };
process.stdout.write('{"ready": true}\\n');
require("node:readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  const { id, items } = JSON.parse(line);
  await Promise.all(items.map((source) => esbuild.transform(source, options)));
  process.stdout.write(JSON.stringify({ id, results: items.map(() => ({})) }) + "\\n");
});
"""


class BareEsbuild(NodeWorker):
    """esbuild and nothing else, in the same kind of process."""

    def _command(self) -> list:
        return [find_node(), "-e", ESBUILD_ALONE, ensure_node_modules().parent]


@pytest.mark.slow
def test_cost_beside_bare_esbuild(
    react: ReactTask, cpu_seconds: Callable[..., float], capsys: pytest.CaptureFixture
) -> None:
    """CPU time of TypeScript + esbuild + rendering, absolute and as a ratio to bare esbuild."""
    rng = generate.rng_for(11)
    sources = [generate.reference_component(react.example("train", i), rng) for i in range(768)]
    bare, checks = BareEsbuild(), react.checks
    costs = []
    for round_ in range(4):
        batch = sources[round_ * 192 : (round_ + 1) * 192]
        bare.run(batch, {})
        react.check(batch[:64], bare=True, levels=["non_blank"])
        before = cpu_seconds(bare), cpu_seconds(checks.checker), cpu_seconds(checks.renderer)
        bare.run(batch, {})
        checked = react.check(batch, bare=True, levels=["non_blank"])
        after = cpu_seconds(bare), cpu_seconds(checks.checker), cpu_seconds(checks.renderer)
        assert all(c.compile and not c.blank for c in checked)
        parts = [1000 * (b - a) / len(batch) for a, b in zip(before, after, strict=True)]
        if min(parts) >= 0.0:  # else the renderer was replaced meanwhile
            costs.append((parts[1] + parts[2], parts[0]))
    bare.close()
    full, alone = min(costs)
    with capsys.disabled():
        print(f"\nCPU ms a component: all {full:.2f}, bare esbuild {alone:.2f}, ratio {full / alone:.1f}")
    assert full < 5.0  # 2.5 to 3 on an idle machine
    assert full / alone < 6.0
