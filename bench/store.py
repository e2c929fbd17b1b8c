"""Results on disk: one folder per run, human-readable, written by one driver and readable at any moment.

    grids/<grid>@<budget>.json    cells of a grid -> run ids
    runs/<id>/config.json         resolved config; written when the run starts
              rounds.jsonl        metrics, one line per round, appended as they arrive
              record.json         how the run ended; exists only then
              checkpoint/         where a run that has not ended goes on (see `bench.checkpoint`)
              probe-*.json        what figures need, measured on its states (see `bench.probes`)
              *.pt                states the grid asked for
              events.out.tfevents.*   the rounds once more, for TensorBoard (see `bench.events`)
    searches/                     searches of hyper-parameters (see `bench.study`)
    repeating/<id>/               a finished run that is being played again
    superseded/<id>-<n>/          earlier results of a repeated run
    tracking/                     files of a tracking service, if runs were tracked (see `bench.tracking`)
    importing/<id>/               a run that is being copied from another results directory
    ray.log                       what Ray had to say of processes that died

A file is replaced in one step, so a reader and a kill -9 meet either the old or the new one. A run without a record has
not ended and is played on. A repeated run takes the place of the earlier one when it has finished: killed or failed
before that, the earlier results stand.
"""

import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RAY_LOG = "ray.log"
UNFINISHED = ("failed", "stopped")  # status of runs that are played on from their checkpoint when they are asked for


class StoreError(RuntimeError):
    """The results directory cannot be used; one sentence."""


class Store:
    """The results directory.

    Attributes:
        folder: its absolute path; made by `locked`, not before.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder).absolute()

    @property
    def key(self) -> str:
        """A name for this directory where things of several ones lie: the same on every machine that sees it, another one
        for its copies. Known once it has been locked."""
        return hashlib.sha256(f"{self.mark.read_text()}:{self.folder}".encode()).hexdigest()[:16]

    @property
    def mark(self) -> Path:
        """A file by which a machine knows that it sees this directory."""
        return self.folder / ".id"

    @contextmanager
    def locked(self) -> Iterator["Store"]:
        """Makes the directory, checks that it and its parts are writable, and keeps other drivers out of it.

        The operating system drops the lock with the process, however that ends.

        Raises:
            StoreError: if it is not writable, or another driver is at work.
        """
        try:
            for part in map(self.folder.joinpath, ("", "grids", "runs", "reports")):
                part.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=part).close()
            lock = open(self.folder / ".lock", "w")
        except OSError as error:
            raise StoreError(
                f"Cannot write to the results directory {self.folder} ({part}: {error.strerror}); choose another one "
                "with --results-dir."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    f"Another run is writing to {self.folder}; wait until it ends or choose another --results-dir."
                ) from error
            if not self.mark.exists():
                write_file(self.mark, secrets.token_hex(8))
            self._finish_repeats()
            for checkpoint in (self.folder / "runs").glob("*/checkpoint"):
                _forget_checkpoint(checkpoint.parent, self.record(checkpoint.parent.name))
            yield self

    @contextmanager
    def unchanging(self) -> Iterator["Store"]:
        """Keeps drivers out while results are read that belong together. Writes nothing, so that it works on a copy and on a
        disk that cannot be written to.

        Raises:
            StoreError: if there is no such directory, or a driver is at work in it.
        """
        if not (self.folder / "runs").is_dir():
            raise StoreError(f"There is no results directory {self.folder}: it has no folder called runs.")
        try:
            lock = open(self.folder / ".lock")
        except FileNotFoundError:  # no driver was ever here
            yield self
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(f"Another run is writing to {self.folder}; wait until it ends.") from error
            yield self

    def run_folder(self, run_id: str) -> Path:
        """Where everything about a run lies."""
        return self.folder / "runs" / run_id

    def playing_folder(self, run_id: str) -> Path:
        """Where a run is played: in its folder, or apart from it while results of it stand there."""
        return self.folder / "repeating" / run_id if self._has_ended(run_id) else self.run_folder(run_id)

    def record(self, run_id: str) -> dict | None:
        """How a run ended, or None if it has not."""
        return _read(self.run_folder(run_id) / "record.json")

    def outcome(self, run_id: str) -> dict | None:
        """How a run ended that was just played: the record of a repeated one that failed is not the run's own."""
        return _read(self.playing_folder(run_id) / "record.json") or self.record(run_id)

    def ended(self) -> Iterator[tuple[str, dict, dict]]:
        """Run id, config and record of every run that need not be played on, in the order of their ids."""
        for run_id, record in self.records().items():
            if record["status"] not in UNFINISHED and (config := self.config(run_id)):
                yield run_id, config, record

    def rows(self, run_id: str) -> list[dict]:
        """The rounds of a run that has ended, in order.

        Raises:
            StoreError: if they cannot be read.
        """
        path = self.run_folder(run_id) / "rounds.jsonl"
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise StoreError(f"{path} is not readable; remove the folder of the run and run its grid again.") from error

    def states(self, run_id: str) -> list[str]:
        """Names of the states that a run has kept."""
        return sorted(path.name for path in self.run_folder(run_id).glob("[!.]*.pt"))

    def probe(self, run_id: str, name: str) -> dict | None:
        """A measurement on the states of a run that has ended, or None if there is none."""
        return _read(self.run_folder(run_id) / f"probe-{name}.json")

    def write_probe(self, run_id: str, name: str, content: dict) -> None:
        """Stores a measurement."""
        write_file(self.run_folder(run_id) / f"probe-{name}.json", json.dumps(content) + "\n")

    def start(self, run_id: str, config: dict) -> None:
        """Begins a run in its playing folder: its config, no rounds, no record."""
        folder = self.playing_folder(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in (folder / "record.json", folder / "rounds.jsonl"):
            left_over.unlink(missing_ok=True)
        write_file(folder / "config.json", _json(config))

    def append(self, run_id: str, rows: list[dict]) -> None:
        """Adds rounds as they arrive."""
        with open(self.playing_folder(run_id) / "rounds.jsonl", "a") as file:
            file.write(_lines(rows))

    def finish(self, run_id: str, rows: list[dict], record: dict) -> None:
        """Ends a run: all its rounds, then its record, which makes it count. A repeated run then takes the place of the
        earlier one, unless it failed."""
        folder = self.playing_folder(run_id)
        write_file(folder / "rounds.jsonl", _lines(rows))
        write_file(folder / "record.json", _json(record))
        _forget_checkpoint(folder, record)
        if folder != self.run_folder(run_id) and record["status"] not in UNFINISHED:
            self._supersede(run_id)
            os.replace(folder, self.run_folder(run_id))

    def adopt(self, run_id: str, folder: Path) -> None:
        """Copies a finished run from elsewhere; its record makes it count once all of it is here. What stood in its place,
        a run that failed or has not ended, goes to `superseded`."""
        copy = self.folder / "importing" / run_id
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".*", "checkpoint"), copy_function=_copy_synced)
        if self.run_folder(run_id).exists():
            self._supersede(run_id)
        os.replace(copy, self.run_folder(run_id))

    def records(self) -> dict[str, dict]:
        """Run id -> record of every run that has one, whatever its status."""
        paths = sorted((self.folder / "runs").glob("*/record.json"))
        return {path.parent.name: record for path in paths if (record := _read(path))}

    def config(self, run_id: str) -> dict | None:
        """The resolved config of a run, or None if there is no such run."""
        return _read(self.run_folder(run_id) / "config.json")

    def grid(self, name: str) -> dict | None:
        """A stored grid by its `<grid>@<budget>`, or None."""
        return _read(self.folder / "grids" / f"{name}.json")

    def grids(self) -> list[str]:
        """The `<grid>@<budget>` of every stored grid."""
        return sorted(path.stem for path in (self.folder / "grids").glob("*.json"))

    def write_grid(self, name: str, grid: dict) -> None:
        """Stores an expanded grid."""
        write_file(self.folder / "grids" / f"{name}.json", _json(grid))

    def log(self, text: str) -> None:
        """Adds what Ray says of its processes, for people; no program reads it."""
        with open(self.folder / RAY_LOG, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text.rstrip()}\n")

    def scratch(self) -> Path:
        """An empty folder for the scheduler's own files, which mean nothing once it has ended. Not on the disk of the
        results, whose end is no matter of the scheduler."""
        shutil.rmtree(self.scratch_folder, ignore_errors=True)
        self.scratch_folder.mkdir()
        return self.scratch_folder

    @property
    def scratch_folder(self) -> Path:
        """Where `scratch` is."""
        return Path(tempfile.gettempdir()) / f"skewbench-{platform.node()}-{self.key}"

    def _has_ended(self, run_id: str) -> bool:
        return (self.record(run_id) or {"status": "failed"})["status"] not in UNFINISHED

    def _finish_repeats(self) -> None:
        """Puts repeated runs into place whose driver was killed after the earlier results had been moved aside."""
        for record in (self.folder / "repeating").glob("*/record.json"):
            run_id = record.parent.name
            if not self.run_folder(run_id).exists():
                os.replace(record.parent, self.run_folder(run_id))

    def _supersede(self, run_id: str) -> None:
        """Moves a run's folder to the next free number below `superseded`."""
        aside = self.folder / "superseded"
        aside.mkdir(exist_ok=True)
        number = 1
        while (aside / f"{run_id}-{number}").exists():
            number += 1
        os.replace(self.run_folder(run_id), aside / f"{run_id}-{number}")


def _forget_checkpoint(folder: Path, record: dict | None) -> None:
    """Removes where a run would go on if it has ended; one that failed or was stopped is played on from there."""
    if record and record["status"] not in UNFINISHED:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def _copy_synced(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())


def write_file(path: Path, text: str) -> None:
    """Replaces a file in one step that survives a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{path} is not readable JSON; remove it and run its grid again.") from error


def _json(content: dict) -> str:
    return json.dumps(content, indent=1) + "\n"


def _lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
