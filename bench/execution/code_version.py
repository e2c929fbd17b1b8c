"""Which code a run executes: no run continues from a checkpoint that other code has written."""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import algorithms
import bench
import datasets
from bench import models

_FOLDERS = {  # they need not lie side by side: a cluster unpacks each package in a folder of its own
    package.__name__: Path(package.__path__[0]) for package in (algorithms, bench, datasets)
}
_LEFT_OUT = {
    *("algorithms", "bench", "bench.models", "datasets"),  # they name what there is; the one that is used counts
    # Files of results; checkpoints have a format of their own.
    *(f"bench.results.{name}" for name in ("checkpoints", "artifacts", "store", "records", "schema")),
    # Images are compared by their digest; names are only for sentences.
    *(
        "datasets.cache",
        "bench.errors",
        "bench.profiling",
        "bench.results",
        "bench.results.metrics",
        "bench.simulation",
    ),
}


def code_version(config: Any) -> str:
    """Hash of the code on which the numbers of a run depend.

    Args:
        config: a resolved run config (see `bench.config.schema.RunConfig`).
    """
    return _hash(frozenset(_starts(config)))


def files_of(config: Any) -> list[Path]:
    """The files that `code_version` covers: those of the run, its method with all that this wraps, and its model, with
    what these import of this project, at their top or inside functions."""
    return [path for name in sorted(_reached(frozenset(_starts(config)))) if (path := _path(name))]


def _starts(config: Any) -> Iterator[str]:
    yield "bench.simulation.run"
    yield f"bench.models.{models.REGISTRY[config.model].split(':')[0]}"
    for name in _methods(config.algorithm):
        yield f"algorithms.{algorithms.REGISTRY[name].split(':')[0]}"


def _methods(spec: dict[str, Any]) -> Iterator[str]:
    """A method and those inside it."""
    yield spec["name"]
    for value in spec.values():
        if isinstance(value, dict) and "name" in value:
            yield from _methods(value)


@functools.cache
def _hash(starts: frozenset[str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(_reached(starts)):
        digest.update(name.encode() + b"\0" + _source(name) + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _reached(starts: frozenset[str]) -> set[str]:
    """Modules that are imported, directly or not."""
    found, waiting = set(), list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found and name not in _LEFT_OUT and _path(name):
            found.add(name)
            waiting += _imported(name)
    return found


@functools.cache
def _imported(module: str) -> set[str]:
    """What a module imports of this project, and the packages in which that lies; names that are no modules are among them."""
    path = _path(module)
    inside = module if path and path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = inside.split(".")[: inside.count(".") + 2 - node.level] if node.level else []
            names |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
    parts = [name.split(".") for name in names if name.split(".")[0] in _FOLDERS]
    return {".".join(part[:count]) for part in parts for count in range(1, len(part) + 1)}


@functools.cache
def _source(module: str) -> bytes:
    path = _path(module)
    return path.read_bytes() if path else b""


@functools.cache
def _path(module: str) -> Path | None:
    """The file of a module; None if there is no module of that name."""
    package, *inner = module.split(".")
    place = _FOLDERS[package].joinpath(*inner)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
