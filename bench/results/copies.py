"""Runs that are copied from another results directory, or under another id."""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.files import sync_disk, write_file
from bench.results.ids import is_name
from bench.results.json_files import Damaged, seal
from bench.results.records import Config
from bench.results.store import IMPORTING, Store, json_text


def import_runs(store: Store, folders: Mapping[str, Path]) -> None:
    """Copies finished runs from another directory. What their folders held, runs that failed, have not ended or are
    damaged, goes to `superseded`.

    All copies are on disk before the first of them becomes a run, so that an interruption leaves each run whole or not
    there at all. The disk is awaited once for all of them: for each file, most of the time would go there.

    Args:
        folders: run id -> its folder in the other directory.

    Raises:
        Damaged: if there is a link or a special file among the files; nothing has changed then.
        OSError: if a file cannot be copied, or the disk does not take it; no run has changed then.
    """
    files = {run_id: require_files(folder) for run_id, folder in folders.items()}
    copies = {run_id: _copied(store, run_id, paths) for run_id, paths in files.items()}
    if copies:
        sync_disk(store.folder / IMPORTING)
    for run_id, copy in copies.items():
        _put(store, run_id, copy)


def copy_as(store: Store, run_id: str, config: Config, earlier: str) -> None:
    """Copies a finished run of a directory under the id of a config that says the same in another way. What the folder
    of that id held goes to `superseded`.

    Raises:
        Damaged: as `import_runs`.
    """
    record: Any = store.record(earlier)
    copy = _copied(store, run_id, require_files(store.run_folder(earlier)))
    sync_disk(copy)
    rounds = (copy / "rounds.jsonl").read_bytes()
    write_file(copy / "config.json", json_text(config))
    write_file(copy / "record.json", seal(json_text({**record, "id": run_id}), rounds))
    _put(store, run_id, copy)


def require_files(folder: Path) -> list[Path]:
    """The files of a run's folder that another directory can take; no checkpoint, and nothing hidden.

    Raises:
        Damaged: if one of them is a link, which may lead to any file of this machine, or a special file.
    """
    files = [path for path in sorted(folder.iterdir()) if path.name[0] != "." and path.name != "checkpoint"]
    for path in files:
        if path.is_symlink() or not path.is_file() or not is_name(path.name):
            raise Damaged(path, "is a link" if path.is_symlink() else "is not a regular file")
    return files


def _copied(store: Store, run_id: str, files: Iterable[Path]) -> Path:
    """A copy of the files of a run that is no run yet; not synced."""
    copy = store.folder / IMPORTING / run_id
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for path in files:
        _copy(path, copy / path.name)
    return copy


def _put(store: Store, run_id: str, copy: Path) -> None:
    """Makes a copy the run of an id."""
    store.quarantine(store.run_folder(run_id))
    os.replace(copy, store.run_folder(run_id))
    with suppress(OSError):  # others are still there
        copy.parent.rmdir()


def _copy(source: Path, target: Path) -> None:
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file, open(target, "xb") as copy:
        shutil.copyfileobj(file, copy)
