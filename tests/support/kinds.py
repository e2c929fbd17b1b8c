"""Which methods and models the fast tests try, where one of each kind says what all would: the others are in the slow part."""

from collections.abc import Collection, Iterable

import pytest

# Methods that keep, exchange and deploy different things; each stands for those that do so in the same way.
METHODS = {
    "fedavg": "params alone",
    "fedadam": "an optimiser of the server",
    "scaffold": "states of the server and of clients",
    "moon": "each client's model of the round before",
    "fedproto": "means of features in place of params",
    "fedgen": "a generator that the server trains",
    "ditto": "a model for each client beside the shared one",
    "fedrep": "layers that stay with clients",
    "local": "no exchange",
    "centralized": "one client that holds everything",
    "ifca": "clusters that change",
    "fedconcat": "clusters that stay, and a second stage",
    "fedcat": "cycles of rounds",
    "ccvr": "a calibration after training",
    "fedcollab": "coalitions, found before training",
}


def others_slow(names: Iterable[str], kept: Collection[str] = METHODS) -> list:
    """Names as params of a test, of which those that are not kept are marked slow."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]
