from math import sqrt

import pytest

from harness.stats.rates import wilson


def test_wilson_by_hand() -> None:
    # Wilson: (p + z^2/2n -/+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    p, n, z = 0.3, 20, 1.959963984540054
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert wilson(6, 20) == pytest.approx(
        ((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n))
    )


@pytest.mark.parametrize("successes", [0, 20])
def test_the_ends_stay_within_the_rates_that_exist(successes: int) -> None:
    low, high = wilson(successes, 20)
    assert 0 <= low < high <= 1
    assert (low == 0) == (successes == 0)
    assert (high == 1) == (successes == 20)


def test_a_lower_level_is_narrower() -> None:
    low, high = wilson(6, 20)
    narrow_low, narrow_high = wilson(6, 20, level=0.8)
    assert low < narrow_low < narrow_high < high
