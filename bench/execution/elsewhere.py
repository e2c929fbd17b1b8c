"""The runs of an experiment for another machine, which may have nothing but torch (see `bench.execution.waiting`)."""

from pathlib import Path

from bench import references
from bench.config.code_version import code_version
from bench.errors import ConfigError
from bench.execution import waiting
from bench.execution.driver import inputs_of
from bench.execution.job import Inputs
from bench.execution.waiting import Waiting
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.planning import Plan, check_name, make_plan, store_grid
from bench.experiments.selection import Selection
from bench.experiments.spec import ExperimentSpec
from bench.results.store import Store
from datasets import partition_files


def write(spec: ExperimentSpec, selection: Selection, store: Store, data_dir: Path | None = None) -> Plan:
    """Writes the grid, and the runs that are left of it, into a results directory; returns these.

    Args:
        data_dir: where the images are with which the other machine's must agree; None if that is not checked.

    Raises:
        ConfigError: with all that another machine cannot know: images of users, and hyper-parameters that are searched first.
        StoreError: if the directory cannot be written to, or holds another list that cannot be read.
    """
    configs = {cell.id: cell.config for cell in selection.selected}
    own = [name for config in configs.values() if _is_elsewhere(name := config.dataset)]
    mistakes = [
        f"describe --configs cannot take {references.without_digest(name)} to another machine, where nobody knows the place of "
        "its images; run the grid there, or make it a dataset of a lab (--plugins)."
        for name in dict.fromkeys(own)
    ]
    if spec.grid.is_searched(spec.budget) and not spec.grid.is_fixed_by(spec.overrides):
        mistakes.append(
            f"describe --configs cannot write the runs of {spec.label}: searches choose their hyper-parameters first; fix "
            "these by --set, or take --budget small."
        )
    if store.folder.exists() and not (store.folder / "runs").is_dir() and any(store.folder.iterdir()):
        mistakes.append(f"{store.folder} holds other things than results; name a new folder by --configs.")
    if mistakes:
        raise ConfigError(mistakes)
    with store.locked():
        check_name(spec, store)
        plan = make_plan(selection, spec.grid, ExecutionOptions(data_dir=data_dir), None, store)
        store_grid(spec, plan, store)
        for config in (cell.config for cell in plan.todo):
            if references.is_partition(config.partition):
                partition_files.keep(partition_files.parse(config.partition), store.folder / partition_files.FOLDER)
        runs = []
        for cell in plan.todo:
            there = inputs_of(cell.config, data_dir) if data_dir else Inputs(code_version(cell.config))
            record = store.record(cell.id)
            before = (record and record.get("finished")) or ""
            base, retention = plan.bases.get(cell.id, ""), plan.retention[cell.id]
            store.start(cell.id, cell.config.canonical(), there.code)
            runs.append(Waiting(cell.id, base, retention, there.code, there.images, before))
        waiting.write(store, runs)
    return plan


def _is_elsewhere(dataset: str) -> bool:
    """Whether only this machine knows where the images are."""
    found = references.read(dataset)
    return found.kind != references.LAB if found else references.is_dataset(dataset)
