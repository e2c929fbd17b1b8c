"""Method objects, and callbacks, from plain values and back."""

import contextlib
import dataclasses
import functools
import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator

import algorithms
from bench.config.parts import require_defaults
from bench.config.schema import LARGEST, SETTINGS
from bench.errors import ConfigError, sentences, unknown
from bench.hooks import own_options, require_hooks
from bench.registry import Entry, Registry, hint

if TYPE_CHECKING:
    from algorithms.shared.base import Algorithm

CALLBACKS = Registry("callback")
_LARGEST_COUNT = 2**63 - 1  # in whole numbers, of 64 bits


class _Options(BaseModel):
    """The options of a method or callback, strict (but 1 is a number)."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=())

    @field_validator("*")
    @classmethod
    def _fits_into_tensors(cls, value: Any, info: ValidationInfo) -> Any:
        most = _LARGEST_COUNT if isinstance(value, int) else LARGEST
        if isinstance(value, int | float) and most < abs(value) < math.inf:
            raise ValueError(f"{info.field_name} must be between -{most:g} and {most:g}, but got {value}.")
        return value


def is_method(name: object) -> TypeGuard[str]:
    """Whether there is a method of that name."""
    return isinstance(name, str) and name in algorithms.REGISTRY


def options_of(algorithm: str) -> list[str]:
    """Names of a method's options, in the order of its fields."""
    return [field.name for field in dataclasses.fields(algorithms.load(algorithm))]


def defaults_of(algorithm: str) -> dict[str, Any]:
    """The options of a method that have a default."""
    return _defaults(algorithms.load(algorithm)) | algorithms.presets(algorithm)


def build(algorithm: str, options: Mapping[str, Any]) -> "Algorithm":
    """A method object from plain values; a wrapper's base is given as `{"name": ..., options}`, or by its name alone.

    Raises:
        ConfigError: with everything that is wrong with the values.
    """
    if not is_method(algorithm):
        raise ConfigError([unknown("algorithm", algorithm, algorithms.REGISTRY) + hint("algorithm")])
    known = options_of(algorithm)
    if both := [key for key in known if key in SETTINGS]:
        entry = algorithms.REGISTRY.find(algorithm)
        raise ConfigError(
            [
                f"{entry.target} in {entry.place} has an option called {key}, but a setting of all methods has this name: "
                "rename the option, or use the setting; view.settings has those of training."
                for key in both
            ]
        )
    wrong = [unknown(f"option of {algorithm}", key, known) for key in options if key not in known]
    if wrong:
        raise ConfigError(wrong)
    fields = _fields(algorithm)
    nested = {
        key: build(value["name"], {option: value[option] for option in value if option != "name"})
        for key, value in (
            (key, _spelled_out(value, fields.model_fields[key].annotation)) for key, value in options.items()
        )
        if isinstance(value, Mapping) and "name" in value
    }
    try:
        checked = fields(**{**options, **nested})
        return algorithms.make(algorithm, **{key: getattr(checked, key) for key in options})
    except ValidationError as error:
        raise ConfigError([f"{algorithm}: {line}" for line in sentences(error)]) from error
    except ValueError as error:
        named = str(error).startswith(f"{algorithm} ")
        raise ConfigError([str(error) if named else f"{algorithm}: {error}"]) from error
    except Exception as error:  # a mistake in its `__post_init__`
        raise _of_own_code(algorithms.REGISTRY.find(algorithm), error) from error


def build_callback(name: object, options: Mapping[str, Any]) -> Any:
    """A callback from plain values.

    Raises:
        ConfigError: with everything that is wrong with the values.
    """
    if not (isinstance(name, str) and name in CALLBACKS):
        raise ConfigError([unknown("callback", name, CALLBACKS) + hint("callback")])
    entry = CALLBACKS[name]
    try:
        made = entry.load()
        require_hooks(entry, made, "Callback", "after_round")
        own_options(entry, made)
        known = [field.name for field in dataclasses.fields(made)]
        if wrong := [unknown(f"option of {name}", key, known) for key in options if key not in known]:
            raise ConfigError(wrong)
        given = _typed(entry, made, _defaults(made) | entry.options)(**options)
        return made(**{key: getattr(given, key) for key in known})
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError([f"{name}: {line}" for line in sentences(error)]) from error
    except ValueError as error:
        raise ConfigError([f"{name}: {error}"]) from error
    except Exception as error:  # likewise
        raise _of_own_code(entry, error) from error


def _of_own_code(entry: Entry, error: Exception) -> Exception:
    """A ConfigError with the line of its file that has raised an error; the error itself if none has."""
    return ConfigError([entry.failure(error)]) if entry.has_raised(error) else error


@contextlib.contextmanager
def in_sentences(kind: str, names: Iterable[str]) -> Iterator[None]:
    """Raises what the code of one of these methods or callbacks raises as a ConfigError; a ValueError is a sentence already."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:  # whatever the code of a lab raises
        # In the class of a method, or in one that it extends.
        entries = [*map(Registry(kind).find, names), *Registry(kind).values()]
        own = next((_of_own_code(entry, error) for entry in entries if entry.has_raised(error)), None)
        if own is None:
            raise
        raise own from error


def read_callbacks(given: Any) -> tuple[list[dict[str, Any]], list[Any], list[str]]:
    """The setting `callbacks`, resolved: the callbacks as dicts of their name and every option, as objects, and mistakes.

    Args:
        given: names, with options as {name: ..., decay: ...}, in a list; or a text of names with commas or + between them.
    """
    items = _items(given)
    if items is None:
        return (
            [],
            [],
            [f"callbacks is a list of names, with options as {{name: server-ema, decay: 0.9}}, but got {given!r}."],
        )
    specs: list[dict[str, Any]] = []
    built: list[Any] = []
    mistakes: list[str] = []
    for item in items:
        options = dict(item) if isinstance(item, Mapping) else {"name": item}
        name = options.pop("name", None)
        try:
            callback = build_callback(name, options)
        except ConfigError as error:
            mistakes += error.mistakes
            continue
        if name in (spec["name"] for spec in specs):
            mistakes.append(f"callbacks names {name} twice, whose metrics would have one name; leave one of them out.")
        specs.append(
            {"name": name}
            | {key: getattr(callback, key) for key in (field.name for field in dataclasses.fields(callback))}
        )
        built.append(callback)
    return specs, built, mistakes


def callbacks_in(given: Any) -> list[Any]:
    """The names of callbacks in a value of the setting `callbacks`, right or wrong."""
    return [item.get("name") if isinstance(item, Mapping) else item for item in _items(given) or ()]


def _items(given: Any) -> list[Any] | None:
    """The entries of a value of the setting `callbacks`; None if it is none."""
    if isinstance(given, str):
        return [name.strip() for name in re.split(r"[,+]", given)]
    return [given] if isinstance(given, Mapping) else given if isinstance(given, list) else None


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


def _fields(algorithm: str) -> type[BaseModel]:
    """The types of a method's options, strict (but 1 is a number); a field typed `Algorithm` takes a method object."""
    method: Any = algorithms.load(algorithm)
    return _fields_of(algorithm, method)


@functools.cache
def _fields_of(algorithm: str, method: Any) -> type[BaseModel]:
    return _typed(algorithms.REGISTRY.find(algorithm), method, defaults_of(algorithm))


def _typed(entry: Entry, of: type, defaults: Mapping[str, Any]) -> type[BaseModel]:
    """The types of the fields of a dataclass, strict.

    Raises:
        ConfigError: if its decorator sets an option that it does not have, or a default is of another type.
    """
    place, known = f"{entry.target} in {entry.place}", [field.name for field in dataclasses.fields(of)]
    if wrong := [f"{place}: {unknown('option', key, known)}" for key in entry.options if key not in known]:
        raise ConfigError(wrong)
    try:
        hints = get_type_hints(of)
    except NameError as error:
        raise ConfigError([f"{place}: the type of an option is unknown: {error}; import it."]) from error
    if many := [field.name for field in dataclasses.fields(of) if _is_unstorable(field, hints[field.name])]:
        raise ConfigError(
            [
                f"{place}: configs cannot hold the option {key} ({hints[key]}); write an option for each of its values, as "
                "beta1 and beta2."
                for key in many
            ]
        )
    fields: dict[str, Any] = {key: (hints[key], defaults.get(key, ...)) for key in known}
    require_defaults(place, {key: fields[key] for key in defaults}, _Options.model_config)
    return create_model(entry.name, __base__=_Options, **fields)


def _is_unstorable(field: dataclasses.Field, hint: Any) -> bool:
    """Whether a field of a dataclass does not come back from JSON as it was, as a tuple or a set, or has a default that is made
    anew for each object."""
    kinds = {typing.get_origin(part) or part for part in (hint, *typing.get_args(hint))}
    return field.default_factory is not dataclasses.MISSING or not kinds.isdisjoint({tuple, set, frozenset})


def _defaults(of: type) -> dict[str, Any]:
    """The fields of a dataclass that have a default."""
    return {field.name: field.default for field in dataclasses.fields(of) if field.default is not dataclasses.MISSING}
