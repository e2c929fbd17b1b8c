"""Grids: a YAML file of axes, conditions, tuning sets and budgets, expanded to the cells of a table.

The settings of a cell come from these layers, later ones winning: the grid's settings, the budget, the point on the axes,
the point of the method's tuning set, `--set`, and the conditions, which hold whatever the budget (centralized has one
client).
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from algorithms import REGISTRY
from bench import models, references
from bench.config.methods import is_method, options_of
from bench.config.resolve import LOCAL_LENGTHS, TWO_LENGTHS, resolve, weights_files, with_one_length, wrapped
from bench.config.schema import SETTINGS, RunConfig, run_id
from bench.config.unknown_settings import unknown_setting
from bench.errors import ConfigError, suggestion, unknown
from bench.experiments import grid_files
from bench.experiments.cells import Cell
from bench.experiments.grid_schema import PAPER, GridSpec, Reproduces
from bench.experiments.labels import UNWRAPPED
from bench.experiments.settings_schema import (
    MOST_CELLS,
    Budget,
    Condition,
    as_list,
    canonical_value,
    matches,
    require_few,
    without,
)
from bench.measurements.specs import Shown, probes_of
from datasets import DatasetInfo, partitions
from datasets.own_data import canonical_setting

_GENERAL = (*SETTINGS, "wrapper")  # settings of every cell; all others are options of methods


@dataclass(frozen=True)
class _Point:
    """One point on the axes and in the tuning sets, before the grid's conditions.

    Attributes:
        settings: settings and method options of the cell.
        choice: the point of its tuning sets.
        given: the overrides that apply to it.
    """

    settings: dict[str, Any]
    choice: dict[str, Any]
    given: frozenset[str]


@dataclass(frozen=True)
class Refused:
    """A point that makes no cell.

    Attributes:
        settings: settings and method options, as they were given; {} for mistakes of the whole grid.
        mistakes: sentences.
    """

    settings: Mapping[str, Any]
    mistakes: list[str]

    def setting(self, key: str) -> Any:
        """What `Cell.setting` would be; None if the point leaves it open."""
        value = self.settings.get(key)
        if isinstance(value, Mapping):
            return value.get("name")
        return canonical_setting(key, canonical_value(key, value))


def expand(
    grid: GridSpec,
    budget: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    missing: Collection[str] = (),
    missing_weights: Collection[str] = (),
    substitutes: Mapping[str, str] | None = None,
    facts: Mapping[str, DatasetInfo] | None = datasets.INFO,
    refused: list[Refused] | None = None,
) -> list[Cell]:
    """Every cell of a grid at a budget.

    Args:
        overrides: settings and method options that win over the grid and the budget (see `with_one_length`); an option goes
            to the methods that have it.
        seeds: replaces the seeds of grid and budget.
        missing: datasets whose images are not there.
        missing_weights: files with weights that are not there.
        substitutes: missing dataset -> the one that is used instead.
        facts: dataset -> what is known about it; None takes those of the complete datasets for the budgets, and leaves
            unchecked whether a cell fits its dataset.
        refused: gets the points with mistakes, which then stop nothing; None stops at them.

    Raises:
        ConfigError: with the mistakes of all cells.
    """
    if budget not in grid.budgets:
        raise ConfigError([unknown("budget", budget, grid.budgets)])
    overrides = with_one_length(overrides or {})
    replaced = {dataset: (substitutes or {}).get(dataset) for dataset in missing}
    cells: dict[tuple[str, str], Cell] = {}
    unknown_keys, of_file = _unknown_keys(grid), f"grid {grid.name}: "
    of_cell = of_file if grid.source and not overrides else ""  # else the command may be wrong
    of_grid = [of_file + line for line in (*_unknown_whens(grid), *unknown_keys.values())]
    wrong, used, methods = [Refused({}, of_grid)], set[str](), dict[str, None]()
    said_once = tuple(f"Unknown setting {key!r}" for key in unknown_keys)
    known = datasets.INFO if facts is None else facts
    for number, point in enumerate(_points(grid, budget, overrides, seeds, known)):
        if number == MOST_CELLS:
            raise ConfigError(
                [f"{grid.name}@{budget} has more than {MOST_CELLS:,} cells with the points of its tuning sets."]
            )
        used |= point.given - {"rounds"}
        methods |= dict.fromkeys(_methods(point.settings))
        settings = _with_conditions(grid.conditions, point.settings)
        fixed, info = {*grid.axes, *point.choice, *point.given}, _info(settings.get("dataset"), known)
        grid.budgets[budget].fit_to_clients(settings, fixed, info)
        try:
            cell = _cell(settings, facts, point.choice, replaced, grid.reproduces)
            cell = _without_weights(cell, missing_weights)
        except ConfigError as error:
            lines = (_second_length(grid, point) or line if line == TWO_LENGTHS else line for line in error.mistakes)
            mistakes = [of_cell + line for line in lines if not line.startswith(said_once)]
            wrong.append(Refused(settings, mistakes))
            # Of an unknown method, nobody knows whether the overrides are options.
            used |= {"rounds"} if _has_known_methods(settings) else overrides.keys()
            continue
        if "rounds" in point.given and cell.config.rounds == overrides["rounds"]:
            used.add("rounds")
        cells.setdefault((cell.dataset, cell.id), cell)
    wrong.append(Refused({}, _unused(overrides, used, methods, cells.values())))
    if mistakes := _wrong_probes(grid, cells.values()):
        wrong.append(Refused({}, [of_file + line for line in mistakes]))
    elif budget == grid.usual_budget and not overrides:  # others may have fewer rounds, and leave out what they lack
        wrong.append(Refused({}, [of_file + line for line in _figures_without_rounds(grid, cells.values())]))
    wrong = [point for point in wrong if point.mistakes]
    if refused is not None:
        refused += wrong
    elif wrong:
        raise ConfigError([line for point in wrong for line in point.mistakes])
    return list(cells.values())


def expand_alone(settings: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None) -> RunConfig:
    """The config of a run that no grid names, with the conditions of all grids and of the budget `paper`.

    Args:
        settings: settings and method options of the run; what they say, no condition changes.
        facts: as in `expand`.

    Raises:
        ConfigError: with all mistakes.
    """
    shared = grid_files.read_shared()
    conditions, budget = [Condition(**one) for one in shared["conditions"]], Budget(**shared["budgets"][PAPER])
    info = _info(settings.get("dataset"), datasets.INFO if facts is None else facts)
    own = {key: value for key, value in settings.items() if key in _GENERAL or key in _options(settings)}
    flat, cells, mistakes = dict(own), [], []
    if usual := datasets.usual_model(str(settings.get("dataset"))):
        flat.setdefault("model", usual)
    budget.apply(flat, fixed=own, axes=(), info=info, cell=_with_conditions(conditions, flat))
    try:
        cells.append(_cell(_with_conditions(conditions, flat), facts, {}, {}, None))
    except ConfigError as error:
        mistakes += error.mistakes
    if cells or _has_known_methods(settings):
        is_used = not cells or cells[0].config.rounds == settings.get("rounds")
        mistakes += _unused(settings, own.keys() - ([] if is_used else ["rounds"]), _methods(flat), cells)
    if mistakes:
        raise ConfigError(mistakes)
    return cells[0].config


def _info(dataset: Any, facts: Mapping[str, DatasetInfo]) -> DatasetInfo | None:
    """What is known about a dataset that a grid names, one of a user by its path or name."""
    if found := facts.get(str(dataset)):
        return found
    name = str(canonical_setting("dataset", dataset))
    return facts.get(name) or datasets.facts_of(name)


def _points(
    grid: GridSpec,
    budget_name: str,
    overrides: Mapping[str, Any],
    seeds: Sequence[int] | None,
    facts: Mapping[str, DatasetInfo],
) -> Iterator[_Point]:
    """Every combination of axes and tuning sets."""
    budget = grid.budgets[budget_name]
    axes = _axes(grid, budget_name, overrides, seeds)
    try:
        require_few(axes, f"{grid.name}@{budget_name}")
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    varied, options = axes.keys() - overrides.keys(), _options_of_all(grid)
    for values in itertools.product(*axes.values()):
        on_axes = grid.settings | dict(zip(axes, values, strict=True))
        foreign = options.difference(SETTINGS, _options(on_axes))  # of other methods of the grid
        base = without(on_axes, foreign)
        base |= {key: value for key, value in overrides.items() if key in _GENERAL}
        given = {key: value for key, value in overrides.items() if key in _GENERAL or key in _options(base)}
        dataset = base.get("dataset")
        if not isinstance(dataset, str):
            dataset = ""  # `resolve` refuses it
        if usual := datasets.usual_model(dataset):
            base.setdefault("model", usual)
        for choice in _choices(grid, budget, base | given):
            settings = base | choice | given
            fixed, cell = {*axes, *choice, *given}, _with_conditions(grid.conditions, settings)
            budget.apply(settings, fixed=fixed, axes=varied, info=_info(dataset, facts), cell=cell)
            yield _Point(without(settings, foreign), choice, frozenset(given))


def _axes(
    grid: GridSpec, budget: str, overrides: Mapping[str, Any], seeds: Sequence[int] | None
) -> dict[str, list[Any]]:
    """Axis -> values; the last one is the seed."""
    axes = {key: values for key, values in (grid.axes | grid.budgets[budget].axes).items() if key != "seed"}
    axes["seed"] = list(seeds or grid.seeds_at(budget))
    return {key: [overrides[key]] if key in overrides else values for key, values in axes.items()}


def _choices(grid: GridSpec, budget: Budget, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The points of the tuning sets that hold for the settings; {} where none does."""
    sets = [tuning.points(budget.tuning) for tuning in grid.tuning if matches(tuning.when, settings)]
    for points in itertools.product(*sets):
        yield {key: value for point in points for key, value in point.items()}


def _with_conditions(conditions: Iterable[Condition], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a point after the conditions of a grid, without options of a method that one of them has replaced."""
    flat = dict(settings)
    for condition in conditions:
        if matches(condition.when, flat):
            flat |= condition.set
    return without(flat, {*_options(settings)}.difference(SETTINGS, _options(flat)))


def _second_length(grid: GridSpec, point: _Point) -> str:
    """Why a point has both local epochs and steps, one of them set by the command and one by a condition; "" if it has not."""
    for own, other in (LOCAL_LENGTHS, LOCAL_LENGTHS[::-1]):
        for condition in grid.conditions if own in point.given and point.settings[own] is not None else ():
            if condition.set.get(other) is not None and matches(condition.when, point.settings):
                when = " and ".join(
                    f"{key} {' or '.join(map(str, as_list(value)))}" for key, value in condition.when.items()
                )
                return (
                    f"--set {own} cannot be used for {when}: a condition of the grid sets {other} there, which no --set "
                    "replaces; leave these cells out by --only, or change the condition."
                )
    return ""


def _cell(
    settings: Mapping[str, Any],
    facts: Mapping[str, DatasetInfo] | None,
    choice: Mapping[str, Any],
    replaced: Mapping[str, str | None],
    reproduces: Reproduces | None,
) -> Cell:
    """The cell with these settings.

    Args:
        replaced: missing dataset -> the one that is used instead, or None.

    Raises:
        ConfigError: with all mistakes of the settings.
    """
    dataset: Any = settings.get("dataset")
    is_missing = isinstance(dataset, str) and dataset in replaced
    substitute = replaced[dataset] if is_missing else None
    trained, config = _configs({**settings, "dataset": substitute} if substitute else settings, facts)
    counterpart = reproduces.variant_of(settings) if reproduces else None
    resolved = trained.algorithm | config.algorithm
    return Cell(
        dataset if is_missing else config.dataset,
        {key: resolved.get(key, getattr(trained, key, None)) for key in choice},
        config,
        run_id(config),
        missing=f"no data: {dataset}" if is_missing and not substitute else None,
        substitute=substitute,
        variant=counterpart.variant if counterpart else "",
        published_as=counterpart.algorithm if counterpart else "",
        wrapper=settings.get("wrapper", ""),
    )


def _without_weights(cell: Cell, missing: Collection[str]) -> Cell:
    """A cell that says which of its files with weights is not there, if it has images."""
    lacking = [name for name in weights_files(cell.config) if name in missing] if missing and not cell.missing else []
    return replace(cell, missing=f"no data: {Path(lacking[0]).name}") if lacking else cell


def _configs(settings: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None) -> tuple[RunConfig, RunConfig]:
    """The config of the method on the axis `algorithm`, and that of the wrapper around it; twice the same without one."""
    wrapper = settings.get("wrapper", "")
    options = {key: settings[key] for key in _wrapper_options(wrapper) if key in settings}
    trained = resolve(without(settings, {"wrapper", *options}), facts)
    if wrapper in ("", UNWRAPPED):
        return trained, trained
    return trained, wrapped(trained, {"name": wrapper, **options}, facts)


def _has_known_methods(settings: Mapping[str, Any]) -> bool:
    wrapper = settings.get("wrapper", "")
    return is_method(settings.get("algorithm")) and (wrapper in ("", UNWRAPPED) or is_method(wrapper))


def _unused(
    overrides: Mapping[str, Any], used: Collection[str], methods: Collection[str], cells: Iterable[Cell]
) -> list[str]:
    """One sentence for every override that no cell uses."""
    cells = list(cells)
    names = ", ".join(dict.fromkeys(cell.setting("algorithm") for cell in cells))
    around = {key: method for cell in cells for key, method in _options_of_base(cell.config).items()}
    mistakes = []
    for key in (key for key in overrides if key not in used):
        if key == "rounds":
            mistakes.append(f"rounds is not a setting of {names}, which has stages with rounds of their own.")
        elif key in around:
            name, base = around[key]["name"], around[key]["base"]["name"]
            mistakes.append(
                f"{key} is an option of {base}, the base of {name}; make {base} the algorithm and {name} its wrapper: "
                f"--algorithm {base} --set wrapper={name},{key}={overrides[key]}."
            )
        else:
            mistakes.append(unknown_setting(key, methods))
    return mistakes


def _wrong_probes(grid: GridSpec, cells: Iterable[Cell]) -> list[str]:
    """What is wrong with what figures want to measure on runs with the rounds of these cells."""
    mistakes = []
    for number, figure in enumerate(grid.report.figures):
        try:
            for rounds in {cell.config.rounds for cell in cells}:
                probes_of(figure, rounds)
        except ConfigError as error:
            mistakes += [f"report.figures.{number}: {mistake}" for mistake in error.mistakes]
    return mistakes


def _figures_without_rounds(grid: GridSpec, cells: Iterable[Cell]) -> list[str]:
    """One sentence for every figure that would measure something, but names no round which a cell has."""
    most, mistakes = max((cell.config.rounds for cell in cells), default=0), []
    for number, figure in enumerate(grid.report.figures):
        named = [*as_list(getattr(figure, "round", None)), *as_list(getattr(figure, "rounds", None))]
        rounds = [one for one in named if one is not None]
        if not most or type(figure).probes is Shown.probes or probes_of(figure, most):
            continue
        if rounds and all(isinstance(one, int) and one > most for one in rounds):
            mistakes.append(
                f"report.figures.{number}: {figure.kind} shows round {', '.join(map(str, rounds))}, but runs have {most} "
                "rounds; name one of these, or last."
            )
    return mistakes


def _options_of_base(config: RunConfig) -> dict[str, Mapping[str, Any]]:
    """Option of the method inside a wrapper -> the wrapper as a dict; {} without a wrapper."""
    base = config.algorithm.get("base")
    return dict.fromkeys(base.keys() - {"name"}, config.algorithm) if isinstance(base, Mapping) else {}


def _options(flat: Mapping[str, Any]) -> list[str]:
    """Options of a point's method, and of the wrapper around it."""
    own = options_of(flat["algorithm"]) if is_method(flat.get("algorithm")) else []
    return [*own, *_wrapper_options(flat.get("wrapper"))]


def _methods(flat: Mapping[str, Any]) -> list[str]:
    """A point's method, and the wrapper around it."""
    return [name for name in (flat.get("algorithm"), flat.get("wrapper")) if is_method(name)]


def _wrapper_options(wrapper: Any) -> list[str]:
    return [option for option in options_of(wrapper) if option != "base"] if is_method(wrapper) else []


def _options_of_all(grid: GridSpec) -> set[str]:
    """Options of the methods of a grid: on an axis or among the settings they go to the methods that have them."""
    named = [*grid.axes.get("algorithm", ()), grid.settings.get("algorithm"), *grid.axes.get("wrapper", ())]
    return {option for name in named if is_method(name) for option in options_of(name)}


def _unknown_keys(grid: GridSpec) -> dict[str, str]:
    """Key that is neither a setting nor an option of a method -> a sentence with its place in the grid."""
    parts: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "settings": (grid.settings, {}),
        "axes": (grid.axes, {}),
    }
    parts |= {f"conditions.{number}.set": (one.set, one.when) for number, one in enumerate(grid.conditions)}
    parts |= {f"tuning.{number}.options": (one.options, one.when) for number, one in enumerate(grid.tuning)}
    for name, budget in grid.budgets.items():
        parts[f"budgets.{name}.settings"] = (budget.settings, {})
        conditions = {f"budgets.{name}.conditions.{n}.set": one for n, one in enumerate(budget.conditions)}
        parts |= {place: (one.set, one.when) for place, one in conditions.items()}
    found: dict[str, str] = {}
    general = (grid.axes, grid.settings)
    around = tuple({key: value for key, value in part.items() if key != "algorithm"} for part in general)
    for place, (part, when) in parts.items():
        named = [
            name for given in (*(around if "algorithm" in when else general), when, part) for name in _named(given)
        ]
        known_names = [name for name in named if is_method(name)]
        if len(known_names) == len(named):  # else a key may be an option of a misspelt method
            options = {option for name in known_names for option in options_of(name)}
            for key in part.keys() - {*_GENERAL, *options} - found.keys():
                found[key] = f"{place}: {unknown_setting(key, list(dict.fromkeys(known_names)))}"
    return found


def _named(part: Mapping[str, Any]) -> list[str]:
    """The methods that a part of a grid names."""
    given = [part[key] for key in ("algorithm", "wrapper", "base") if key in part]
    values = [name for value in given for name in (value if isinstance(value, list) else [value])]
    return [name for name in values if isinstance(name, str) and name != UNWRAPPED]


def _misspelt(when: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on names of a condition that are near to known ones, of datasets, partitions and models."""
    for key, known in (("dataset", datasets.names()), ("model", [*models.REGISTRY, *models.REGISTRY.aliases])):
        for name in as_list(when.get(key, [])):
            if isinstance(name, str) and ":" not in name and name not in known and suggestion(name, known):
                yield unknown(key, name, known)
    for name in as_list(when.get("partition", [])):
        if isinstance(name, str) and not references.is_partition(name):
            try:
                partitions.parse(name)
            except ValueError as error:
                if not str(error).startswith("Unknown") or "Did you mean" in str(error):
                    yield str(error)


def _unknown_whens(grid: GridSpec) -> list[str]:
    whens = [condition.when for condition in grid.conditions] + [tuning.when for tuning in grid.tuning]
    whens += [condition.when for budget in grid.budgets.values() for condition in budget.conditions]
    whens.append(grid.save_when)
    keys = dict.fromkeys(key for when in whens for key in when)
    known = [*_GENERAL, *sorted(_options_of_all(grid))]
    # A method that is far from all names may be one of a lab whose folder is not in use.
    methods = dict.fromkeys(name for when in whens for name in _named(when) if not is_method(name))
    misspelt = [unknown("algorithm", name, REGISTRY) for name in methods if suggestion(name, REGISTRY)]
    misspelt += dict.fromkeys(sentence for when in whens for sentence in _misspelt(when))
    return [unknown("setting", key, known) for key in keys if key not in known] + misspelt
