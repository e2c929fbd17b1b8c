"""Datasets and partitions of users in the layout of a table: what it calls them, and what it leaves out or compares."""

from collections.abc import Callable, Mapping
from typing import Any

from bench import references
from bench.experiments.labels import HEADINGS
from bench.experiments.report_schema import Layout
from datasets.own_data import canonical_setting


def in_references(layout: Layout) -> Layout:
    """A layout with references in place of paths, as cells have them."""
    before = layout.model_dump()
    after = _mapped(before, canonical_setting)
    return layout if after == before else Layout.model_validate(after)


def with_names_of_data(layout: Mapping[str, Any]) -> Any:
    """A layout in JSON with the names for people of datasets and partitions in place of paths and references."""
    return _mapped(layout, _name)


def _mapped(part: Any, of: Callable[[str, Any], Any]) -> Any:
    """A part of a layout with other datasets and partitions: as values of an axis, or as what is named by one."""
    if isinstance(part, list | tuple):
        return type(part)(_mapped(one, of) for one in part)
    if not isinstance(part, Mapping):
        return part
    found = {}
    for key, value in part.items():
        if key not in ("dataset", "partition"):
            found[key] = value if key == HEADINGS else _mapped(value, of)  # there, texts are titles of axes
        elif isinstance(value, Mapping):
            found[key] = {of(key, one): what for one, what in value.items()}
        else:
            found[key] = [of(key, one) for one in value] if isinstance(value, list) else of(key, value)
    return found


def _name(axis: str, value: Any) -> Any:
    if not (references.is_dataset(value) or references.is_partition(value) or references.read(value)):
        return value
    kind = value.partition(":")[0]
    return references.make(kind, references.name_of(value), "").name
