"""Partitions of labs: functions in the folder `partitions` of a lab (see `bench.plugins`).

    @registered_partition("hospital", title="Hospitals({})", share=0.5)
    def hospital(labels, num_classes, num_clients, rng, share): return [indices of client 0, indices of client 1, ...]

The options of the decorator are numbers, the defaults of what stands behind the name: "hospital-0.7" is share=0.7, and
"hospital" is "hospital-0.5".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.errors import ConfigError
from bench.registry import Entry
from datasets.partition_files import checked
from datasets.partitions import NAMES, OF_LABS, READERS, Drawn, Partition, number


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
    def name(self) -> str:
        return "-".join([self.of, *self._values])

    @property
    def for_people(self) -> tuple[str, str]:
        return str(entries()[self.of].given.get("title", self.name)).format(*self._values), ""

    @property
    def _values(self) -> list[str]:
        return [np.format_float_positional(value, trim="-") for value in self.values]

    def _draw(self, labels, num_clients, num_classes, seed):
        entry = entries()[self.of]
        function, place = entry.load(), f"{entry.target} in {entry.place}"
        options = dict(zip(entry.options, self.values, strict=True))
        rng = np.random.default_rng(seed)  # as of the other partitions, of nothing but the seed of the run
        try:
            dealt = function(labels.copy(), num_classes, num_clients, rng, **options)
        except Exception as error:  # whatever the code of a lab raises
            raise ValueError(entry.failure(error)) from error
        return Drawn(_checked(dealt, len(labels), num_clients, place), 1)


def entries() -> Mapping[str, Entry]:
    """Name -> the function of a lab.

    Raises:
        ConfigError: with all that is wrong in how they are registered.
    """
    mistakes = [f"{entry.place}: {mistake}" for entry in OF_LABS.values() for mistake in _mistakes(entry)]
    if mistakes:
        raise ConfigError(mistakes)
    return OF_LABS


def entry_of(text: object) -> Entry | None:
    """The function of a partition such as "hospital-0.7"; None if it is none of a lab, or the lab's folder is not in use."""
    entries()
    return OF_LABS.named_in(text)


def parse(text: str) -> LabPartition | None:
    """The partition of a name such as "hospital-0.7"; None if it is none of a lab.

    Raises:
        ValueError: it has other numbers than its function.
    """
    entry = entry_of(text)
    if entry is None:
        return None
    options, behind = entry.options, text.removeprefix(entry.name).removeprefix("-")
    given = [number(part) for part in behind.split("-", max(0, len(options) - 1))] if behind else []
    values = [type(usual)(value) for usual, value in zip(options.values(), given, strict=False) if value == value]
    if [*values] != given or len(given) > len(options):
        takes = ", ".join(f"{key}={value}" for key, value in options.items())
        wanted = f"takes numbers of the kinds {takes}" if options else "takes no numbers"
        raise ValueError(f"{entry.name} {wanted}, but got {text!r}.")
    return LabPartition(entry.name, (*values, *[*options.values()][len(values) :]))


READERS.append(parse)


def _mistakes(entry: Entry) -> list[str]:
    """What is wrong in how a function is registered."""
    mistakes = []
    if ":" in entry.name or any(entry.name == own or entry.name.startswith(f"{own}-") for own in NAMES):
        mistakes.append(f"{entry.name} is read as a partition of the harness; give yours another name.")
    odd = {key: value for key, value in entry.options.items() if type(value) not in (int, float) or value < 0}
    mistakes += [f"{key} must be a number of at least 0, but got {value!r}." for key, value in odd.items()]
    try:
        str(entry.given.get("title", "")).format(*entry.options.values())
    except (IndexError, KeyError, ValueError, AttributeError):
        title = entry.given["title"]
        mistakes.append(
            f"title must have at most one {{}} for each of the {len(entry.options)} options, but got {title!r}."
        )
    return mistakes


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
