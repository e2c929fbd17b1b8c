"""One run, described completely: checked, resolved, and named by the hash of its config.

A config starts as a flat dict (`{"algorithm": "fedprox", "mu": 0.01, "dataset": "cifar10", ...}`: settings and the
method's options in one namespace) and `resolve` turns it into a `RunConfig` in which every default is explicit.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

import algorithms
import datasets
from bench import models
from bench.config.compatibility import validate_config
from bench.config.methods import (
    build,
    build_callback,
    describe_method,
    in_sentences,
    is_method,
    options_of,
    read_callbacks,
    versions_of,
)
from bench.config.plain import TRACE
from bench.config.schema import DEFAULT_VALIDATION_SHARE, SETTINGS, RunConfig, settings_of
from bench.config.unknown_settings import unknown_setting
from bench.errors import ConfigError, sentences, unknown
from bench.registry import hint
from bench.results.omitted_defaults import spell_out
from datasets import DatasetInfo, own_data, partitions, transforms
from datasets.image_size import read_image_size
from datasets.info import OF_USERS

DEFAULT_LOCAL_EPOCHS = 10
LOCAL_LENGTHS = ("local_epochs", "local_steps")  # of which a run has one
_LEAST_LR = 1e-30
TWO_LENGTHS = "Set either local_epochs or local_steps, but not both."


def resolve(flat: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None = datasets.INFO) -> RunConfig:
    """Check a flat dict of settings and method options, and fill in every default.

    Args:
        facts: dataset -> what is known about it; None leaves unchecked whether the config fits its dataset.

    Raises:
        ConfigError: with all mistakes, each with the nearest valid name or the range that holds.
    """
    config, method = read(_with_clients(flat, datasets.INFO if facts is None else facts))
    with in_sentences("algorithm", (name for _, name in algorithms.methods_in(config.algorithm))):
        mistakes = [*validate_config(config, facts), *method.validate(config)]
        # Methods with rounds of their own do not read the setting: without this, one run would have many names.
        config = config.model_copy(update={"rounds": method.num_rounds(config)})
    mistakes += _lost_rate(config)
    with in_sentences("callback", (spec["name"] for spec in config.callbacks)):
        mistakes += _validate_callbacks(config, method)
    if mistakes:
        raise ConfigError(mistakes)
    return config


def _lost_rate(config: RunConfig) -> list[str]:
    """A sentence if the learning rate falls so far that quotients by it are no numbers; [] if not."""
    last = config.lr * config.lr_decay ** (config.rounds - 1)
    if config.lr_decay == 1 or last >= _LEAST_LR:
        return []
    return [
        f"lr_decay {config.lr_decay:g} lets the learning rate {config.lr:g} fall to {last:.0e} in round {config.rounds}, but "
        f"below {_LEAST_LR:g} it is lost in numbers of 32 bits; 0.9 is a decay by 10 % per round."
    ]


def read(flat: Mapping[str, Any]) -> tuple[RunConfig, Any]:
    """The config and the method object of a flat dict; its values are valid by themselves, which need not fit together.

    Raises:
        ConfigError: with all mistakes, as in `resolve`.
    """
    flat = {key: value + 0.0 if isinstance(value, float) else value for key, value in flat.items()}  # -0.0 is 0.0
    mistakes: list[str] = []
    method, options = _method(flat, mistakes)
    settings = {key: value for key, value in flat.items() if key in SETTINGS}
    mistakes += [
        unknown_setting(key, [*filter(is_method, [_name_of(flat)])]) for key in flat if key not in {*SETTINGS, *options}
    ]
    if settings.get("local_epochs") is None and settings.get("local_steps") is None:
        settings["local_epochs"] = DEFAULT_LOCAL_EPOCHS
    elif settings.get("local_epochs") is not None and settings.get("local_steps") is not None:
        mistakes.append(TWO_LENGTHS)
    if settings.get("split") == "validation" and settings.get("validation_share") is None:
        settings["validation_share"] = DEFAULT_VALIDATION_SHARE
    versions = _check_names(settings, mistakes)
    settings["callbacks"], callbacks, wrong = read_callbacks(settings.get("callbacks", []))
    mistakes += wrong
    versions |= {
        f"callback.{spec['name']}": callback.version
        for spec, callback in zip(settings["callbacks"], callbacks, strict=True)
    }
    if settings.get("trace_local_models") and (version := build_callback(TRACE, {}).version) != 1:
        versions[f"callback.{TRACE}"] = version
    if method is not None:
        trained = [*([settings["model"]] if "model" in versions else []), *method.named_models]
        versions |= versions_of(method, any(map(models.has_buffers, trained)))
        versions |= {f"model.{name}": models.load(name).version for name in method.named_models}
    settings |= {"algorithm": describe_method(method) if method else {}, "versions": versions}
    try:
        config = RunConfig(**settings)
    except ValidationError as error:
        raise ConfigError(mistakes + sentences(error)) from error
    if mistakes:
        raise ConfigError(mistakes)
    return config, method


def _with_clients(flat: Mapping[str, Any], facts: Mapping[str, DatasetInfo]) -> dict[str, Any]:
    """The settings with as many clients as the partition usually has, if it says so and they leave that open."""
    settings, dataset = dict(flat), flat.get("dataset")
    info = facts.get(dataset) if isinstance(dataset, str) else None
    if partitions.counts_clients(settings.get("partition")) and settings.get("clients") is None:
        settings.pop("clients", None)
        if usual := partitions.usual_clients(settings["partition"], info.num_writers if info else None):
            settings["clients"] = usual
    return settings


def weights_files(config: RunConfig) -> list[str]:
    """Names of the files with ImageNet weights that a run reads: of its model, and of its method."""
    options = {key: value for key, value in config.algorithm.items() if key != "name"}
    own = [] if config.weights == "none" else [config.weights]
    return list(dict.fromkeys([*own, *build(config.algorithm["name"], options).weights_files]))


def base_of(config: RunConfig) -> RunConfig | None:
    """The run whose state a wrapper can start from: the same settings, with its base as the method; None for others."""
    base = config.algorithm.get("base")
    if not isinstance(base, Mapping):
        return None
    return resolve(settings_of(config) | {"algorithm": dict(base)}, facts=None)  # it fits where the wrapper does


def trained_by(config: RunConfig) -> RunConfig | None:
    """The run whose last state is all that a run needs, if its method is post-hoc and only its end is looked at."""
    if not (config.evaluate_every is None and algorithms.load(config.algorithm["name"]).post_hoc):
        return None
    if config.callbacks:  # they look at its rounds
        return None
    return base_of(config)


def wrapped(
    config: RunConfig, wrapper: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None = datasets.INFO
) -> RunConfig:
    """The run in which a wrapper {"name": ..., options} is around the method of a config: `base_of` undone.

    Raises:
        ConfigError: if there is no such wrapper, or it does not fit.
    """
    if not is_wrapper(wrapper["name"]):
        raise ConfigError([unknown("wrapper", wrapper["name"], wrappers())])
    return resolve(settings_of(config) | {"algorithm": {**wrapper, "base": config.algorithm}}, facts)


def wrappers() -> list[str]:
    """Names of the methods that go around another one."""
    return [*filter(is_wrapper, algorithms.REGISTRY)]


def is_wrapper(name: object) -> bool:
    """Whether a method goes around another one."""
    return is_method(name) and "base" in options_of(name)


def with_one_length(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that replace others, in which a number of local steps takes the place of one of epochs, and the other way
    round."""
    replaced = LOCAL_LENGTHS if any(given.get(key) is not None for key in LOCAL_LENGTHS) else ()
    return {**dict.fromkeys(replaced), **given}


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """A config with other values of settings, options of its method, or options of the method inside a wrapper; see
    `with_one_length`.

    Whether it fits its dataset is not checked again: the config of a grid's cell has been.

    Raises:
        ConfigError: if one does not exist, or a value does not hold.
    """
    settings = settings_of(spell_out(config.canonical()))
    for key, value in with_one_length(options).items():
        if key in SETTINGS:
            settings[key] = value
        else:
            settings["algorithm"] = _with_option(settings["algorithm"], key, value)
    return resolve(settings, facts=None)


def proposed_configs(
    stored: Iterable[Mapping[str, Any]], proposed: Iterable[Mapping[str, Any]]
) -> Iterator[list[RunConfig]]:
    """The configs of each configuration that a search has proposed, one for each of its stored configs; none of settings that
    are none any more.

    Args:
        proposed: settings and options of each configuration.
    """
    with suppress(ConfigError):
        configs = [resolve(settings_of(config), facts=None) for config in stored]
        for options in proposed:
            with suppress(ConfigError):
                yield [with_options(config, options) for config in configs]


def _with_option(method: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A method as a dict with another value of an option, of its own or of the outermost method inside that has it."""
    base = method.get("base")
    if key in method or not isinstance(base, Mapping):
        return {**method, key: value}
    return {**method, "base": _with_option(base, key, value)}


def _method(flat: dict[str, Any], mistakes: list[str]) -> tuple[Any, list[str]]:
    """The method object of a flat dict (None if that failed) and the names of its options."""
    if isinstance(named := flat.get("algorithm"), Mapping):
        flat.update({key: value for key, value in named.items() if key != "name"})
    given = _name_of(flat)
    if not is_method(given):
        mistakes.append(
            "algorithm is missing."
            if given is None
            else unknown("algorithm", given, algorithms.REGISTRY) + hint("algorithm")
        )
        return None, [key for key in flat if key not in SETTINGS]
    options = options_of(given)
    try:
        return build(given, {key: flat[key] for key in options if key in flat}), options
    except ConfigError as error:
        mistakes += error.mistakes
    return None, options


def _name_of(flat: Mapping[str, Any]) -> Any:
    """What a flat dict calls its method."""
    given = flat.get("algorithm")
    return given.get("name") if isinstance(given, Mapping) else given


def _validate_callbacks(config: RunConfig, method: Any) -> list[str]:
    """Why callbacks cannot look at a run."""
    named = [spec["name"] for spec in config.callbacks]
    if config.trace_local_models and TRACE in named:
        return [f"trace_local_models is the callback {TRACE}; name one of them."]
    specs = [*([{"name": TRACE}] if config.trace_local_models else []), *config.callbacks]
    found = (build_callback(spec["name"], {key: spec[key] for key in spec if key != "name"}) for spec in specs)
    return [mistake for callback in found for mistake in callback.validate(config, method)]


def _without_model(dataset: str, settings: Mapping[str, Any]) -> str:
    """The sentence for images of a user without a model, with the models that take them."""
    try:
        transform = settings.get("transform", RunConfig.model_fields["transform"].default)
        size = settings.get("image_size") or transforms.recipe(transform, dataset).image_size
        shape = own_data.shape_of(dataset, size and read_image_size(size))
    except (datasets.DataError, ValueError):  # said where the images are read
        fitting, of = list(models.REGISTRY), "There are"
    else:
        fitting, of = (
            [name for name in models.REGISTRY if _takes(name, shape)],
            f"Images of {'x'.join(map(str, shape))} fit",
        )
    return (
        "model is missing: images of your own have no usual one; name it by --set model=NAME, or among the settings of a "
        f"grid. {of}: {', '.join(fitting)}."
    )


def _takes(model: str, shape: tuple[int, int, int]) -> bool:
    try:
        models.load(model)(shape, 10)
    except ValueError:
        return False
    return True


def _check_names(settings: dict[str, Any], mistakes: list[str]) -> dict[str, int]:
    """Check the names of dataset, partition, model and transform, fill in the model, and collect the versions."""
    versions = {"transform": 1}
    named = {key: value for key, value in settings.items() if isinstance(value, str)}  # `RunConfig` tells of the others
    dataset, partition, model = (named.get(key) for key in ("dataset", "partition", "model"))
    if usual := datasets.usual_model(str(dataset)):
        model = settings.setdefault("model", usual)
    if own_data.is_dataset(dataset):
        try:
            settings["dataset"] = own_data.canonical(str(dataset))
            if settings.get("model") is None:
                mistakes.append(_without_model(str(dataset), settings))
        except (datasets.DataError, ValueError) as error:
            mistakes.append(str(error))
        settings["model"] = model = settings.get("model") or "mlp"  # not a second mistake
    elif dataset not in datasets.INFO and "dataset" in settings:
        if dataset is not None:
            mistakes.append(unknown("dataset", dataset, [*datasets.names(), *OF_USERS]))
        settings.setdefault("model", "mlp")  # not a second mistake
    if partition is not None:
        try:
            found = partitions.parse(partition)
            settings["partition"] = found.name
            versions["partition"] = found.version_with(settings.get("first_clients"))
        except ValueError as error:
            mistakes.append(str(error))
    if isinstance(model, str):
        try:
            settings["model"] = models.canonical(model)
            versions["model"] = models.load(model).version
        except ValueError as error:
            mistakes.append(str(error))
    try:
        transform = named.get("transform", RunConfig.model_fields["transform"].default)
        transforms.recipe(transform, str(dataset))
        versions["transform"] = transforms.version_of(transform)
    except ValueError as error:
        mistakes.append(str(error))
    return versions
