"""The layout of a table: cells in the order of the paper's rows and columns, the best of each row marked.

Tables hold short texts, independent of Markdown and LaTeX. Rows and columns have ids; formats print their names.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from bench.experiments.labels import number
from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.tables.aggregate import NO_METRIC, cell_keys, row_keys
from reports.tables.names import Name, Names

NOT_REACHED = "not reached"
HAS_NONE = "–"  # of a method without the metric, which a footnote says
_MOST_DECIMALS = 6  # of zero, which has no digits


@dataclass(frozen=True)
class Cell:
    """One cell of a table, as text.

    Attributes:
        measured: "53.2±0.9", or "" if no seed has a result; of a target "12±1 (2 of 3 seeds)" or "not reached"; of studies
            "53.2 [52.5, 54.0]".
        caveats: limits of the number: "2/3 seeds", "diverged", "earlier version", "no data: svhn", "on cifar10", "1 of 3
            studies missed".
        gain: "+5.7±0.4" over another cell, or "".
        published: published value, difference and, where there is one, verdict; empty without a counterpart.
        best: whether it is the best of its row.
        not_significant: whether it is not the best, but does not differ significantly from it.
        mean: the mean in percent, or the unit of a cost, not rounded; None if no seed has a result.
        runs: ids of the cell's runs.
        latex: what LaTeX has for `measured`; "" for the same text.
    """

    measured: str
    caveats: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    best: bool = False
    gain: str = ""
    not_significant: bool = False
    mean: float | None = None
    runs: tuple[str, ...] = ()
    latex: str = ""

    @property
    def without_data(self) -> bool:
        """Whether it is empty because its dataset is not there."""
        return self.caveats[:1] != () and self.caveats[0].startswith("no data: ")


@dataclass(frozen=True)
class Row:
    """Labels, ids, one per row key, and cells, one per column; None where the table is empty."""

    labels: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """One metric's table, or one of several metrics side by side.

    Attributes:
        metric: its name; titles of several.
        row_keys: axes of the row labels.
        columns: ids, values of the column axis.
        rows: from top to bottom.
        column_key: the column axis.
        blocks: headings over the columns of a table of several metrics, each with how many columns it is over; empty for a
            table of one.
        title: of a table beside the report's main one (chosen hyper-parameters, ranks); "" for the main one.
        less_is_better: for each column, or () where that is so of none.
        names: what ids of rows and columns are called.
        over: a heading over all columns, which only LaTeX prints; None without one.
        merged: whether also Markdown prints outer labels once per block.
    """

    metric: str
    row_keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    column_key: str = "algorithm"
    blocks: tuple[tuple[Name, int], ...] = ()
    title: str = ""
    less_is_better: tuple[bool, ...] = ()
    names: Names = field(default_factory=Names)
    over: Name | None = None
    merged: bool = False

    @property
    def heading(self) -> str:
        """What the metric is called in texts: "own accuracy", "IPR"."""
        return METRICS[self.metric].title if self.metric in METRICS else self.metric.replace("_", " ")

    @property
    def row_headings(self) -> tuple[Name, ...]:
        """Headings of the row labels: "Dataset"."""
        return tuple(map(self.names.heading, self.row_keys))

    @property
    def titles(self) -> tuple[Name, ...]:
        """Headings of the columns: "FedAvg" for a method, "fraction=0.1" for a value that does not say of what."""
        own = tuple(self.names.title(self.column_key, column) for column in self.columns)
        if not self.blocks:
            return own
        above = [heading for heading, count in self.blocks for _ in range(count)]
        return tuple(Name.join(parts, " ") for parts in zip(above, own, strict=True))

    @property
    def lines(self) -> tuple[str, ...]:
        """Ids of the columns where figures show them: "fedavg" of a method, "fraction=0.1" of any other axis."""
        if self.column_key == "algorithm":
            return self.columns
        return tuple(f"{self.column_key}={name}" for name in self.columns)

    @property
    def cells(self) -> list[Cell]:
        """The cells of all rows, without empty places."""
        return [cell for row in self.rows for cell in row.cells if cell]

    def labels(self, row: Row) -> tuple[Name, ...]:
        """The names of a row's labels."""
        return tuple(self.names.value(key, label) for key, label in zip(self.row_keys, row.labels, strict=True))

    def new_labels(self, row: Row, before: Row | None) -> tuple[Name, ...]:
        """The same, with empty names for the outer ones that the row above has as well."""
        same = 0
        while before and same < len(row.labels) - 1 and before.labels[same] == row.labels[same]:
            same += 1
        return (Name("", ""),) * same + self.labels(row)[same:]


def percent(share: float) -> str:
    """A percentage as tables print it: one decimal."""
    return f"{half_up(share):.1f}"


def span(low: object, high: object) -> str:
    """Two ends of a range, "3 to 5", or "3" where they print alike."""
    return " to ".join(dict.fromkeys(map(str, (low, high))))


def half_up(value: float) -> float:
    """A value as it is rounded: what lies between two decimals, such as 54.45, goes away from zero, whatever the error of the
    sum behind it. So equal means print alike."""
    return value * (1 + 1e-12)


def printed(metric: str, value: float, digits: int | None = None, std: float = math.nan) -> str:
    """A value of a metric as tables print it, see `with_std`, without its std."""
    return with_std(metric, value, std, digits)[0]


def with_std(metric: str, value: float, std: float, digits: int | None = None, sign: str = "") -> tuple[str, str]:
    """A value of a metric and its std as tables, pages and figures print them: the one rule of rounding.

    Percentages have one decimal, or as many as a paper has. Costs have three digits, or four before the point, and no more
    decimals than leave their std three digits; both have the same decimals. Metrics of methods and callbacks that are not in
    percent have three digits.

    Args:
        value, std: in percent, or the unit of a cost; NaN where there is none.
        digits: decimals of a paper's percentages.
        sign: "+" for a difference, which then has a sign.

    Returns:
        The value, and its std: "" without one, and of a cost also where it rounds to zero.
    """
    value, std = half_up(value), half_up(std)
    if METRICS[metric].cost:
        return _cost(value, std, sign)
    if not METRICS[metric].is_share:
        return _scalar(value, std, sign)
    form = f".{1 if digits is None else digits}f"
    return f"{value:{sign}z{form}}", "" if math.isnan(std) else f"{std:{form}}"


def _scalar(value: float, std: float, sign: str) -> tuple[str, str]:
    """Three digits, and a std with as many decimals; powers of ten for what is very small or large."""
    is_plain = value == 0 or 1e-3 <= abs(value) < 1e6
    form = f".{_decimals(value, 3) if value else 3}f" if is_plain else ".2e"
    return f"{value:{sign}z{form}}", "" if math.isnan(std) else f"{std:{form}}"


def _cost(value: float, std: float, sign: str) -> tuple[str, str]:
    places = min(_decimals(value, 3), _decimals(std, 3))
    digits = 4 if 1e3 <= abs(value) < 1e4 else 3  # papers print all digits of rounds
    value, std = float(f"{value:.{digits}g}"), float(f"{std:.3g}")
    mean, spread = (f"{number:{form}.{places}f}" for number, form in ((value, sign and "+z"), (std, "")))
    if math.isnan(std) or float(spread) == 0:
        return (sign if value >= 0 else "") + number(value), ""
    while places and mean[-1] == spread[-1] == "0":
        places, mean, spread = places - 1, mean[:-1], spread[:-1]
    return mean.removesuffix("."), spread.removesuffix(".")


def _decimals(value: float, digits: int) -> int:
    """How many decimals leave a number that many digits, none before which it has to be cut."""
    if not value or not math.isfinite(value):
        return _MOST_DECIMALS
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def arrange(cells: pd.DataFrame, grid: StoredGrid, metric: str, show: Callable[[Any], Cell] | None = None) -> Table:
    """The table of one metric's cells.

    A cell without a partition (centralized training) belongs to its dataset. As in the papers, it is shown once, in the
    first row of the dataset.

    Args:
        show: makes the text of a cell; None shows mean, std and what is known about them.
    """
    keys = row_keys(grid)
    *_, column_key = cell_keys(grid)
    names, texts = Names.of_grid(grid), {}
    show = show or (lambda cell: _show(cell, names))
    places = cells[[*keys, column_key]].itertuples(index=False, name=None)
    for (*labels, column), cell in zip(places, cells.itertuples(), strict=True):
        texts[tuple(labels), column] = show(cell)

    columns = _in_order((column for _, column in texts), map(_text, grid["column_order"]))
    labels_in_order = _in_order((labels for labels, _ in texts), (tuple(map(_text, row)) for row in grid["row_order"]))
    row_of = {labels: _row_of(labels, labels_in_order, keys) for labels in labels_in_order}
    arranged = {(row_of[labels], column): cell for (labels, column), cell in texts.items()}
    rows = (
        Row(labels, tuple(arranged.get((labels, column)) for column in columns))
        for labels in dict.fromkeys(row_of.values())
    )
    less = (metric in METRICS and METRICS[metric].less_is_better,) * len(columns)
    return Table(metric, tuple(keys), tuple(columns), tuple(rows), column_key, less_is_better=less, names=names)


def side_by_side(tables: Sequence[Table], title: str = "") -> Table:
    """One table of several metrics: under each column of theirs, one column per metric.

    Args:
        tables: of one grid, each of one metric.
        title: of the table, "" for the main one.
    """
    first = tables[0]
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    labels = list(dict.fromkeys(row.labels for table in tables for row in table.rows))
    cells = {
        (table.metric, row.labels, column): cell
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    shown = [(column, table.metric) for column in columns for table in tables]
    titles = [METRICS[metric].title for metric in dict.fromkeys(metric for _, metric in shown)]
    headings = replace(first, columns=tuple(columns)).titles
    rows = (Row(of, tuple(cells.get((metric, of, column)) for column, metric in shown)) for of in labels)
    return replace(
        first,
        metric=", ".join(titles),
        columns=tuple(titles * len(columns)),
        rows=tuple(rows),
        column_key="metric",
        blocks=tuple((heading, len(titles)) for heading in headings),
        title=title,
        less_is_better=tuple(METRICS[metric].less_is_better for _, metric in shown),
    )


def _show(cell, names: Names) -> Cell:
    if cell.lacking == NO_METRIC and not cell.done:
        return Cell(HAS_NONE, runs=tuple(cell.run_ids.split()))
    published: tuple[str, ...] = ()
    if cell.published:
        digits = cell.published.digits if METRICS[cell.metric].cost else 1
        difference = "" if math.isnan(cell.difference) else f"{half_up(cell.difference):+z.{digits}f}"
        published = (str(cell.published), *filter(None, [difference, cell.verdict]))
    return Cell(
        measured=measured(cell),
        caveats=tuple(caveats_of(cell, names)),
        published=published,
        best=cell.best,
        not_significant=cell.not_significant,
        gain="" if pd.isna(cell.gain) else _joined(with_std(cell.metric, cell.gain, cell.gain_std, sign="+")),
        mean=cell.mean if cell.done > cell.missed and not math.isnan(cell.mean) else None,
        runs=tuple(cell.run_ids.split()),
    )


def measured(cell, digits: int | None = None) -> str:
    """The mean, and over which seeds it is where some have not reached the target; of studies the median and the range.

    Args:
        digits: decimals of a paper's percentages.
    """
    reached = cell.done - cell.missed
    if not reached:
        return NOT_REACHED if cell.done else ""
    if cell.studies:
        if math.isnan(cell.mean):
            return f"{NOT_REACHED} by {cell.missed} of {cell.done} studies" if cell.missed else ""
        median, low, high = (printed(cell.metric, value, digits) for value in (cell.mean, cell.low, cell.high))
        return (median if low == high else f"{median} [{low}, {high}]") + which_seeds(cell)
    return _joined(with_std(cell.metric, cell.mean, cell.std, digits)) + which_seeds(cell)


def which_seeds(cell) -> str:
    """ " (2 of 3 seeds)" where some have not reached the target, else ""."""
    of = "studies" if cell.studies else "seeds"
    return f" ({cell.done - cell.missed} of {cell.done} {of})" if cell.missed else ""


def _joined(parts: tuple[str, str]) -> str:
    return "±".join(filter(None, parts))


def caveats_of(cell, names: Names) -> Iterable[str]:
    """What a reader must know about the number of a cell; names are those of its grid."""
    if cell.missing:
        what, colon, of = cell.missing.rpartition(": ")
        yield f"{what}{colon}{names.value('dataset', of).plain}"
        return
    if cell.lacking and not cell.done:
        yield cell.lacking
    elif cell.studies and cell.done < cell.seeds:
        studies = f"{cell.studies} {'study' if cell.studies == 1 else 'studies'}"
        if waiting := cell.seeds - cell.done - cell.diverged:
            yield f"{waiting} of {studies} to end"
        if cell.diverged:
            yield f"{cell.diverged} of {studies} missed"
    elif cell.seeds in (cell.diverged, cell.failed):
        yield "diverged" if cell.diverged else "failed"
    elif cell.done < cell.seeds:
        yield f"{cell.done}/{cell.seeds} seeds"
        if cell.diverged:
            yield f"{cell.diverged} diverged"
        if cell.failed:
            yield f"{cell.failed} failed"
        if cell.lacking:
            yield f"others {cell.lacking}"
    if cell.done + cell.diverged == cell.seeds and cell.tried < cell.settings:
        yield f"{cell.tried}/{cell.settings} settings"
    if cell.few:
        yield cell.few
    if cell.stale:
        yield "earlier code" if cell.stale == cell.seeds else f"{cell.stale}/{cell.seeds} seeds of earlier code"
    if cell.outdated:
        yield (
            "earlier version"
            if cell.outdated == cell.seeds
            else f"{cell.outdated}/{cell.seeds} seeds of an earlier version"
        )
    if cell.substitute:
        yield names.on(cell.substitute)


def _text(value: object) -> str:
    """A label of the grid's orders, as `reports.tables.aggregate.label` prints it."""
    return "-" if value is None else str(value)


def _in_order(items: Iterable, order: Iterable) -> list:
    """The distinct items: first those that `order` names, in that order, then the others as they come."""
    items = dict.fromkeys(items)
    first = [item for item in order if item in items]
    return [*first, *(item for item in items if item not in first)]


def _row_of(labels: tuple[str, ...], rows: list[tuple[str, ...]], keys: list[str]) -> tuple[str, ...]:
    """The row that shows cells with these labels: their own, or without a partition the first one of the dataset."""
    partition = dict(zip(keys, labels, strict=True)).get("partition")
    if partition != "none":
        return labels
    axis = keys.index("partition")
    siblings = (row for row in rows if row[axis] != "none" and _without(row, axis) == _without(labels, axis))
    return next(siblings, labels)


def _without(labels: tuple[str, ...], axis: int) -> tuple[str, ...]:
    return labels[:axis] + labels[axis + 1 :]
