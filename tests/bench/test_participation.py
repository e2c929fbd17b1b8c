"""Sizes of cohorts."""

import pytest

from bench.participation import cohort_size


@pytest.mark.parametrize(
    ("population", "share", "to_nearest", "size"),
    [
        (100, 0.29, False, 29),
        (10, 0.25, False, 2),
        (10, 0.25, True, 3),
        (10, 0.01, False, 1),
    ],  # 100 * 0.29 < 29 in floats
)
def test_a_cohort_is_the_share_rounded_down_or_to_the_nearest_and_never_empty(population, share, to_nearest, size):
    assert cohort_size(population, share, to_nearest) == size
