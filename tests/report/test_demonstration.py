"""The demonstrations' tables say what their records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "results" / "demonstrations"
SPEC = importlib.util.spec_from_file_location("demonstration_summary", FOLDER / "summary.py")
assert SPEC is not None
assert SPEC.loader is not None
SUMMARY = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SUMMARY)


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*/README.md")), ids=lambda page: page.parent.name)
def test_a_demonstration_page_shows_its_records(page: Path) -> None:
    rows = SUMMARY.rows(page.parent)
    assert len(rows) > 2
    assert "\n".join(rows) in page.read_text()
