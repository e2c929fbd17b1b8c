"""Methods by name, one file each. To add a method: write its file, add its line."""

import ast
import importlib
from pathlib import Path

from bench.names import unknown

REGISTRY = {
    "centralized": "centralized:Centralized",
    "local": "local_training:LocalTraining",
    "fedavg": "fedavg:FedAvg",
    "fedprox": "fedprox:FedProx",
    "moon": "moon:Moon",
    "fedrs": "fedrs:FedRS",
    "fedlc": "fedlc:FedLC",
    "scaffold": "scaffold:Scaffold",
    "fednova": "fednova:FedNova",
    "fedavgm": "fedavgm:FedAvgM",
}


def load(name: str) -> type:
    """The class of a method. Imports torch.

    Raises:
        ValueError: if there is no method of that name.
    """
    module, class_name = _lookup(name).split(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), class_name)


def describe(name: str) -> str:
    """First line of the docstring of a method's file, read without importing it."""
    path = Path(__file__).parent / f"{_lookup(name).split(':')[0]}.py"
    return ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]


def _lookup(name: str) -> str:
    if name not in REGISTRY:
        raise ValueError(unknown("algorithm", name, REGISTRY))
    return REGISTRY[name]
