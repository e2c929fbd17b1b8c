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
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]
Shape = Any  # of the kinds above; a recursive alias says no more

_MAX_DEPTH = 20  # levels of nested values; more only exhaust the interpreter's stack
_MAX_NUMBER = 1e300
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # a terminal would obey some of them


def is_text(value: Any) -> bool:
    """Whether a value is a text that a terminal can print."""
    return isinstance(value, str) and not _UNPRINTABLE.search(value)


def is_number(value: Any) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return type(value) in (int, float) and not (type(value) is int and abs(value) > _MAX_NUMBER)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of less than 63 bits."""
    return type(value) is int and abs(value) < 2**62


def is_printable(value: Any, depth: int = 0) -> bool:
    """Whether a value consists of numbers, printable texts, and lists and mappings of these, not nested too deeply."""
    if isinstance(value, str):
        return is_text(value)
    if value is None or type(value) is bool:
        return True
    if depth == _MAX_DEPTH:
        return False
    if isinstance(value, dict):
        # Methods are printed by their names, and so are those that they wrap.
        named = isinstance(value.get("name", ""), str) and ("base" not in value or "name" in (value["base"] or ()))
        return named and all(is_text(key) and is_printable(part, depth + 1) for key, part in value.items())
    return all(is_printable(part, depth + 1) for part in value) if isinstance(value, list) else is_number(value)


def is_printable_mapping(value: Any) -> bool:
    """Whether a value is a mapping of printable values."""
    return isinstance(value, dict) and is_printable(value)


def one_of(*known: str) -> Check:
    """A check for one of some texts."""
    return lambda value: value in known


def check_of(shape: Shape) -> Check:
    """A function that tells whether a value has a shape; it is built once, because a report checks thousands of records."""
    if isinstance(shape, dict) and str in shape:
        of_part = check_of(shape[str])
        return lambda value: isinstance(value, dict) and all(map(of_part, value.values()))
    if isinstance(shape, dict):
        needed = [(key, check_of(part)) for key, part in shape.items() if not key.endswith("?")]
        others = [(key[:-1], check_of(part)) for key, part in shape.items() if key.endswith("?")]
        return lambda value: (
            isinstance(value, dict)
            and all(key in value and check(value[key]) for key, check in needed)
            and all(check(value[key]) for key, check in others if key in value)
        )
    if isinstance(shape, list):
        of_item = check_of(shape[0])
        return lambda value: isinstance(value, list) and all(map(of_item, value))
    if isinstance(shape, tuple):
        checks = [check_of(part) for part in shape]
        return lambda value: any(check(value) for check in checks)
    if shape is None or isinstance(shape, type):
        kind = type(None) if shape is None else shape
        return lambda value: isinstance(value, kind)
    return shape


_KINDS = {
    is_text: "a text",
    is_number: "a number",
    is_integer: "an integer",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


def mismatch(value: Any, shape: Shape, where: str = "") -> str:
    """What is wrong with a value ("cells[3].seed is missing"); "" if it has the shape. `check_of` is faster."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where or 'it'} is not a JSON object"
        if str in shape:
            wrong = (mismatch(part, shape[str], f"{where}.{key}" if where else str(key)) for key, part in value.items())
            return next(filter(None, wrong), "")
        for key, part in shape.items():
            name = key.removesuffix("?")
            inner = f"{where}.{name}" if where else name
            if name in value:
                if found := mismatch(value[name], part, inner):
                    return found
            elif name == key:
                return f"{inner} is missing"
        return ""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where or 'it'} is not a list"
        wrong = (mismatch(part, shape[0], f"{where}[{index}]") for index, part in enumerate(value))
        return next(filter(None, wrong), "")
    if isinstance(shape, tuple):
        reasons = [mismatch(value, part, where) for part in shape]
        return "" if "" in reasons else reasons[0]
    fits = value is None if shape is None else isinstance(value, shape) if isinstance(shape, type) else shape(value)
    return "" if fits else f"{where or 'it'} is not {_KINDS.get(shape, 'what it should be')}"
