"""Where runs are trained, and where their workers write: a folder for each run, beside the results or in a shared storage."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.errors import StoreError
from bench.execution.job import BASE_PREFIX, base_of
from bench.execution.resources import Machines
from bench.experiments.execution_options import ExecutionOptions
from bench.results.artifacts import Folder
from bench.results.store import Store
from bench.simulation.retention import FINAL

_MARKER = "driver.pt"  # by which the machines of a cluster know that they see the storage


@dataclass(frozen=True)
class Workspace:
    """Where runs are trained, how, and where results and workers' files go.

    Attributes:
        store: the results directory, which must be locked.
        machines: on which runs are trained.
        options: its `storage` is a shared path or a URI, in which each results directory has a folder of its own; None for
            the results directory itself.
    """

    store: Store
    machines: Machines
    options: ExecutionOptions = field(default_factory=ExecutionOptions)

    @property
    def storage(self) -> str | None:
        return self.options.storage

    @property
    def root(self) -> str:
        """The folder with a folder for each run that has not ended."""
        if self.storage is None:
            return str(self.store.folder / "runs")
        return f"{self.storage.rstrip('/')}/{self.store.key}"

    def run_folder(self, run_id: str) -> str:
        """Where the worker of a run writes."""
        return str(self.store.unfinished_folder(run_id)) if self.storage is None else f"{self.root}/{run_id}"

    def base_folder(self, run_id: str | None) -> str:
        """Where a worker finds the last state of a finished run; "" for None."""
        if run_id is None:
            return ""
        return str(self.store.run_folder(run_id)) if self.storage is None else f"{self.root}/{BASE_PREFIX}{run_id}"

    @contextlib.contextmanager
    def marker(self) -> Iterator[str]:
        """A file of this driver by which other machines know that they see the workspace; "" where there are none. A storage
        is empty again when every run has ended."""
        if self.storage is None:
            yield str(self.store.id_file) if self.machines.address else ""
            return
        root = Folder(self.root)
        root.save(_MARKER, {"results": str(self.store.folder)})
        tidy(root, self.store)
        try:
            yield f"{root.uri}/{_MARKER}"
        finally:
            with contextlib.suppress(StoreError):  # an earlier error says more
                if not root.folders():
                    root.remove()


def tidy(storage: Folder, store: Store) -> None:
    """Removes the folders of runs that have ended. A driver that is killed between writing a run's record and removing its
    folder leaves the folder behind, and a repetition of the run would take it for its own."""
    for run_id in storage.folders():
        if not store.unfinished_folder(run_id).exists():
            (storage / run_id).remove()


@contextlib.contextmanager
def shared_bases(folders: Iterable[str], store: Store) -> Iterator[None]:
    """Within the context, workers find the last states of finished runs that others start from: in the storage, if there is
    one."""
    runs = {folder: base_of(folder) for folder in folders if folder.rpartition("/")[2].startswith(BASE_PREFIX)}
    try:
        for folder, run_id in runs.items():
            Folder(folder).copy_from(store.run_folder(run_id), [FINAL])
        yield
    finally:
        for folder in runs:
            Folder(folder).remove()
