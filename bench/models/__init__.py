"""Models by name. A model has two parts: features (the encoder) and head (the classifier, its last linear layer).

What `registered_model` decorates is a `bench.models.base.Model`, or a class or function that makes a `torch.nn.Module` of
(input_shape, num_classes). "torchvision:resnet18" and "timm:vit_tiny_patch16_224" are models of these libraries.
"""

import functools
import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

from bench.registry import Registry, registered_model

if TYPE_CHECKING:
    from bench.models.base import Model

__all__ = [
    "REGISTRY",
    "canonical",
    "describe",
    "has_buffers",
    "load",
    "modules_of",
    "of_any_size",
    "registered_model",
    "title_of",
]

REGISTRY = Registry("model")
"""Name of a model -> where it is. Runs are stored under this name, not under an alias."""
_ADAPTER = "bench.models.modules"
_LIBRARIES = ("torchvision", "timm")
_SIZES = ((3, 64, 64), (3, 32, 32), (1, 28, 28), (3, 224, 224), (1, 8, 8))


def canonical(name: str) -> str:
    """The name of a model, of its name or an alias.

    Raises:
        ValueError: if there is no model of that name.
    """
    return name if _is_of_library(name) else REGISTRY.find(name).name


def title_of(name: str) -> str:
    """What tables and figures call a model: its title; without one, or if there is no such model, its name."""
    return REGISTRY[name].given.get("title", name) if name in REGISTRY else name


def load(name: str) -> "type[Model]":
    """The class of a model. Imports torch.

    Raises:
        ValueError: if there is no model of that name, or its file cannot be imported.
    """
    makers = importlib.import_module(_ADAPTER)
    return makers.of_library(name) if _is_of_library(name) else makers.of_entry(REGISTRY.find(name))


def _is_of_library(name: str) -> bool:
    return name.partition(":")[0] in _LIBRARIES and ":" in name


def modules_of(name: str) -> tuple[str, ...]:
    """The modules whose code makes a model: of this project, and of labs.

    Raises:
        KeyError: if there is no model of that name.
    """
    if _is_of_library(name):
        return (_ADAPTER,)
    entry = REGISTRY[name]
    return (entry.module, _ADAPTER) if entry.lab else (entry.module,)


@functools.cache
def of_any_size(name: str) -> "Model | None":
    """A model for images of some size that it takes, and 10 classes; None if it takes none of the usual ones. Imports torch.

    Raises:
        ValueError: if there is no model of that name.
    """
    kind = load(name)
    for shape in _SIZES:
        with suppress(ValueError):
            return kind(shape, 10)
    return None


def has_buffers(name: str) -> bool:
    """Whether a model has buffers, such as running statistics, at one of the usual sizes of images. Imports torch.

    Raises:
        ValueError: if there is no model of that name.
    """
    model = of_any_size(name)
    return model is not None and bool(model.init_buffers())


def describe(name: str) -> str:
    """First line of the docstring of a model's class or function, read from the source without importing torch."""
    return REGISTRY.find(name).description
