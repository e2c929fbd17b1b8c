"""Method objects from plain values and back."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

import algorithms
from bench import plugins
from bench.errors import ConfigError, sentences, unknown

if TYPE_CHECKING:
    from algorithms.shared.base import Algorithm


def is_method(name: object) -> TypeGuard[str]:
    """Whether there is a method of that name."""
    return isinstance(name, str) and name in algorithms.REGISTRY


def options_of(algorithm: str) -> list[str]:
    """Names of a method's options, in the order of its fields."""
    return [field.name for field in dataclasses.fields(algorithms.load(algorithm))]


def defaults_of(algorithm: str) -> dict[str, Any]:
    """The options of a method that have a default."""
    fields = dataclasses.fields(algorithms.load(algorithm))
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return defaults | algorithms.presets(algorithm)


def build(algorithm: str, options: Mapping[str, Any]) -> "Algorithm":
    """A method object from plain values; a wrapper's base is given as `{"name": ..., options}`, or by its name alone.

    Raises:
        ConfigError: with everything that is wrong with the values.
    """
    if not is_method(algorithm):
        raise ConfigError([unknown("algorithm", algorithm, algorithms.REGISTRY) + plugins.hint()])
    known = options_of(algorithm)
    wrong = [unknown(f"option of {algorithm}", key, known) for key in options if key not in known]
    if wrong:
        raise ConfigError(wrong)
    hints = _hints(algorithm)
    nested = {
        key: build(value["name"], {option: value[option] for option in value if option != "name"})
        for key, value in ((key, _spelled_out(value, hints[key])) for key, value in options.items())
        if isinstance(value, Mapping) and "name" in value
    }
    try:
        checked = _fields(algorithm)(**{**options, **nested})
        return algorithms.make(algorithm, **{key: getattr(checked, key) for key in options})
    except ValidationError as error:
        raise ConfigError([f"{algorithm}: {line}" for line in sentences(error)]) from error
    except ValueError as error:
        named = str(error).startswith(f"{algorithm} ")
        raise ConfigError([str(error) if named else f"{algorithm}: {error}"]) from error


def _spelled_out(value: Any, hint: Any) -> Any:
    """A method that is given by its name alone, as a mapping; all else as it is."""
    from algorithms.shared.base import Algorithm  # imports torch

    return {"name": value} if hint is Algorithm and isinstance(value, str) else value


def describe_method(method: Any) -> dict[str, Any]:
    """A method object as a dict: its registry name and every field, a wrapper's base nested in the same way."""
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {"name": algorithms.name_of(method)} | {
        key: describe_method(value) if dataclasses.is_dataclass(value) else value for key, value in values.items()
    }


def named_models(config: Any) -> list[str]:
    """Names of the models that the method of a `bench.config.schema.RunConfig` names for clients to train, each once."""
    return list(dict.fromkeys(_named_models(json.dumps(config.algorithm))))


@functools.cache  # a grid asks for each of its cells, and many have one method
def _named_models(algorithm: str) -> tuple[str, ...]:
    options = json.loads(algorithm)
    return build(options.pop("name"), options).named_models


def versions_of(method: Any, buffers: bool, path: str = "algorithm") -> dict[str, int]:
    """The version of a method under "algorithm", and of those that it wraps under "algorithm.base" and so on.

    Args:
        buffers: whether the model that it trains has some (see `bench.models.has_buffers`).
    """
    versions = {path: method.version_with(buffers)}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if dataclasses.is_dataclass(value):
            versions |= versions_of(value, buffers, f"{path}.{field.name}")
    return versions


@functools.cache
def _hints(algorithm: str) -> dict[str, Any]:
    return get_type_hints(algorithms.load(algorithm))


@functools.cache
def _fields(algorithm: str) -> type[BaseModel]:
    """The types of a method's options, strict (but 1 is a number); a field typed `Algorithm` takes a method object."""
    hints, defaults = _hints(algorithm), defaults_of(algorithm)
    fields: dict[str, Any] = {name: (hints[name], defaults.get(name, ...)) for name in options_of(algorithm)}
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(algorithm, __config__=config, **fields)
