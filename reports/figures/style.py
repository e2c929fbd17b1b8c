"""Styles of lines: a method of the box has the same colour, marker and dashes in all figures of all grids."""

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import algorithms

# Ten colours that people with colour vision deficiencies can tell apart (Petroff, Accessible Color Sequences for Data
# Visualization, arXiv 2107.02270).
COLOURS = ("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd")
_BLUE, _YELLOW, _RED, _GREY, _PURPLE, _BROWN, _ORANGE, _TAN, _SLATE, _CYAN = COLOURS
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[str | tuple, ...] = ("-", "--", "-.", (0, (1, 1)))


class LineStyle(NamedTuple):
    """Colour, marker, dashes and size of the marker, as matplotlib's arguments."""

    color: str
    marker: str
    linestyle: str | tuple
    markersize: float | None = None  # points; None for that of all lines


# There are more methods than colours: methods that papers compare have different colours, others differ in the marker.
METHODS = {
    "centralized": LineStyle(_SLATE, "X", "-."),
    "local": LineStyle(_BROWN, "s", "--"),
    "fedavg": LineStyle(_BLUE, "o", "-"),
    "fedprox": LineStyle(_YELLOW, "s", "--"),
    "moon": LineStyle(_CYAN, "^", "-."),
    "fedrs": LineStyle(_BROWN, "D", _DASHES[3]),
    "fedlc": LineStyle(_TAN, "v", "-"),
    "scaffold": LineStyle(_ORANGE, "P", "--"),
    "fednova": LineStyle(_GREY, "X", "-."),
    "fedavgm": LineStyle(_SLATE, "s", _DASHES[3]),
    "fedconcat": LineStyle(_RED, "o", "-"),
    "fedconcat-id": LineStyle(_PURPLE, "s", "--"),
    "fedconcat-ib": LineStyle(_ORANGE, "^", "-."),
    "dp-fedconcat": LineStyle(_TAN, "D", _DASHES[3]),
    "random-clusters": LineStyle(_GREY, "v", "--"),
    "ifca": LineStyle(_CYAN, "P", "-"),
    "fedsoft": LineStyle(_BROWN, "X", "--"),
    "fesem": LineStyle(_YELLOW, "o", "-."),
    "fedconcat-ifca": LineStyle(_CYAN, "s", "-"),
    "fedconcat-fedsoft": LineStyle(_BROWN, "^", "--"),
    "clsprox": LineStyle(_YELLOW, "D", "--"),
    "clsnorm": LineStyle(_PURPLE, "v", "-."),
    "ccvr": LineStyle(_RED, "P", "-"),
    "oracle": LineStyle(_SLATE, "v", _DASHES[3]),
    "fedconcat-fesem": LineStyle(_YELLOW, "X", "-."),
    "fedcat": LineStyle(_RED, "s", "-"),
    "fedcat-gc": LineStyle(_PURPLE, "o", "--"),
    "fedcat-dc": LineStyle(_TAN, "^", "-."),
    "clusamp": LineStyle(_PURPLE, "D", _DASHES[3]),
    "fedgen": LineStyle(_BROWN, "v", "--"),
    "ditto": LineStyle(_ORANGE, "s", "-"),
    "per-fedavg": LineStyle(_SLATE, "D", "--"),
    "pfedme": LineStyle(_PURPLE, "P", "-."),
    "finetune": LineStyle(_CYAN, "v", _DASHES[3]),
    "fedcollab": LineStyle(_RED, "D", "-"),
    "fedcluster": LineStyle(_TAN, "s", "-"),
    "kmeans": LineStyle(_GREY, "P", "--"),
    "fedadagrad": LineStyle(_RED, "^", "-."),
    "fedadam": LineStyle(_GREY, "D", _DASHES[3]),
    "fedyogi": LineStyle(_BROWN, "P", "--"),
    "fedexp": LineStyle(_ORANGE, "X", "-."),
    "feddisco": LineStyle(_TAN, "o", _DASHES[3]),
    "feddyn": LineStyle(_BLUE, "D", "-."),
    "fedsam": LineStyle(_YELLOW, "v", _DASHES[3]),
    "fedasam": LineStyle(_BLUE, "X", "-"),
    "mofedsam": LineStyle(_GREY, "^", _DASHES[3]),
    "fedntd": LineStyle(_TAN, "X", _DASHES[3]),
    "fedlmd": LineStyle(_SLATE, "o", "-"),
    "fedlmd-tf": LineStyle(_BLUE, "^", "-."),
    "fedvls": LineStyle(_RED, "v", "-"),
    "feddecorr": LineStyle(_PURPLE, "X", "-."),
    "feduv": LineStyle(_BROWN, "o", _DASHES[3]),
    "fedetf": LineStyle(_BLUE, "P", "-"),
    "fedgela": LineStyle(_GREY, "s", _DASHES[3]),
    "fedgela-personal": LineStyle(_PURPLE, "^", "-"),
    "fedrod": LineStyle(_ORANGE, "v", "-."),
    "fedrod-personal": LineStyle(_TAN, "P", _DASHES[3]),
    "fedbabu": LineStyle(_CYAN, "o", "--"),
    "fedper": LineStyle(_BLUE, "s", "-."),
    "fedrep": LineStyle(_YELLOW, "^", _DASHES[3]),
    "lg-fedavg": LineStyle(_ORANGE, "o", "-"),
    "fedproto": LineStyle(_SLATE, "^", "-."),
    "finetune-head": LineStyle(_CYAN, "D", _DASHES[3]),
    "finetune-body": LineStyle(_BLUE, "v", "-"),
}


def line_styles(lines: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, LineStyle]:
    """The styles of a figure's lines. Two lines differ in colour or marker until all combinations are used.

    A line whose name begins with a method ("fedconcat (true)", "fedprox mu=0.1", "fedconcat, 50 encoder rounds") has the
    style in METHODS; several lines of one method share its colour. A method that METHODS lacks has one of the styles that
    METHODS does not use, in a strong colour, which follows from its name; where a method beside it has this colour, another
    one that is free in the figure. Lines that are not methods (a client, a value of a setting) have, in their order, the
    remaining styles, first those with colours that no method of the figure has.

    Args:
        lines: all lines that the figure may have, drawn or not, in order.
        own: method -> what its style has instead, as `reports.tables.names.Names.styles`; these methods need not be registered.
    """
    own = own or {}
    words = {_first_word(line) for line in lines}
    known = {name: _changed(METHODS[name], own.get(name, {})) for name in words & METHODS.keys()}
    strong = [colour for colour in COLOURS if colour not in (_GREY, _TAN, _SLATE)]
    spare = [style for style in _unused(METHODS.values()) if style.color in strong]
    others = words & {*algorithms.REGISTRY, *own} - METHODS.keys()
    for name in sorted(others, key=lambda name: (not own.get(name), name)):
        number, taken = zlib.crc32(name.encode()), {style.color for style in known.values()}
        look, start = spare[number % len(spare)], number % len(strong)
        colours = (look.color, *strong[start:], *strong[:start], *COLOURS)
        colour = next((colour for colour in colours if colour not in taken), look.color)
        known[name] = _changed(look._replace(color=colour), own.get(name, {}))
    found: dict[str, LineStyle] = {}
    for line in sorted(lines, key=lambda line: not own.get(_first_word(line))):  # what a grid says comes first
        if usual := known.get(_first_word(line)):
            further = zip(_MARKERS, cycle(_DASHES), strict=False)
            same = (usual._replace(marker=marker, linestyle=dash) for marker, dash in further)
            free = [style for style in (usual, *same) if not _is_used(style, found.values())]
            if free:  # else the line has another colour, as one that is no method
                found[line] = free[0]
    rest = [line for line in lines if line not in found]
    unused = _unused(found.values(), prefer=set(COLOURS) - {style.color for style in found.values()}) or _unused([])
    found |= zip(rest, islice(cycle(unused), len(rest)), strict=True)
    return {line: found[line] for line in lines}


def colours_of_classes(count: int) -> list[str]:
    """A colour per class; with more than ten classes, neighbours have similar colours."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["turbo"](position / (count - 1))) for position in range(count)]


def _first_word(line: str) -> str:
    """What stands before the first space or comma of a line, where the name of a method may be."""
    return re.split(r"[ ,]", line, maxsplit=1)[0]


def _changed(style: LineStyle, given: Mapping[str, Any]) -> LineStyle:
    """A style with what a grid or a lab has chosen."""
    keys = {"colour": "color", "marker": "marker", "size": "markersize"}
    return style._replace(**{keys[key]: value for key, value in given.items()})


def _unused(used: Iterable[LineStyle], prefer: Collection[str] = ()) -> list[LineStyle]:
    """The styles that differ from all used ones in colour or marker, preferred colours first."""
    styles = [
        LineStyle(COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)])
        for number in range(len(COLOURS) * len(_MARKERS))  # numbers of colours and markers have no common divisor
    ]
    used = list(used)
    return sorted((style for style in styles if not _is_used(style, used)), key=lambda style: style.color not in prefer)


def _is_used(style: LineStyle, used: Iterable[LineStyle]) -> bool:
    return any((style.color, style.marker) == (other.color, other.marker) for other in used)
