"""Which accuracies a run reports: of one shared model, or of one per client, on which test data."""

from collections.abc import Iterable

from algorithms.shared.base import Algorithm
from bench.config.schema import RunConfig
from bench.experiments.cells import Cell
from bench.experiments.report_schema import Layout
from bench.results.metrics import ACCURACIES, accuracies_of
from bench.simulation.build import build_algorithm
from datasets import partitions


def reported(config: RunConfig, method: Algorithm) -> list[str]:
    """The accuracies that a run reports, by the first of which it is usually judged."""
    partition = partitions.parse(config.partition)
    return accuracies_of(method.personal, partition.has_own_tests, partition.scores_together)


def deployed(config: RunConfig, method: Algorithm) -> str:
    """ "ditto deploys one model per client"."""
    return f"{config.algorithm['name']} deploys {'one model per client' if method.personal else 'one shared model'}"


def without_a_number(cells: Iterable[Cell], report: Layout) -> list[str]:
    """A sentence for each method of which a table that names its metrics would show no accuracy."""
    shown = [metric for metric in report.metrics if metric in ACCURACIES]
    found: dict[str, None] = {}
    for cell in cells if shown else ():
        method = build_algorithm(cell.config.algorithm)
        own = reported(cell.config, method)
        if not {*own} & {*shown}:
            what = f"{deployed(cell.config, method)}, so a table of {', '.join(shown)} has no accuracy of it"
            found[f"{what}; leave it out (--only), or name {' or '.join(own)} among the metrics of the grid."] = None
    return [*found]
