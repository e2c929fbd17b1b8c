"""Models by name. A model has two parts: features (the encoder) and head (the classifier, its last linear layer)."""

import ast
import functools
from typing import TYPE_CHECKING

from bench.registry import Registry, registered_model

if TYPE_CHECKING:
    from bench.models.base import Model

__all__ = ["REGISTRY", "canonical", "describe", "has_buffers", "load", "registered_model", "title_of"]

REGISTRY = Registry("model")
"""Name of a model -> where it is. Runs are stored under this name, not under an alias."""


def canonical(name: str) -> str:
    """The name of a model, of its name or an alias.

    Raises:
        ValueError: if there is no model of that name.
    """
    return REGISTRY.find(name).name


def title_of(name: str) -> str:
    """What tables and figures call a model: its title; without one, or if there is no such model, its name."""
    return REGISTRY[name].given.get("title", name) if name in REGISTRY else name


def load(name: str) -> "type[Model]":
    """The class of a model. Imports torch.

    Raises:
        ValueError: if there is no model of that name, or its file cannot be imported.
    """
    return REGISTRY.find(name).load()


@functools.cache
def has_buffers(name: str) -> bool:
    """Whether a model has buffers, such as running statistics, which is so for images of any size. Imports torch.

    Raises:
        ValueError: if there is no model of that name.
    """
    return bool(load(name)((3, 64, 64), 10).init_buffers())


def describe(name: str) -> str:
    """First line of the docstring of a model's class, read from the source without importing torch."""
    entry = REGISTRY.find(name)
    source = ast.parse(entry.path.read_text(encoding="utf-8"))
    found = next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == entry.target)
    return (ast.get_docstring(found) or "").partition("\n")[0]
