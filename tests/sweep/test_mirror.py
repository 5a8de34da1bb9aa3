"""A folder at home follows one elsewhere: growth, resumes that cut, pruned checkpoints, and the order of things."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.store.writer import RunWriter
from harness.sweep.mirror import Delta, Source, apply, contents, unpack


@pytest.fixture
def away(tmp_path):
    writer = RunWriter(tmp_path / "away", {"run_id": "r"})
    yield writer
    writer.close()


def step(number: int, seconds: float = 1.0) -> dict:
    return {"optimizer_step": number, "seconds": seconds}


def both(writer: RunWriter, root: Path) -> tuple[Path, Source]:
    """A home that has what there is, and the source of what will follow."""
    unpack(root / "home", contents(writer.folder))
    return root / "home", Source(writer.folder)


def same(writer: RunWriter, home: Path) -> bool:
    return contents(writer.folder) == contents(home)


def test_home_follows_growth_and_sends_nothing_twice(away, tmp_path):
    home, source = both(away, tmp_path)
    for number in range(1, 4):
        away.append("steps", step(number))
        away.status("running", str(number))
        delta = source.collect()
        apply(home, delta)
        assert same(away, home)
    assert len(delta.records["steps"][1].splitlines()) == 1
    assert source.collect().empty


def test_a_line_in_the_making_waits(away, tmp_path):
    source = Source(away.folder)
    away.append("steps", step(1))
    with open(away.folder / "steps.jsonl", "ab") as file:
        file.write(b'{"optimizer_st')
    assert source.collect().records["steps"][1].count(b"\n") == 1
    assert source.collect().empty


@pytest.mark.parametrize("again", [1, 5])
def test_a_resume_that_cut_and_outgrew_the_file_is_noticed(away, tmp_path, again):
    """The clock's records differ after a resume, so that appending would tear them."""
    home, source = both(away, tmp_path)
    away.append("timings", step(1))
    mark = away.offsets()
    away.append("timings", step(2, 22.22))
    apply(home, source.collect())
    away.rewind(mark)
    for number in range(again):
        away.append("timings", step(2 + number, 1234567.5))
    apply(home, source.collect())
    assert same(away, home)


def test_checkpoints_come_after_their_records_and_old_ones_go(away, tmp_path):
    home, source = both(away, tmp_path)
    folder = away.folder / "checkpoints"
    folder.mkdir()
    for number in range(1, 5):
        away.append("steps", step(number))
        (folder / f"step-{number}.pt").write_bytes(b"x" * number)
        for old in sorted(folder.glob("step-*"))[:-2]:
            old.unlink()
        apply(home, source.collect())
        assert same(away, home)
    assert sorted(p.name for p in (home / "checkpoints").iterdir()) == ["step-3.pt", "step-4.pt"]


def test_a_folder_is_carried_elsewhere_whole(away, tmp_path):
    away.append("evals", step(0))
    (away.folder / "checkpoints").mkdir()
    (away.folder / "checkpoints" / "best.pt").write_bytes(b"best")
    unpack(tmp_path / "other", contents(away.folder))
    assert same(away, tmp_path / "other")
    assert Delta().empty
