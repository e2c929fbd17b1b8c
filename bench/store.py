"""Results on disk: one folder per run, human-readable, written by one driver and readable at any moment.

    grids/<grid>@<budget>.json    cells of a grid -> run ids
    runs/<id>/config.json         resolved config; written when the run starts
              rounds.jsonl        metrics, one line per round, appended as they arrive
              record.json         how the run ended; exists only then
              *.pt                states the grid asked for
    superseded/<id>-<n>/          earlier results of a repeated run

A file is replaced in one step, so a reader and a kill -9 meet either the old or the new one. A run without a record has
not ended and is played again.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(RuntimeError):
    """The results directory cannot be used; one sentence."""


class Store:
    """The results directory.

    Attributes:
        folder: its absolute path; made by `locked`, not before.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder).absolute()

    @contextmanager
    def locked(self) -> Iterator["Store"]:
        """Makes the directory, checks that it is writable, and keeps other drivers out of it.

        The operating system drops the lock with the process, however that ends.

        Raises:
            StoreError: if it is not writable, or another driver is at work.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / ".lock", "w")
        except OSError as error:
            raise StoreError(
                f"Cannot write to the results directory {self.folder} ({error.strerror}); choose another one with "
                "--results-dir."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    f"Another run is writing to {self.folder}; wait until it ends or choose another --results-dir."
                ) from error
            yield self

    def run_folder(self, run_id: str) -> Path:
        """Where everything about a run lies."""
        return self.folder / "runs" / run_id

    def record(self, run_id: str) -> dict | None:
        """How a run ended, or None if it has not."""
        return _read(self.run_folder(run_id) / "record.json")

    def rows(self, run_id: str) -> list[dict]:
        """The rounds of a run that has ended, in order."""
        return [json.loads(line) for line in (self.run_folder(run_id) / "rounds.jsonl").read_text().splitlines()]

    def lacks(self, run_id: str, files: list[str]) -> list[str]:
        """Those of the files that are not in a run's folder."""
        return [name for name in files if not (self.run_folder(run_id) / name).exists()]

    def start(self, run_id: str, config: dict) -> None:
        """Begins a run: its config, no rounds, no record. Earlier results are moved aside, unless the run failed."""
        folder, earlier = self.run_folder(run_id), self.record(run_id)
        if earlier and earlier["status"] != "failed":
            self._supersede(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in (folder / "record.json", folder / "rounds.jsonl"):
            left_over.unlink(missing_ok=True)
        _write(folder / "config.json", _json(config))

    def append(self, run_id: str, rows: list[dict]) -> None:
        """Adds rounds as they arrive."""
        with open(self.run_folder(run_id) / "rounds.jsonl", "a") as file:
            file.write(_lines(rows))

    def finish(self, run_id: str, rows: list[dict], record: dict) -> None:
        """Ends a run: all its rounds, then its record, which makes it count."""
        folder = self.run_folder(run_id)
        _write(folder / "rounds.jsonl", _lines(rows))
        _write(folder / "record.json", _json(record))

    def grid(self, name: str) -> dict | None:
        """A stored grid by its `<grid>@<budget>`, or None."""
        return _read(self.folder / "grids" / f"{name}.json")

    def grids(self) -> list[str]:
        """The `<grid>@<budget>` of every stored grid."""
        return sorted(path.stem for path in (self.folder / "grids").glob("*.json"))

    def write_grid(self, name: str, grid: dict) -> None:
        """Stores an expanded grid."""
        (self.folder / "grids").mkdir(exist_ok=True)
        _write(self.folder / "grids" / f"{name}.json", _json(grid))

    def scratch(self) -> Path:
        """An empty folder for the scheduler's own files, which mean nothing once it has ended."""
        folder = self.folder / ".scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _supersede(self, run_id: str) -> None:
        """Moves a run's folder to the next free number below `superseded`."""
        aside = self.folder / "superseded"
        aside.mkdir(exist_ok=True)
        number = 1
        while (aside / f"{run_id}-{number}").exists():
            number += 1
        os.replace(self.run_folder(run_id), aside / f"{run_id}-{number}")


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{path} is not readable JSON; remove it and run its grid again.") from error


def _write(path: Path, text: str) -> None:
    """Replaces a file in one step that survives a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _json(content: dict) -> str:
    return json.dumps(content, indent=1) + "\n"


def _lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
