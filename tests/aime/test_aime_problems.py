"""Problem sets: local files, pins, manifests, dates, and what is refused."""

from __future__ import annotations

import hashlib
import json
from datetime import date

import pytest

from tasks.aime import AimeTask
from tasks.aime.problems import (
    HUB_SETS,
    DataError,
    HubSet,
    Problem,
    check_aime,
    check_manifest,
    load_problems,
    manifest_of,
    split_by_date,
)


def write(path, rows):
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8"
    )
    return str(path)


def rows(count=30, **changes):
    return [
        {"id": f"x-{i}", "problem": f"What is {i}+1?", "answer": f"{i + 1:03d}", **changes}
        for i in range(count)
    ]


def test_a_local_file(tmp_path):
    found = load_problems(write(tmp_path / "p.jsonl", [*rows(2, level="Level 3", date="2025-02-06"), ""]))
    assert found[1] == Problem("x-1", "What is 1+1?", "002", "Level 3", date(2025, 2, 6))


def test_columns_of_other_files(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        [
            {"question": "a", "gold": 5},
            {"prompt": [{"role": "user", "content": "b"}], "reward_model": {"ground_truth": "6"}},
            {"problem": "c", "solution": "so \\boxed{7}"},
            {
                "problem": "Solve the following math problem step by step. The last line is Answer.\n\nd?\n\n"
                "Remember to put your answer on its own line",
                "answer": "8",
            },
        ],
    )
    found = load_problems(path)
    assert [(p.problem, p.answer) for p in found] == [("a", "5"), ("b", "6"), ("c", "7"), ("d?", "8")]
    assert [p.id for p in found] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{nope"], "line 1 is not JSON"),
        (["[1]"], "line 1 is not an object"),
        ([{"problem": "a"}], "row 1 lacks 'answer'"),
        ([{"answer": "5"}], "row 1 lacks 'problem'"),
        ([{"id": "1", "problem": "a", "answer": "5"}] * 2, "id '1' appears twice"),
        ([{"problem": "a", "answer": "\x0crac{5}{9}"}], "escape damage"),
        ([{"problem": "a", "answer": "\\frac{5}{9}"}], "answers=math reads other golds"),
        ([{"problem": "a", "answer": "5", "date": "soon"}], "YYYY-MM-DD"),
        ([], "no problems"),
    ],
)
def test_a_file_at_fault_is_refused_in_one_line(tmp_path, lines, words):
    with pytest.raises(DataError, match=r"^[^\n]+$") as caught:
        load_problems(write(tmp_path / "p.jsonl", lines))
    assert words in str(caught.value)


def test_other_golds_are_for_math_mode(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "\\frac{5}{9}"}])
    assert load_problems(path, integers=False)[0].answer == "\\frac{5}{9}"


@pytest.mark.parametrize("source", ["aime-1066", "hub:only/name", "hub:a/b@main:train", "/no/such.jsonl"])
def test_sources_that_are_none(source):
    with pytest.raises(DataError, match="source="):
        load_problems(source)


def test_a_set_that_differs_from_its_manifest_is_refused():
    copy_a = [Problem("I-12", "Find x.", "384")]
    manifest = manifest_of(copy_a)
    check_manifest([Problem("I-12", "  Find \n x. ", "384")], manifest, "copy")
    check_manifest([Problem("I-12", "Find x.", "0384")], manifest, "copy")
    for other in (
        Problem("I-12", "Find x.", "385"),
        Problem("I-12", "Find x. (The answer is 384.)", "384"),
        Problem("I-13", "Find x.", "384"),
    ):
        with pytest.raises(DataError, match="pinned manifest"):
            check_manifest([other], manifest, "copy")
    with pytest.raises(DataError, match="not in the pinned manifest"):
        check_manifest([*copy_a, Problem("II-1", "Find y.", "1")], manifest, "copy")


def test_a_year_has_thirty_whole_answers():
    good = [Problem(str(i), f"p{i}", str(i)) for i in range(30)]
    check_aime(good, "set")
    for bad in (
        good[:29],
        [*good[:29], Problem("29", "p29", "1000")],
        [*good[:29], Problem("29", "p28", "5")],
    ):
        with pytest.raises(DataError, match="set: "):
            check_aime(bad, "set")


def test_splits_by_date():
    old, new = (
        Problem("a", "a", "1", released=date(2024, 2, 1)),
        Problem("b", "b", "2", released=date(2025, 2, 6)),
    )
    assert split_by_date([old, new], date(2025, 2, 6)) == ([old], [new])
    assert split_by_date([old, new], date(2025, 2, 7)) == ([old, new], [])
    with pytest.raises(DataError, match="problem 'c' has no date"):
        split_by_date([Problem("c", "c", "3")], date(2025, 1, 1))


def test_pins_are_full_revisions_and_hashes():
    assert {"aime-2024", "aime-2025"} <= set(HUB_SETS)
    for chosen in HUB_SETS.values():
        assert len(chosen.revision) == 40
        assert len(chosen.sha256) == 64


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cached file for a pinned set, without a network."""
    path = tmp_path / "test.jsonl"
    write(path, rows())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def cached(repository, filename, **options):
        assert options["revision"] == "f" * 40
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", cached)
    chosen = HubSet("some/set", "f" * 40, "test.jsonl", digest, year=2025, released=date(2025, 2, 6))
    monkeypatch.setattr("tasks.aime.problems.HUB_SETS", {"aime-test": chosen})
    return path


def test_a_pinned_file_is_loaded_and_checked(hub):
    found = load_problems("aime-test")
    assert len(found) == 30
    assert found[0].released == date(2025, 2, 6)
    hub.write_text(hub.read_text().replace('"001"', '"002"', 1))
    with pytest.raises(DataError, match="content hash mismatch"):
        load_problems("aime-test")


def test_without_a_network_the_error_is_one_clear_line(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def absent(*args, **options):
        raise LocalEntryNotFoundError("not cached")

    def unreachable(*args, **options):
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", absent)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=r"^[^\n]*give a local JSONL file$"):
        load_problems("aime-2025")
    with pytest.raises(DataError, match=r"^[^\n]*give a local JSONL file$"):
        load_problems("hub:some/set@" + "f" * 40)


def test_a_file_is_tested_on_whole_and_trained_on_only_with_another_test(tmp_path):
    train = write(tmp_path / "train.jsonl", rows(12))
    test = write(
        tmp_path / "test.jsonl", [{"id": "t", "problem": "What is 3+1?", "answer": 4, "date": "2026-01-02"}]
    )
    alone = AimeTask(source=train)
    assert alone.size("test") == 12
    assert alone.example("test", 1).prompt.startswith("What is 1+1?\n\nPlease reason")
    assert "002" in alone.example("test", 1).variants["privileged"]
    assert "hints" not in alone.provides
    with pytest.raises(DataError, match="set test_source"):
        alone.example("train", 0)
    both = AimeTask(source=train, test_source=test)
    assert both.size("train") == 11  # the problem that is tested on is not trained on
    assert all("3+1" not in both.example("train", i).prompt for i in range(22))
    assert both.example("train", 11).id == both.example("train", 0).id
    dated = AimeTask(source=train, test_source=test, released_from="2026-01-03")
    with pytest.raises(DataError, match="no problem"):
        dated.size("test")
    ladder = AimeTask(test_source=test)
    assert ladder.size("train") is None
    assert ladder.size("test") == 1
    mixed = AimeTask(source=train, test_source="generated")
    assert mixed.size("train") == 12
    assert mixed.example("test", 0).id.startswith("aime-generated")
