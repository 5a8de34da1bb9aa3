import gc
import os

from harness.benchmark.side import in_worker
from harness.sweep.server import HUGE_PAGES, TUNABLES, huge_pages


def test_huge_pages_are_asked_for_and_only_within(monkeypatch):
    monkeypatch.delenv(TUNABLES, raising=False)
    with huge_pages():
        assert os.environ[TUNABLES] == HUGE_PAGES
    assert TUNABLES not in os.environ


def test_tunables_of_the_users_own_are_left_alone(monkeypatch):
    monkeypatch.setenv(TUNABLES, "glibc.malloc.check=1")
    with huge_pages():
        assert os.environ[TUNABLES] == "glibc.malloc.check=1"
    assert os.environ[TUNABLES] == "glibc.malloc.check=1"


def test_workers_start_with_huge_pages():
    expected = os.environ.get(TUNABLES, HUGE_PAGES)
    assert in_worker(os.getenv, TUNABLES) == expected


def test_workers_start_with_what_the_server_imported_set_aside():
    assert in_worker(gc.get_freeze_count) > 100_000
    assert in_worker(gc.isenabled)
