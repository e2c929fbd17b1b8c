"""Arranges cells as the paper's table does: rows and columns in its order, the best of each row marked.

The result is made of short texts and knows nothing of Markdown or LaTeX.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.tables.aggregate import cell_keys, row_keys


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    Attributes:
        measured: "53.2±0.9", or "" if no seed has a result.
        caveats: what the reader must know about it: "2/3 seeds", "diverged", "no data: svhn", "on cifar10".
        gain: "+5.7±0.4" over another cell, or "".
        published: published value, difference and, where there is one, verdict; empty without a counterpart.
        best: whether it is the best of its row.
        not_significant: whether it is not, but the seeds cannot tell it from the best.
        mean: the number of `measured`, not rounded; None if there is none.
        runs: ids of the runs behind it.
    """

    measured: str
    caveats: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    best: bool = False
    gain: str = ""
    not_significant: bool = False
    mean: float | None = None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """Labels, one per row key, and cells, one per column; None where the table is empty."""

    labels: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """One metric's table.

    Attributes:
        row_keys: names of the row labels.
        columns: values of what differs from column to column.
        rows: from top to bottom.
        column_key: what differs from column to column.
        title: what the table shows, where it is not what the report does.
    """

    metric: str
    row_keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    column_key: str = "algorithm"
    title: str = ""

    @property
    def titles(self) -> tuple[str, ...]:
        """Of the columns: a method's name says what it is, another value does not."""
        named = self.column_key == "algorithm"
        return tuple(name if named else f"{self.column_key}={name}" for name in self.columns)


def percent(number: float) -> str:
    """A percentage as tables print it: one decimal."""
    return f"{number:.1f}"


def arrange(cells: pd.DataFrame, grid: dict, metric: str, show: Callable[[Any], Cell] | None = None) -> Table:
    """The table of one metric's cells.

    Args:
        show: what stands in a cell; None for its number.

    A cell without a partition (centralized training) belongs to the dataset, not to one of its rows: it
    stands once, in the dataset's first row, as in the papers.
    """
    keys = row_keys(grid)
    *_, column_key = cell_keys(grid)
    places = {}
    for cell in cells.itertuples():
        labels = tuple(getattr(cell, key) for key in keys)
        places[labels, getattr(cell, column_key)] = (show or _show)(cell)

    columns = _in_order((column for _, column in places), map(_text, grid["column_order"]))
    labels_in_order = _in_order((labels for labels, _ in places), map(_labels, grid["row_order"]))
    hosts = {labels: _host(labels, labels_in_order, keys) for labels in labels_in_order}
    placed = {(hosts[labels], column): cell for (labels, column), cell in places.items()}
    rows = (
        Row(labels, tuple(placed.get((labels, column)) for column in columns))
        for labels in dict.fromkeys(hosts.values())
    )
    return Table(metric, tuple(keys), tuple(columns), tuple(rows), column_key)


def _show(cell) -> Cell:
    published = ()
    if cell.published:
        published = (str(cell.published),)
        if cell.done:
            published += (_signed(cell.difference), *filter(None, [cell.verdict]))
    return Cell(
        measured=f"{percent(cell.mean)}{_spread(cell.std)}" if cell.done else "",
        caveats=tuple(caveats_of(cell)),
        published=published,
        best=cell.best,
        not_significant=cell.not_significant,
        gain="" if pd.isna(cell.gain) else f"{_signed(cell.gain)}{_spread(cell.gain_std)}",
        mean=cell.mean if cell.done else None,
        runs=tuple(cell.run_ids.split()),
    )


def _spread(std: float) -> str:
    return "" if pd.isna(std) else f"±{percent(std)}"


def _signed(points: float) -> str:
    return f"{round(points, 1) + 0.0:+.1f}"  # no "-0.0"


def caveats_of(cell) -> Iterable[str]:
    """What a reader must know about the number of a cell."""
    if cell.missing:
        yield cell.missing
        return
    if cell.seeds in (cell.diverged, cell.failed):
        yield "diverged" if cell.diverged else "failed"
    elif cell.done < cell.seeds:
        yield f"{cell.done}/{cell.seeds} seeds"
        if cell.diverged:
            yield f"{cell.diverged} diverged"
        if cell.failed:
            yield f"{cell.failed} failed"
    if cell.done + cell.diverged == cell.seeds and cell.tried < cell.settings:
        yield f"{cell.tried}/{cell.settings} settings"
    if cell.substitute:
        yield f"on {cell.substitute}"


def _labels(row: list) -> tuple[str, ...]:
    """A row of the grid's order as `cells.label` prints it."""
    return tuple(map(_text, row))


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _in_order(found: Iterable, wanted: Iterable) -> list:
    """Everything found, once: first what is wanted, in that order, then the rest as found."""
    found = dict.fromkeys(found)
    first = [item for item in wanted if item in found]
    return [*first, *(item for item in found if item not in first)]


def _host(labels: tuple[str, ...], rows: list[tuple[str, ...]], keys: list[str]) -> tuple[str, ...]:
    """The row where cells with these labels stand: their own, or the dataset's first without a partition."""
    partition = dict(zip(keys, labels, strict=True)).get("partition")
    if partition != "none":
        return labels
    place = keys.index("partition")
    siblings = (row for row in rows if row[place] != "none" and _without(row, place) == _without(labels, place))
    return next(siblings, labels)


def _without(labels: tuple[str, ...], place: int) -> tuple[str, ...]:
    return labels[:place] + labels[place + 1 :]
