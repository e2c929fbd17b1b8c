"""Mistakes that must end in one sentence."""

from collections.abc import Callable

import pytest


def refused(*cases: tuple[Callable[[], object], str]) -> Callable[..., None]:
    """The test that each of these calls raises a ValueError with its sentence."""

    @pytest.mark.parametrize(("make", "sentence"), cases)
    def test(make, sentence):
        with pytest.raises(ValueError) as error:
            make()
        assert str(error.value) == sentence, error.value

    return test
