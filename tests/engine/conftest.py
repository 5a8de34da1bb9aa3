"""What the tests marked `vllm` need."""

from __future__ import annotations

import os

import pytest

from harness.errors import EnvironmentProblem
from harness.train.vllm_sampler import require_vllm


@pytest.fixture(scope="session")
def vllm_installed() -> None:
    """Skips, or with CREDITBENCH_REQUIRE_VLLM=1 fails, where vLLM is not installed."""
    try:
        require_vllm()
    except EnvironmentProblem as error:
        if os.environ.get("CREDITBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(str(error))
