"""Model presets: what ships, what is only named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.errors import UserError
from harness.models import PRESETS, shipped_path


def test_presets_need_no_torch() -> None:
    code = "import sys, harness.models; print('torch' in sys.modules or 'transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_every_shipped_preset_has_its_files() -> None:
    shipped = [name for name, preset in PRESETS.items() if preset.source == "folder"]
    assert "react-tiny" in shipped
    for name in shipped:
        files = {path.name for path in shipped_path(name).iterdir()}
        assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= files
        assert (shipped_path(name) / "model.safetensors").stat().st_size < 4e6
        assert PRESETS[name].recipe is not None


def test_a_published_model_does_not_ship() -> None:
    with pytest.raises(UserError, match=r"Qwen/Qwen2\.5-3B"):
        shipped_path("Qwen2.5-3B")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'react-tiny'"):
        shipped_path("react-tny")
