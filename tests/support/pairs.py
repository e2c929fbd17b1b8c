"""A wrapper around a method, small enough for the toy task, and whether the pair is refused."""

import functools
from dataclasses import fields
from typing import Any

import algorithms
from bench.config.resolve import resolve
from bench.errors import ConfigError
from bench.simulation.build import build_algorithm
from tests.support.toy import SMALL, toy

SIZES = (9, 4, 6, 11)

# Options that a base needs inside a wrapper, beside its defaults, with which it is refused.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("feddisco", "scaffold"): {"weighting": "examples"},
    ("feddisco", "feddyn"): {"mean": "examples"},
    ("fens", "oneshot"): {"hold_out": 0.3},
    ("fens-linear", "oneshot"): {"hold_out": 0.3},
}

# Still smaller than `SMALL`: pairs are many.
SHORT = SMALL | {"classifier_rounds": 1, "discriminator_rounds": 2, "capacity": 1.0, "inference_images": 100}

# Options with which a wrapper can be told from its absence: weights that differ, and none of which is 0.
OWN = {"feddisco": {"a": 0.2, "b": 0.0}}


def refusal(wrapper: str, base: str) -> str | None:
    """Why a pair with the defaults of the base is refused, in one sentence; None if it is not."""
    try:
        pair(wrapper, base)
    except ConfigError as error:
        (sentence,) = error.mistakes
        return sentence
    return None


@functools.cache
def pair(wrapper: str, base: str, **options: Any):
    """A wrapper around a method with these options, from a config that is checked like a user's."""
    method = spec(wrapper, **OWN.get(wrapper, {}), base=spec(base, **options))
    settings = {"rounds": rounds_for(base), "local_epochs": 1, "batch_size": 5}
    data = {"dataset": "digits", "partition": "dir-0.5", "clients": len(SIZES)}
    return build_algorithm(resolve({**data, **settings, "algorithm": method}).algorithm)


def spec(name: str, **options: Any) -> dict[str, Any]:
    """A method in a config, with options that are small enough for the toy task."""
    small = {option.name: SHORT[option.name] for option in fields(algorithms.load(name)) if option.name in SHORT}
    return {"name": name, **small, **toy(name).options, **options}


def rounds_for(base: str) -> int:
    """So many that the second one has what clients keep of the first; cycles have as many rounds as there are clients."""
    return len(SIZES) if toy(base).in_cycles else 2
