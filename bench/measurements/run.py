"""Measures what tables and figures need on states that finished runs have kept, and stores it."""

import dataclasses
import functools
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import ConfigError
from bench.hooks import place_of, require_returned
from bench.measurements.specs import REGISTRY, Probe, Shown, local_models, probes_of, trained_rounds
from bench.results.json_schema import mismatch
from bench.results.store import Store

if TYPE_CHECKING:
    from datasets import Dataset


def images_of(cell: Any, store: Store, data_dir: Path | None) -> "Dataset":
    """The images of a cell whose run is done; raises ValueError if it saw other ones than there are now."""
    from datasets import resized

    dataset, record = resized.of_config(cell.config, data_dir), store.record(cell.id)
    trained_on = record["data"]["digest"] if record else ""
    if dataset.digest != trained_on:
        raise ValueError(
            f"the run saw other images ({trained_on}) than there are now ({dataset.digest}); run it with --rerun."
        )
    return dataset


class FinishedRun:
    """A run that is done, with what can be measured on it.

    Attributes:
        config: its `bench.config.schema.RunConfig`.
        record: how it has ended, see `bench.results.records.RunRecord`.
        rows: of its rounds.
        dataset: its images, a `datasets.Dataset`.
    """

    def __init__(self, cell: Any, store: Store, data_dir: Path | None):
        """
        Args:
            cell: a `bench.experiments.cells.Cell`.

        Raises:
            ValueError: if the run saw other images than there are now.
        """
        self.config, self._data_dir = cell.config, data_dir
        self.record: Mapping[str, Any] = store.record(cell.id) or {}
        self._id, self._store = cell.id, store
        self.dataset = images_of(cell, store, data_dir)

    @property
    def rows(self) -> list[dict]:
        return self._store.rows(self._id)

    @functools.cached_property
    def task(self) -> Any:
        """Its `bench.simulation.task.Task`."""
        from bench.simulation.build import build_task

        return build_task(self.config, self.dataset, data_dir=self._data_dir)

    @functools.cached_property
    def local_task(self) -> Any:
        """Its task with the model of which `local_models` gives params, for methods whose clients have another one."""
        from algorithms import RoundBased

        if not isinstance(self.algorithm, RoundBased):
            return self.task
        return dataclasses.replace(self.task, model=self.algorithm.local_model(self.task))

    @functools.cached_property
    def algorithm(self) -> Any:
        """Its `algorithms.shared.base.Algorithm`."""
        from bench.simulation.build import build_algorithm

        return build_algorithm(self.config.algorithm)

    def local_models(self, probe: Probe) -> dict[str, Any]:
        """The models of the cohort after the local training of a probe's round: "ids" [K], "params" and "buffers" with a first
        axis K."""
        assert probe.round is not None
        return self.trained_state(local_models(probe.round))

    def trained_state(self, name: str) -> dict[str, Any]:
        """A state of this run, or of the one from whose end it has started.

        Raises:
            ValueError: if it is not there.
        """
        from bench.config.resolve import trained_by
        from bench.config.schema import run_id

        trained = trained_by(self.config)
        return self._load(run_id(trained) if trained else self._id, name)

    def own_state(self, name: str) -> dict[str, Any]:
        """A state of this run; errors as `trained_state`."""
        return self._load(self._id, name)

    def _load(self, run_id: str, name: str) -> dict[str, Any]:
        import torch

        from bench.results.artifacts import Folder

        folder = Folder(self._store.run_folder(run_id))
        if name not in folder.names():
            raise ValueError(f"{self._store.run_folder(run_id)} has no {name}; run it with --rerun.")
        return folder.load(name, torch.device("cpu"))


def measure(
    cells: Iterable, parts: Iterable[Shown], store: Store, data_dir: Path | None, on_message: Callable[[str], None]
) -> None:
    """Measures what tables and figures need of finished runs and is not stored; the store must be locked.

    A measurement that fails costs its figure or table, and nothing else.

    Args:
        cells: `bench.experiments.cells.Cell`s.
        parts: figures and measured tables of their grid.
        on_message: is told of each measurement, and in the end of those that could not be made, once for each reason.
    """
    parts, failed = list(parts), defaultdict[tuple[str, str], list[tuple[str, Any]]](list)
    for cell in cells:
        # Most grids want none, and then no record is read.
        if (
            not any([*part.probes(cell.config.rounds)] for part in parts)
            or cell.missing
            or store.status(cell.id) != "done"
        ):
            continue
        trained = trained_rounds(store, cell.id, cell.config.rounds)
        wanted: dict[Probe, Shown] = {}
        for part in parts:
            try:
                wanted |= dict.fromkeys(probes_of(part, trained), part)
            except ConfigError as error:  # a run that has ended early has other rounds than its config
                on_message(
                    f"{part.kind} of {cell.config.dataset} {cell.config.partition} {cell.id}: not measured: {error}"
                )
        for probe, part in wanted.items():
            if part.is_measurable(probe, cell.config) and part.result_of(store, cell.id, probe) is None:
                begin = time.perf_counter()
                try:
                    _measure(probe, part, cell, store, data_dir)
                    on_message(f"{probe.name} of {_in_words(cell)}: {time.perf_counter() - begin:.1f} s")
                    continue
                except ValueError as error:  # a sentence, of a damaged state for example
                    said = str(error)
                except Exception as error:  # too little memory, whatever a library refuses
                    entry = REGISTRY.get(part.kind)
                    is_of_lab = entry and entry.lab and entry.has_raised(error)
                    said = entry.failure(error) if is_of_lab else f"{type(error).__name__}: {error}"
                failed[part.name, said].append((probe.name, cell))
    for (part_name, said), those in failed.items():  # a mistake in code fails alike in all runs and rounds
        (name, cell), runs = those[0], len({cell.id for _, cell in those})
        what = f"{name} of {_in_words(cell)}" if len(those) == 1 else f"{part_name} of {runs} run{'s' * (runs > 1)}"
        on_message(f"{what}: not measured: {said}")


def _in_words(cell: Any) -> str:
    return f"{cell.config.dataset} {cell.config.partition} {cell.id}"


def _measure(probe: Probe, part: Shown, cell: Any, store: Store, data_dir: Path | None) -> None:
    import torch

    from bench import imports
    from bench.provenance import commits_of

    run = FinishedRun(cell, store, data_dir)
    measured = part.measure(run, probe)
    require_returned(part.measure, measured, isinstance(measured, dict), "a dict", "return {name: numbers}")
    result = {"classes": list(run.dataset.classes), **measured}
    if wrong := mismatch(result, part.shape, "result"):
        tensors = [f"{key} is a {type(found).__name__}" for key, found in measured.items() if hasattr(found, "tolist")]
        write = f" {', '.join(tensors)}; write .tolist()." if tensors else ""
        keys = ", ".join(map(str, measured)) or "no keys"
        raise ValueError(
            f"{place_of(part.measure)}, returned {keys}, but the shape of {part.kind} says: {wrong}.{write}"
        )
    kind = Path(inspect.getfile(type(part)))
    modules = [f"{__package__}.{path.stem}" for path in Path(__file__).parent.glob("*.py")]
    commit = commits_of([kind, *imports.files_of(modules)], (*imports.folders(), kind.parent))["commit"]
    made = {"commit": commit, "torch": str(torch.__version__), "images": run.dataset.digest}
    store.write_probe(cell.id, probe.name, {"version": part.version, **made, "result": result})
