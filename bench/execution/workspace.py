"""Where workers write: a folder for each run, beside the results or in a shared storage."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.errors import StoreError
from bench.experiments.spec import Request
from bench.results.store import Store

if TYPE_CHECKING:
    from bench.results.artifacts import Folder


_MARKER = "driver.pt"  # by which the machines of a cluster know that they see the storage


def folder_of(run_id: str, request: Request, store: Store) -> str:
    """Where the worker of a run writes."""
    own = store.playing_folder(run_id)
    return str(own) if request.storage is None else f"{_storage_of(request, store)}/{run_id}"


def base_folder(run_id: str | None, request: Request, store: Store) -> str:
    """Where a worker finds the state of a finished run; "" without any."""
    from bench.execution.job import BASE_PREFIX

    if run_id is None:
        return ""
    return (
        str(store.run_folder(run_id))
        if request.storage is None
        else f"{_storage_of(request, store)}/{BASE_PREFIX}{run_id}"
    )


def place_of(request: Request, store: Store) -> str:
    """The folder in which each run that has not ended has one of its own."""
    return str(store.folder / "runs") if request.storage is None else _storage_of(request, store)


def _storage_of(request: Request, store: Store) -> str:
    """In a storage each results directory has a place of its own."""
    return f"{request.storage.rstrip('/')}/{store.key}"


@contextlib.contextmanager
def marker_of(request: Request, store: Store, address: str | None) -> Iterator[str]:
    """A file of this driver by which machines know that they see where runs write; "" where there is no other machine. A
    storage is empty again when every run has ended."""
    from bench.results.artifacts import Folder

    if request.storage is None:
        yield str(store.id_file) if address else ""
        return
    place = Folder(_storage_of(request, store))
    place.save(_MARKER, {"results": str(store.folder)})
    tidy(place, store)
    try:
        yield f"{place.uri}/{_MARKER}"
    finally:
        with contextlib.suppress(StoreError):  # what has happened before says more
            if not place.folders():
                place.remove()


def tidy(storage: "Folder", store: Store) -> None:
    """Removes from a storage what belongs to no run that goes on: a driver that is killed after a run's record was written,
    and before its folder was removed, leaves it there, and a repetition of the run would take it for its own."""
    for run_id in storage.folders():
        if not store.playing_folder(run_id).exists():
            (storage / run_id).remove()
