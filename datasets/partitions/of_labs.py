"""Partitions that are functions of labs, in the folder `partitions` of a lab (see `bench.plugins`).

    @registered_partition("hospital", title="Hospitals({})", share=0.5)
    def hospital(labels, num_classes, num_clients, rng, share): return [indices of client 0, indices of client 1, ...]

The options of the decorator are numbers, the defaults of what stands behind the name: "hospital-0.7" is share=0.7, and
"hospital" is "hospital-0.5".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.registry import Entry
from datasets.partition_files import checked
from datasets.partitions.base import KINDS, Drawn, Partition


@dataclass(frozen=True)
class LabPartition(Partition):
    """A partition that a function of a lab deals.

    Attributes:
        of: the name under which the function is registered.
        values: of its options, in the order of the decorator.
    """

    of: str
    values: tuple[float, ...]

    @property
    def entry(self) -> Entry:
        return KINDS[self.of]

    @property
    def _values(self) -> list[str]:
        return [np.format_float_positional(value, trim="-") for value in self.values]

    def deal(self, labels, num_clients, num_classes, seed, **others):
        entry = self.entry
        function, place = entry.load(), f"{entry.target} in {entry.place}"
        options = dict(zip(entry.options, self.values, strict=True))
        rng = np.random.default_rng(seed)  # as of the other partitions, of nothing but the seed of the run
        try:
            dealt = function(labels, num_classes, num_clients, rng, **options)
        except Exception as error:  # whatever the code of a lab raises
            raise ValueError(entry.failure(error)) from error
        return Drawn(_checked(dealt, len(labels), num_clients, place))


def of_function(entry: Entry, given: Sequence[float], text: str) -> LabPartition:
    """The partition of a function with these numbers; those that are left out have their defaults.

    Args:
        text: its name, for messages.

    Raises:
        ValueError: they are other numbers than those of the function.
    """
    options = entry.options
    values = [type(usual)(value) for usual, value in zip(options.values(), given, strict=False) if value == value]
    if values != [*given]:
        takes = ", ".join(f"{key}={value}" for key, value in options.items())
        wanted = f"takes numbers of the kinds {takes}" if options else "takes no numbers"
        raise ValueError(f"{entry.name} {wanted}, but got {text!r}.")
    return LabPartition(entry.name, (*values, *[*options.values()][len(values) :]))


def _checked(dealt: Any, num_examples: int, num_clients: int, place: str) -> list[np.ndarray]:
    """One int64 array for each client, of what a function returned; raises ValueError if that is no partition."""
    if not isinstance(dealt, list | tuple) or len(dealt) != num_clients:
        what = f"{len(dealt)} parts" if isinstance(dealt, list | tuple) else f"a {type(dealt).__name__}"
        raise ValueError(
            f"{place} must return a list of {num_clients} arrays, one for each client, but returned {what}."
        )
    arrays = [np.asarray(part) for part in dealt]
    for client, part in enumerate(arrays):
        if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
            raise ValueError(
                f"{place} gives client {client} {part.dtype} of shape {part.shape}; indices are integers of shape [n]."
            )
        if len(part) and part.max() >= num_examples:
            raise ValueError(
                f"{place} gives client {client} the index {part.max()}, but there are {num_examples} training examples, which "
                "count from 0."
            )
    try:
        return checked({"train": arrays}).train
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
