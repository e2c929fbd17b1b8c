"""Whoever changes numbers must raise a version, or old results would pass for new ones."""

import json

import pytest

from tests.support.fingerprints import KINDS, STORED, complaint

FINGERPRINTS = json.loads(STORED.read_text())


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, (_, names) in KINDS.items() for name in names])
def test_numbers_change_only_with_a_version(kind, name):
    found = KINDS[kind][0](name)
    assert complaint(kind, name, FINGERPRINTS[kind].get(name), found) == ""


def test_a_change_of_numbers_names_the_version_to_raise():
    stored = {"version": 1, "numbers": [1.0]}
    assert complaint("model", "mlp", stored, {"version": 1, "numbers": [1.1]}).startswith(
        "The numbers of the model mlp have changed: raise its version above 1, then store"
    )
    assert "has version 2, its fingerprint 1" in complaint("model", "mlp", stored, {"version": 2, "numbers": [1.1]})
    assert "has no fingerprint yet: store" in complaint("model", "mlp", None, stored)
