"""The simplex equiangular tight frame (ETF): fixed vectors of all classes, with the largest angle between any two."""

import math

import torch
from torch import Tensor

import algorithms
from algorithms.shared.base import Algorithm
from algorithms.shared.checks import linear_classifier
from algorithms.shared.tree import Tree
from algorithms.shared.types import Task


def simplex(basis: Tensor) -> Tensor:
    """sqrt(C / (C - 1)) U (I - 11^T / C): columns of length 1, any two with the cosine -1 / (C - 1).

    Args:
        basis: U, [width, C], with orthonormal columns.

    Returns:
        [width, C].
    """
    num_classes = basis.shape[1]
    return math.sqrt(num_classes / (num_classes - 1)) * (basis - basis.mean(1, keepdim=True))


def random_basis(width: int, num_classes: int, generator: torch.Generator) -> Tensor:
    """Random orthonormal columns [width, num_classes] in double precision, uniformly distributed."""
    drawn = torch.randn(width, num_classes, generator=generator, dtype=torch.float64)
    basis, upper = torch.linalg.qr(drawn)
    return basis * upper.diagonal().sign()  # which makes the decomposition unique, whatever the library


def etf_of(method: Algorithm, task: Task, params: Tree, *, width: int, source: str) -> Tensor:
    """The matrix M [width, num_classes] of a method in a task: a function of the seed alone. See `basis_of`."""
    return task.place({"etf": simplex(basis_of(method, task, params, width=width, source=source))})["etf"]


def basis_of(method: Algorithm, task: Task, params: Tree, *, width: int, source: str) -> Tensor:
    """Random orthonormal columns [width, num_classes], in double precision, for a method that replaces the classifier in a
    task: a function of the seed alone.

    Args:
        params: of the task's model.
        source: of the width, for the refusal: "the option width", say.

    Raises:
        ValueError: if there are no such columns, or nothing that they could replace.
    """
    name, model = algorithms.name_of(method), task.model
    linear_classifier(name, "replaces", model, params)
    if model.num_classes < 2:
        raise ValueError(f"{name} needs at least 2 classes, but the data have {model.num_classes}.")
    if width < model.num_classes:
        raise ValueError(
            f"{name} needs a vector for each class in as many dimensions: {source} must be at least {model.num_classes}, the "
            f"number of classes, but got {width}."
        )
    return random_basis(width, model.num_classes, task.generator_for("etf"))
