"""Which code of this project a module depends on: its own, and that of all modules which it imports, directly or not."""

import ast
import functools
import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

_FOLDERS = {  # they need not lie side by side: a cluster unpacks each package in a folder of its own
    package: Path(find_spec(package).submodule_search_locations[0]) for package in ("algorithms", "bench", "datasets")
}
_LEFT_OUT = {
    *("algorithms", "bench", "bench.models", "datasets"),  # they name what there is; the one that is used counts
    # Files of results; checkpoints have a format of their own.
    *(f"bench.results.{name}" for name in ("checkpoints", "artifacts", "store", "records", "schema")),
    # Images are compared by their digest; names are only for sentences.
    *(
        "datasets.cache",
        "bench.errors",
        "bench.files",
        "bench.imports",
        "bench.profiling",
        "bench.results",
        "bench.results.metrics",
        "bench.simulation",
    ),
}


def files_of(modules: Iterable[str]) -> list[Path]:
    """The files of these modules and of what they import of this project, at their top or inside functions; without those on
    which no numbers depend."""
    return [path for name in sorted(_reached(frozenset(modules))) if (path := _path(name))]


def hash_of(modules: Iterable[str]) -> str:
    """Hash of the code in `files_of`."""
    return _hash(frozenset(modules))


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
    if package not in _FOLDERS:
        return None
    place = _FOLDERS[package].joinpath(*inner)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
