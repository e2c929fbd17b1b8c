"""Which code of this project a module depends on: its own, and that of all modules which it imports, directly or not.

Code is compared as it is parsed: comments, docstrings and formatting change no hash, nor do the titles under which
things are registered, nor the version of Python where it parses to the same tree.
"""

import ast
import functools
import gc
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bench.registry import FOR_PEOPLE, KINDS

_ROOTS = ("algorithms", "bench", "datasets")
# Packages that get folders of others while a process runs.
_EXTENDED = tuple(kind.package for kind in KINDS.values() if kind.decorator and kind.package.split(".")[0] in _ROOTS)
_DOOR = "algorithms"  # a package that passes on what its modules define, so that others need not know where that is
# Packages that name what there is: the part that is used counts.
_OF_ALL = {"algorithms", "bench", "bench.callbacks", "bench.models", "datasets"}
# Files of results; checkpoints have a format of their own, and images are compared by their digest.
_FILES = {f"bench.results.{name}" for name in ("artifacts", "store", "records", "schema", "ids")}
_FILES |= {"bench.simulation.checkpoints", "datasets.cache"}
# Names are only for sentences, and a package of modules says nothing.
_ASIDE = "errors files hooks imports plugins profiling references registry results results.metrics simulation"
_LEFT_OUT = _OF_ALL | _FILES | {f"bench.{name}" for name in _ASIDE.split()}
_NOT_CODE = {"ctx", "kind", "type_comment"}  # fields of nodes that follow from others, or say nothing
_BLOCKS = ("body", "orelse", "finalbody")  # of statements; of an expression, one expression
_REGISTER = {kind.decorator for kind in KINDS.values() if kind.decorator}
_UNHASHED = FOR_PEOPLE.keys() - {"less_is_better"}  # by which a run chooses its best round
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
REST = "module"  # the name for what is in no function and no class

Definitions = dict[str, dict[str, str]]
"""File -> definition -> hash of its code, 12 hex digits. Files are named as "algorithms/fedavg.py", wherever they lie. A
definition is a function, a class without its methods, a method "Class.method", or `REST` for all else."""


def files_of(modules: Iterable[str]) -> list[Path]:
    """The files of these modules and of what they import of this project, at their top or inside functions; without those on
    which no numbers depend."""
    return [path for _, path in _reached(frozenset(modules), _places())]


def hash_of(modules: Iterable[str], without: Iterable[str] = ()) -> str:
    """Hash of `definitions_of`: 16 hex digits."""
    return _hash(frozenset(modules), frozenset(without), _places())


def definitions_of(modules: Iterable[str], without: Iterable[str] = ()) -> Definitions:
    """What the files in `files_of` define.

    Args:
        without: other modules, whose files are left out, and those that these import.

    Raises:
        SyntaxError: if a file cannot be parsed.
    """
    return _definitions(frozenset(modules), frozenset(without), _places())


def folders() -> list[Path]:
    """The folders of the packages that hold the code of runs, also those that were added to a package."""
    return list(dict.fromkeys(Path(folder) for _, found in _places() for folder in found))


def _places() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Where packages lie now: what was found of them before holds as long as that is the same."""
    return tuple((package, tuple(_folders_of(package))) for package in dict.fromkeys((*_ROOTS, *_EXTENDED)))


@functools.cache
def _hash(starts: frozenset[str], without: frozenset[str], places: Any) -> str:
    return _digest(_definitions(starts, without, places))


def _digest(definitions: Definitions) -> str:
    return hashlib.sha256(json.dumps(definitions, sort_keys=True).encode()).hexdigest()[:16]


NO_CODE = _digest({})
"""The hash of modules that are not there."""


@functools.cache
def _definitions(starts: frozenset[str], without: frozenset[str], places: Any) -> Definitions:
    others = {name for name, _ in _reached(without, places)}
    own = [(name, path) for name, path in _reached(starts, places) if name not in others]
    return {_file_name(name, path): dict(_read(path).definitions) for name, path in own}


def _file_name(module: str, path: Path) -> str:
    return module.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")


@functools.cache
def _reached(starts: frozenset[str], places: Any) -> tuple[tuple[str, Path], ...]:
    """Modules that are imported, directly or not, with their files; sorted by their names."""
    found: dict[str, Path] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found and name not in _LEFT_OUT and (path := _path(name, places)):
            found[name] = path
            waiting += _imported(name, path, places)
    return tuple(sorted(found.items()))


def passed_on(package: str) -> dict[str, str]:
    """The names that a package takes from its own modules, and what each is: "algorithms.shared.rounds.RoundBased"."""
    return _passed_on(package, _places())


@functools.cache
def _passed_on(package: str, places: Any) -> dict[str, str]:
    path = _path(package, places)
    taken = [name for _, name in _read(path).imports if name.startswith(f"{package}.")] if path else []
    return {name.rpartition(".")[2]: name for name in taken}


def _imported(module: str, path: Path, places: Any) -> set[str]:
    """What a module imports of this project, and the packages in which that lies; names that are no modules are among them."""
    inside = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for level, name in _read(path).imports:
        above = inside.split(".")[: inside.count(".") + 2 - level] if level else []
        names.add(".".join([*above, *filter(None, [name])]))
    mentioned = {*re.findall(r"\w+", path.read_text(encoding="utf-8"))} if _DOOR in names else ()
    for name, target in _passed_on(_DOOR, places).items():
        if f"{_DOOR}.{name}" in names or name in mentioned:
            names.add(target)
    parts = [name.split(".") for name in names if name.split(".")[0] in _ROOTS]
    return {".".join(part[:count]) for part in parts for count in range(1, len(part) + 1)}


@functools.cache
def _path(module: str, places: Any) -> Path | None:
    """The file of a module, in one of the folders of its package; None if there is no module of that name."""
    package, _, name = module.rpartition(".")
    if module.split(".")[0] not in _ROOTS:
        return None
    folders = [f"{folder}/{name}" for folder in _folders_of(package)] if package else _folders_of(module)
    files = (file for folder in folders for file in (f"{folder}.py", f"{folder}/__init__.py"))
    return next((Path(file) for file in files if os.path.isfile(file)), None)


def _folders_of(package: str) -> list[str]:
    """The folders of a package: its `__path__`, to which others may have added some. They need not lie side by side: a cluster
    unpacks each package in a folder of its own."""
    if loaded := getattr(sys.modules.get(package), "__path__", None):
        return [*loaded]
    parent, _, name = package.rpartition(".")
    if not parent:
        spec = find_spec(package)
        return [*(spec and spec.submodule_search_locations or ())]
    return [path for folder in _folders_of(parent) if os.path.isdir(path := f"{folder}/{name}")]


class _File(NamedTuple):
    """A parsed file.

    Attributes:
        imports: of each name that it imports, the number of dots before it and the name.
        definitions: definition -> hash of its code.
    """

    imports: tuple[tuple[int, str], ...]
    definitions: Mapping[str, str]


@functools.cache
def _read(path: Path) -> _File:
    collects = gc.isenabled()
    gc.disable()  # nothing of a growing tree is garbage, and looking for some takes as long as parsing
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    finally:
        if collects:
            gc.enable()
    texts: dict[str, list[str]] = {}
    for name, node in _defined(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") in _REGISTER:
                decorator.keywords = [one for one in decorator.keywords if one.arg not in _UNHASHED]
        dumped = texts.setdefault(name, [])
        _dump(node, dumped)
    hashes = {name: hashlib.sha256("".join(dumped).encode()).hexdigest()[:12] for name, dumped in texts.items()}
    return _File(tuple(_names(tree)), hashes)


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """What the statements in a node import; expressions, which cannot, are not looked at."""
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.level, ".".join(filter(None, [node.module, alias.name]))) for alias in node.names)
    for block in (*_BLOCKS, "handlers", "cases"):
        if isinstance(inside := getattr(node, block, None), list):
            for statement in inside:
                yield from _names(statement)


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The definitions of a file with their names; some may have one name. A class is without its methods."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, _FUNCTIONS))
            node.body = [part for part in node.body if not isinstance(part, _FUNCTIONS)]
            yield node.name, node
        elif isinstance(node, _FUNCTIONS):
            yield node.name, node
        elif not _is_text(node):
            yield REST, node


def _dump(value: Any, into: list[str]) -> None:
    """Appends a text that is the same for the same code, whatever Python reads it: what is empty is left out, because later
    versions add fields."""
    if isinstance(value, ast.Constant):
        into.append(f"{type(value.value).__name__} {ascii(value.value)}")
    elif isinstance(value, ast.AST):
        into.append(f"{type(value).__name__}(")
        for field in value._fields:
            if field in _NOT_CODE:
                continue
            part = getattr(value, field, None)
            if field in _BLOCKS and isinstance(part, list):
                part = [item for item in part if not _is_text(item)]
            if part is not None and part != []:
                into.append(field)
                _dump(part, into)
        into.append(")")
    elif isinstance(value, list):
        into.append("[")
        for item in value:
            _dump(item, into)
            into.append(",")
        into.append("]")
    else:
        into.append(ascii(value))


def _is_text(node: Any) -> bool:
    """Whether a statement is a text alone, as docstrings are: it does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
