"""How hyper-parameters were chosen (footnotes), and which ones (a table)."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from bench.experiments.labels import competitor
from bench.results.grids import ChosenParams, StoredCell, StoredGrid
from bench.results.omitted_defaults import spell_out
from reports.tables.aggregate import (
    BETWEEN_CHOICES,
    cell_keys,
    compared_keys,
    is_board,
    label,
    seeds_of,
    short,
    split_of,
    studies_of,
)
from reports.tables.layout import Cell, Row, Table, arrange, span
from reports.tables.names import Name, Names
from reports.tables.rankings import names_of_competitors

TITLE = "Chosen hyper-parameters"
SPACES = "Search spaces"


def footnotes(grid: StoredGrid, cells: pd.DataFrame, names: Names) -> Iterator[str]:
    """The tuning protocol of a table's numbers.

    Args:
        grid: expanded grid.
        cells: of all metrics.
        names: those of the grid.
    """
    tuned = cells[cells["settings"] > 1].groupby("algorithm", sort=False)["settings"].agg(["min", "max"])
    if len(tuned):
        counts = _counted({names.value("algorithm", name).plain: (low, high) for name, low, high in tuned.itertuples()})
        protocol = ", as published" if grid["reproduces"] else ""
        yield (
            f"Tuned: best of N settings per cell, chosen on the {split_of(grid)} split by the mean over "
            f"seeds{protocol}; N is {counts}."
        )
    yield from _ruleset(grid, names)
    yield from _searched(grid, names)
    yield from _fixed(grid, cells, names)
    yield from _not_searched(grid, cells, names)


def chosen_on(cells: pd.DataFrame, grid: StoredGrid) -> pd.Series:
    """The split on which each cell's hyper-parameters were chosen; "" without a choice."""
    own = pd.Series(split_of(grid), cells.index).where(cells["settings"] > 1, "")
    return own.mask(cells["searched"] > 0, "validation")


def search_in_words(grid: StoredGrid) -> str:
    """How much was searched on validation data, "8 configurations, seed 0"; "" without a search."""
    cells = [cell for cell in grid["cells"] if cell.get("tuned")]
    if not cells:
        return ""
    searches = [cell["tuned"] for cell in cells]
    tried = sorted(search["tried"] for search in searches)
    of_methods = defaultdict[str, set[int]](set)
    for cell in cells:
        of_methods[competitor([label(cell, key) for key in compared_keys(grid)])].add(cell["tuned"]["tried"])
    unequal = ", not equally many for all methods" * (len({*map(frozenset, of_methods.values())}) > 1)
    return f"{span(tried[0], tried[-1])} configuration{'s' * (tried[-1] > 1)}{unequal}, {_seeds(searches)}"


def table(cells: pd.DataFrame, grid: StoredGrid, metric: str) -> Table | None:
    """The chosen hyper-parameters of a metric's cells, one row per cell with a choice; None if no cell has one."""
    chosen = cells[((cells["searched"] > 0) | (cells["settings"] > 1)) & have_ended(cells, grid)]
    if chosen.empty:
        return None
    names, digits = Names.of_grid(grid), 3 if is_board(grid) else 4

    def show(cell: Any) -> Cell:
        named = [names.choice(short(choice, digits)) for choice in cell.choice.split(BETWEEN_CHOICES)]
        if len(named) > 1:  # of studies
            named = [Name.join([Name.of(f"{number}:"), one], " ") for number, one in enumerate(named, 1)]
        choice = Name.join(named, "; ")
        return Cell(choice.plain, latex=choice.latex)

    laid_out = arrange(chosen, grid, metric, show=show)
    rows = (
        Row((*row.labels, column), (cell,))
        for row in laid_out.rows
        for column, cell in zip(laid_out.columns, row.cells, strict=True)
        if cell
    )
    return Table(metric, (*laid_out.row_keys, laid_out.column_key), ("Chosen",), tuple(rows), title=TITLE, names=names)


def have_ended(cells: pd.DataFrame, grid: StoredGrid) -> pd.Series:
    """Which cells have a result of their metric, or a study that missed: what that has chosen is told, too."""
    missed = cells["diverged"] + cells["failed"] if studies_of(grid) else 0
    return cells["done"] + missed > 0


def spaces(grid: StoredGrid) -> Table | None:
    """Where the hyper-parameters of each method of a board were searched; None without searches."""
    names, keys = names_of_competitors(grid), compared_keys(grid)
    searched: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for cell in grid["cells"] if is_board(grid) else ():
        for key, space in cell.get("tuned", {}).get("space", {}).items():
            searched[competitor([label(cell, axis) for axis in keys])][key, space] = None
    rows = tuple(Row((method,), (_where(ranges, names),)) for method, ranges in searched.items())
    return Table("", (" ".join(keys),), ("Searched",), rows, title=SPACES, names=names) if rows else None


def _where(ranges: Iterable[tuple[str, str]], names: Names) -> Cell:
    found = Name.join([Name.join([names.option(key), Name.of(space)], " in ") for key, space in ranges], "; ")
    return Cell(found.plain, latex=found.latex)


def _ruleset(grid: StoredGrid, names: Names) -> Iterator[str]:
    """By which rules methods are compared, and what that costs."""
    if "ruleset" not in grid:
        return
    studies, samples = studies_of(grid), grid["ruleset"]["samples"]
    runs = {cell["run"] for cell in grid["cells"] if cell["run"]}
    searches = {cell["tuned"]["search"]: cell for cell in grid["cells"] if cell.get("tuned")}
    if not studies:
        seeds = len(seeds_of(grid))
        yield (
            "Ruleset defaults: nothing was searched, every method has the values of its paper, as far as the grid does not set "
            f"them; {seeds} run{'s' * (seeds > 1)} per cell, {len(runs):,} in all."
        )
        return
    own, cells = len(studies[0]), [*searches.values()]
    shares = _alternatives(f"{cell['tuned']['share']:.0%}" for cell in cells)
    tried = sum(cell["tuned"]["tried"] for cell in cells)
    metrics = _search_metrics(cells, names) if cells else "accuracy"
    how = f" by validation {metrics} in the last round" + f" ({shares} of each class of each client)" * bool(cells)
    yield (
        f"Ruleset tuned: {len(studies)} {'study' if len(studies) == 1 else 'studies'} per cell. Each draws {samples} "
        f"configuration{'s' * (samples > 1)} at random from the search space of the method, trains with a seed for that alone, "
        f"and takes the best{how}; no test image was read. It trains this one with its {own} seed{'s' * (own > 1)} on all "
        "training data. All methods have the same seeds in a study, and try the same values of what they search in the same "
        f"range. Cost: {len(studies) * (samples + own)} runs per cell, {tried + len(runs):,} in all. A study whose choice "
        "diverges or fails with one seed has missed: it is behind all others. It has reached a target if all its seeds have."
    )


def _searched(grid: StoredGrid, names: Names) -> Iterator[str]:
    """Choices on validation data."""
    distinct = {json.dumps(cell["tuned"], sort_keys=True): cell for cell in grid["cells"] if cell.get("tuned")}
    if cells := [*distinct.values()]:
        if not studies_of(grid):  # whose footnote says it
            yield _search_protocol(cells, names)
            yield from _defaults(cells)
        yield from _ties(cells)
        yield from _at_ends(cells, names)
        yield from _unequal_counts(cells, names)
        yield from _spaces_tried(cells, names)
        yield from _failures(cells, names)
        yield from _copies(cells, names)
        if not is_board(grid):  # which has a table of them
            yield _searched_spaces(cells, names)


def _search_protocol(cells: list[StoredCell], names: Names) -> str:
    """Validation share, number of configurations, metric, seeds and searcher of the searches of these cells."""
    searches = [cell["tuned"] for cell in cells]
    shares = _alternatives(f"{search['share']:.0%}" for search in searches)
    counts = {search["tried"] for search in searches}
    number = str(*counts) if len(counts) == 1 else "N"
    searchers = _alternatives(
        search["searcher"] + (f" with {search['scheduler']}" if search["scheduler"] != "none" else "")
        for search in searches
    )
    return (
        f"Hyper-parameters were chosen on validation data ({shares} of each class of each client; no test image was read), and "
        f"then trained on all training data. Best of {number} configurations per cell by mean validation "
        f"{_search_metrics(cells, names)} in the last round of {_seeds(searches)}; searcher {searchers}."
    )


def _search_metrics(cells: list[StoredCell], names: Names) -> str:
    """ "accuracy", or with several metrics "accuracy (FedAvg, MOON) or local accuracy (IFCA)"."""
    methods: dict[str, dict[str, bool]] = defaultdict(dict)
    for cell in cells:
        methods[cell["tuned"]["metric"].replace("_", " ")][_title(cell, names)] = True
    if len(methods) == 1:
        return next(iter(methods))
    return " or ".join(f"{metric} ({', '.join(found)})" for metric, found in methods.items())


def _defaults(cells: list[StoredCell]) -> Iterator[str]:
    """Searches that tried the values that a cell has without a search, where searches say so."""
    with_them = sum(cell["tuned"].get("defaults", False) for cell in cells)
    if with_them:
        where = "" if with_them == len(cells) else f" in {with_them} of {len(cells)} searches"
        yield f"The defaults were among the configurations{where}, and count as one."


def _ties(cells: list[StoredCell]) -> Iterator[str]:
    """Searches whose best configurations have equal printed scores."""
    if tied := sum(cell["tuned"]["alike"] > 1 for cell in cells):
        yield (
            f"In {tied} of {len(cells)} searches the best configurations print alike on validation data; the first of them "
            "was taken, and which it is means little."
        )


def _at_ends(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """Hyper-parameters that were chosen at an end of what was searched."""
    searches = Counter(_title(cell, names) for cell in cells)
    found = Counter((key, _title(cell, names)) for cell in cells for key in cell["tuned"].get("at_end", ()))
    methods = defaultdict[str, list[str]](list)
    for (key, name), count in found.items():
        methods[names.option(key).plain].append(f"{name} in {count} of {searches[name]}")
    if methods:
        listed = "; ".join(f"{option} of {', '.join(some)}" for option, some in methods.items())
        yield f"Chosen at an end of its range, beyond which other values may be better (method, searches): {listed}."


def _unequal_counts(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """Numbers of tried configurations, if they differ between searches."""
    counts = defaultdict(list)
    for cell in cells:
        counts[_title(cell, names)].append(cell["tuned"]["tried"])
    if len({tried for of_method in counts.values() for tried in of_method}) > 1:
        ranges = {name: (min(of_method), max(of_method)) for name, of_method in counts.items()}
        yield f"The methods did not get equally many configurations: N is {_counted(ranges)}."


def _spaces_tried(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """Methods for which several spaces have been searched."""
    most: dict[str, int] = defaultdict(int)
    for cell in cells:
        most[_title(cell, names)] = max(most[_title(cell, names)], cell["tuned"].get("spaces", 1))
    if several := [f"{count} for {name}" for name, count in most.items() if count > 1]:
        yield f"More than one search space was tried, and the last one counts: {', '.join(several)}."


def _failures(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """Methods of which configurations failed."""
    failed: dict[str, int] = defaultdict(int)
    for cell in cells:
        failed[_title(cell, names)] += cell["tuned"].get("failed", 0)
    if some := [f"{count} of {name}" for name, count in failed.items() if count]:
        yield f"Configurations that failed, and could not be chosen: {', '.join(some)}."


def _copies(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """Methods whose search compares accuracies on different copies of the images."""
    if mixed := dict.fromkeys(_title(cell, names) for cell in cells if cell["tuned"].get("copies", 1) > 1):
        yield f"Searches that compare accuracies on different copies of the images: {', '.join(mixed)}."


def _searched_spaces(cells: list[StoredCell], names: Names) -> str:
    methods: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for cell in cells:
        for key, space in cell["tuned"]["space"].items():
            methods[key, space][names.value("algorithm", _method(cell, key)).plain] = True
    searched = "; ".join(
        f"{names.option(key).plain} of {', '.join(found)} in {space}" for (key, space), found in methods.items()
    )
    return f"Searched: {searched}."


def _fixed(grid: StoredGrid, cells: pd.DataFrame, names: Names) -> Iterator[str]:
    """Tuning sets of one point."""
    fixed = cells[(cells["settings"] == 1) & (cells["choice"] != "") & (cells["searched"] == 0)]
    if len(fixed):
        keys = cell_keys(grid)
        labels = set(fixed[keys].itertuples(index=False, name=None))
        shown = [cell for cell in grid["cells"] if tuple(label(cell, key) for key in keys) in labels]
        yield f"One setting, not tuned: {', '.join(_choices(shown, names))}."


def _not_searched(grid: StoredGrid, cells: pd.DataFrame, names: Names) -> Iterator[str]:
    """Columns with cells that were not searched, in a grid with searches."""
    if cells["searched"].any():
        rest = cells[(cells["searched"] == 0) & (cells["missing"] == "")]
        axis = grid["report"]["columns"]
        if columns := dict.fromkeys(names.value(axis, column).plain for column in rest[axis]):
            yield f"Nothing was searched in some cells of {', '.join(columns)}."


def _choices(cells: list[StoredCell], names: Names) -> Iterator[str]:
    """ "MOON μ=5.0" for each chosen option, with its method, and with its datasets if the value differs between them."""
    found: dict[str, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        for name, value in sorted(cell["choice"].items()):
            option = f"{names.value('algorithm', _method(cell, name)).plain} {names.option(name).plain}"
            found[option][json.dumps(value)][names.value("dataset", cell["dataset"]).plain] = True
    for option, values in found.items():
        for value, datasets in values.items():
            yield f"{option}={short(value)}" + (f" on {' and '.join(datasets)}" if len(values) > 1 else "")


def _title(cell: StoredCell, names: Names) -> str:
    return names.value("algorithm", label(cell, "algorithm")).plain


def _method(cell: StoredCell, option: str) -> str:
    """The method to which an option of a cell belongs: the cell's method or one that it wraps."""
    method = outer = spell_out(cell["config"])["algorithm"]
    while option not in method and isinstance(method.get("base"), dict):
        method = method["base"]
    return (method if option in method else outer)["name"]


def _counted(counts: dict[str, tuple[int, int]]) -> str:
    """ "2 for FedProx, 1 to 5 for MOON"."""
    return ", ".join(f"{span(*ends)} for {name}" for name, ends in counts.items())


def _seeds(searches: list[ChosenParams]) -> str:
    """ "seed 0", and "seeds 0, 1" where a search has several."""
    several = any(len(search["seeds"]) > 1 for search in searches)
    return f"seed{'s' * several} " + _alternatives(", ".join(map(str, search["seeds"])) for search in searches)


def _alternatives(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))
