"""What the contract tests rest on: other values of options, and comparisons of numbers of any size."""

import typing

import pytest
import torch

from tests.support.toy import assert_equal, other_value


@pytest.mark.parametrize(
    "kind, value, other",
    [
        (bool, True, False),
        (int, 2, 3),
        (float, 1.0, 0.6),
        (float | None, None, 0.5),
        (typing.Literal["a", "b"], "a", "b"),
        (int | typing.Literal["none"], "none", 1),
        (typing.Literal["a", "b"] | None, None, "a"),
    ],
)
def test_another_value_is_one_of_the_same_type(kind, value, other):
    assert other_value(kind, value) == other and type(other_value(kind, value)) is type(other)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e-2])
def test_numbers_are_equal_relative_to_the_largest_of_a_leaf(size):
    numbers = {"a": torch.tensor([size, 0.0], dtype=torch.float64), "b": torch.tensor([], dtype=torch.bool)}
    close, far = ({**numbers, "a": numbers["a"] + part * size} for part in (0.9e-8, 1.1e-8))
    assert_equal(close, numbers, tolerance=1e-8)
    with pytest.raises(AssertionError):
        assert_equal(far, numbers, tolerance=1e-8)
