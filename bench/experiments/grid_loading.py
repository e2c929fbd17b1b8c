"""From grid files to checked grids."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bench import references
from bench.config.parts import Part
from bench.errors import ConfigError, sentences, unknown
from bench.experiments import grid_files
from bench.experiments.axis_values import validate_values
from bench.experiments.grid_schema import FULL, PAPER, GridSpec, Reproduces, Variant
from bench.experiments.labels import ABSENT, HEADINGS
from bench.experiments.names_schema import Printed
from bench.experiments.report_schema import Layout
from bench.experiments.settings_schema import Budget, Condition, Tuning
from bench.files import file_name
from datasets.own_data import canonical_setting

_RENAMED = {"mirrors": "reproduces", "value": "rounds_shown"}  # keys of a grid, of its report: once -> now


def load_grid(name: str) -> GridSpec:
    """The grid of that name, or of that YAML file.

    Raises:
        ConfigError: if there is none, or with everything that is wrong in the file.
    """
    try:
        content, path = grid_files.read(name), grid_files.find(name)
    except FileNotFoundError as error:
        raise ConfigError([f"There is no grid file {name}."]) from error
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    return make_grid(path.stem, content, source="" if grid_files.is_ours(name) else str(path.absolute()))


def single(settings: Mapping[str, Any], seeds: list[int], overrides: Mapping[str, Any] | None = None) -> GridSpec:
    """A grid of one setting: algorithm, dataset and partition as on the command line. Where `overrides` name a wrapper or a
    base, the table shows it: the method is another one."""
    named = {key: canonical_setting(key, settings[key]) for key in ("dataset", "partition", "algorithm")}
    axes = {key: [value] for key, value in named.items()}
    name = "-".join(references.in_file_names(str(named[key])) for key in ("algorithm", "dataset", "partition"))
    content: dict[str, Any] = {"title": name, "axes": axes | {"seed": seeds}}
    if nested := {key: [value] for key, value in (overrides or {}).items() if key in ("wrapper", "base")}:
        content["axes"] |= nested
        content["report"] = {"rows": [*Layout.model_fields["rows"].default, *nested]}
    return make_grid(file_name(name), content)


def make_grid(name: str, content: Mapping[str, Any], source: str = "") -> GridSpec:
    """A grid from the content of its file and what all grids share."""
    shared, own = grid_files.read_shared(), _extended(name, dict(content))
    given = {"budgets": own.get("budgets") or {}, "conditions": own.get("conditions") or []}
    if isinstance(given["budgets"], dict):  # other shapes are for the checks below
        parts = {budget: part for budget, part in given["budgets"].items() if isinstance(part, dict)}
        merged = {budget: shared["budgets"].get(budget, {}) | part for budget, part in parts.items()}
        budgets = shared["budgets"] | given["budgets"] | merged
        if PAPER in budgets and not own.get("reproduces") and (source or not grid_files.is_ours(name)):
            budgets = {FULL: budgets[PAPER]} | budgets
        given["budgets"] = {budget: part for budget, part in budgets.items() if part is not None}
    if isinstance(given["conditions"], list):
        given["conditions"] = [*shared["conditions"], *given["conditions"]]
    context = {"axes": [key for part in ("axes", "settings") if isinstance(own.get(part), dict) for key in own[part]]}
    try:
        return GridSpec.model_validate(own | given | {"name": name, "source": source}, context=context)
    except ValidationError as error:
        mistakes = [
            *sentences(error, _keys_beside, _RENAMED, located=True),
            *validate_values(own.get("axes"), own.get("settings")),
        ]
        raise ConfigError([f"grid {name}: {line}" for line in mistakes]) from error


def _extended(name: str, content: dict, above: tuple[str, ...] = ()) -> dict:
    """The content of a grid file on top of that of the grid that it extends: settings, budgets, reproduces and report are
    merged key by key, all else is replaced. Methods of the paper that its own axis leaves out are left out of that, and
    names of such values out of its report, which does not inherit how another table is printed. A budget that is null
    here is left out.

    Args:
        above: grids that are about to be extended by way of this one.
    """
    if "extends" not in content:
        return content
    extended = content.pop("extends")
    if extended not in grid_files.names():
        raise ConfigError([f"grid {name}: extends: {unknown('grid', extended, grid_files.names())}"])
    if extended in above:
        raise ConfigError(
            [f"grid {name}: extends: {extended} would extend itself; name a grid that does not extend this one."]
        )
    base = _extended(extended, dict(grid_files.read(extended)), (*above, extended))
    axes = content.get("axes", base.get("axes"))
    if isinstance(base.get("report"), dict) and isinstance(axes, dict):  # other shapes are for the checks
        base["report"] = _inherited(base["report"], content.get("report"), axes)
    merged = ("settings", "budgets", "reproduces", "report")
    both = {key for key in merged if isinstance(content.get(key), dict) and isinstance(base.get(key), dict)}
    grid = base | {key: base[key] | value if key in both else value for key, value in content.items()}
    if "reproduces" in both or "reproduces" not in content:
        grid["reproduces"] = _with_own_columns(grid, content.get("reproduces", {}))
    return grid


def _inherited(layout: dict, own: Any, axes: dict) -> dict:
    """What a grid with these axes, and with a report of its own, inherits of a report."""
    inherited, names = {key: value for key, value in layout.items() if key != "printed"}, layout.get("names")
    if not (isinstance(names, dict) and all(isinstance(given, dict) for given in names.values())):
        return inherited  # for the checks
    shows = layout | (own if isinstance(own, dict) else {})
    rows, columns = (shows.get(key, Layout.model_fields[key].default) for key in ("rows", "columns"))
    shown = [*(rows if isinstance(rows, list) else []), columns]
    values = {axis: axes[axis] for axis in axes if axis in shown and isinstance(axes[axis], list)} | {HEADINGS: shown}
    kept = {
        axis: {id: name for id, name in given.items() if str(id) in map(str, [*values[axis], ABSENT])}
        for axis, given in names.items()
        if axis in values
    }
    return inherited | {"names": kept}


def _with_own_columns(grid: dict, given: dict) -> dict | None:
    """`reproduces` of an extending grid: of the columns that it inherits those that its own axis has."""
    reproduces, axes, layout = (grid.get(key) or {} for key in ("reproduces", "axes", "report"))
    if not all(isinstance(part, dict) for part in (reproduces, axes, layout)):
        return reproduces or None  # for the checks
    columns = layout.get("columns", Layout.model_fields["columns"].default)
    known = axes.get(columns) if isinstance(columns, str) else None
    inherited = {key: reproduces[key] for key in ("own", "baselines") if key in reproduces and key not in given}
    if isinstance(known, list):
        lists = {key: names for key, names in inherited.items() if isinstance(names, list)}
        reproduces |= {key: [name for name in names if name in known] for key, names in lists.items()}
    return reproduces or None


def _keys_beside(location: tuple[str | int, ...]) -> list[str]:
    """Valid keys of the part of a grid file that has an unknown one."""
    part: type[Part] = GridSpec
    nested: dict[str, type[Part]] = {
        "conditions": Condition,
        "tuning": Tuning,
        "budgets": Budget,
        "report": Layout,
        "printed": Printed,
        "reproduces": Reproduces,
        "variants": Variant,
    }
    for key in location[:-1]:
        part = nested.get(str(key), part)
    return list(part.model_fields)
