"""The shape of a JSON value, and what is wrong with a value that has another one.

A shape is one of
    a type or None,
    a check, which is a function from a value to a bool,
    [shape of every item],
    {key: shape}, where a key that ends with "?" may be absent,
    {str: shape} for a mapping with any keys,
    a tuple of alternatives.
"""

import re
import typing
from collections.abc import Callable
from types import UnionType
from typing import Any

Check = Callable[[Any], bool]
Shape = Any  # of the kinds above; a recursive alias says no more

_MAX_DEPTH = 20  # levels of nested values; more only exhaust the interpreter's stack
_MAX_NUMBER = 1e300
# A terminal would obey some of them; the last two ranges turn the direction of what follows, so that a text reads as another.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def is_text(value: Any) -> bool:
    """Whether a value is a text that a terminal can print."""
    return isinstance(value, str) and not _UNPRINTABLE.search(value)


def is_line(value: Any) -> bool:
    """Whether a value is a text that can stand in a sentence: one line, and not too long."""
    return isinstance(value, str) and 0 < len(value) <= 300 and value.isprintable()


def is_number(value: Any) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return type(value) in (int, float) and not (type(value) is int and abs(value) > _MAX_NUMBER)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of less than 63 bits."""
    return type(value) is int and abs(value) < 2**62


def is_printable(value: Any, depth: int = 0, has_methods: bool = True) -> bool:
    """Whether a value consists of numbers, printable texts, and lists and mappings of these, not nested too deeply.

    Args:
        has_methods: whether a mapping with a base is a method. Those of callbacks are none, where an option may be called so.
    """
    if isinstance(value, str):
        return is_text(value)
    if value is None or type(value) is bool:
        return True
    if depth == _MAX_DEPTH:
        return False
    if isinstance(value, dict):
        # Methods are printed by their names, and so are those that they wrap; settings may name a base alone.
        base, is_method = value.get("base", {"name": ""}), "name" in value
        named = not has_methods or (
            isinstance(value.get("name", ""), str)
            and ("name" in base if isinstance(base, dict) else isinstance(base, str) and not is_method)
        )
        return named and all(
            is_text(key) and is_printable(part, depth + 1, has_methods and key != "callbacks")
            for key, part in value.items()
        )
    if isinstance(value, list):
        return all(is_printable(part, depth + 1, has_methods) for part in value)
    return is_number(value)


def is_printable_mapping(value: Any) -> bool:
    """Whether a value is a mapping of printable values, with methods as configs have them."""
    return isinstance(value, dict) and is_printable(value)


def is_plain_mapping(value: Any) -> bool:
    """Whether a value is a mapping of printable values, whatever is called base or name."""
    return isinstance(value, dict) and is_printable(value, has_methods=False)


def one_of(*known: str) -> Check:
    """A check for one of some texts."""
    return lambda value: value in known


def shape_of(kind: Any) -> Shape:
    """The shape of the JSON values of a type. That of `Annotated[<type>, <shape>]` is its shape; texts must be printable."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {key + "?" * (key not in kind.__required_keys__): shape_of(part) for key, part in hints.items()}
    if origin in (typing.Required, typing.NotRequired):
        return shape_of(parts[0])
    if origin is typing.Annotated:
        return parts[1]
    if origin is typing.Literal:
        return one_of(*parts)
    if origin in (typing.Union, UnionType):
        return tuple(map(shape_of, parts))
    if origin is list:
        return [shape_of(parts[0])]
    if origin is dict:
        return is_printable_mapping if parts[1] is Any else {str: shape_of(parts[1])}
    return {str: is_text, int: is_integer, float: is_number, Any: is_printable, type(None): None}.get(kind, kind)


_KINDS = {
    is_text: "a text",
    is_number: "a number",
    is_integer: "an integer",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


def mismatch(value: Any, shape: Shape, where: str = "") -> str:
    """What is wrong with a value ("cells[3].seed is missing"); "" if it has the shape."""
    fault = _fault(value, shape)
    if fault.startswith(" "):
        return f"{where or 'it'}{fault}"
    return f"{where}{fault}".removeprefix(".") if fault else ""


def _fault(value: Any, shape: Shape) -> str:
    """What `mismatch` says after `where`; a report checks thousands of records, so the path is built for a fault only."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return " is not a JSON object"
        if str in shape:
            faults = ((key, _fault(part, shape[str])) for key, part in value.items())
            return next((f".{key}{fault}" for key, fault in faults if fault), "")
        for key, part in shape.items():
            name = key.removesuffix("?")
            if name in value:
                if fault := _fault(value[name], part):
                    return f".{name}{fault}"
            elif name == key:
                return f".{name} is missing"
        return ""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return " is not a list"
        faults = ((index, _fault(part, shape[0])) for index, part in enumerate(value))
        return next((f"[{index}]{fault}" for index, fault in faults if fault), "")
    if isinstance(shape, tuple):
        reasons = [_fault(value, part) for part in shape]
        return "" if "" in reasons else reasons[0]
    fits = value is None if shape is None else isinstance(value, shape) if isinstance(shape, type) else shape(value)
    return "" if fits else f" is not {_KINDS.get(shape, 'what it should be')}"
