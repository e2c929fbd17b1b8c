"""What figures show beside the metrics of runs: measured on states that finished runs have kept, and stored with them.

A figure says which probes it needs of a run; a probe says which states it needs. `run` measures what is not there yet once
the runs are done, without training anything; a report reads the numbers and needs neither images nor torch.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.store import Store

VERSION = 1  # raised whenever the numbers of a probe may change


class Probe(NamedTuple):
    """One measurement of one run.

    Attributes:
        kind: "cka", "weight-norms" or "embedding".
        round: after whose local training; None for the end of the run.
        option: estimator of "cka", number of points of "embedding"; None for others.
    """

    kind: str
    round: int | None = None
    option: str | int | None = None

    @property
    def name(self) -> str:
        """Under which it is stored: "cka-linear-0100"."""
        number = None if self.round is None else f"{self.round:04d}"
        return "-".join(str(part) for part in (self.kind, self.option, number) if part is not None)


def probes_of(figure: Mapping[str, Any], rounds: int) -> list[Probe]:
    """What a figure needs of each run; nothing for most kinds.

    Args:
        figure: as its grid lists it.
        rounds: of the run.
    """

    def within(wanted: Iterable[int | str]) -> list[int]:
        numbers = {rounds if number == "last" else number for number in wanted}
        return sorted(number for number in numbers if number <= rounds)

    match figure["kind"]:
        case "cka":
            return [Probe("cka", number, figure["estimator"]) for number in within([figure["round"]])]
        case "weight-norms":
            return [Probe("weight-norms", number) for number in within(figure["rounds"])]
        case "embedding":
            return [Probe("embedding", option=figure["points"])]
    return []


def measure(
    cells: Iterable, figures: Iterable[Mapping], store: Store, data_dir: Path | None, say: Callable[[str], None]
) -> None:
    """Measures what figures need of finished runs and is not stored; the store must be locked.

    Args:
        cells: `bench.grid.Cell`s.
        figures: as their grid lists them.
        say: is told of each measurement, and of those for which a state is missing.
    """
    figures = list(figures)
    for cell in cells:
        done = not cell.missing and (store.record(cell.id) or {}).get("status") == "done"
        wanted = dict.fromkeys(probe for figure in figures for probe in probes_of(figure, cell.config.rounds) if done)
        for probe in wanted:
            if (store.probe(cell.id, probe.name) or {}).get("version") != VERSION:
                _measure(probe, cell, store, data_dir, say)


def _measure(probe: Probe, cell, store: Store, data_dir: Path | None, say: Callable[[str], None]) -> None:
    import torch

    from bench import images, probing
    from bench.driver import commit, name_of
    from bench.folders import Folder
    from bench.plan import training_of
    from bench.run import build_algorithm, build_task

    algorithm = build_algorithm(cell.config.algorithm)
    needed = probing.needs(probe, algorithm)
    if needed is None:
        return
    trained = training_of(cell) or cell
    folder = Folder(store.run_folder(trained.id))
    if needed not in folder.names():
        say(f"{probe.name} of {name_of(cell)} is not measured: {store.run_folder(trained.id)} has no {needed}.")
        return
    begin = time.perf_counter()
    dataset = images.load(cell.config.dataset, cell.config.transform, data_dir)
    task = build_task(cell.config, dataset)
    result = probing.MEASURES[probe.kind](probe, task, algorithm, folder.load(needed, torch.device("cpu")))
    made = {"commit": commit(), "torch": str(torch.__version__), "images": dataset.digest}
    content = {"version": VERSION, **made, "result": {"classes": list(dataset.classes), **result}}
    store.write_probe(cell.id, probe.name, content)
    say(f"{probe.name} of {name_of(cell)}: {time.perf_counter() - begin:.1f} s")
