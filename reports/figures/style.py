"""How lines look: a method has the same colour, marker and dashes in all figures of all grids."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import algorithms

# Ten colours that people with colour vision deficiencies can tell apart (Petroff, Accessible Color Sequences for Data
# Visualization, arXiv 2107.02270).
COLOURS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
_BLUE, _YELLOW, _RED, _GREY, _PURPLE, _BROWN, _ORANGE, _TAN, _SLATE, _CYAN = COLOURS
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", (0, (1, 1)))


class Look(NamedTuple):
    """Colour, marker and line style as matplotlib takes them; two lines of a figure differ in colour or marker, as long as
    there are looks left."""

    color: str
    marker: str
    linestyle: str | tuple

    def options(self) -> dict:
        return self._asdict()


# There are more methods than colours: those that papers compare have different ones, the others differ in their markers.
METHODS = {
    "centralized": Look(_SLATE, "X", "-."),
    "local": Look(_GREY, "D", "--"),
    "fedavg": Look(_BLUE, "o", "-"),
    "fedprox": Look(_YELLOW, "s", "--"),
    "moon": Look(_CYAN, "^", "-."),
    "fedrs": Look(_BROWN, "D", _DASHES[3]),
    "fedlc": Look(_TAN, "v", "-"),
    "scaffold": Look(_ORANGE, "P", "--"),
    "fednova": Look(_GREY, "X", "-."),
    "fedavgm": Look(_SLATE, "s", _DASHES[3]),
    "fedconcat": Look(_RED, "o", "-"),
    "fedconcat-id": Look(_PURPLE, "s", "--"),
    "fedconcat-ib": Look(_ORANGE, "^", "-."),
    "dp-fedconcat": Look(_TAN, "D", _DASHES[3]),
    "random-clusters": Look(_GREY, "v", "--"),
    "ifca": Look(_CYAN, "P", "-"),
    "fedsoft": Look(_BROWN, "X", "--"),
    "fesem": Look(_YELLOW, "o", "-."),
    "fedconcat-ifca": Look(_CYAN, "s", "-"),
    "fedconcat-fedsoft": Look(_BROWN, "^", "--"),
    "clsprox": Look(_YELLOW, "D", "--"),
    "clsnorm": Look(_PURPLE, "v", "-."),
    "ccvr": Look(_RED, "P", "-"),
    "oracle": Look(_SLATE, "v", _DASHES[3]),
    "fedconcat-fesem": Look(_YELLOW, "X", "-."),
}


def looks(lines: Sequence[str]) -> dict[str, Look]:
    """How the lines of a figure look.

    A line whose name begins with a method ("fedconcat (true)", "fedprox mu=0.1", "fedconcat, 50 encoder rounds") has the
    look of METHODS; where several lines belong to one method, the later ones share its colour. A registered method that
    METHODS does not know has one of the looks that are left there, by its place among such methods. Lines that are no methods
    (a client, a value of a setting) take looks in their order, colours first that no method of the figure has.

    Args:
        lines: all lines that a figure may have, in their order, drawn or not.
    """
    known = METHODS | dict(zip(_unlisted(), _others(METHODS.values()), strict=False))
    found: dict[str, Look] = {}
    for line in lines:
        method = method_of(line)
        if method in known:
            own = known[method]
            same = (Look(own.color, marker, dashes) for marker, dashes in zip(_MARKERS, cycle(_DASHES), strict=False))
            free = [look for look in (own, *same) if not _taken(look, found.values())]
            found[line] = next(iter(free), own)
    rest = [line for line in lines if line not in found]
    others = _others(list(found.values()), prefer=set(COLOURS) - {look.color for look in found.values()})
    found |= zip(rest, islice(cycle(others), len(rest)), strict=True)
    return {line: found[line] for line in lines}


def colours_of_classes(count: int) -> list[str]:
    """A colour per class; beyond ten of them only neighbours can be confused."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["turbo"](position / (count - 1))) for position in range(count)]


def method_of(line: str) -> str | None:
    """The registered method with which the name of a line begins, or None."""
    name = re.split(r"[ ,]", line, maxsplit=1)[0]
    return name if name in algorithms.REGISTRY else None


def _unlisted() -> Iterator[str]:
    return (name for name in algorithms.REGISTRY if name not in METHODS)


def _others(taken: Iterable[Look], prefer: set[str] = frozenset()) -> list[Look]:
    """All looks that differ from those taken in colour or marker, preferred colours first; neighbours differ in all three."""
    pairs = [
        Look(COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)])
        for number in range(len(COLOURS) * len(_MARKERS))  # numbers of colours and markers have no common divisor
    ]
    taken = list(taken)
    return sorted((look for look in pairs if not _taken(look, taken)), key=lambda look: look.color not in prefer)


def _taken(look: Look, others: Iterable[Look]) -> bool:
    return any((look.color, look.marker) == (other.color, other.marker) for other in others)
