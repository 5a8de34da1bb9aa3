"""The doctor: what is there, what each scale lacks, and the exit code that follows."""

from __future__ import annotations

import pytest

from harness import doctor
from harness.commands.inspect import DoctorOptions
from harness.commands.inspect import doctor as command


@pytest.fixture
def healthy(monkeypatch):
    monkeypatch.setattr(doctor, "_node", lambda: ("v24.0.0", ""))
    monkeypatch.setattr(doctor, "_memory_gib", lambda: 16.0)
    monkeypatch.setattr(doctor, "_gpu", lambda: "none")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("D", (), {"free": 50 * doctor.GIB})())


def test_a_laptop_can_do_all_but_paper(healthy, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "vllm")
    report = doctor.examine()
    assert {scale: bool(missing) for scale, missing in report.lacks.items()} == {
        "smoke": False,
        "tiny": False,
        "small": False,
        "paper": True,
    }
    assert report.lacks["paper"] == ["64 GiB of memory", "100 GiB of free disk", "a CUDA GPU", "package vllm"]
    assert command(DoctorOptions()) == 0
    assert "scale tiny            ready" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("_node", lambda: ("absent", "install Node 20"), "node: install Node 20"),
        ("_memory_gib", lambda: 3.0, "4 GiB of memory"),
        ("_writable", lambda folder: False, "a writable results/runs (or give --out)"),
    ],
)
def test_exit_code_says_when_the_default_job_cannot_run(healthy, monkeypatch, capsys, name, value, said):
    monkeypatch.setattr(doctor, name, value)
    assert said in doctor.examine().lacks["tiny"]
    assert command(DoctorOptions()) == 1
    assert said in capsys.readouterr().out


def test_keys_are_named_and_never_shown(healthy, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    text = "\n".join(doctor.examine().lines())
    assert "ANTHROPIC_API_KEY" in text
    assert "sk-secret" not in text


def test_launchers_and_trackers_are_those_that_work_here(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: name in {"submitit", "wandb"})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    facts = doctor.examine().facts
    assert facts["launchers"] == "local"
    assert facts["trackers"] == "wandb"
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    assert doctor.examine().facts["launchers"] == "local, slurm"


def test_writable_looks_at_the_nearest_folder_that_exists(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: asked.append(path) or False)
    assert not doctor._writable(tmp_path / "a" / "b")
    assert asked == [tmp_path]
