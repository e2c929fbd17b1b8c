"""From what `tune` was asked for to a search, checked before anything runs."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import algorithms
import search_spaces
from bench import grid as grids
from bench.config import DEFAULT_VALIDATION_SHARE, RunConfig, with_options
from bench.grid_spec import single
from bench.mistakes import ConfigError
from bench.names import unknown
from bench.study import SCHEDULERS, SEARCHERS, VALIDATION, Search, stops_of
from reports.metrics import METRICS
from search_spaces import Parameter, Space

# What a search may change: how clients train, but not the problem, nor how much of it is trained.
_TRAINING = ("lr", "momentum", "weight_decay", "batch_size", "local_epochs", "local_steps", "last_batch")
_STAGES = ("encoder_rounds", "classifier_rounds")


def make_search(
    setting: Mapping[str, str],
    budget: str,
    overrides: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    space: str | None,
    searcher: str,
    scheduler: str,
    samples: int | None,
    metric: str | None,
    validation_share: float = DEFAULT_VALIDATION_SHARE,
) -> Search:
    """A search for one method in one setting.

    Args:
        setting: algorithm, dataset and partition.
        overrides: settings and method options that win over the budget.
        space: names of spaces or files, with commas; None for the method's own.
        metric: one of METRICS after "validation_"; None for what the method is usually judged by.

    Raises:
        ConfigError: with everything that is wrong.
    """
    mistakes = [
        unknown(kind, value, known)
        for kind, value, known in (("searcher", searcher, SEARCHERS), ("scheduler", scheduler, SCHEDULERS))
        if value not in known
    ]
    if samples is not None and samples < 1:
        mistakes.append(f"--samples must be at least 1, but got {samples}.")
    if setting["algorithm"] == "centralized":
        mistakes.append("centralized has no clients that could set validation data aside; search a federated method.")
    for key in ("split", "validation_share"):
        if key in overrides:
            mistakes.append(
                f"--set {key} has no place here: a search is on validation data, what follows it on test data."
            )
    if mistakes:
        raise ConfigError(mistakes)
    own = {key: value for key, value in overrides.items() if key != "test_examples"}  # which is about the final runs
    own |= {"split": VALIDATION, "validation_share": validation_share}
    cells = grids.expand(single(setting, list(seeds)), budget, overrides=own, seeds=list(seeds))
    configs = {cell.config.seed: cell.config for cell in cells}
    template = next(iter(configs.values()))
    name = template.algorithm["name"]
    found = search_spaces.merged((space or name).split(","))
    options = [key for key in template.algorithm if key not in ("name", "base", *_STAGES)]
    search_spaces.check(found, [*_TRAINING, *options], name)
    points = math.prod(len(parameter.grid) for parameter in found.values())
    if searcher == "grid" and samples is not None and samples < points:
        raise ConfigError(
            [
                f"The grid has {points} points, of which --samples {samples} would leave out a corner; leave --samples out, or "
                "take --searcher random."
            ]
        )
    if searcher != "grid" and samples is None:
        raise ConfigError([f"--searcher {searcher} needs --samples, the number of configurations to try."])
    method = algorithms.load(name)
    usual = "local_accuracy" if method.personal else "accuracy"
    mistakes = [
        *_impossible_values(template, found),
        *_wrong_metric(metric, method, name),
        *_too_early(scheduler, template),
    ]
    if mistakes:
        raise ConfigError(mistakes)
    return Search(configs, found, searcher, scheduler, (metric or usual).removeprefix("validation_"), samples)


def _impossible_values(template: RunConfig, space: Space) -> list[str]:
    """Why ends and values of a space are none for the method."""
    mistakes = []
    for key, parameter in space.items():
        for value in _values(parameter):
            if not isinstance(value, str | int | float | bool):
                mistakes.append(f"{key} must be searched among numbers or texts, but its grid has {value!r}.")
                continue
            try:
                with_options(template, {key: value})
            except ConfigError as error:
                mistakes += [f"The space of {key} has {value}: {line}" for line in error.mistakes]
    return mistakes


def _values(parameter: Parameter) -> list:
    ends = [] if parameter.low is None else [parameter.low, parameter.high]
    return list(itertools.chain(parameter.grid, ends))


def _wrong_metric(metric: str | None, method: type, name: str) -> list[str]:
    """Why no run of a method would report a metric."""
    known = [f"{VALIDATION}_{own}" for own in METRICS]
    if metric is None:
        return []
    if metric not in known:
        return [unknown("metric", metric, known)]
    reported = [own for own in known if (own == f"{VALIDATION}_accuracy") != method.personal]
    if metric in reported:
        return []
    what = "one model per client" if method.personal else "one shared model"
    return [f"{name} deploys {what}, so no run reports {metric}; choose {' or '.join(reported)}."]


def _too_early(scheduler: str, config: RunConfig) -> list[str]:
    """Why runs have no accuracy at the rounds at which a scheduler compares them."""
    method = algorithms.load(config.algorithm["name"])
    only_at_end = (method.personal or method.post_hoc) and not config.evaluate_every
    stages = hasattr(method, "encoder_rounds")
    name, every = config.algorithm["name"], config.evaluate_every or 1
    if scheduler == "none":
        return []
    first = stops_of(config.rounds, scheduler)[0]
    if not (only_at_end or stages):
        late = f"asha compares runs after round {first}, but they are evaluated every {every} rounds; lower evaluate_every."
        return [late] if every > first else []
    return [
        f"asha compares runs on their way, but {name} has no accuracy before its last rounds; use --scheduler none."
    ]
