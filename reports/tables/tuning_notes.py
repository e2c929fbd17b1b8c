"""How hyper-parameters were chosen, and which: footnotes, and a table of the choices."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pandas as pd

from reports.tables.aggregate import cell_keys, label, short, split_of
from reports.tables.layout import Cell, Row, Table, arrange

TITLE = "Chosen hyper-parameters"


def footnotes(grid: dict, cells: pd.DataFrame) -> Iterator[str]:
    """By which protocol the numbers of a table were tuned.

    Args:
        grid: expanded grid.
        cells: of all metrics.
    """
    tuned = cells[cells["settings"] > 1].groupby("algorithm", sort=False)["settings"].agg(["min", "max"])
    if len(tuned):
        counts = _counted({name: (low, high) for name, low, high in tuned.itertuples()})
        protocol = ", as published" if grid["mirrors"] else ""
        yield (
            f"Tuned: best of N settings per cell, chosen on the {split_of(grid)} split by the mean over "
            f"seeds{protocol}; N is {counts}."
        )
    yield from _searched(grid)
    fixed = cells[(cells["settings"] == 1) & (cells["choice"] != "") & (cells["searched"] == 0)]
    if len(fixed):
        keys = cell_keys(grid)
        places = set(fixed[keys].itertuples(index=False, name=None))
        shown = [cell for cell in grid["cells"] if tuple(label(cell, key) for key in keys) in places]
        yield f"One setting, not tuned: {', '.join(_choices(shown))}."
    if cells["searched"].any() and not cells["searched"].all():
        others = dict.fromkeys(
            cells.loc[(cells["searched"] == 0) & (cells["missing"] == ""), grid["report"]["columns"]]
        )
        if others:
            yield f"Nothing was searched in some cells of {', '.join(others)}."


def chosen_on(cells: pd.DataFrame, grid: dict) -> pd.Series:
    """The split on which each cell's hyper-parameters were chosen, "" where there was no choice."""
    own = pd.Series(split_of(grid), cells.index).where(cells["settings"] > 1, "")
    return own.mask(cells["searched"] > 0, "validation")


def table(cells: pd.DataFrame, grid: dict, metric: str) -> Table | None:
    """What was chosen, a row for each cell of the table of a metric in which something was; None if nothing was anywhere."""
    chosen = cells[((cells["searched"] > 0) | (cells["settings"] > 1)) & (cells["done"] > 0)]
    if chosen.empty:
        return None
    laid_out = arrange(chosen, grid, metric, show=lambda cell: Cell(short(cell.choice)))
    rows = (
        Row((*row.labels, column), (cell,))
        for row in laid_out.rows
        for column, cell in zip(laid_out.columns, row.cells, strict=True)
        if cell
    )
    return Table(metric, (*laid_out.row_keys, laid_out.column_key), ("chosen",), tuple(rows), title=TITLE)


def _searched(grid: dict) -> Iterator[str]:
    """About choices on validation data."""
    found = {json.dumps(cell["tuned"], sort_keys=True): cell for cell in grid["cells"] if cell.get("tuned")}
    if not found:
        return
    tuned = [cell["tuned"] for cell in found.values()]
    shares = _alternatives(f"{one['share']:.0%}" for one in tuned)
    judged = defaultdict(dict)
    for cell in found.values():
        judged[cell["tuned"]["metric"].replace("_", " ")][label(cell, "algorithm")] = True
    metrics = " or ".join(
        f"{metric} ({', '.join(names)})" if len(judged) > 1 else metric for metric, names in judged.items()
    )
    seeds = _alternatives(", ".join(map(str, one["seeds"])) for one in tuned)
    how = _alternatives(one["searcher"] + (f" with {one['scheduler']}" * (one["scheduler"] != "none")) for one in tuned)
    counts = defaultdict(list)
    for cell in found.values():
        counts[label(cell, "algorithm")].append(cell["tuned"]["tried"])
    equal = {one["tried"] for one in tuned}
    number = str(*equal) if len(equal) == 1 else "N"
    yield (
        f"Hyper-parameters were chosen on validation data ({shares} of each class of each client; no test image was read), and "
        f"then trained on all training data. Best of {number} configurations per cell by mean validation {metrics} in the last "
        f"round over seeds {seeds}; searcher {how}."
    )
    vague = sum(one["alike"] > 1 for one in tuned)
    if vague:
        yield (
            f"In {vague} of {len(tuned)} searches the best configurations print alike on validation data; the first of them "
            "was taken, and which it is means little."
        )
    if len(equal) > 1:
        yield (
            "The methods did not get equally many configurations: N is "
            f"{_counted({name: (min(tried), max(tried)) for name, tried in counts.items()})}."
        )
    spaces = defaultdict(dict)
    for cell in found.values():
        for key, where in cell["tuned"]["space"].items():
            spaces[key, where][_method(cell, key)] = True
    searched = "; ".join(f"{key} of {', '.join(names)} in {where}" for (key, where), names in spaces.items())
    yield f"Searched: {searched}."


def _choices(cells: list[dict]) -> Iterator[str]:
    """ "moon mu=5.0" for each option that was chosen, with the method that it belongs to, be it around another or inside, and
    the datasets where it differs between them."""
    found: dict[str, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        for name, value in sorted(cell["choice"].items()):
            found[f"{_method(cell, name)} {name}"][json.dumps(value)][cell["dataset"]] = True
    for option, values in found.items():
        for value, names in values.items():
            yield f"{option}={value}" + (f" on {' and '.join(names)}" if len(values) > 1 else "")


def _method(cell: dict, option: str) -> str:
    """The method to which an option of a cell belongs: the one that is played, or one inside it."""
    method = outer = cell["config"]["algorithm"]
    while option not in method and isinstance(method.get("base"), dict):
        method = method["base"]
    return (method if option in method else outer)["name"]


def _counted(counts: dict[str, tuple[int, int]]) -> str:
    """ "2 for fedprox, 1 to 5 for moon"."""
    return ", ".join(
        f"{low} for {name}" if low == high else f"{low} to {high} for {name}" for name, (low, high) in counts.items()
    )


def _alternatives(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))
