"""README and docs: generated blocks match the files, links lead somewhere, every command shown works."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.benchmark.document import write_document
from harness.claims.schema import claim_names
from harness.cli import app
from harness.report.pages import BLOCK, fill, pages_with_blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md"]
EXAMPLES = ROOT / "tests" / "cli" / "examples"
PLACEHOLDERS = {
    "NAME": "cost", "FILE": "answers.jsonl", "RUN": "results/runs/x", "MODEL": "react-tiny", "DIR": "results/runs",
    "A": "results/runs/a", "B": "results/runs/b", "OUT": "results/runs/x", "FILE.py": "mine.py", "FOLDER": "results/x",
}  # fmt: skip

EXECUTED: dict[str, list[str] | str] = {
    "advise": "tests/credit/test_advise.py",
    "archive": "tests/cli/test_cli.py::test_archived_evidence_fills_a_page",
    "benchmark": ["benchmark", "--help"],
    "calibrate": ["calibrate", "--help"],
    "compact": ["compact", "{runs}"],
    "compare": ["compare", "{runs}"],
    "credit": "tests/report/test_credit_view.py",
    "doctor": "tests/cli/test_cli.py::test_doctor_reports_and_never_prints_keys",
    "evaluate": "tests/cli/test_cli.py::test_evaluate_keeps_the_samples_and_reports_pass_at_k",
    "index": ["index", "{runs}"],
    "ls": ["ls", "claims"],
    "plan": "tests/cli/test_cli.py::test_plan_says_how_many_seeds_a_claim_needs",
    "pretrain": ["pretrain", "--help"],
    "probe": ["probe", "--help"],
    "publish": ["publish", "--help"],
    "readme": ["readme"],
    "report": ["report", "results/published", "--format", "md"],
    "reproduce": "tests/cli/test_cli.py::test_reproduce_prints_the_documented_object",
    "score": "tests/react/test_react_records.py",
    "setup": ["setup", "--help"],
    "show": ["show", "compile-speedup"],
    "track": ["track", "--help"],
    "train": "tests/docs/test_pages.py::test_the_task_shown_is_trained",
    "trials": "tests/cli/test_cli.py::test_every_trial_is_logged",
    "validate": "tests/cli/test_readme.py::test_example_validates_and_is_listed",
    "watch": ["watch", "{runs}"],
}
"""How each command is run: its words here, or the test that runs it for real (`--help` where it takes minutes)."""
OTHER = {
    "pip install tox && tox": "the environments of tox.ini are what runs these tests",
    "python -m pip install -e .": "installing is how these tests came to run",
    "pip install -e '.[gpu]'": "an extra of pyproject.toml, checked below",
}


def fenced(text: str) -> list[tuple[str, str]]:
    """Language and body of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)


def commands(text: str) -> list[str]:
    """Every command shown: lines of plain blocks, one by one at `&&`, and inline `harness ...`."""
    found = []
    for language, body in fenced(text):
        if language in ("", "bash", "sh", "console"):
            lines = body.replace("\\\n", " ").splitlines()
            parts = (part.strip() for line in lines for part in line.split("#")[0].split("&&"))
            found += [part.removeprefix("$ ") for part in parts if part]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    found += [code.replace("\\|", "|").replace("\n", " ") for code in re.findall(r"`(harness [^`]+)`", prose)]
    return found


def alternatives(command: str) -> list[list[str]]:
    """A command's words, once for each choice written as a|b, with placeholders filled in."""
    out: list[list[str]] = [[]]
    for word in shlex.split(command.removeprefix("harness ")):
        out = [[*words, PLACEHOLDERS.get(choice, choice)] for words in out for choice in word.split("|")]
    return out


SHOWN = [(page, command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
HARNESS = sorted({command for _, command in SHOWN if command.startswith("harness ")})
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_pages_show_commands():
    assert len(HARNESS) > 25
    assert {command.split()[1] for command in HARNESS} >= {
        "reproduce",
        "train",
        "validate",
        "score",
        "report",
    }


@pytest.mark.parametrize("command", HARNESS)
def test_a_command_shown_is_understood(command):
    for words in alternatives(command):
        assert words[0] in COMMANDS, f"no command {words[0]!r}"
        if "--help" in words:
            continue
        try:
            COMMANDS[words[0]].make_context(words[0], words[1:])
        except typer.BadParameter as error:
            # a bare mention (`harness credit`) may leave out what the command needs; an option must exist
            if len(words) > 1 or type(error).__name__ != "MissingParameter":
                raise


def test_every_command_shown_is_run_by_a_test():
    shown = {command.split()[1] for command in HARNESS}
    assert shown - set(EXECUTED) == set()
    for how in EXECUTED.values():
        if isinstance(how, str):
            file, _, function = how.partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function in names if function else any(n.startswith("test_") for n in names), how


def test_other_commands_shown_are_known():
    others = {c for page, c in SHOWN if not c.startswith("harness ")}
    known = {part.strip() for command in OTHER for part in command.split("&&")}
    assert others - known == set()
    extras = re.findall(r"\.\[(\w+)\]", " ".join(others))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert [name for name in extras if not re.search(rf"^{name} = \[", text, flags=re.M)] == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two finished runs of two algorithms, as files."""
    folder = tmp_path_factory.mktemp("runs")
    for arm in ("grpo", "bot_grpo"):
        for seed in (0, 1):
            run = folder / f"{arm}-{seed}"
            run.mkdir()
            spec = {
                "algorithm": {"name": arm},
                "task": {"name": "x"},
                "train": {"horizon": 2},
                "seeds": {"seed": seed},
            }
            (run / "manifest.json").write_text(json.dumps({"run_id": run.name, "spec": spec, "claim": {}}))
            (run / "status.json").write_text(json.dumps({"status": "completed", "reason": ""}))
            rows = [
                {"optimizer_step": s, "n": 8, "metrics": {"correct": 0.1 * s + 0.01 * seed}, "costs": {}} for s in (0, 1, 2)
            ]  # fmt: skip
            (run / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (run / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
            (run / "timings.jsonl").write_text("")
    return folder


@pytest.mark.parametrize("name", [name for name, how in EXECUTED.items() if isinstance(how, list)])
def test_commands_that_are_quick_are_run(name, runs, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [word.format(runs=runs) for word in EXECUTED[name]]
    before = {page: page.read_bytes() for page in pages_with_blocks(ROOT)}
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert {page: page.read_bytes() for page in before} == before


def test_generated_blocks_match_the_files(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = pages_with_blocks(ROOT)
    assert {page.name for page in pages} >= {"README.md", "claims.md", "verdicts.md"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert fill(text, Path("results/published"), page.relative_to(ROOT)) == text, (
            f"{page.name}: run `harness readme`"
        )


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_benchmark_blocks_match_the_kept_calls(name, tmp_path):
    page = tmp_path / "page.md"
    page.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert "<!-- benchmark: " in page.read_text(encoding="utf-8")
    assert not write_document(page, ROOT / "results" / "benchmark"), f"harness benchmark --write {name}"


def test_the_study_table_of_the_readme_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(app, ["report", "results/published", "--format", "md"]).stdout
    blocks = {m["kind"]: m[0] for m in BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert printed in blocks["study"]


def test_every_claim_has_its_method_notes():
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert {m["name"] for m in BLOCK.finditer(text)} == set(claim_names())
    for name in claim_names():
        hand = text.split(f"## {name}\n")[1].split("<!-- claim")[0]
        assert len(hand.split()) > 25, f"{name}: say what its scale can and can't show"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", text, flags=re.M)
    }
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
        path, _, anchor = link.partition("#")
        if link.startswith("http"):
            continue
        if path:
            assert (page.parent / path).exists(), link
        else:
            assert anchor in headings, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_shown_are_the_files_that_are_tested(page):
    text = page.read_text(encoding="utf-8")
    for name, code in re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", text, flags=re.S):
        assert code == (ROOT / name).read_text(encoding="utf-8"), f"{page.name}: {name} has changed"


def test_the_task_shown_is_trained(tiny_model_folder, tmp_path):
    words = ["train", "--plugin", str(EXAMPLES / "sums.py"), "--task", "sums", "--algorithm", "bot_grpo"]
    words += ["--model", str(tiny_model_folder), "--out", str(tmp_path), "--quiet", "--json"]
    for setting in (
        "train.horizon=2",
        "train.max_completion_tokens=6",
        "train.prompts_per_step=2",
        "evaluation.prompts=4",
    ):
        words += ["--set", setting]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["status"] == "completed"


def test_the_task_shown_scores_as_told():
    from harness.registry import load_plugin, tasks
    from tasks.base import Answer

    load_plugin(EXAMPLES / "sums.py")
    task = tasks()["sums"]()
    example = task.example("test", 3)
    assert task.example("test", 3) == example
    right = example.reference["sum"]
    found = task.score(
        [example] * 3, [Answer(f" {right}."), Answer(f"{right + 1} or {right}"), Answer("many")]
    )
    assert [score.outcome for score in found] == [1.0, 0.0, 0.0]
    assert [[span.value for span in score.spans] for score in found] == [[1.0], [-1.0], []]
    assert (found[0].spans[0].start, found[0].spans[0].end) == (1, 1 + len(str(right)))
