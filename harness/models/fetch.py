"""Brings a model's files to a local folder in the form of transformers: from a folder, a GGUF file, or the Hub."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentProblem, UserError
from harness.models import PRESETS
from harness.models.source import source_of, weights_fingerprint

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
WEIGHT_FILES = ("*.safetensors",)
NOT_OURS = ("original/*", "onnx/*", "consolidated*")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
CONVERTED = 1
"""Part of the cached folder's name: raise it when the conversion changes."""


def local_folder(name: str, *, revision: str = "", weights: bool = True) -> Path:
    """A folder with config, tokenizer and (with `weights`) safetensors of a preset, folder, GGUF file or Hub id.

    Raises UserError (EnvironmentProblem where the machine is at fault) with one line that names what is
    missing; nothing large is read or downloaded when `weights` is False.
    """
    source = source_of(name)
    path = Path(source)
    if path.is_file():
        return _converted(path)
    if path.is_dir():
        folder = path
    else:
        preset = PRESETS.get(name)
        revision = revision or (preset.revision if preset else "main")
        folder = _from_hub(name, source, revision, weights)
    missing = missing_file(folder, weights=weights)
    if missing:
        raise UserError(
            f"model.name={name!r}: {missing} is missing in {folder}; fetch the model where there is a network "
            f"(hf download {source})"
            if folder is not path
            else f"model.name={name!r}: {missing} is missing in this folder; copy it there, or name another folder"
        )
    return folder


def missing_file(folder: Path, *, weights: bool = True) -> str:
    """The first file that a model folder lacks; "" when it is complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return "tokenizer.json"
    if not weights:
        return ""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return next((part for part in parts if not (folder / part).is_file()), "")
    return "" if any(folder.glob("*.safetensors")) else "model.safetensors"


def _from_hub(name: str, repo: str, revision: str, weights: bool) -> Path:
    """A snapshot of a Hub repository, from the local cache where the network or the Hub cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    field = f"model.name={name!r}"
    patterns = [*SMALL_FILES, *(WEIGHT_FILES if weights else ())]
    try:
        return Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=patterns, ignore_patterns=list(NOT_OURS)
            )
        )
    except GatedRepoError:
        raise EnvironmentProblem(
            f"{field}: {repo} is gated; accept its terms at https://huggingface.co/{repo} and set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{field}: the Hub has no model {repo} (or it is private and HF_TOKEN is not set); mend the name"
        ) from None
    except RevisionNotFoundError:
        raise UserError(
            f"model.revision={revision!r}: {repo} has no such revision; name a branch, a tag or a commit"
        ) from None
    except HFValidationError:
        raise UserError(f"{field}: not a Hub id; write it as org/name, or give a folder") from None
    except LocalEntryNotFoundError:
        raise EnvironmentProblem(
            f"{field}: config.json of {repo} is not in the local cache and the Hub cannot be reached; run "
            f"`hf download {repo}` where there is a network, or give a folder"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EnvironmentProblem(
            f"{field}: {repo} cannot be fetched ({first}); try again, or give a folder"
        ) from None


def _converted(path: Path) -> Path:
    """The cached folder of a GGUF file's weights as 32-bit safetensors, made at the first call.

    Dequantised values are kept in full: Q4_1 holds scale and offset in 16 bits, their product needs more.
    """
    from filelock import FileLock

    from tasks.react.install import cache_folder

    root = cache_folder() / "models"
    folder = root / f"{path.stem}-{weights_fingerprint(str(path))}-{CONVERTED}"
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None or importlib.util.find_spec("accelerate") is None:
        raise EnvironmentProblem(
            f"model file {path.name}: reading GGUF needs the extra small; run pip install 'creditbench[small]'"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                with _fresh(folder) as made:
                    _convert(path, made)
    except PermissionError as error:
        raise EnvironmentProblem(
            f"cache folder {root}: cannot be written ({error.strerror}); set CREDITBENCH_CACHE"
        ) from None
    return folder


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its name once the block is done."""
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        yield made
        made.chmod(0o755)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _convert(path: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": path.name}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **place)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **place)
    except (ValueError, OSError, KeyError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"model file {path}: not a GGUF file that transformers can read ({first})") from None
    # the weights are plain now; with the note that they were quantised, saving is refused
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
