"""Values of axes in the layout of a table, as cells have them: what it calls them, and what it leaves out or compares."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import references
from bench.config.methods import is_method
from bench.experiments.axis_values import methods_named, resolved_value
from bench.experiments.labels import HEADINGS
from bench.experiments.report_schema import Layout

_COMPARED = ("gains_over", "reference", "against", "improvement_over")


def resolved(layout: Layout, axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]) -> Layout:
    """A layout with values of axes as cells have them: references in place of paths, and numbers and partitions as they are
    resolved.

    Args:
        axes, settings: of the grid.
    """
    methods = [name for name in methods_named(axes, settings) if is_method(name)]
    before = layout.model_dump()
    after = _mapped(before, lambda key, value: resolved_value(key, value, methods))
    for part in _COMPARED:
        after[part] = {key: resolved_value(key, value, methods) for key, value in after[part].items()}
    conditions = [note["when"] for note in after["notes"] if isinstance(note, dict)]
    if after["printed"]:
        conditions.append(after["printed"]["without"])
    for of_axes in conditions:
        of_axes |= {key: [resolved_value(key, one, methods) for one in ids] for key, ids in of_axes.items()}
    for part in filter(None, (after, after["printed"])):
        part["names"] = {
            key: ids if key == HEADINGS else {_text(key, id, methods): name for id, name in ids.items()}
            for key, ids in part["names"].items()
        }
    if json.dumps(after, default=str) == json.dumps(before, default=str):  # 1 is not 1.0 here
        return layout
    return Layout.model_validate(after, context={"axes": [*axes, *layout.rows, layout.columns]})


def _text(key: str, id: str, methods: list[str]) -> str:
    """The text of a value that YAML may have read as a number."""
    value: Any = id
    for number in (int, float):
        with contextlib.suppress(ValueError):
            value = number(id)
            break
    return str(resolved_value(key, value, methods))


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
    if not (references.is_dataset(value) or references.is_partition(value)):
        return value
    kind = value.partition(":")[0]
    return references.make(kind, references.name_of(value), "").name
