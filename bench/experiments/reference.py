"""The runs with which others are compared client by client, as the report's `reference` names them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.experiments.labels import value_of
from bench.results.grids import StoredCell
from bench.results.records import DATA_SETTINGS


def is_reference(layout: Mapping[str, Any], cell: StoredCell) -> bool:
    """Whether others are compared with a stored cell."""
    named = layout.get("reference") or {}
    return bool(named) and all(str(value_of(cell, key)) == str(value) for key, value in named.items())


def find_references(layout: Mapping[str, Any], cells: Iterable[StoredCell]) -> Callable[[StoredCell], list[StoredCell]]:
    """What finds the references of a stored cell among these: those of its seed and data, one per point of their tuning
    set.

    They have the cell's values on all axes of the table but those that `reference` names, and those on which no reference
    has a value, as an option of another method.
    """
    references = [cell for cell in cells if is_reference(layout, cell)]
    others = [key for key in (*layout["rows"], layout["columns"]) if key not in layout.get("reference", {})]
    axes = [key for key in others if any(value_of(cell, key) is not None for cell in references)]

    def identity(cell: StoredCell) -> tuple:
        settings = (str(cell["config"].get(key)) for key in DATA_SETTINGS)
        return (cell["seed"], *settings, *(str(value_of(cell, key)) for key in axes))

    found: dict[tuple, list[StoredCell]] = {}
    for cell in references:
        found.setdefault(identity(cell), []).append(cell)
    return lambda cell: found.get(identity(cell), [])
