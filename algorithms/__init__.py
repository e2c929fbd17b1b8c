"""Methods by name, one file each. To add a method: write its file; `registered` gives its class a name.

What a method needs is imported from here: `from algorithms import RoundBased, registered, tree`. Where it lies, and what few
methods need, is in `algorithms.shared`.
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import imports
from bench.hooks import own_options, require_hooks
from bench.registry import Entry, Registry, registered

if TYPE_CHECKING:  # imported when first asked for, because they need torch
    from algorithms.shared import tree
    from algorithms.shared.base import Algorithm, Average, Deployed, State, Weighting
    from algorithms.shared.checks import above, at_least, between, one_of
    from algorithms.shared.local_sgd import LocalResult, cross_entropy, descend, gradient, task_loss
    from algorithms.shared.rounds import RoundBased
    from algorithms.shared.tree import Tree
    from algorithms.shared.types import (
        Batch,
        BatchPlan,
        ClientData,
        ClientOutputs,
        ClientView,
        Cohort,
        Loss,
        OnClient,
        RunConfig,
        Settings,
        Task,
    )
    from algorithms.shared.wrapper import PostHoc, Wrapper

__all__ = [
    "Algorithm",
    "Average",
    "Batch",
    "BatchPlan",
    "ClientData",
    "ClientOutputs",
    "ClientView",
    "Cohort",
    "Deployed",
    "LocalResult",
    "Loss",
    "OnClient",
    "PostHoc",
    "REGISTRY",
    "RoundBased",
    "RunConfig",
    "Settings",
    "State",
    "Task",
    "Tree",
    "Weighting",
    "Wrapper",
    "above",
    "at_least",
    "between",
    "cross_entropy",
    "descend",
    "describe",
    "gradient",
    "is_without_paper",
    "load",
    "make",
    "methods_in",
    "name_of",
    "one_of",
    "presets",
    "registered",
    "symbols",
    "task_loss",
    "title_of",
    "tree",
    "version_of",
]

REGISTRY = Registry("algorithm")
"""Name of a method -> where it is, and the options that the name sets; see `bench.registry.registered`."""

_RENAMED = {
    "mistakes": "validate",
    "remarks": "caveats",
    "findings": "diagnostics",
    "watched": "finite_check",
    "outlines": "state_templates",
    "returned": "result_template",
    "averaged": "weighted_means",
    "play_round": "run_round",
    "conclude": "finish_round",
    "client_states": "cohort_states",
    "deployment": "deploy_traffic",
    "held": "proximal_params",
    "idle_round": "run_round",
    "brief": "profile_options",
    "drawn": "seeded",
}  # hooks: once -> now
_MOVED = {"rows": "client_states", "local": "local_sgd"}  # modules of `algorithms.shared`: once -> now


def __getattr__(name: str) -> Any:
    """What this package passes on of `algorithms.shared`: the names imported above for type checkers."""
    target = imports.passed_on(__name__).get(name)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(target.rpartition(".")[0])
    return getattr(module, name, None) or importlib.import_module(target)


def load(name: str) -> "type[Algorithm]":
    """The class of a method. Imports torch.

    Raises:
        ValueError: if there is no method of that name, or its file cannot be imported, or its class has options but is no
            dataclass, or a hook by an earlier name, or wrong ones (see `bench.hooks.require_hooks`), or a value without a type.
    """
    entry = REGISTRY.find(name)
    try:
        method = entry.load()
    except ValueError as error:
        package, _, once = str(getattr(error.__cause__, "name", "")).rpartition(".")
        now = f"algorithms.shared.{_MOVED.get(once, once)}"
        if package == "algorithms" and find_spec(now):
            raise ValueError(
                f"{error} Write from algorithms import RoundBased, and so on: what most methods need is there; the module is "
                f"{now} now."
            ) from error
        raise
    _require_right(entry, method)
    return method


@functools.cache  # a grid loads each class for each of its cells
def _require_right(entry: Entry, method: Any) -> None:
    """Raises ValueError with what `load` names."""
    options, where = own_options(entry, method), f"{entry.target} in {entry.place}"
    if earlier := [
        f"{once} to {now}" for once, now in _RENAMED.items() if hasattr(method, once) and once not in options
    ]:
        raise ValueError(f"{where} has hooks by earlier names: rename {', '.join(earlier)}.")
    require_hooks(entry, method, "RoundBased", "init", "step", "deploy")
    if untyped := _untyped(entry, method):
        raise ValueError(untyped)


def _untyped(entry: Entry, method: Any) -> str:
    """A sentence about a value in the classes of a file that would be an option if it had a type; "" if there is none.
    What a base class knows is set, and what is written in capitals is a constant."""
    for kind in getattr(method, "__mro__", ()):
        known = {name for base in kind.__mro__[1:] for name in (*vars(base), *inspect.get_annotations(base))}
        own = vars(kind) if kind.__module__ == entry.module else {}
        for name in sorted(own.keys() - known - inspect.get_annotations(kind).keys()):
            if isinstance(own[name], int | float | str) and not (name.startswith("_") or name.isupper()):
                written = re.search(
                    rf"\A(?s:.*?)^class {kind.__name__}\b(?s:.*?)^ +{name} *=", _text(entry.path), re.MULTILINE
                )
                where = entry.place + (f", line {written[0].count(chr(10)) + 1}" if written else "")
                said = f"{name}: {type(own[name]).__name__} = {own[name]!r}"
                return f"{where}: {name} has no type, so that it is no option; write {said}."
    return ""


def make(name: str, **options: Any) -> "Algorithm":
    """A method with these options; all others are the defaults of the name.

    Raises:
        ValueError: as `load`, or if an option does not hold.
    """
    return load(name)(**{**presets(name), **options})


def presets(name: str) -> dict[str, Any]:
    """The options that the name of a method sets."""
    return REGISTRY.find(name).options


def methods_in(spec: Mapping[str, Any], path: str = "algorithm") -> Iterator[tuple[str, str]]:
    """The path of a method of a config in its `versions`, and its name; then those of the methods inside it."""
    yield path, spec["name"]
    for key, value in spec.items():
        if isinstance(value, Mapping) and "name" in value:
            yield from methods_in(value, f"{path}.{key}")


def name_of(method: "Algorithm") -> str:
    """The name under which a method is registered, of several the first of those that set most of its options; the name
    of its class if there is none."""
    kind: Any = type(method)
    found = {
        entry.name: len(entry.options)
        for entry in _entries_of(kind, tuple(REGISTRY.values()))
        if all(getattr(method, key) == own for key, own in entry.options.items())
    }
    return max(found, key=lambda name: found[name], default=type(method).__name__)


@functools.cache  # a grid names the method of each of its cells
def _entries_of(kind: type, entries: tuple[Entry, ...]) -> list[Entry]:
    """Those of a class. Two files may have a class of one name, and a decorator may give it another name; that of a method has
    been imported."""
    return [entry for entry in entries if entry.loaded is kind]


def describe(name: str) -> str:
    """First line of the docstring of a method's file, or the one that begins with the name and a colon where a class has
    several names; read without importing it.

    Raises:
        ValueError: if the file is no Python.
    """
    entry = REGISTRY.find(name)
    try:
        first, *others = (ast.get_docstring(ast.parse(_text(entry.path))) or "").split("\n")
    except SyntaxError as error:
        raise ValueError(f"{entry.place}, line {error.lineno}: {error.msg}.") from error
    own = [line.removeprefix(f"{name}: ") for line in others if line.startswith(f"{name}: ")]
    return own[0] if own else first


def title_of(name: str) -> str:
    """What tables and figures call a method, read from its file: its `title`; without one, what stands before the colon in the
    first line of the file, where that has the letters of the name ("FedProx: a proximal term ..." for fedprox); else its name.
    """
    entry = REGISTRY.find(name)
    if title := entry.given.get("title"):
        return title
    head = _text(entry.path).lstrip().removeprefix('"""').partition("\n")[0].partition(":")[0]
    return head if letters(head) == letters(name) else name


def version_of(name: str) -> tuple[int, str]:
    """The version of a method, and the comment beside it on what the version before did, "" without one: read from its file, in
    its class or that of a method that it extends, in this file or another one."""
    return REGISTRY.version_of(name)


def is_without_paper(name: str) -> bool:
    """Whether the file of a method says that its paper could not be read: then it follows code, or what others say."""
    return re.search(r"\bbod(y|ies)\b[^.]*\bnot\s+at\s+hand", _text(REGISTRY.find(name).path)) is not None


def letters(text: str) -> str:
    """A name without case, spaces and signs, as names of methods are compared."""
    return "".join(filter(str.isalnum, text.lower()))


def symbols() -> dict[str, str]:
    """Option -> its symbol in formulas, of all methods that name one for their options.

    Raises:
        ValueError: if two files have different symbols for one option.
    """
    return _symbols(tuple(REGISTRY.values()))


@functools.lru_cache(maxsize=1)
def _symbols(entries: tuple[Entry, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        for option, symbol in entry.given.get("symbols", {}).items():
            if found.setdefault(option, symbol) != symbol:
                raise ValueError(
                    f"{entry.place}: the symbol of {option} is {symbol}, but that of another method {found[option]}; tables "
                    "have one column for both, so give them one symbol."
                )
    return found


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
