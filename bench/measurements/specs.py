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

    match figure["kind"]:
        case "cka":
            return [Probe("cka", number, figure["estimator"]) for number in rounds_of([figure["round"]], rounds)]
        case "weight-norms":
            return [Probe("weight-norms", number) for number in rounds_of(figure["rounds"], rounds)]
        case "embedding":
            return [Probe("embedding", option=figure["points"])]
    return []


def rounds_of(wanted: Iterable[int | str], rounds: int) -> list[int]:
    """Numbers of rounds, of which one may be "last", as far as a run has so many; ascending."""
    numbers = {rounds if number == "last" else number for number in wanted}
    return sorted(number for number in numbers if number <= rounds)


def needed_state(probe: Probe, config: Any) -> str | None:
    """The file with the state on which a probe is measured; None where there is nothing to measure.

    Only a method that trains one model in rounds has local models; only one that starts from the end of another run has
    predictions before and after it.

    Args:
        config: a `bench.config.RunConfig`.
    """
    import algorithms
    from algorithms.base import RoundBased
    from bench.run import FINAL

    method = algorithms.load(config.algorithm["name"])
    if probe.kind == "embedding":
        return FINAL if method.post_hoc and config.evaluate_every is None else None
    return f"local-models-{probe.round:04d}.pt" if issubclass(method, RoundBased) else None


def result_of(store: Store, run_id: str, probe: Probe) -> dict | None:
    """What was measured, with the names of the classes; None if that was not done, or by other code."""
    stored = store.probe(run_id, probe.name)
    return stored["result"] if stored and stored["version"] == VERSION else None


def measure(
    cells: Iterable, figures: Iterable[Mapping], store: Store, data_dir: Path | None, say: Callable[[str], None]
) -> None:
    """Measures what figures need of finished runs and is not stored; the store must be locked.

    A measurement that fails costs its figure, and nothing else.

    Args:
        cells: `bench.grid.Cell`s.
        figures: as their grid lists them.
        say: is told of each measurement, and of each that could not be made.
    """
    figures = list(figures)
    for cell in cells:
        wanted = dict.fromkeys(probe for figure in figures for probe in probes_of(figure, cell.config.rounds))
        # Most grids want none, and then no record is read.
        if not wanted or cell.missing or (store.record(cell.id) or {}).get("status") != "done":
            continue
        for probe in wanted:
            if needed_state(probe, cell.config) and result_of(store, cell.id, probe) is None:
                begin = time.perf_counter()
                try:
                    _measure(probe, cell, store, data_dir)
                    told = f"{time.perf_counter() - begin:.1f} s"
                except ValueError as error:  # a sentence, of a damaged state for example
                    told = f"not measured: {error}"
                except Exception as error:  # too little memory, whatever a library refuses
                    told = f"not measured: {type(error).__name__}: {error}"
                say(f"{probe.name} of {cell.config.dataset} {cell.config.partition} {cell.id}: {told}")


def _measure(probe: Probe, cell, store: Store, data_dir: Path | None) -> None:
    import torch

    from bench import images, probing
    from bench.driver import commit
    from bench.folders import Folder
    from bench.plan import training_of
    from bench.run import FINAL, build_algorithm, build_task

    config = cell.config
    dataset = images.load(config.dataset, config.transform, data_dir, config.image_size)
    trained_on = store.record(cell.id)["data"]["digest"]
    if dataset.digest != trained_on:
        raise ValueError(
            f"the run saw other images ({trained_on}) than there are now ({dataset.digest}); run it with --rerun."
        )

    def load(run_id: str, name: str) -> dict:
        folder = Folder(store.run_folder(run_id))
        if name not in folder.names():
            raise ValueError(f"{store.run_folder(run_id)} has no {name}; run it with --rerun.")
        return folder.load(name, torch.device("cpu"))

    state = load((training_of(cell) or cell).id, needed_state(probe, cell.config))
    task, algorithm = build_task(cell.config, dataset), build_algorithm(cell.config.algorithm)
    if probe.kind == "embedding":
        result = probing.embedding(task, algorithm, state, load(cell.id, FINAL), probe.option)
    elif probe.kind == "cka":
        result = probing.cka(task, state, probe.option)
    else:
        result = probing.weight_norms(task, state)
    made = {"commit": commit(), "torch": str(torch.__version__), "images": dataset.digest}
    content = {"version": VERSION, **made, "result": {"classes": list(dataset.classes), **result}}
    store.write_probe(cell.id, probe.name, content)
