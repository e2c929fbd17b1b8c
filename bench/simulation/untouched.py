"""What hooks are given stays as it was. Some are given the state itself and some a copy, as the engine likes, so that numbers
would depend on the engine if a hook changed it in place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from algorithms.shared.client_states import are_client_rows
from bench.errors import HookError


class Marks(NamedTuple):
    """What tells whether a state has been changed or replaced: equal as long as nothing has been.

    Attributes:
        found: ids and sizes of its parts, and how often each tensor has been changed in place.
        parts: these, so that no other thing gets the id of one.
    """

    found: list[int]
    parts: list[Any]


def marks_of(state: Any, *, with_clients: bool = False) -> Marks:
    """The marks of nested dicts, lists and tuples.

    Args:
        with_clients: also those of the states of all clients, which may be many; hooks get copies of them.
    """
    marks = Marks([], [])
    _mark(state, marks, with_clients, None, "")
    return marks


@contextmanager
def left_as_given(given: Any, who: Callable[[], str]) -> Iterator[None]:
    """Around a call of hooks. What is changed through `.data` or NumPy is not seen: `check` compares numbers.

    Args:
        who: what is called, at the begin of a sentence.

    Raises:
        HookError: if it has changed something of what it was given, naming the first such part.
    """
    known = marks_of(given)
    yield
    if marks_of(given).found != known.found:
        raise HookError(
            f"{who()} changed {first_change(given, known) or 'what it was given'} in place, but hooks return new objects; "
            "replace +=, add_() and item assignment by new tensors and dicts, such as {**state, ...}."
        )


def first_change(state: Any, known: Marks) -> str:
    """The name of the first part of a state whose marks are not the known ones, as params['conv1.weight']; "" for the state."""
    now, names = Marks([], []), list[str]()
    _mark(state, now, False, names, "")
    pairs = zip(known.found, now.found, names, strict=False)
    return next((name for before, after, name in pairs if before != after), "")


def _mark(part: Any, marks: Marks, with_clients: bool, names: list[str] | None, name: str) -> None:
    """Adds the marks of a part, and if names are wanted, a name for each."""
    marks.parts.append(part)
    begin = len(marks.found)
    marks.found.append(id(part))
    is_mapping = isinstance(part, Mapping)
    if isinstance(part, torch.Tensor):
        marks.found.append(0 if part.is_inference() else part._version)
    elif isinstance(part, Mapping | list | tuple):
        marks.found.append(len(part))
    if names is not None:
        names += [name] * (len(marks.found) - begin)
    if is_mapping:
        hides = not with_clients and are_client_rows(part)
        for key, value in part.items():
            if not (hides and key == "rows"):
                inside = "" if names is None else f"{name}[{key!r}]" if name else str(key)
                _mark(value, marks, with_clients, names, inside)
    elif isinstance(part, list | tuple):
        for position, value in enumerate(part):
            _mark(value, marks, with_clients, names, f"{name}[{position}]" if name else "")
