"""Measures what tables and figures need on states that finished runs have kept, and stores it."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench.measurements.specs import VERSION, Probe, is_measurable, needed_state, probes_of, result_of
from bench.results.store import Store


def measure(
    cells: Iterable, figures: Iterable[Mapping], store: Store, data_dir: Path | None, on_message: Callable[[str], None]
) -> None:
    """Measures what tables and figures need of finished runs and is not stored; the store must be locked.

    A measurement that fails costs its figure or table, and nothing else.

    Args:
        cells: `bench.experiments.cells.Cell`s.
        figures: figures and measured tables, as their grid lists them.
        on_message: is told of each measurement, and of each that could not be made.
    """
    figures = list(figures)
    for cell in cells:
        wanted = dict.fromkeys(probe for figure in figures for probe in probes_of(figure, cell.config.rounds))
        # Most grids want none, and then no record is read.
        if not wanted or cell.missing or store.status(cell.id) != "done":
            continue
        for probe in wanted:
            if is_measurable(probe, cell.config) and result_of(store, cell.id, probe) is None:
                begin = time.perf_counter()
                try:
                    _measure(probe, cell, store, data_dir)
                    outcome = f"{time.perf_counter() - begin:.1f} s"
                except ValueError as error:  # a sentence, of a damaged state for example
                    outcome = f"not measured: {error}"
                except Exception as error:  # too little memory, whatever a library refuses
                    outcome = f"not measured: {type(error).__name__}: {error}"
                on_message(f"{probe.name} of {cell.config.dataset} {cell.config.partition} {cell.id}: {outcome}")


def _measure(probe: Probe, cell, store: Store, data_dir: Path | None) -> None:
    import torch

    from bench import imports
    from bench.config.resolve import trained_by
    from bench.config.schema import run_id
    from bench.measurements import capacities, encoders, features
    from bench.provenance import commits_of
    from bench.results.artifacts import Folder
    from bench.simulation.build import build_algorithm, build_task
    from bench.simulation.retention import FINAL
    from datasets import resized

    config = cell.config
    dataset = resized.load(config.dataset, config.transform, data_dir, config.image_size)
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

    if probe.kind == "dataset-sizes":
        result = features.sizes(dataset)
    elif probe.kind == "coalitions-by-capacity":
        found = store.record(cell.id)["diagnostics"]
        task = build_task(config, dataset)
        result = capacities.coalitions_of(task, found["divergences"], found["coalitions"], *probe.option)
    else:
        trained = trained_by(config)
        state = load(run_id(trained) if trained else cell.id, needed_state(probe, config))
        task, algorithm = build_task(config, dataset, data_dir=data_dir), build_algorithm(config.algorithm)
        match probe.kind:
            case "embedding":
                result = features.embedding(task, algorithm, state, load(cell.id, FINAL), probe.option)
            case "cka":
                result = features.cka(task, state, probe.option)
            case "encoder-heads":
                result = encoders.head_losses(task, state, *probe.option)
            case "encoder-information":
                result = encoders.label_information(task, state, *probe.option)
            case "encoder-features":
                view, *names, points = probe.option
                result = encoders.plane(task, state, names, view, points)
            case _:
                result = features.weight_norms(task, state)
    commit = commits_of(imports.files_of([__name__]), imports.folders())["commit"]
    made = {"commit": commit, "torch": str(torch.__version__), "images": dataset.digest}
    content = {"version": VERSION, **made, "result": {"classes": list(dataset.classes), **result}}
    store.write_probe(cell.id, probe.name, content)
