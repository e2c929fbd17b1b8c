"""From cells of a grid to the searches that choose their hyper-parameters, checked before anything runs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import search_spaces
from algorithms.shared.base import Algorithm
from bench.config.methods import options_of
from bench.config.resolve import LOCAL_LENGTHS, base_of, resolve, with_options
from bench.config.schema import RunConfig, settings_of
from bench.errors import ConfigError, unknown
from bench.experiments import accuracies
from bench.experiments.cells import Cell
from bench.experiments.cost import refusals
from bench.experiments.settings_schema import Tuning, matches
from bench.experiments.spec import OWN, SETS, VALIDATION, TuningOptions
from bench.results.metrics import ACCURACIES
from bench.simulation.build import build_algorithm
from bench.tuning.search import Search, stops_of
from datasets import partitions
from search_spaces import Parameter, Space

# What a search may change: how clients train, but not the problem, nor the number of rounds.
_TRAINING = (
    "lr",
    "lr_decay",
    "momentum",
    "weight_decay",
    "max_gradient_norm",
    "batch_size",
    "local_epochs",
    "local_steps",
    "last_batch",
)
_STAGES = ("encoder_rounds", "classifier_rounds")


def make_searches(
    cells: Iterable[Cell],
    layout: Mapping[str, Any],
    tuning: TuningOptions,
    fixed: Collection[str] = (),
    sets: Sequence[Tuning] = (),
) -> dict[str, Search]:
    """A search for each table cell, or each of its studies, whose method has something to search.

    Args:
        cells: of the split "test", one for each table cell and seed.
        layout: of the report, which says what belongs to one table cell.
        fixed: settings and options that are not searched, because the table shows them or the user has set them.
        sets: tuning sets of the grid, which the space SETS stands for.

    Returns:
        Place of cells (see `TuningOptions.place`) -> search. Among tuning sets, what is wrapped by a method
        that calibrates is searched without it: cells of one base have equal searches, of one name, and share their choice.

    Raises:
        ConfigError: with everything that is wrong.
    """
    tuning.validate()
    by_key: dict[str, list[Cell]] = {}
    cells = [*cells]
    there = {method for cell in cells for method in _methods_of(cell)}
    if absent := [method for method in tuning.spaces_of_methods if cells and method not in there]:
        raise ConfigError([f"--space names a space of {absent[0]}, but only {', '.join(sorted(there))} are searched."])
    for cell in cells:
        by_key.setdefault(tuning.place(cell, layout), []).append(cell)
    found, mistakes = {}, []
    for key, members in by_key.items():
        try:
            space = _space_of(members[0], tuning, fixed, sets)
            if space:
                found[key] = _search(members, space, tuning)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(mistakes)
    return found


def on_validation(config: RunConfig, share: float, seed: int | None = None) -> RunConfig:
    """The config of a run on validation data, without test examples unless they are dealt with the others.

    Args:
        seed: replaces that of the config.
    """
    settings = settings_of(config)
    if not _has_own_tests(config):
        settings["test_examples"] = None
    own_seed = {} if seed is None else {"seed": seed}
    return resolve(settings | {"split": VALIDATION, "validation_share": share} | own_seed, facts=None)


def _has_own_tests(config: RunConfig) -> bool:
    """Whether clients have test data of their own."""
    return partitions.parse(config.partition).has_own_tests


def _space_of(cell: Cell, tuning: TuningOptions, fixed: Collection[str], sets: Sequence[Tuning]) -> Space:
    """Where the hyper-parameters of a cell's method are searched.

    "own" are those of its method; where a table shows the method as a wrapper around another one, those of the other one, too.
    They win over those of "training", and a user's file wins over both (see `search_spaces.combined`). A method without a space
    of its own has no options to search: "own,training" are then the training settings alone. "sets" are the points of the
    tuning sets that hold for the cell, of which there may be none.
    """
    method = cell.config.algorithm
    name = method["name"]
    if name == "centralized":
        mistake = (
            "centralized has no clients that could set validation data aside; search a federated method (in a grid: --only "
            "algorithm=NAME|NAME)."
        )
        raise ConfigError([mistake])
    own = _own_spaces(cell, tuning)
    if tuning.spaces == [OWN] and not own:
        raise ConfigError(
            [
                f"{name} has no search space: write search_spaces/{name}.yaml, or give --space {name}=FILE.yaml, or --space "
                "training."
            ]
        )
    parts = {OWN: search_spaces.merged(own), SETS: _points_of(cell, sets)}
    known = ((part, parts[part] if part in parts else search_spaces.load(part)) for part in tuning.spaces)
    space = search_spaces.combined(known)
    base = method.get("base")
    inside = base if isinstance(base, Mapping) else {}
    options = [key for key in {**method, **inside} if key not in ("name", "base", *_STAGES)]
    search_spaces.check(space, [*_TRAINING, *options], name)
    return {key: parameter for key, parameter in space.items() if key not in fixed}


def _own_spaces(cell: Cell, tuning: TuningOptions) -> list[str]:
    """The spaces, or files, of the methods whose options a cell searches; none of methods without one."""
    spaces = {name: name for name in search_spaces.names()} | tuning.spaces_of_methods
    return [spaces[method] for method in _methods_of(cell) if method in spaces]


def _methods_of(cell: Cell) -> list[str]:
    """The method of a cell, behind the one that it wraps where the table shows it as a wrapper."""
    method = cell.config.algorithm
    return [method["base"]["name"], method["name"]] if cell.is_wrapped else [method["name"]]


def unsearched(
    cells: Iterable[Cell],
    searches: Mapping[str, Search],
    layout: Mapping[str, Any],
    tuning: TuningOptions,
    fixed: Collection[str] = (),
) -> list[str]:
    """A sentence for each method that has options and no space of its own, so that none of them is searched.

    Args:
        cells, layout, fixed: as in `make_searches`.
        searches: what that returned.
    """
    if OWN not in tuning.spaces:
        return []
    found, spaces = {}, {*search_spaces.names(), *tuning.spaces_of_methods}
    for cell in cells:
        search = searches.get(tuning.place(cell, layout))
        for method in _methods_of(cell) if search else ():
            options = [key for key in options_of(method) if key not in ("base", *_STAGES, *fixed)]
            if search and options and method not in spaces and not {*options} & search.space.keys():
                verb = "are" if len(search.space) > 1 else "is"
                found[method] = (
                    f"Only {' and '.join(search.space)} of {method} {verb} searched, which has no search space for "
                    f"{', '.join(options)}: write search_spaces/{method}.yaml, or give --space {method}=FILE.yaml."
                )
    return [*found.values()]


def _points_of(cell: Cell, sets: Iterable[Tuning]) -> Space:
    """The values of tuning sets that hold for a cell, of options that have several."""
    space: Space = {}
    for tuning in sets:
        if matches(tuning.when, {key: cell.setting(key) for key in {"algorithm", *tuning.when}}):
            several = {key: values for key, values in tuning.options.items() if len(values) > 1}
            space |= {
                key: Parameter(grid=values, source="the tuning set of the grid") for key, values in several.items()
            }
    return space


def _searched_run(cell: Cell, space: Space, tuning: TuningOptions) -> RunConfig:
    """The run whose hyper-parameters are searched for a cell: its own, or that of the method around which it calibrates."""
    method = build_algorithm(cell.config.algorithm)
    calibrates = cell.is_wrapped and method.post_hoc and not method.personal
    own = cell.config.algorithm.keys() - {"base"}
    base = base_of(cell.config) if tuning.spaces == [SETS] and calibrates and not own & space.keys() else None
    return base or cell.config


def _search(cells: Sequence[Cell], space: Space, tuning: TuningOptions) -> Search:
    seeds = tuning.search_seeds or [cell.config.seed for cell in cells]
    if study := tuning.study_of(cells[0].config.seed):
        seeds = [tuning.search_seed_of(study)]
    own = {cell.config.seed: _searched_run(cell, space, tuning) for cell in cells}
    any_seed = next(iter(own.values()))
    configs = {seed: on_validation(own.get(seed, any_seed), tuning.validation_share, seed) for seed in sorted(seeds)}
    template = next(iter(configs.values()))
    points = math.prod(len(parameter.grid) for parameter in space.values())
    mistakes = []
    if tuning.searcher == "grid" and tuning.samples is not None and tuning.samples < points:
        mistakes.append(
            f"The grid has {points} points, more than --samples {tuning.samples}, all of which are tried; leave --samples out, "
            "or take --searcher random."
        )
    method = build_algorithm(template.algorithm)
    reported = accuracies.reported(template, method)
    mistakes += [
        *_validate_space(template, space, tuning.searcher),
        *_wrong_metric(tuning.metric, reported, method, template),
        *_too_early(tuning.scheduler, template, method),
    ]
    if mistakes:
        raise ConfigError(mistakes)
    metric = (tuning.metric or reported[0]).removeprefix(f"{VALIDATION}_")
    how = tuning.searcher, tuning.scheduler, metric, tuning.samples
    return Search(configs, space, *how, warm_start=not tuning.compares, of_study=bool(tuning.studies))


def _validate_space(template: RunConfig, space: Space, searcher: str) -> list[str]:
    """Why the method cannot have the ends or values of a space."""
    mistakes: list[str] = []
    if space.keys() >= {*LOCAL_LENGTHS}:
        mistakes.append("local_epochs and local_steps are searched together, but a run has one of them; leave one out.")
    possible: dict[str, list[Any]] = {key: [] for key in space}
    for key, parameter in space.items():
        for value in _values(parameter, searcher):
            if not isinstance(value, str | int | float | bool):
                mistakes.append(f"{key} must be searched among numbers or texts, but its grid has {value!r}.")
                continue
            try:
                with_options(template, {key: value})
                possible[key].append(value)
            except ConfigError as error:
                mistakes += [f"The space of {key} has {value}: {line}" for line in error.mistakes]
    return mistakes + _refused_models(template, possible)


def _refused_models(template: RunConfig, values: Mapping[str, Sequence[Any]]) -> list[str]:
    """Why the method cannot have the model with some values, or with any of them. The template's own value of what is searched
    may be an impossible one: no configuration needs to have it."""
    base = template
    for key, tried in values.items():
        base = next((config for value in tried if not refusals([config := _varied(base, key, value)])), base)
    if refused := refusals([base]):
        return refused
    varied = [(key, value, _varied(base, key, value)) for key, tried in values.items() for value in tried]
    return [f"The space of {key} has {value}: {line}" for key, value, config in varied for line in refusals([config])]


def _varied(config: RunConfig, key: str, value: Any) -> RunConfig:
    """A config with another value of a hyper-parameter, or as it was where that does not go with its other values."""
    try:
        return with_options(config, {key: value})
    except ConfigError:
        return config


def _values(parameter: Parameter, searcher: str) -> list[Any]:
    """All values of a grid, or the ends of a range."""
    return parameter.grid if searcher == "grid" or parameter.low is None else [parameter.low, parameter.high]


def _wrong_metric(metric: str | None, reported: list[str], method: Algorithm, config: RunConfig) -> list[str]:
    """Why no run of a method reports a metric."""
    known = [f"{VALIDATION}_{own}" for own in ACCURACIES]
    if metric is None:
        return []
    if metric not in known:
        return [unknown("metric", metric, known)]
    choices = [own for own in known if own.removeprefix(f"{VALIDATION}_") in reported]
    if metric in choices:
        return []
    what = accuracies.deployed(config, method)
    if _has_own_tests(config) or "own_accuracy" in metric:
        has = "has" if _has_own_tests(config) else "does not have"
        what = f"Each client of {config.partition} {has} test data of its own"
    return [f"{what}, so no run reports {metric}; choose {' or '.join(choices)}."]


def _too_early(scheduler: str, config: RunConfig, method: Algorithm) -> list[str]:
    """Why runs have no accuracy at the rounds at which a scheduler compares them."""
    if scheduler == "none":
        return []
    name, first = config.algorithm["name"], stops_of(config.rounds, scheduler)[0]
    every = config.evaluate_every or (config.rounds if method.personal or method.post_hoc else 1)
    if config.evaluate_every and every > first:
        return [
            f"asha compares runs after round {first}, but they are evaluated every {every} rounds; lower evaluate_every."
        ]
    evaluated = (round for round in range(1, config.rounds) if round % every == 0)
    earliest = next((round for round in evaluated if method.has_model(config, round)), config.rounds)
    if earliest <= first:
        return []
    return [
        f"asha compares runs after round {first}, but {name} has no accuracy before round {earliest}; "
        "use --scheduler none."
    ]
