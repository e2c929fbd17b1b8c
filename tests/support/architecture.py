"""The drawing of packages and their imports; `python -m tests.support.architecture` draws it anew.

Rows are the layers of the contract in pyproject.toml, arrows are imports that the code has. An arrow that follows from others
is left out: from a to c, where a imports b and b imports c.
"""

import graphlib
import tomllib
from collections import defaultdict
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
DRAWING = ROOT / "docs" / "architecture.svg"
ROOTS = ("algorithms", "bench", "datasets", "reports", "search_spaces")

_WIDTH, _BOX, _TALL, _ROW = 860, 150, 28, 52  # pixels: of the drawing, of a box, its height, from one row to the next
_WAY = 40  # pixels that an arrow needs between two boxes


def layers() -> list[list[str]]:
    """Packages, row by row: each row imports only from rows below it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in line.split("|")] for line in lines]


def imports(packages: list[str]) -> dict[str, set[str]]:
    """Package -> the other ones that its modules import, inside functions too."""
    graph = grimp.build_graph(*ROOTS, exclude_type_checking_imports=True, cache_dir=None)
    found = defaultdict(set)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = _package_of(module, packages), _package_of(imported, packages)
            if here and there and here != there:
                found[here].add(there)
    return {name: found[name] for name in packages}


def _package_of(module: str, packages: list[str]) -> str | None:
    return max((name for name in packages if f"{module}.".startswith(f"{name}.")), key=len, default=None)


def reduced(graph: dict[str, set[str]]) -> dict[str, list[str]]:
    """The arrows of a graph without circles that do not follow from others."""
    reached: dict[str, set[str]] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        reached[name] = graph[name].union(*(reached[other] for other in graph[name]))
    return {name: sorted(there - set().union(*(reached[other] for other in there))) for name, there in graph.items()}


def draw() -> str:
    """The drawing, as the text of an SVG file."""
    *rows, leaves = layers()
    names = [name for row in rows for name in row]
    arrows = reduced(imports(names))
    level = {name: number for number, row in enumerate(rows) for name in row}
    # An arrow over several rows keeps a place of its own in each of them.
    paths = [[a, *[(a, b, number) for number in range(level[a] + 1, level[b])], b] for a in names for b in arrows[a]]
    places = [
        [*row, *(node for path in paths for node in path[1:-1] if node[2] == number)] for number, row in enumerate(rows)
    ]
    x = _columns(places, [pair for path in paths for pair in pairwise(path)])
    y = {node: 20 + number * _ROW for number, row in enumerate(places) for node in row}
    bottom = 20 + len(rows) * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 60}" font-family="sans-serif" '
        'font-size="13" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#717581"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for path in paths:
        points = [(x[path[0]], y[path[0]] + _TALL)]
        for node in path[1:-1]:
            points += [(x[node], y[node]), (x[node], y[node] + _TALL)]
        points.append((x[path[-1]], y[path[-1]] - 2))
        parts.append(f'<path d="{_curve(points)}" fill="none" stroke="#717581" marker-end="url(#tip)"/>')
    for name in names:
        parts += _box(name, x[name], y[name], _BOX, "#dcebfa" if name.startswith("bench") else "#fdeccb")
    parts += _box("imported everywhere: " + ", ".join(leaves).replace("bench.", ""), _WIDTH / 2, bottom, 620, "#eeeeee")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(places: list[list], steps: list[tuple]) -> dict:
    """Where each node stands in its row: near the middle of its neighbours, without overlap."""
    beside = defaultdict(list)
    for a, b in steps:
        beside[a].append(b)
        beside[b].append(a)
    x = {node: _WIDTH / 2 for row in places for node in row}
    for downwards in (True, False) * 4:
        for row in places if downwards else reversed(places):
            wish = {
                node: sum(x[other] for other in beside[node] or [node]) / len(beside[node] or [node]) for node in row
            }
            order = sorted(row, key=lambda node: (wish[node], str(node)))
            sizes = [_BOX + 14 if isinstance(node, str) else _WAY for node in order]
            from_left, from_right = _packed(order, sizes, wish), _packed(order[::-1], sizes[::-1], wish, mirrored=True)
            for node in row:
                x[node] = round((from_left[node] + from_right[node]) / 2, 1)
    return x


def _packed(order: list, sizes: list[int], wish: dict, *, mirrored: bool = False) -> dict:
    """Places near the wished ones, one after another from the left, or from the right."""
    places, taken = {}, 0.0
    for rest, (node, size) in enumerate(zip(order, sizes, strict=True)):
        wanted = _WIDTH - wish[node] if mirrored else wish[node]
        middle = max(taken, min(wanted - size / 2, _WIDTH - sum(sizes[rest:]))) + size / 2
        taken = middle + size / 2
        places[node] = _WIDTH - middle if mirrored else middle
    return places


def _curve(points: list[tuple[float, float]]) -> str:
    text = f"M{points[0][0]:g} {points[0][1]:g}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        text += f"L{x1:g} {y1:g}" if x0 == x1 else f"C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1:g}"
    return text


def _box(text: str, x: float, y: float, width: int, colour: str) -> list[str]:
    return [
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width}" height="{_TALL}" rx="5" fill="{colour}" stroke="#717581"/>',
        f'<text x="{x:g}" y="{y + 19:g}">{escape(text)}</text>',
    ]


if __name__ == "__main__":
    DRAWING.write_text(draw())
    print(DRAWING)
