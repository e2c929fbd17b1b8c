"""Checks of hyper-parameters, and of models: one sentence with the condition and the value."""

import math
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch
    from bench.models.base import Model


def at_least(name: str, value: float, least: float) -> None:
    """Raises ValueError unless value is finite and >= least."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be at least {least}, but got {value}.")


def above(name: str, value: float, limit: float) -> None:
    """Raises ValueError unless value is finite and > limit."""
    if not (math.isfinite(value) and value > limit):
        raise ValueError(f"{name} must be greater than {limit}, but got {value}.")


def between(name: str, value: float, least: float, most: float) -> None:
    """Raises ValueError unless least <= value <= most."""
    if not least <= value <= most:
        raise ValueError(f"{name} must be between {least} and {most}, but got {value}.")


def below_one(name: str, value: float) -> None:
    """Raises ValueError unless 0 <= value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, but got {value}.")


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ValueError unless value is among the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, but got {value!r}.")


def noisy_inputs(name: str, partition: str) -> list[str]:
    """Why what reads images without the noise of their client does not go with a partition: one sentence, or none."""
    said = f"{name} is not defined for inputs with noise, but the partition is {partition}."
    return [said] if partition.startswith("noise") else []


def linear_classifier(name: str, does: str, model: "Model", params: Container[str]) -> None:
    """Raises ValueError unless a model's last part is one linear layer with a bias, as most are.

    Args:
        name: of the method.
        does: what it does to the classifier, a verb.
        params: of the model, by name.
    """
    if "classifier.weight" not in params or "classifier.bias" not in params:
        raise ValueError(
            f"{name} {does} a linear classifier with a bias, but {type(model).__name__} has none; use another model."
        )
