"""Figures of how alike clients' local models are, layer by layer."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from pydantic import model_validator

from bench.errors import require_known
from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number
from bench.results.store import Store
from reports.figures import Figure, Probe, Round, heatmaps, registered_figure, rounds_of
from reports.figures.heatmaps import Matrix
from reports.figures.panels import Series, concat_points, done_runs, first_results, panels, series_of_table
from reports.figures.series import SeriesFigure
from reports.tables.aggregate import DDOF
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    from bench.measurements.run import FinishedRun

_NAMES = {"linear": "Linear CKA", "minibatch": "Unbiased minibatch CKA"}  # their values are not comparable


@registered_figure("cka")
class Cka(SeriesFigure):
    """How alike the outputs of each layer are at two clients' local models: for each two of them, or the mean over all pairs
    for every layer.

    Attributes:
        show: "clients" for a panel of all pairs per layer, "layers" for a line over layers.
        layers: those of which `clients` shows a panel; all if none is named.
        estimator: "linear" for all test images at once, "minibatch" for the mean over batches (see `bench.measurements.cka`).
        round: whose local training the models have just ended.
    """

    show: Literal["clients", "layers"] = "layers"
    layers: list[str] = []
    estimator: Literal["linear", "minibatch"] = "linear"
    round: Round = "last"

    shape = {"clients": [is_integer], "cohort": is_integer, "layers": {str: [[(is_number, None)]]}}

    @model_validator(mode="after")
    def _shows_layers(self) -> "Cka":
        if self.layers and self.show != "clients":
            raise ValueError(
                f"layers chooses panels of a figure that shows clients, but this one shows {self.show}; leave it out."
            )
        return self

    @property
    def name(self) -> str:
        of_round = "" if self.round == "last" else f"-round-{self.round}"
        return f"cka-{self.estimator}-{self.show}{of_round}"

    def check(self, grid: Any) -> None:
        if self.layers:
            require_known("layer", self.layers, _all_layers())

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, number, self.estimator) for number in rounds_of([self.round], rounds)]

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import features

        return features.cka(run.local_task, run.local_models(probe), self.estimator)

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> Any:
        """As of `SeriesFigure`; of clients, the heat maps of `draw`."""
        if self.show == "layers":
            return super().collect(grid, records, store, value)
        found = first_results(self, grid, records, store, value)
        return [row for title, _, results in found if (row := self._matrices(title, results))]

    def draw(self, found: list[list[Matrix]], widths: Widths = FIGURES):
        return heatmaps.draw(found, widths)

    def drawings(self, *arguments: Any, **options: Any) -> dict:
        kind = SeriesFigure if self.show == "layers" else Figure
        return kind.drawings(self, *arguments, **options)

    def _matrices(self, title: str, results: dict[Probe, dict]) -> list[Matrix]:
        """A panel of all pairs of clients for each layer."""
        panels = []
        for found in results.values():
            ids, names = found["clients"], [name for name in self.layers or found["layers"] if name in found["layers"]]
            axes = ("client", "client", ids, ids, _NAMES[self.estimator])
            panels += [Matrix(title, name, np.array(found["layers"][name], float), *axes) for name in names]
        return panels

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """Mean CKA over pairs of clients' local models, per layer; layers without any defined pair are left out."""
        configs = {cell["run"]: cell["config"] for cell in grid["cells"]}
        frames, caveats, num_seeds = [], defaultdict[str, list[str]](list), 0
        for panel, cells in panels(report, table, grid):
            for line, (cell,) in cells.items():
                results = [
                    result
                    for run_id in done_runs(cell, records)
                    for result in self.results(store, run_id, configs[run_id]["rounds"], records[run_id]).values()
                ]
                by_layer = _means_by_layer(results)
                if not by_layer.empty:
                    frames.append(_over_seeds(by_layer, grid["std"]).assign(panel=panel, line=line))
                    caveats[panel] += _cka_caveats(table, line, cell, results)
                    num_seeds = max(num_seeds, len(by_layer))
        y_label = _NAMES[self.estimator] + ",\nmean over pairs of clients"
        series = series_of_table("values", "Layer", y_label, report, table, concat_points(frames))
        shown = {panel: lines for panel, lines in caveats.items() if lines}
        return replace(series, seeds=num_seeds, caveats=shown, one_scale=True)


def _all_layers() -> list[str]:
    """Names of the layers of all models."""
    from bench import models  # imports torch

    of_each = (model.layers() for name in models.REGISTRY if (model := models.of_any_size(name)))
    return [*dict.fromkeys(["features", *(layer for layers in of_each for layer in layers)])]


def _means_by_layer(results: list[dict]) -> pd.DataFrame:
    """Means over pairs of different clients, [seeds, layers]."""
    means = [{layer: _mean_of_pairs(matrix) for layer, matrix in result["layers"].items()} for result in results]
    return pd.DataFrame(means).dropna(axis="columns", how="all")


def _mean_of_pairs(matrix: list[list[float | None]]) -> float:
    """Mean of the entries below the diagonal, without undefined ones."""
    pairs = [similarity for i, row in enumerate(matrix) for similarity in row[:i]]
    return pd.Series(pairs, dtype=float).mean()


def _over_seeds(by_layer: pd.DataFrame, std: str) -> pd.DataFrame:
    spread = by_layer.std(ddof=DDOF[std]) if len(by_layer) > 1 else float("nan")
    return pd.DataFrame({"x": by_layer.columns, "mean": by_layer.mean(), "std": spread})


def _cka_caveats(table: Table, line: str, cell, results: list[dict]) -> Iterator[str]:
    """Limits of a line: missing seeds, substitute data, clients that were left out."""
    line = table.names.title(table.column_key, line).plain
    if len(results) < cell.seeds:
        yield f"{line}: {len(results)}/{cell.seeds} seeds"
    if cell.substitute:
        yield f"{line}: {table.names.on(cell.substitute)}"
    shown, cohort = len(results[0]["clients"]), results[0]["cohort"]
    if shown < cohort:
        yield f"{line}: the first {shown} of {cohort} clients"
