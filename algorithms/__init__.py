"""Methods by name, one file each. To add a method: write its file, add its line."""

import ast
import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import unknown

if TYPE_CHECKING:
    from algorithms.base import Algorithm

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
    "fedconcat": "fedconcat:FedConcat",
    "fedconcat-id": "fedconcat_id:FedConcatID",
    "fedconcat-ib": "fedconcat_ib:FedConcatIB",
    "dp-fedconcat": "dp_fedconcat:DPFedConcat",
    "random-clusters": "random_clusters:RandomClusters",
    "ifca": "ifca:IFCA",
    "fedsoft": "fedsoft:FedSoft",
    "fesem": "fesem:FeSEM",
    "fedconcat-ifca": "fedconcat_ifca:FedConcatIFCA",
    "fedconcat-fedsoft": "fedconcat_fedsoft:FedConcatFedSoft",
    "clsprox": "clsprox:ClsProx",
    "clsnorm": "clsnorm:ClsNorm",
    "ccvr": "ccvr:CCVR",
    "oracle": "oracle:Oracle",
    "fedconcat-fesem": "fedconcat_fesem:FedConcatFeSEM",
}

_RENAMED = {"mistakes": "validate", "remarks": "caveats", "findings": "diagnostics"}  # hooks: once -> now


def load(name: str) -> "type[Algorithm]":
    """The class of a method. Imports torch.

    Raises:
        ValueError: if there is no method of that name, or it has a hook by an earlier or a misspelt name, which nothing would
            call.
    """
    module, class_name = _lookup(name).split(":")
    method = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    if earlier := [f"{once} to {now}" for once, now in _RENAMED.items() if callable(getattr(method, once, None))]:
        raise ValueError(
            f"{class_name} in algorithms/{module}.py has hooks by earlier names: rename {', '.join(earlier)}."
        )
    if wrong := _misspelt_hooks(method):
        meant = ", ".join(f"{name} ({hook}?)" for name, hook in wrong.items())
        raise ValueError(
            f"{class_name} in algorithms/{module}.py has methods that nothing calls, with names almost like hooks: {meant}. "
            "Correct them, or begin the name of a helper with _."
        )
    return method


def _misspelt_hooks(method: "type[Algorithm]") -> dict[str, str]:
    """Public functions of a method that are no hooks -> the hook that each name resembles: the method would run without it."""
    from algorithms.base import RoundBased
    from algorithms.wrapper import Wrapper

    own = {name for name, part in vars(method).items() if callable(part) and not name.startswith("_")}
    hooks = {name for kind in (RoundBased, Wrapper, *method.__mro__[1:]) for name in dir(kind)}
    close = {name: difflib.get_close_matches(name, hooks, n=1, cutoff=0.8) for name in own - hooks}
    return {name: found[0] for name, found in close.items() if found}


def name_of(method: "Algorithm") -> str:
    """The name under which the class of a method is registered; the class's own if it is not."""
    return next(
        (name for name, path in REGISTRY.items() if path.endswith(f":{type(method).__name__}")), type(method).__name__
    )


def describe(name: str) -> str:
    """First line of the docstring of a method's file, read without importing it."""
    path = Path(__file__).parent / f"{_lookup(name).split(':')[0]}.py"
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _lookup(name: str) -> str:
    if name not in REGISTRY:
        raise ValueError(unknown("algorithm", name, REGISTRY))
    return REGISTRY[name]
