from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

from harness.report.plots import COLOURS, Curve, learning_curves, median_curve


@pytest.fixture
def curves() -> list[Curve]:
    rng = np.random.default_rng(0)
    steps = np.arange(0, 85, 5)
    return [
        Curve(
            arm,
            steps[: len(steps) - cut],
            1 / (1 + np.exp(-(steps[: len(steps) - cut] - middle - shift) / 6)),
            seed,
        )
        for arm, middle in (("grpo", 60), ("bot_grpo", 40))
        for seed, (shift, cut) in enumerate(zip(rng.normal(0, 4, 3), (0, 1, 4), strict=True))
    ]


def test_pictures_are_the_same_bytes_every_time(curves, tmp_path):
    digests = []
    for name in ("a", "b"):
        paths = learning_curves(
            curves, tmp_path / name / "curve", threshold=0.8, formats=("svg", "png", "pdf")
        )
        assert [path.suffix for path in paths] == [".svg", ".png", ".pdf"]
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in paths])
    assert digests[0] == digests[1]


def test_svg_shows_the_arms_the_threshold_and_no_date(curves, tmp_path):
    svg = learning_curves(curves, tmp_path / "c", threshold=0.8, formats=("svg",))[0].read_text()
    for text in ("bot_grpo (median of 3)", "threshold 80%", "optimizer steps"):
        assert text in svg
    assert "<dc:date>" not in svg


def test_a_run_that_stopped_keeps_its_last_value_in_the_median():
    grid, middle = median_curve(
        [Curve("a", [0, 5], [0, 1]), Curve("a", [0, 5, 10], [0, 0.5, 0.6]), Curve("a", [0, 10], [0, 0.2])]
    )
    assert grid.tolist() == [0, 5, 10]
    assert middle.tolist() == pytest.approx([0, 0.5, 0.6])


def luminance(colour: str) -> float:
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_neighbouring_arms_differ_in_lightness():
    for one, other in itertools.pairwise(COLOURS):
        assert abs(luminance(one) - luminance(other)) > 0.06


def test_unknown_format_is_refused(curves, tmp_path):
    with pytest.raises(ValueError, match="choose one of"):
        learning_curves(curves, tmp_path / "x", formats=("bmp",))


def test_importing_the_module_does_not_import_matplotlib():
    code = (
        "import sys, harness.report.plots, harness.report.claim;"
        "print(*(name in sys.modules for name in ('matplotlib', 'torch', 'scipy')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False", "False"]
