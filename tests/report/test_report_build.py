from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from harness.claims import load_claim
from harness.claims.simulate import simulated_run, simulated_sweep
from harness.errors import UserError
from harness.report.build import report, to_latex, to_markdown
from harness.report.compare import compare
from harness.report.sections import sections_of

CLAIM = load_claim("compile-speedup")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def pages(results, folder) -> dict[str, str]:
    return {
        form: report([results], form, folder).read_text("utf-8") for form in ("md", "latex", "html", "json")
    }


class Page(HTMLParser):
    """Collects what an accessibility check asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        self.references += found.get("aria-labelledby", "").split()
        self.references += [found[k] for k in ("href", "src", "xlink:href") if k in found]


def test_every_format_holds_the_verdict_and_every_run(pages):
    for form, text in pages.items():
        assert "mechanism check passed" in text.lower(), form
        for seed in range(5):
            assert f"grpo-{seed}" in text, form
        assert "not reached" in text, form
        assert "Versions" in text, form


def test_markdown_names_its_pictures_and_they_exist(pages, folder):
    links = re.findall(r"\]\(([^)]+)\)", pages["md"])
    assert len(links) == 5
    for link in links:
        assert (folder / link).stat().st_size > 1000


def test_latex_names_its_pictures_and_they_exist(pages, folder):
    links = re.findall(r"\\includegraphics(?:\[[^]]*\])?\{([^}]+)\}", pages["latex"])
    assert len(links) == 5
    for link in links:
        assert link.endswith(".pdf")
        assert (folder / link).stat().st_size > 1000


def test_reports_are_the_same_bytes_every_time(pages, results, tmp_path):
    for form in ("html", "json"):
        assert pages[form] == report([results], form, tmp_path).read_text(encoding="utf-8")


def test_latex_is_well_formed(pages):
    text = pages["latex"]
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    body = text[text.index(r"\begin{document}") :]
    plain = re.sub(r"\\[\\&%$#_{}]", "", body)
    assert plain.count("{") == plain.count("}")
    for row in re.findall(r"\\midrule\n(.*?)\\bottomrule", text, flags=re.S):
        for line in row.strip().split("\n"):
            assert line.endswith(r"\\")
    assert not re.search(
        r"(?<![\\])[#_$%](?!\n)", re.sub(r"\\includegraphics.*|\\label.*|\$\\\w+\$", "", plain)
    )
    assert r"\toprule" in text


def test_html_needs_nothing_from_outside(pages):
    page = Page(pages["html"])
    for reference in page.references:
        assert not reference.startswith(("http", "//", "file")), reference
    assert not re.search(r"url\((?!#)", pages["html"])
    assert "@import" not in pages["html"]


def test_html_passes_the_accessibility_rules(pages):
    page = Page(pages["html"])
    tags = [tag for tag, _ in page.tags]
    assert next(found for tag, found in page.tags if tag == "html")["lang"] == "en"
    assert tags.count("h1") == 1
    assert tags.count("main") == 1
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(page.ids) == len(set(page.ids))
    for tag, found in page.tags:
        if tag == "th":
            assert found.get("scope") in ("col", "row")
        if tag == "svg":
            assert found["role"] == "img"
            assert len(found["aria-label"]) > 20
        if "aria-labelledby" in found:
            assert set(found["aria-labelledby"].split()) <= set(page.ids)
    assert tags.count("table") == tags.count("caption")


def test_numbers_and_curves_have_hover_values(pages):
    assert 'title="2.0' in pages["html"] or 'title="1.9' in pages["html"]
    assert "<title>grpo seed 4: ends at" in pages["html"]


def test_json_is_strict(pages):
    body = json.loads(pages["json"], parse_constant=lambda name: pytest.fail(name))
    section = body["sections"][0]
    assert section["verdict"]["verdict"] == "mechanism_passed"
    assert {t["name"] for t in section["tables"]} >= {"claim", "speedups", "runs", "settings", "versions"}


HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \\input{/etc/passwd} {{ 7*7 }} $x$"


def test_hostile_texts_are_shown_not_run(writer, tmp_path):
    rng = np.random.default_rng(0)
    runs = simulated_sweep(CLAIM, "tiny", {"grpo": [55] * 2, "bot_grpo": [30] * 2}, rng)
    runs[0] = replace(runs[0], status="failed", reason=HOSTILE)
    runs[0].evals[:] = runs[0].evals[:3]
    folder = writer(tmp_path, runs, CLAIM)
    sample = json.dumps({"text": HOSTILE, "comment": HOSTILE, "optimizer_step": 5}) + "\n"
    (folder / "runs" / "grpo-1" / "samples.jsonl").write_text(sample)
    html = report([folder], "html", tmp_path / "out").read_text()
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert html.count("&lt;script&gt;alert(1)") >= 3
    assert "{{ 7*7 }}" in html
    section = sections_of([folder])
    assert r"\input{/etc" not in to_latex(section, [[]], tmp_path)
    assert "<script>" not in to_markdown(section, [[]], tmp_path)


def test_two_definitions_of_one_claim_are_two_sections(writer, results, tmp_path):
    data = CLAIM.model_dump(mode="json")
    data["scales"]["tiny"]["horizon"] = 100
    other = type(CLAIM).model_validate(data)
    runs = simulated_sweep(other, "tiny", {"grpo": [55] * 4, "bot_grpo": [30] * 4}, np.random.default_rng(1))
    folder = writer(tmp_path, runs, other)
    found = sections_of([results, folder])
    assert len(found) == 2
    assert {section.claim.scale("tiny").horizon for section in found} == {80, 100}
    (folder / "claim.json").unlink()
    with pytest.raises(UserError, match="neither beside it"):
        sections_of([folder])


def test_bad_requests_are_one_clear_line(results, tmp_path):
    with pytest.raises(UserError, match="did you mean 'html'"):
        report([results], "htm")
    with pytest.raises(UserError, match="does not exist"):
        report([tmp_path / "none"], "md")
    with pytest.raises(UserError, match="at least one folder"):
        report([], "md")


def test_runs_outside_any_claim_are_reported_and_compared(writer, tmp_path):
    rng = np.random.default_rng(0)
    runs = [simulated_run(arm, s, t + s, rng) for arm, t in (("grpo", 60), ("mine", 40)) for s in range(4)]
    folder = writer(tmp_path, runs)
    text = report([folder], "md", tmp_path / "out").read_text()
    assert "Runs outside any claim" in text
    assert "Exploratory" in text
    tables = compare([folder])
    assert [t.name for t in tables] == ["summary", "differences", "times"]
    speed = tables[2].rows[0]
    assert speed[0] == "mine vs grpo"
    assert speed[2] == pytest.approx(1.5, rel=0.15)
    one = tables[0].rows[0]
    assert one[:3] == ("grpo", 4, "4 completed")


def test_compare_refuses_what_has_nothing_in_common(writer, tmp_path):
    rng = np.random.default_rng(0)
    a = writer(tmp_path / "a", [simulated_run("grpo", 0, 60, rng)])
    b = writer(tmp_path / "b", [simulated_run("grpo", 0, 60, rng)], task="aime")
    with pytest.raises(UserError, match="different tasks"):
        compare([a, b])
    with pytest.raises(UserError, match="given twice"):
        compare([a, a])
    with pytest.raises(UserError, match="only one group"):
        compare([a])
    c = writer(tmp_path / "c", [simulated_run("grpo", 0, 40, rng)])
    with pytest.raises(UserError, match="was not recorded"):
        compare([a, c], metric="elegance")
    single = compare([a, c])
    assert "fewer than 2" in single[1].rows[0][2]


def test_mixed_evaluation_sizes_are_flagged(writer, tmp_path):
    rng = np.random.default_rng(0)
    runs = [simulated_run("grpo", 0, 60, rng), simulated_run("mine", 0, 60, rng, prompts=64)]
    found = sections_of([writer(tmp_path, runs)])
    assert any("evaluation sizes" in warning for warning in found[0].warnings)


def test_rendering_imports_no_torch(results, tmp_path):
    code = (
        "import sys; from harness.report.build import report;"
        f"report([{str(results)!r}], 'html', {str(tmp_path)!r});"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def _report_seconds(writer, folder, seeds: int) -> float:
    """Processor seconds of a report on two arms of so many seeds with 500 evaluations each, imports included."""
    rng = np.random.default_rng(0)
    data = CLAIM.model_dump(mode="json")
    data["scales"]["tiny"] |= {"horizon": 2500, "stop_rule": "none"}
    claim = type(CLAIM).model_validate(data)
    runs = []
    for arm, middle in (("grpo", 1400.0), ("bot_grpo", 900.0)):
        for seed in range(seeds):
            run = simulated_run(arm, seed, middle * float(np.exp(rng.normal(0, 0.2))), rng, horizon=2500)
            tail = [
                {**run.evals[-1], "optimizer_step": step, "costs": {k: v / run.evals[-1]["optimizer_step"] * step
                 for k, v in run.evals[-1]["costs"].items()}}
                for step in range(run.evals[-1]["optimizer_step"] + 5, 2501, 5)
            ]  # fmt: skip
            runs.append(replace(run, evals=[*run.evals, *tail]))
    code = (
        "import time; from harness.report.build import report;"
        f"report([{str(writer(folder, runs, claim))!r}], 'html', {str(folder / 'out')!r}); print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (folder / "out" / "report.html").stat().st_size < 20_000_000
    return float(done.stdout)


@pytest.mark.slow
def test_a_report_grows_no_faster_than_its_runs(writer, tmp_path):
    """Eight times the runs cost at most eight times the time; `harness benchmark --interface` has the seconds."""
    small, large = (_report_seconds(writer, tmp_path / str(n), n) for n in (12, 100))
    assert large < 8 * small, (small, large)


@pytest.mark.browser
def test_the_page_in_a_real_browser(results, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next((p for p in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(p).exists()), None)
    path = report([results], "html", tmp_path)
    messages: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 800})
        page.on("console", lambda m: messages.append(m.text))
        page.on("pageerror", lambda e: messages.append(str(e)))
        page.on("request", lambda r: messages.append(r.url) if not r.url.startswith("file:") else None)
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        seeds = "table#runs-1 tbody tr td:nth-child(2)"
        button = page.get_by_role("button", name="seed").first
        button.click()
        ascending = page.locator(seeds).all_inner_texts()
        button.press("Enter")
        descending = page.locator(seeds).all_inner_texts()
        assert ascending == sorted(ascending, key=int)
        assert descending == sorted(descending, key=int, reverse=True)
        assert page.locator("table#runs-1 th[aria-sort=descending]").count() == 1
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        browser.close()
    assert messages == []
