"""One run that no grid names: its config, resolved as that of a cell, and its images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config.resolve import resolve
from bench.config.schema import RunConfig, settings_of
from bench.errors import ConfigError
from bench.experiments.axis_values import validate_values
from bench.experiments.expansion import expand_alone
from bench.experiments.images import Images
from datasets import Dataset, DatasetInfo, of_labs, resized

_NAMED = ("dataset", "partition", "algorithm")  # what a setting must name; all else has a default


def prepare(
    config: RunConfig | Mapping[str, Any], data_dir: Path | None, mistakes: Sequence[str] = ()
) -> tuple[RunConfig, Dataset]:
    """The resolved config of one run, and its images.

    Args:
        config: settings and options as in a cell of a grid, which conditions of all grids apply to; or a complete config,
            canonical or not.
        mistakes: others of the user, raised together with those of the config.

    Raises:
        ConfigError: with all mistakes; those that are none of the images before these are opened.
        datasets.DataError: if there are no images, or damaged ones.
    """
    of_labs.look_in(data_dir)
    try:
        first = _resolve(config, None)
    except ConfigError as error:
        raise ConfigError([*mistakes, *error.mistakes]) from error
    if mistakes:
        raise ConfigError([*mistakes])
    images = resized.of_config(first, data_dir)
    facts = Images({first.dataset: images}, absent={}, substitutes={}, absent_weights={}).facts
    return _resolve(config, facts), images


def _resolve(config: RunConfig | Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None) -> RunConfig:
    """A config as `resolve` and `expand_alone` make it; arguments and errors as there."""
    if not isinstance(config, RunConfig | Mapping):
        raise ConfigError([f"A config is a RunConfig or a mapping of settings, but got {config!r}."])
    settings = config.canonical() if isinstance(config, RunConfig) else dict(config)
    if isinstance(settings.get("algorithm"), Mapping):
        return _resolve_complete(settings, facts)
    if settings.get("algorithm") == "centralized":
        settings.setdefault("partition", "none")
    if absent := [f"{key} is missing." for key in _NAMED if settings.get(key) is None]:
        raise ConfigError([*absent, *validate_values(None, settings)])
    return expand_alone(settings, facts)


def _resolve_complete(config: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None) -> RunConfig:
    """A config that has been resolved before; raises ConfigError if that was by other versions, with other numbers."""
    resolved = resolve(settings_of(config), facts)
    before = config.get("versions", resolved.versions)
    if before != resolved.versions:
        raise ConfigError(
            [
                f"The config is of the versions {before}, but those here are {resolved.versions}, whose numbers differ; "
                "leave versions out to train it with these."
            ]
        )
    return resolved
