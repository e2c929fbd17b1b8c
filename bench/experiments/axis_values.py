"""What is wrong with values of a grid's axes and settings, each by itself: for a grid whose file has mistakes, which has no
cells in which they would be found."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.config.methods import is_method, options_of
from bench.config.resolve import read, wrappers
from bench.config.schema import SETTINGS
from bench.config.unknown_settings import unknown_setting
from bench.errors import ConfigError, suggestion, unknown
from bench.experiments.labels import UNWRAPPED
from bench.references import is_partition
from datasets.own_data import canonical_setting

# Settings that any value fits; images of a user have no usual model.
_PLAIN = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "iid", "model": "simple-cnn"}


def methods_named(axes: object, settings: object) -> list[Any]:
    """What a grid names as methods and as wrappers; arguments as of `validate_values`."""
    given = _values(axes, settings)
    return [*given.get("algorithm", ()), *(name for name in given.get("wrapper", ()) if name != UNWRAPPED)]


def _values(axes: object, settings: object) -> dict[str, list[Any]]:
    given = {key: [value] for key, value in settings.items()} if isinstance(settings, Mapping) else {}
    if isinstance(axes, Mapping):
        given |= {key: values for key, values in axes.items() if isinstance(values, list)}
    return {key: values for key, values in given.items() if isinstance(key, str)}


def validate_values(axes: object, settings: object) -> list[str]:
    """One sentence per mistake.

    Args:
        axes, settings: as the file has them; what is no mapping, no text as a name, or no list of values, is left out.
    """
    given, named = _values(axes, settings), methods_named(axes, settings)
    methods = [name for name in named if is_method(name)]
    options = {option for name in methods for option in options_of(name)}
    mistakes = []
    for key, values in given.items():
        if key in ("wrapper", *SETTINGS, *options):
            mistakes += [line for value in values for line in _validate_value(key, value, methods)]
        elif methods == named or suggestion(key, SETTINGS):  # else it may be an option of a method whose name is wrong
            mistakes.append(unknown_setting(key, methods))
    return mistakes


def resolved_value(key: str, value: Any, methods: Iterable[str]) -> Any:
    """A value of an axis as cells have it: 1.0 for a participation of 1, "dir-0.5" for dir-0.50; one that cannot be used as it
    is: that is said where cells are made.

    Args:
        methods: of the grid, one of which may have the option.
    """
    if key == "dataset" or (key == "partition" and is_partition(value)):
        return canonical_setting(key, value)
    if key in ("algorithm", "wrapper", "seed"):
        return value
    for owner in _owners(key, methods):
        try:
            config, _ = read(_PLAIN | owner | {key: value})
        except ConfigError:
            continue
        return getattr(config, key, config.algorithm.get(key, value))
    return value


def _validate_value(key: str, value: Any, methods: list[str]) -> list[str]:
    if key == "wrapper":
        return [] if value in (UNWRAPPED, *wrappers()) else [unknown("wrapper", value, wrappers())]
    mistakes = []
    for owner in _owners(key, methods):
        try:
            read(_PLAIN | owner | {key: value})
        except ConfigError as error:
            mistakes += error.mistakes
    return mistakes


def _owners(key: str, methods: Iterable[str]) -> list[dict[str, str]]:
    """With what a key makes a config: with any method if it is a setting, else with those that have the option."""
    return [{}] if key in SETTINGS else [{"algorithm": name} for name in methods if key in options_of(name)]
