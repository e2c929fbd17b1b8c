"""Hooks of the classes that people write: what is wrong in how a class overrides them, and in what they return."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import plugins
from bench.errors import HookError
from bench.registry import KINDS, Entry, Registry

Hook = Callable[..., Any]
_OURS = {spec.package.partition(".")[0] for spec in KINDS.values()}


def place_of(hook: Hook) -> str:
    """Name, file and line of a hook: "server_step in mylab/algorithms/fedmine.py, line 20"."""
    code = getattr(_written(hook), "__code__", None)
    if code is None:
        return "what runs on a client"
    entries = (entry for kind, spec in KINDS.items() if spec.decorator for entry in Registry(kind).values())
    places = (entry.place for entry in entries if str(entry.path) == code.co_filename)
    return f"{code.co_name} in {next(places, Path(code.co_filename).name)}, line {code.co_firstlineno}"


def _written(hook: Hook) -> Hook:
    """The function that somebody has written, of one of ours that gets it first, or of one around it."""
    while isinstance(hook, functools.partial) or hasattr(hook, "__wrapped__"):
        if not isinstance(hook, functools.partial):
            hook = hook.__wrapped__
        else:
            hook = hook.args[0] if _is_ours(hook.func) and hook.args and callable(hook.args[0]) else hook.func
    return hook


def require_returned(hook: Hook, returned: Any, fits: bool, wanted: str, write: str) -> None:
    """Raises HookError unless what a hook has returned fits.

    Args:
        wanted: what is expected, in words.
        write: what to write instead.
    """
    if not fits:
        got = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        got = "None" if returned is None else got
        raise HookError(f"{place_of(hook)}, returned {got}, but {wanted} is expected; write {write}.")


def own_options(entry: Entry, made: type) -> list[str]:
    """The options that the class of a file has beside those of its bases.

    Raises:
        ValueError: if there are some, but it is no dataclass.
    """
    options = _options(made)
    if options and "__dataclass_params__" not in vars(made):
        raise ValueError(
            f"{entry.target} in {entry.place} is no dataclass, so that {', '.join(options)} would be no options: put "
            f"@dataclass(frozen=True) between @{KINDS[entry.kind].decorator}(...) and the class."
        )
    return options


def _options(made: type) -> list[str]:
    return [key for key, kind in inspect.get_annotations(made).items() if "ClassVar" not in str(kind)]


@functools.cache  # a grid loads each class for each of its cells
def require_hooks(entry: Entry, made: Any, extends: str, *needed: str) -> None:
    """Raises ValueError with all that is wrong in how the classes of a file override hooks: names almost like hooks, which
    nothing would call, options with the names of hooks or of other attributes, hooks that take other arguments than they get,
    and hooks that are left out.

    Args:
        extends: the class that has these hooks, for messages.
        needed: hooks that it leaves to others.
    """
    where = f"{entry.target} in {entry.place}"
    if not (isinstance(made, type) and any(map(_is_ours, made.__mro__[1:]))):
        raise ValueError(f"{where} is no {entry.kind}; write class {entry.target}({extends}).")
    own = [kind for kind in made.__mro__ if kind.__module__ == entry.module]
    mistakes = []
    if wrong := {name: hook for kind in own for name, hook in _misspelt(kind).items()}:
        meant = ", ".join(f"{name}{_line(made, name)} ({hook}?)" for name, hook in wrong.items())
        mistakes.append(
            f"{where} has attributes that nothing reads or calls, with names almost like hooks: {meant}. Correct them, or "
            "begin the name of a helper with _."
        )
    elif absent := [name for name in needed if _is_left_to_others(getattr(made, name, None))]:
        mistakes.append(f"{where} has no {' and no '.join(absent)}, which every {entry.kind} needs; add it.")
    for kind in own:
        for name in _options(kind):
            inherited = _inherited(kind, name)
            if inspect.isfunction(inherited):
                mistakes.append(f"{where} has an option called {name}, but a hook has this name; rename it.")
            elif inherited is not None:
                value = f"{vars(kind)[name]!r}" if name in vars(kind) else "..."  # none, or that of `field`
                mistakes.append(f"{where} gives {name} a type, which makes it an option; write {name} = {value}.")
        mistakes += [
            f"{where} has {name} = {value!r}, but a tuple is expected; write {name} = ({value!r},)."
            for name, value in vars(kind).items()
            if isinstance(value, str) and isinstance(_inherited(kind, name), tuple)
        ]
    mistakes += [mistake for kind in own for mistake in _other_arguments(kind)]
    if mistakes:
        raise ValueError(" ".join(mistakes))


def _misspelt(kind: type) -> dict[str, str]:
    """What a class defines beside its options and hooks -> the hook that each name resembles."""
    own = {name for name in vars(kind).keys() - inspect.get_annotations(kind).keys() if not name.startswith("_")}
    hooks = {name for base in kind.__mro__[1:] if _is_ours(base) for name in vars(base) if name[0] != "_"}
    close = {name: difflib.get_close_matches(name, hooks, n=1, cutoff=0.8) for name in sorted(own - hooks)}
    return {name: found[0] for name, found in close.items() if found}


def _inherited(kind: type, name: str) -> Any:
    """What the nearest base of a class that has this name has there; None if none has, or it is an option there, too."""
    base = next(
        (base for base in kind.__mro__[1:] if name in vars(base) or name in inspect.get_annotations(base)), None
    )
    return None if base is None or name in _options(base) else vars(base).get(name)


def _is_ours(thing: Any) -> bool:
    """Whether a class or function is one of this project; those of labs are in modules of the same packages."""
    module = getattr(thing, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.split(".")[0] in _OURS and not any(Path(file).is_relative_to(lab) for lab in plugins.folders())


def _line(made: type, name: str) -> str:
    found = inspect.getattr_static(made, name)
    code = getattr(getattr(found, "fget", found), "__code__", None)
    return f" in line {code.co_firstlineno}" if code else ""


def _is_left_to_others(hook: Any) -> bool:
    """Whether a hook is not there, or is that of a class of this project that raises NotImplementedError."""
    names = getattr(getattr(hook, "__code__", None), "co_names", ())
    return hook is None or (_is_ours(hook) and "NotImplementedError" in names)


def _other_arguments(kind: type) -> Iterator[str]:
    """A sentence for each function of a class that cannot be called as what it overrides."""
    for name, own in vars(kind).items():
        base = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        if name.startswith("_") or not inspect.isfunction(own):
            continue
        if isinstance(base, property):
            yield f"{place_of(own)}, is read, not called; write @property above it."
        elif inspect.isfunction(base):
            given = inspect.signature(base).parameters.values()
            by_place = [None for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
            try:
                inspect.signature(own).bind(
                    *by_place, **{one.name: None for one in given if one.kind is one.KEYWORD_ONLY}
                )
            except TypeError:
                taken, wanted = (", ".join(inspect.signature(hook).parameters) for hook in (own, base))
                yield f"{place_of(own)}, takes ({taken}), but it gets ({wanted}); write these arguments."
