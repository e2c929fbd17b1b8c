"""Figure of the examples and the weights of the classifier of each class, at each client's local model."""

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import field_validator

from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number
from bench.results.store import Store
from reports.figures import Figure, Probe, Round, heatmaps, registered_figure, rounds_of
from reports.figures.heatmaps import Matrix
from reports.figures.panels import first_results
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    from bench.measurements.run import FinishedRun


@registered_figure("weight-norms")
class WeightNorms(Figure):
    """Training examples and L2 norm of the classifier's weights of each class, at each client's local model.

    Attributes:
        rounds: whose local training the models have just ended.
    """

    rounds: list[Round] = ["last"]

    shape = {"clients": [is_integer], "label_counts": [[is_integer]], "norms": [[(is_number, None)]]}

    @field_validator("rounds")
    @classmethod
    def _are_some(cls, rounds: list[Round]) -> list[Round]:
        if not rounds:
            raise ValueError("rounds must name at least one round, such as 1 or last.")
        return rounds

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, number) for number in rounds_of(self.rounds, rounds)]

    def fault_of(self, result: dict[str, Any]) -> str:
        tables = {name: [*map(len, result[name])] for name in ("norms", "label_counts")}
        wrong = (
            name for name, widths in tables.items() if len(widths) != len(result["clients"]) or len({*widths}) != 1
        )
        return next((f"{name} does not have a row of equal length for each client" for name in wrong), "")

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import features

        return features.weight_norms(run.local_task, run.local_models(probe))

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> list[list[Matrix]]:
        """The panels, a row per run."""
        return [_panels(title, found) for title, _, found in first_results(self, grid, records, store, value)]

    def draw(self, found: list[list[Matrix]], widths: Widths = FIGURES):
        return heatmaps.draw(found, widths)


def _panels(title: str, found: dict[Probe, dict]) -> list[Matrix]:
    panels: list[Matrix] = []
    for probe, one in found.items():
        axes = ("client", "class", one["clients"], list(range(len(one["norms"][0]))))
        if not panels:
            panels.append(Matrix(title, "all rounds", np.array(one["label_counts"], float), *axes, "Training examples"))
        norms = np.array(one["norms"], float)
        panels.append(Matrix(title, f"round {probe.round}", norms, *axes, "Norm of a class's weights"))
    return panels
