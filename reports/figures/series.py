"""Figures with a panel per row of a grid's table and a line per column, one picture per accuracy that runs report.

As in the table, a line shows the tuning choice with the best mean over seeds, and only finished runs count.
"""

from typing import ClassVar

from bench.hooks import require_returned
from bench.results.grids import StoredGrid
from bench.results.metrics import ACCURACIES
from bench.results.store import Store
from reports.figures.base import Figure
from reports.figures.lines import draw
from reports.figures.panels import Series, with_figure_layout
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report, build
from reports.widths import FIGURES, Widths


class SeriesFigure(Figure):
    """A kind of figures that shows a `Series` of each table of the report."""

    needed: ClassVar[tuple[str, ...]] = ("series",)

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """The numbers of one table of the report; other arguments as of `collect`."""
        raise NotImplementedError

    def shows(self, metric: str) -> bool:
        """Whether there is a picture of a metric: of accuracies."""
        return metric in ACCURACIES

    def layout(self, grid: StoredGrid) -> StoredGrid:
        """The grid with the table from which the figure is drawn."""
        return with_figure_layout(grid)

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> dict[str, Series]:
        """Metric -> numbers, the grid's own metric first; metrics without a point are left out."""
        grid = self.layout(grid)
        report = build(grid, records, value)
        shown = [table for table in report.tables if self.shows(table.metric)]
        found = {table.metric: self.series(report, table, grid, records, store) for table in shown}
        for series in found.values():
            require_returned(self.series, series, isinstance(series, Series), "a Series", "return Series(...)")
        return {metric: series for metric, series in found.items() if len(series.points)}

    def drawings(
        self,
        grid: StoredGrid,
        records: Records,
        store: Store,
        value: str | None = None,
        widths: Widths = FIGURES,
    ) -> dict:
        found = self.collect(grid, records, store, value)
        return {metric: draw(series, widths) for metric, series in found.items()}
