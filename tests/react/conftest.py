"""One checker process for all tests of the React task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.react import ReactTask


@pytest.fixture(scope="session")
def react() -> Iterator[ReactTask]:
    task = ReactTask()
    yield task
    task.close()
