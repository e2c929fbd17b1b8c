"""Figure of the label distribution of a client, true and as methods inferred it."""

from collections import defaultdict

from pydantic import Field

from bench.results.grids import StoredGrid
from bench.results.store import Store
from reports.figures import registered_figure
from reports.figures.panels import Series, concat_points, done_runs, names_of_lines, panels, points_of, seeds_of_runs
from reports.figures.series import SeriesFigure
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report

_TRUTHFUL = "fedconcat"  # the method whose clients report their true label distribution


@registered_figure("distributions")
class Distributions(SeriesFigure):
    """The label distribution of a client, true and as methods inferred it."""

    client: int = Field(0, ge=0)

    @property
    def name(self) -> str:
        return f"distributions-client{self.client}"

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """Label shares as each method's server received or inferred them.

        Partitions differ between seeds, so a panel shows one seed: the first of those with results of most methods.
        """
        frames, caveats = [], {}
        for panel, cells in panels(report, table, grid):
            if shares := _label_shares(self.client, cells, seeds_of_runs(grid), records):
                seed = min(shares, key=lambda seed: (-len(shares[seed]), seed))
                title = f"{panel}, seed {seed}"
                substitutes = dict.fromkeys(cell.substitute for (cell,) in cells.values() if cell.substitute)
                caveats[title] = [*map(table.names.on, substitutes)]
                frames += [points_of(range(len(share)), share, title, line) for line, share in shares[seed].items()]
        points = concat_points(frames)
        lines = tuple(dict.fromkeys(points["line"]))
        y_label, names = f"Label share of client {self.client} (%)", names_of_lines(table)
        return Series("bars", "Class", y_label, lines, points, caveats=caveats, names=names, styles=table.names.styles)


def _label_shares(client: int, cells: dict[str, list], seeds: dict[str, int], records: Records) -> dict[int, dict]:
    """Seed -> line -> label shares of a client, in [0, 1], of the cells that recorded them."""
    shares: dict[int, dict] = defaultdict(dict)
    for line, (cell,) in cells.items():
        for run_id in done_runs(cell, records):
            recorded = records[run_id].get("diagnostics", {}).get("distributions", ())
            if client < len(recorded):
                name = f"{line} (true)" if cell.algorithm == _TRUTHFUL else line
                shares[seeds[run_id]][name] = recorded[client]
    return shares
