"""Method objects from plain values and back."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

import algorithms
from bench.mistakes import ConfigError
from bench.names import unknown


def options_of(algorithm: str) -> list[str]:
    """Names of a method's options, in the order of its fields."""
    return [field.name for field in dataclasses.fields(algorithms.load(algorithm))]


def build(algorithm: str, options: Mapping[str, Any]):
    """A method object from plain values; a wrapper's base is given as `{"name": ..., options}`."""
    if algorithm not in algorithms.REGISTRY:
        raise ConfigError([unknown("algorithm", algorithm, algorithms.REGISTRY)])
    known = options_of(algorithm)
    wrong = [unknown(f"option of {algorithm}", key, known) for key in options if key not in known]
    if wrong:
        raise ConfigError(wrong)
    values = dict(options)
    for key, value in options.items():
        if isinstance(value, Mapping) and "name" in value:
            nested = dict(value)
            values[key] = build(nested.pop("name"), nested)
    return _adapter(algorithm).validate_python(values)


@functools.cache
def _adapter(algorithm: str) -> TypeAdapter:
    return TypeAdapter(algorithms.load(algorithm))


def describe_method(method) -> dict:
    """A method object as a dict: its registry name and every field, a wrapper's base nested in the same way."""
    names = {path.split(":")[1]: name for name, path in algorithms.REGISTRY.items()}
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {"name": names[type(method).__name__]} | {
        key: describe_method(value) if dataclasses.is_dataclass(value) else value for key, value in values.items()
    }
