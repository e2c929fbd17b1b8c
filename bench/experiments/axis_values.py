"""What is wrong with values of a grid's axes and settings, each by itself: for a grid whose file has mistakes, which has no
cells in which they would be found."""

from typing import Any

from bench.config.methods import is_method, options_of
from bench.config.resolve import read, wrappers
from bench.config.schema import SETTINGS
from bench.config.unknown_settings import unknown_setting
from bench.errors import ConfigError, unknown
from bench.experiments.labels import UNWRAPPED

# Settings that any value fits; images of a user have no usual model.
_PLAIN = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "iid", "model": "simple-cnn"}


def validate_values(axes: object, settings: object) -> list[str]:
    """One sentence per mistake.

    Args:
        axes, settings: as the file has them; what is no mapping, or no list of values, is left out.
    """
    given = {key: [value] for key, value in settings.items()} if isinstance(settings, dict) else {}
    if isinstance(axes, dict):
        given |= {key: values for key, values in axes.items() if isinstance(values, list)}
    named = [*given.get("algorithm", ()), *(name for name in given.get("wrapper", ()) if name != UNWRAPPED)]
    methods = [name for name in named if is_method(name)]
    options = {option for name in methods for option in options_of(name)}
    mistakes = []
    for key, values in given.items():
        if key in ("wrapper", *SETTINGS, *options):
            mistakes += [line for value in values for line in _validate_value(key, value, methods)]
        elif methods == named:  # else it may be an option of a method whose name is wrong
            mistakes.append(unknown_setting(key, methods))
    return mistakes


def _validate_value(key: str, value: Any, methods: list[str]) -> list[str]:
    if key == "wrapper":
        return [] if value in (UNWRAPPED, *wrappers()) else [unknown("wrapper", value, wrappers())]
    owners = [{}] if key in SETTINGS else [{"algorithm": name} for name in methods if key in options_of(name)]
    mistakes = []
    for owner in owners:
        try:
            read(_PLAIN | owner | {key: value})
        except ConfigError as error:
            mistakes += error.mistakes
    return mistakes
