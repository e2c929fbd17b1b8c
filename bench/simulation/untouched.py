"""What hooks are given stays as it was. Some are given the state itself and some a copy, as the engine likes, so that numbers
would depend on the engine if a hook changed it in place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from bench.errors import HookError


def parts_of(state: Any, name: str = "") -> list[Any]:
    """What a state holds: the name of each part, and the part itself, tensors with how often they have been changed in place.
    The lists of a state are equal as long as nothing in it has been changed or replaced."""
    if isinstance(state, torch.Tensor):
        return [(name, _Same(state), 0 if state.is_inference() else state._version)]
    if isinstance(state, Mapping):
        found: list[Any] = [(name, len(state))]
        for key, value in state.items():
            found += parts_of(value, f"{name}[{key!r}]" if name else str(key))
        return found
    if isinstance(state, list | tuple):
        found = [(name, len(state))]
        for position, value in enumerate(state):
            found += parts_of(value, f"{name}[{position}]" if name else "")
        return found
    return [(name, _Same(state))]


@contextmanager
def left_as_given(given: Any, who: str) -> Iterator[None]:
    """Around a call of hooks.

    Args:
        who: what is called, at the begin of a sentence.

    Raises:
        HookError: if it has changed something of what it was given, naming the first such part.
    """
    known = parts_of(given)
    yield
    name = first_change(known, parts_of(given))
    if name is not None:
        raise HookError(
            f"{who} changed {name or 'what it was given'} in place, but hooks return new objects; replace +=, add_() and item "
            "assignment by new tensors and dicts, such as {**state, ...}."
        )


def first_change(known: list[Any], found: list[Any]) -> str | None:
    """The name of the first part that two lists of the same state do not share; None if they are equal."""
    if known == found:
        return None
    return next((a[0] for a, b in zip(known, found, strict=False) if a != b), "")


class _Same:
    """A thing that equals nothing but itself."""

    def __init__(self, thing: Any):
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing is other._thing
