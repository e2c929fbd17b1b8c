"""Models by name. A model has two parts: features (the encoder) and head (the classifier, its last linear layer)."""

import ast
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import unknown

if TYPE_CHECKING:
    from bench.models.base import Model

REGISTRY = {
    "mlp": "mlp:Mlp",
    "simple-cnn": "cnn:SimpleCnn",
    "simple-cnn-concat5": "concat:SimpleCnnConcat5",
    "simple-cnn-wide": "cnn:SimpleCnnWide",
    "moon-cnn": "cnn:MoonCnn",
    "vgg9": "vgg:Vgg9",
    "resnet18": "resnet:ResNet18",
    "resnet50": "resnet:ResNet50",
    "mobilenetv2": "mobilenet:MobileNetV2",
    "mcmahan2017-mnist-cnn": "cnn:McMahanMnistCnn",
    "mcmahan2017-cifar-cnn": "mcmahan:McMahanCifarCnn",
    "fedmr-mnist-cnn": "cnn:FedMrMnistCnn",
    "fedmr-femnist-cnn": "cnn:FedMrFemnistCnn",
    "fedcollab-mlp": "mlp:FedCollabMlp",
    "fedcollab-cnn": "fedcollab:FedCollabCnn",
}
TITLES = {
    "mlp": "MLP",
    "simple-cnn": "Simple CNN",
    "simple-cnn-concat5": "Simple CNN, 5 encoders",
    "simple-cnn-wide": "Simple CNN, wide",
    "moon-cnn": "MOON's CNN",
    "vgg9": "VGG-9",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "mobilenetv2": "MobileNetV2",
    "mcmahan2017-mnist-cnn": "McMahan's MNIST CNN",
    "mcmahan2017-cifar-cnn": "McMahan's CIFAR CNN",
    "fedmr-mnist-cnn": "FedMR's MNIST CNN",
    "fedmr-femnist-cnn": "FedMR's FEMNIST CNN",
    "fedcollab-mlp": "FedCollab's MLP",
    "fedcollab-cnn": "FedCollab's CNN",
}
"""Name of a model -> what tables and figures call it."""
ALIASES = {"lenet-cifar": "simple-cnn"}
"""Second name of a model -> its name in `REGISTRY`, under which runs are stored."""


def canonical(name: str) -> str:
    """The name of a model in `REGISTRY`.

    Raises:
        ValueError: if there is no model of that name.
    """
    found = ALIASES.get(name, name)
    if found not in REGISTRY:
        raise ValueError(unknown("model", name, [*REGISTRY, *ALIASES]))
    return found


def load(name: str) -> "type[Model]":
    """The class of a model. Imports torch.

    Raises:
        ValueError: if there is no model of that name.
    """
    module, class_name = REGISTRY[canonical(name)].split(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), class_name)


@functools.cache
def has_buffers(name: str) -> bool:
    """Whether a model has buffers, such as running statistics, which is so for images of any size. Imports torch.

    Raises:
        ValueError: if there is no model of that name.
    """
    return bool(load(name)((3, 64, 64), 10).init_buffers())


def describe(name: str) -> str:
    """First line of the docstring of a model's class, read from the source without importing torch."""
    module, class_name = REGISTRY[canonical(name)].split(":")
    source = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    found = next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    return ast.get_docstring(found).splitlines()[0]
