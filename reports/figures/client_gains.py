"""Figure of what each client gains over the run that the report names as the reference, clients sorted by their gain."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from bench.results.grids import StoredGrid
from bench.results.store import Store
from reports.figures import Figure, lines, registered_figure
from reports.figures.panels import Series, concat_points, done_runs, panels, series_of_table, with_figure_layout
from reports.tables.aggregate import DDOF, compared_keys, contest_keys
from reports.tables.published_comparison import own_value
from reports.tables.records import Records
from reports.tables.relative import clients_beside_reference
from reports.tables.report import build
from reports.widths import FIGURES, Widths

_MOST_COLUMNS = 4
# Of a panel: its values on further axes that are compared, and its setting.
_Place = tuple[tuple[str, ...], tuple[str, ...]]


@registered_figure("client-gains")
class ClientGains(Figure):
    """What each client gains over the run that the report names as the reference, clients sorted by their gain."""

    def check(self, grid: Any) -> None:
        if not grid.report.reference:
            raise ValueError(
                "The figure client-gains compares runs with others: name these by reference, as {algorithm: local}."
            )

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> Series | None:
        """None without any numbers.

        Each seed's clients are sorted by their gain: a point is the mean over seeds of the gain at one rank. Where methods are
        compared with and without a wrapper, say, both have panels, one above the other.
        """
        if (value or own_value(grid)) != "last":  # records hold the clients' accuracies of that round only
            return None
        settings, (_, *others) = contest_keys(grid), compared_keys(grid)
        grid = with_figure_layout(grid)
        report = build(grid, records, value)
        table = next((table for table in report.tables if table.metric == "own_accuracy"), report.tables[0])
        pairs = clients_beside_reference(grid, records)
        found: list[tuple[_Place, pd.DataFrame]] = []
        lacking: dict[str, list[str]] = {}
        num_seeds = 1
        for panel, cells in panels(report, table, grid):
            for line, (cell,) in cells.items():
                compared = [pairs.get(run_id) for run_id in done_runs(cell, records)]
                gains = [100 * np.subtract(*pair) for pair in compared if isinstance(pair, tuple)]
                if gains:
                    variant, setting = (tuple(getattr(cell, key) for key in keys) for keys in (others, settings))
                    found.append(((variant, setting), _by_rank(gains, grid["std"]).assign(panel=panel, line=line)))
                    num_seeds = max(num_seeds, len(gains))
                if 0 < len(gains) < len(compared):
                    name = table.names.title(table.column_key, line).plain
                    lacking.setdefault(panel, []).append(f"{name}: {len(gains)}/{len(compared)} seeds with a reference")
        if not found:
            return None
        frames, columns = _arranged(found) if others else ([frame for _, frame in found], 0)
        reference = table.names.setting(grid["report"]["reference"]).plain
        y_label = f"Gain in test accuracy on own data\nover {reference} (points)"
        series = series_of_table("curves", "Clients, sorted by gain", y_label, report, table, concat_points(frames))
        caveats = {panel: [*series.caveats.get(panel, []), *more] for panel, more in lacking.items()}
        caveats = series.caveats | caveats
        return replace(series, seeds=num_seeds, caveats=caveats, columns=columns, zero=True)

    def draw(self, found: Series, widths: Widths = FIGURES):
        return lines.draw(found, widths)


def _by_rank(gains: list[np.ndarray], std: str) -> pd.DataFrame:
    """Mean and std over seeds at each rank from the smallest gain, which is 1."""
    by_rank = np.sort(gains, axis=1)
    spread = by_rank.std(axis=0, ddof=DDOF[std]) if len(gains) > 1 else float("nan")
    return pd.DataFrame({"x": np.arange(1, by_rank.shape[1] + 1), "mean": by_rank.mean(0), "std": spread})


def _arranged(found: list[tuple[_Place, pd.DataFrame]]) -> tuple[list[pd.DataFrame], int]:
    """Frames with those of one variant side by side, and how many panels a row has for the settings to be columns; 0 if they
    cannot be."""
    places = [place for place, _ in found]
    variants, settings = (list(dict.fromkeys(of)) for of in zip(*places, strict=True))
    ordered = sorted(found, key=lambda one: (variants.index(one[0][0]), settings.index(one[0][1])))
    complete = {*places} == {*product(variants, settings)} and len(settings) <= _MOST_COLUMNS
    return [frame for _, frame in ordered], len(settings) if complete else 0
