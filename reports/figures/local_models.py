"""Figure of the accuracy of each client's model, epoch by epoch."""

from collections.abc import Iterator

from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number, mismatch
from bench.results.records import RoundRow
from bench.results.store import Store
from reports.figures import registered_figure
from reports.figures.panels import Series, concat_points, data_caveats, done_runs, panels, points_of, seeds_of_runs
from reports.figures.series import SeriesFigure
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report

_TRACED = {"clients": [is_integer], "accuracies": [[is_number]]}


@registered_figure("local-models")
class LocalModels(SeriesFigure):
    """Accuracy of each client's model, epoch by epoch, for runs that trace their local models."""

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """Accuracy on test data with the clients' label shares: a panel per method, a line per client.

        There is a point after every local epoch, and a second one at the last epoch of a round, after averaging. Clients
        differ between seeds, so the first finished seed is shown.
        """
        seeds = seeds_of_runs(grid)
        frames, clients, caveats, x_label = [], set(), {}, "Local epoch"
        for panel, cells in panels(report, table, grid):
            for method, (cell,) in cells.items():
                run_id, *_ = done_runs(cell, records)
                title = f"{panel}, {table.names.title(table.column_key, method).plain}, seed {seeds[run_id]}"
                if notes := data_caveats(cell, table.names):
                    caveats[title] = notes
                for round, client, accuracies in _traced_accuracies(store.rows(run_id)):
                    clients.add(client)
                    epochs = len(accuracies) - 1
                    x_label = f"Local epoch (models are averaged after every {epochs})"
                    x = [(round - 1) * epochs + epoch for epoch in (*range(1, epochs + 1), epochs)]
                    frames.append(points_of(x, accuracies, title, f"client {client}"))
        own = table.metric == "own_accuracy"
        data = "the client's own test data" if own else "test data with\nthe client's label shares"
        y_label = f"Accuracy on {data} (%)"
        lines = tuple(f"client {client}" for client in sorted(clients))
        return Series("curves", x_label, y_label, lines, concat_points(frames), caveats=caveats)


def _traced_accuracies(rows: list[RoundRow]) -> Iterator[tuple[int, int, list[float]]]:
    """Round, client and accuracies [local epochs + 1] of the rounds of a run with `trace_local_models`."""
    for row in rows:
        traced = row.get("local_models", {})
        if mismatch(traced, _TRACED):  # a callback of a lab may trace something else
            continue
        for client, accuracies in zip(traced["clients"], traced["accuracies"], strict=False):
            yield row["round"], client, accuracies
