"""Finds algorithms and tasks by name: built-in modules, entry points and plug-in files."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from harness.errors import UserError


def _import_all(package: ModuleType) -> None:
    """Imports every module of a package: a new file there is found without being listed anywhere."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def _load_entry_points(group: str) -> None:
    for point in importlib.metadata.entry_points(group=group):
        point.load()


def algorithms() -> Mapping[str, type]:
    """All registered algorithm classes by name; imports torch."""
    import algorithms as package
    from algorithms.base import ALGORITHMS

    _import_all(package)
    _load_entry_points("creditbench.algorithms")
    return ALGORITHMS


def tasks() -> Mapping[str, type]:
    """All registered task classes by name."""
    import tasks as package
    from tasks.base import TASKS

    _import_all(package)
    _load_entry_points("creditbench.tasks")
    return TASKS


def load_plugin(path: Path) -> ModuleType:
    """Imports a Python file that registers algorithms or tasks; UserError when it is absent or fails."""
    if not path.is_file():
        raise UserError(f"plugin {str(path)!r} is not a file: give the path of a .py file")
    name = f"creditbench_plugin_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {str(path)!r} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"plugin {str(path)!r} failed to import: {type(error).__name__}: {error}") from error
    return module
