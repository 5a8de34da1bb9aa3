"""What must be in place before a task can score: today the React checker's npm packages."""

from __future__ import annotations

from pathlib import Path

from harness.errors import EnvironmentProblem


def ensure_react() -> Path:
    """Installs the pinned npm packages where they are absent; EnvironmentProblem when that fails."""
    from tasks.react.install import NodeError, ensure_all

    try:
        return ensure_all()
    except NodeError as error:
        raise EnvironmentProblem(str(error)) from None


def prepare_task(name: str) -> None:
    """Installs what a task's checker needs, with its progress line; nothing for a task that needs nothing."""
    if name == "react":
        ensure_react()
