"""Results on disk: one folder per run, human-readable, written by one driver and readable at any moment.

    grids/<grid>@<budget>.json    cells of a grid -> run ids
    runs/<id>/config.json         resolved config; written when the run starts
              rounds.jsonl        metrics, one line per round, appended as they arrive
              record.json         how the run ended; exists only then
              machine             of a run that has not ended, where in a cluster it is; empty while it waits for a machine
              checkpoint/         from where a run that has not ended continues (see `bench.simulation.checkpoints`)
              probe-*.json        what figures need, measured on its states (see `bench.measurements.specs`)
              *.pt                states that the grid saves
              events.out.tfevents.*   the rounds once more, for TensorBoard (see `bench.results.tensorboard`)
    searches/                     searches of hyper-parameters (see `bench.tuning.study`)
    code/<hash>.json              what the hash of a part of the code in a record stands for: file -> definition -> its hash
                                  (see `bench.imports`); the name is the hash of the content
    repeating/<id>/               a finished run that is being repeated
    superseded/<name>-<n>         earlier results of a repeated run, and damaged files
    partitions/<name>@<digest>.npz   partition files of users that runs were dealt by (see `datasets.partition_files`)
    tracking/                     files of a tracking service, if runs were tracked (see `bench.execution.tracking`)
    jobs/                         files of jobs of Slurm, or of plain processes, while a driver waits for them
    importing/<id>/               a run that is being copied from another results directory
    waiting.json                  runs that wait for another machine (see `bench.execution.waiting`)
    ray.log                       what Ray, or another executor, had to say of processes that died
    authors.json                  who trained the runs, where somebody said so (see `bench.results.authors`)
    verified.json                 which of them somebody has trained again (see `bench.results.verified`)
    shares.json                   shares of a GPU that runs were measured to need (see `bench.execution.gpu_sharing`)
    reports/                      tables, figures and pages; tensorboard/ has the rounds of several runs, for TensorBoard
    .id                           a number of its own (see `Store.key`)
    .lock, .driver                locked while a driver is at work: the first keeps others out, the second tells them when it
                                  began, and which runs it has begun; empty once a driver has ended, unless it was killed

A file is replaced in one step, so a reader and a kill -9 meet either the old or the new one. A run without a record has
not ended and is continued. A repeated run replaces the earlier one when it has finished: if it is killed or fails before
that, the earlier results stay.

Every file is checked when it is read (see `bench.results.schema` and `bench.results.run_files`). A damaged file is treated as
missing: it is listed in `Store.damaged`, and moves to `superseded` before another one replaces it.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bench.errors import StoreError
from bench.files import write_file
from bench.results import schema
from bench.results.checked_files import CheckedFiles
from bench.results.driver_mark import Driver, DriverMark
from bench.results.grids import StoredGrid, StoredSearch
from bench.results.ids import is_meant, is_name, is_run_id
from bench.results.json_files import Damaged, read_bytes, seal
from bench.results.locks import holder, open_regular
from bench.results.records import FINISHED, Config, RoundRow, RunRecord, Status, StoredProbe, Summary
from bench.results.run_files import RUN_FILES, fault_of, read_rows, read_run

RAY_LOG = "ray.log"
MACHINE = "machine"
JOBS = "jobs"
IMPORTING = "importing"
_PARTS = ("grids", "runs", "reports")
_ALL_PARTS = (*_PARTS, "searches", "repeating", "superseded", "tracking", IMPORTING, "partitions", "code", JOBS)


class Store:
    """The results directory.

    Attributes:
        folder: its absolute path; made by `locked`, not before.
        damaged: files that cannot be used, of those that were read -> what is wrong with them; see `validate_all`.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder).absolute()
        self._checked = CheckedFiles()
        self.damaged = self._checked.damaged
        self._mark = DriverMark(self.folder / ".driver")

    @property
    def key(self) -> str:
        """A name for this directory where things of several ones lie: the same on every machine that sees it, another one
        for its copies. Known once it has been locked."""
        return hashlib.sha256(f"{self.id_file.read_text()}:{self.folder}".encode()).hexdigest()[:16]

    @property
    def id_file(self) -> Path:
        """A file by which a machine knows that it sees this directory."""
        return self.folder / ".id"

    @contextmanager
    def locked(self, on_message: Callable[[str], None] = lambda line: None) -> Iterator["Store"]:
        """Makes the directory, checks that it and its parts are writable, and keeps other drivers out of it.

        The operating system drops the lock with the process, however that ends.

        Args:
            on_message: gets a line where the driver before was killed, and where another program keeps others from being told
                that a driver is at work.

        Raises:
            StoreError: if it is not writable, or another driver is at work.
        """
        self._check_parts((*_ALL_PARTS, ".lock", ".driver", RAY_LOG))
        try:
            for part in map(self.folder.joinpath, ("", *_PARTS)):
                part.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=part).close()
            part = self.folder / ".lock"
            lock = open_regular(part, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(
                f"Cannot write to the results directory {self.folder} ({part}: {error.strerror}); choose another one "
                "with --results-dir."
            ) from error
        with lock:
            self._take(lock, fcntl.LOCK_EX, " or choose another --results-dir")
            self._make_id()
            self._finish_repeats()
            shutil.rmtree(self.folder / IMPORTING, ignore_errors=True)  # what an interrupted import has left
            runs = self.folder / "runs"
            for name in os.listdir(runs):
                if os.path.lexists(f"{runs}/{name}/checkpoint"):
                    _forget_checkpoint(runs / name, self.record(name))
            with self._mark.at_work(on_message):
                yield self

    @contextmanager
    def unchanging(self) -> Iterator["Store"]:
        """Keeps drivers out while results are read that belong together. Writes nothing, so that it works on a copy and on a
        disk that cannot be written to.

        Raises:
            StoreError: if there is no such directory, or a driver is at work in it.
        """
        self.check_exists()
        try:
            lock = open_regular(self.folder / ".lock", os.O_RDONLY)
        except FileNotFoundError:  # no driver was ever here
            yield self
            return
        except OSError as error:
            raise StoreError(f"Cannot read {self.folder / '.lock'}: {error.strerror}.") from error
        with lock:
            self._take(lock, fcntl.LOCK_SH)
            yield self

    def check_exists(self) -> None:
        """Raises StoreError if there is no such directory, or a part of it is a link, or no folder."""
        if self.folder.is_file():
            raise StoreError(
                f"{self.folder} is a file; `python -m bench import FILE.zip` takes a bundle into a results directory."
            )
        if not self.folder.is_dir():
            is_bundle = self.folder.suffix == ".zip"
            what, does = ("bundle", "export --bundle") if is_bundle else ("results directory", "run")
            raise StoreError(f"There is no {what} {self.folder}; `python -m bench {does}` writes one.")
        if not (self.folder / "runs").is_dir():
            inside = ", ".join(path.name for path in _folders_in(self.folder))
            nested = f" Results directories lie in it: {inside}." if inside else ""
            raise StoreError(f"{self.folder} holds no results: it has no folder called runs.{nested}")
        self._check_parts(_ALL_PARTS)

    def driver(self) -> Driver | None:
        """The driver that is at work, or the last one if that was killed; None if no driver is at work, and the last one has
        ended by itself. Writes nothing, and turns no driver away."""
        return self._mark.read()

    def run_folder(self, run_id: str) -> Path:
        """The folder of everything about a run."""
        return self.folder / "runs" / run_id

    def unfinished_folder(self, run_id: str) -> Path:
        """Where a run writes: into its folder, or into another one while that holds earlier results of it."""
        return self.folder / "repeating" / run_id if self._has_ended(run_id) else self.run_folder(run_id)

    def record(self, run_id: str) -> RunRecord | None:
        """How a run ended; None if it has not ended or is damaged."""
        return self._record_in(self.run_folder(run_id)) if is_run_id(run_id) else None

    def status(self, run_id: str) -> Status | None:
        """How a run ended, in one word; None as for `record`."""
        record = self.record(run_id)
        return record["status"] if record else None

    def summary(self, run_id: str) -> Summary | None:
        """The accuracies of a run; None as for `record`."""
        record = self.record(run_id)
        return record["summary"] if record else None

    def base_fields(self, run_id: str) -> dict[str, Any]:
        """What a run that starts from the end of this one has in its record."""
        record = self.record(run_id)
        known: Mapping[str, Any] = record or {}
        also = {f"base_{key}": known[key] for key in ("seconds", "cpu_seconds", "code") if key in known}
        return {"base_summary": record and record["summary"]} | also

    def is_damaged(self, run_id: str) -> bool:
        """Whether the folder of a run holds something that cannot be used."""
        folder = self.run_folder(run_id)
        files = [folder, *(folder / name for name in RUN_FILES)]
        return self.record(run_id) is None and any(path in self.damaged for path in files)

    def outcome(self, run_id: str) -> RunRecord | None:
        """How the last attempt at a run ended: if a repetition failed, its record, which is not the one that counts."""
        return self._record_in(self.unfinished_folder(run_id)) or self.record(run_id)

    def ended(self) -> Iterator[tuple[str, Config, RunRecord]]:
        """Run id, config and record of every finished run, in the order of their ids."""
        for run_id, record in self.records().items():
            if record["status"] in FINISHED and (config := self.config(run_id)):
                yield run_id, config, record

    def rows(self, run_id: str) -> list[RoundRow]:
        """The rounds of a run that has ended, in order; none if they are damaged."""
        try:
            return read_rows(self.run_folder(run_id))
        except Damaged as error:
            self.damaged[error.path] = error.what
            return []

    def states(self, run_id: str) -> list[str]:
        """Names of the states that a run has kept."""
        found = self.run_folder(run_id).glob("[!.]*.pt")
        return sorted(path.name for path in found if path.is_file() and not path.is_symlink())

    def probe(self, run_id: str, name: str) -> StoredProbe | None:
        """A measurement on the states of a run that has ended, or None if there is none, or it is damaged."""
        return self._checked.content(self.run_folder(run_id) / f"probe-{name}.json", schema.check_probe)

    def write_probe(self, run_id: str, name: str, content: StoredProbe) -> None:
        """Stores a measurement."""
        self._write(self.run_folder(run_id) / f"probe-{name}.json", seal(json.dumps(content) + "\n"))

    def start(self, run_id: str, config: Config, code: Mapping[str, str] | None = None) -> None:
        """Begins a run: its folder gets its config, no rounds, no record. What is damaged or foreign there goes to
        `superseded`: through a link the run would write elsewhere.

        Args:
            code: of the run, as its record will have it. What other code has trained until a search stopped it, goes to
                `superseded`, too.
        """
        stopped = record if (record := self.record(run_id)) and record["status"] == "stopped" else None
        if self.is_damaged(run_id) or code and stopped and stopped.get("code", code) != code:
            self.quarantine(self.run_folder(run_id))
        folder = self.unfinished_folder(run_id)
        if os.path.lexists(folder) and not _is_plain(folder):
            self.quarantine(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in ("record.json", "rounds.jsonl", MACHINE):
            (folder / left_over).unlink(missing_ok=True)
        write_file(folder / "config.json", json_text(config))
        self._checked.forget(folder)
        self._mark.add(run_id)

    def place(self, run_id: str, machine: str) -> None:
        """A run that has begun is on a machine of a cluster, or waits for one if the name is ""."""
        write_file(self.unfinished_folder(run_id) / MACHINE, machine)

    def append(self, run_id: str, rows: Sequence[RoundRow]) -> None:
        """Adds rounds as they arrive."""
        with open(self.unfinished_folder(run_id) / "rounds.jsonl", "a") as file:
            file.write(_lines(rows))

    def fault_of(self, rows: Sequence[RoundRow], record: RunRecord) -> str:
        """Why a run that ends so could not be read again; "" if it can."""
        return fault_of(self.run_folder(record["id"]), _lines(rows).encode(), json_text(record))

    def finish(self, run_id: str, rows: Sequence[RoundRow], record: RunRecord) -> None:
        """Ends a run: writes all its rounds, then its record, which makes it count. A repeated run then replaces the earlier
        one, unless it failed."""
        folder = self.unfinished_folder(run_id)
        lines = _lines(rows)
        write_file(folder / "rounds.jsonl", lines)
        # Its id is the hash of the config, so that the seal holds all three together.
        write_file(folder / "record.json", seal(json_text(record), lines.encode()))
        (folder / MACHINE).unlink(missing_ok=True)
        _forget_checkpoint(folder, record)
        if folder != self.run_folder(run_id):
            self._replace_earlier(folder, record)

    def unfinished(self) -> list[str]:
        """Ids of the runs that were started and have no record; not of damaged ones."""
        names = [path.name for path in self._entries("runs") if is_run_id(path.name)]
        return [name for name in names if not self.record(name) and not self.is_damaged(name)]

    def records(self) -> dict[str, RunRecord]:
        """Run id -> record of every run that has one, whatever its status."""
        return self._records(path.name for path in self._entries("runs"))

    def records_of(self, grid: StoredGrid) -> dict[str, RunRecord]:
        """Run id -> record of the runs of a grid that have one, in the grid's order."""
        return self._records(dict.fromkeys(cell["run"] for cell in grid["cells"] if cell["run"]))

    def config(self, run_id: str) -> Config | None:
        """The resolved config of a run, or None if there is no such run, or it is damaged."""
        return (
            self._checked.content(self.run_folder(run_id) / "config.json", schema.check_config)
            if is_run_id(run_id)
            else None
        )

    def grid(self, name: str) -> StoredGrid | None:
        """A stored grid by its `<grid>@<budget>`, or None if there is none, or it is damaged."""
        return self._checked.content(self._grid_file(name), schema.check_grid) if is_name(name) else None

    def grids(self) -> list[str]:
        """The `<grid>@<budget>` of every stored grid; reads them all."""
        return [name for name in self.grid_names() if self.grid(name)]

    def grid_names(self) -> list[str]:
        """The names that `grid` takes, also of damaged grids: reads none."""
        return [path.stem for path in self._entries("grids") if path.suffix == ".json"]

    def labels_of(self, grid: str | None, budget: str | None) -> list[str]:
        """The `<grid>@<budget>` that a name, of any version, and a budget mean; None for all. Damaged grids are among them."""
        named = {label: label.partition("@")[::2] for label in self.grid_names()}
        return [label for label, (of, at) in named.items() if is_meant(grid, of) and budget in (None, at)]

    def write_grid(self, name: str, grid: StoredGrid) -> None:
        """Stores an expanded grid."""
        self._write(self._grid_file(name), seal(json_text(grid)))

    def search(self, name: str) -> StoredSearch | None:
        """What a search has proposed, or None if there is none of that name, or it is damaged."""
        return (
            self._checked.content(self.folder / "searches" / f"{name}.json", schema.check_search)
            if is_name(name)
            else None
        )

    def searches(self) -> list[str]:
        """Names of the searches."""
        return [path.stem for path in self._entries("searches") if path.suffix == ".json" and self.search(path.stem)]

    def write_search(self, name: str, search: StoredSearch) -> None:
        """Stores what a search has proposed."""
        (self.folder / "searches").mkdir(exist_ok=True)
        self._write(self.folder / "searches" / f"{name}.json", seal(json_text(search)))

    def code(self, digest: str) -> dict[str, dict[str, str]] | None:
        """What the hash of a part of the code stands for, as `bench.imports.Definitions`; None if that is not stored, or is
        damaged."""
        return self._checked.content(self._code_file(digest), schema.check_code) if is_run_id(digest) else None

    def write_code(self, digest: str, definitions: Mapping[str, Mapping[str, str]]) -> None:
        """Stores what the hash of a part of the code stands for, unless it is stored."""
        if self.code(digest) is None:
            (self.folder / "code").mkdir(exist_ok=True)
            self._write(self._code_file(digest), json_text(definitions))

    def validate_all(self, grids: Iterable[str] | None = None) -> None:
        """Reads everything, so that `damaged` lists all files that cannot be used.

        Args:
            grids: names of grids; only these and their runs are then read, whatever else the directory holds.

        Raises:
            StoreError: if a part of the directory is a link, or no folder.
        """
        self._check_parts(("grids", "runs", "searches", "code"))
        if grids is not None:
            for run_id in dict.fromkeys(run_id for name in grids for run_id in self._runs_of(name)):
                self._look_into(run_id)
            return
        for path in self._entries("grids"):
            if path.suffix != ".json" or not is_name(path.stem):
                self.damaged[path] = "is no stored grid"
            else:
                self.grid(path.stem)
        for path in self._entries("runs"):
            if not is_run_id(path.name):
                self.damaged[path] = "is no run: its name is not that of one"
            else:
                self._look_into(path.name)
        for path in self._entries("code"):
            if path.suffix == ".json" and is_run_id(path.stem):
                self.code(path.stem)
            else:
                self.damaged[path] = "is no description of code"
        for path in self._entries("searches"):
            if path.suffix == ".json" and is_name(path.stem):
                self.search(path.stem)
            elif not path.name.endswith((".journal", ".journal.lock")):
                self.damaged[path] = "is no search"

    def digest(self, name: str) -> str:
        """A digest of all that reports read of a stored grid: its file, and the names and contents of the files of its runs,
        but for states, of whose content they read nothing."""
        found = hashlib.sha256()
        for path in (
            self._grid_file(name),
            *(path for run_id in self._runs_of(name) for path in self._files_of(run_id)),
        ):
            try:
                content = read_bytes(path) if path.suffix in (".json", ".jsonl") else b""
            except Damaged as error:
                content = str(error).encode()
            for part in (str(path.relative_to(self.folder)).encode(), b"" if content is None else content):
                found.update(b"%d:" % len(part) + part)
        found.update(" ".join(path.name for path in self._entries("code")).encode())  # names are digests of contents
        return found.hexdigest()

    def log(self, text: str) -> None:
        """Adds what Ray says of its processes, for people; no program reads it."""
        with self.open_log() as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text.rstrip()}\n".encode())

    def open_log(self) -> BinaryIO:
        """The log of Ray, to add to."""
        return open_regular(self.folder / RAY_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def remove_mark(self) -> None:
        """From now on the driver of this process has ended by itself, whatever ends it."""
        self._mark.remove()

    def _take(self, lock: BinaryIO, kind: int, instead: str = "") -> None:
        """Locks the open file `.lock`; raises StoreError, which says what to do instead, if a driver holds it."""
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"Another run is writing to {self.folder}{holder(lock.fileno())}; wait until it ends{instead}."
            ) from error
        except OSError as error:
            if kind == fcntl.LOCK_SH:  # who only reads needs no lock where nobody can write
                return
            raise StoreError(
                f"Cannot lock {self.folder / '.lock'} ({error.strerror}): its file system seems to have no locks, which "
                "keep two commands from writing at once. Name a folder on another one by --results-dir, or have it mounted "
                "with locks (Lustre: -o flock)."
            ) from error

    def _runs_of(self, name: str) -> Iterable[str]:
        """Ids of the runs of a stored grid; none if there is no such grid."""
        grid = self.grid(name)
        return dict.fromkeys(cell["run"] for cell in grid["cells"] if cell["run"]) if grid else ()

    def _look_into(self, run_id: str) -> None:
        """Reads the record of a run and its measurements."""
        if self.record(run_id):
            folder = self.run_folder(run_id)
            for name in os.listdir(folder):
                if name.startswith("probe-") and name.endswith(".json"):
                    self._checked.content(folder / name, schema.check_probe)

    def _has_ended(self, run_id: str) -> bool:
        return self.status(run_id) in FINISHED

    def _check_parts(self, names: tuple[str, ...]) -> None:
        if links := [name for name in names if (self.folder / name).is_symlink()]:
            raise StoreError(
                f"{self.folder} holds links ({', '.join(links)}), and what they lead to may be another one's; replace them by "
                "what they lead to, or choose another --results-dir."
            )
        for name in names:
            if name in _ALL_PARTS and (self.folder / name).exists() and not (self.folder / name).is_dir():
                raise StoreError(
                    f"{self.folder / name} is a file, not a folder; move it away, or choose another --results-dir."
                )

    def _records(self, run_ids: Iterable[str]) -> dict[str, RunRecord]:
        return {run_id: record for run_id in run_ids if (record := self.record(run_id))}

    def _record_in(self, folder: Path) -> RunRecord | None:
        files = [str(folder), *(f"{folder}/{name}" for name in RUN_FILES)]
        return self._checked.read(folder, files, read_run)

    def _entries(self, part: str) -> list[Path]:
        """What lies in a part of the directory, by name; hidden files are of interrupted writes, or of other programs."""
        try:
            return sorted(path for path in (self.folder / part).iterdir() if path.name[0] != ".")
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _files_of(self, run_id: str) -> list[Path]:
        """What lies in the folder of a run, by name; the folder itself where that cannot be listed."""
        folder = self.run_folder(run_id)
        try:
            return [folder / name for name in sorted(os.listdir(folder))] if not folder.is_symlink() else [folder]
        except OSError:
            return [folder]

    def _grid_file(self, name: str) -> Path:
        return below(self.folder / "grids", f"{name}.json")

    def _code_file(self, digest: str) -> Path:
        return below(self.folder / "code", f"{digest}.json")

    def _write(self, path: Path, text: str) -> None:
        """Replaces a file; a damaged one is kept in `superseded`."""
        if path in self.damaged:
            self.quarantine(path)
        write_file(path, text)

    def _make_id(self) -> None:
        try:
            content = read_bytes(self.id_file)
            if content is None or is_run_id(content.decode("ascii", "replace")):
                what = ""
            else:
                what = "does not hold what it should: it is not 16 hex digits"
        except Damaged as error:
            content, what = b"", error.what
        if what:
            self.damaged[self.id_file] = what
            self.quarantine(self.id_file)
        if content is None or what:
            write_file(self.id_file, secrets.token_hex(8))

    def _finish_repeats(self) -> None:
        """Moves repeated runs to their folders that had ended when their driver was killed."""
        for folder in self._entries("repeating"):
            if is_run_id(folder.name) and (record := self._record_in(folder)):
                self._replace_earlier(folder, record)

    def _replace_earlier(self, folder: Path, record: RunRecord) -> None:
        """Makes a repetition that has ended the run, in place of the earlier results, unless it failed."""
        if record["status"] in FINISHED:
            self.quarantine(self.run_folder(folder.name))
            os.replace(folder, self.run_folder(folder.name))

    def quarantine(self, path: Path) -> None:
        """Moves a file or folder, if it is there, to the next free number below `superseded`."""
        if not os.path.lexists(path):
            return
        aside, name = self.folder / "superseded", path.name.lstrip(".")
        aside.mkdir(exist_ok=True)
        number = 1
        while os.path.lexists(aside / f"{name}-{number}"):
            number += 1
        os.replace(path, aside / f"{name}-{number}")


def _forget_checkpoint(folder: Path, record: RunRecord | None) -> None:
    """Removes the checkpoint of a run that has ended; one that failed or was stopped continues from there."""
    if record and record["status"] in FINISHED:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def stores_in(folder: Path) -> list[Store]:
    """The results directory that a folder is, or those that lie in it, by name.

    Raises:
        StoreError: if there is none, or a part of one is a link, or no folder.
    """
    inside = [] if (folder / "runs").exists() else _folders_in(folder)
    stores = [Store(path) for path in inside or [folder]]
    for store in stores:
        store.check_exists()
    return stores


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/runs"))


def _is_plain(folder: Path) -> bool:
    """Whether a run's folder is one, and holds nothing but files and the folder of its checkpoint."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(
        entry.is_file(follow_symlinks=False)
        if entry.name != "checkpoint"
        else entry.is_dir(follow_symlinks=False)
        and all(part.is_file(follow_symlinks=False) for part in os.scandir(entry.path))
        for entry in os.scandir(folder)
    )


def below(folder: Path, name: str) -> Path:
    """The path of a file in a folder, for writing.

    Raises:
        StoreError: if the name leads elsewhere.
    """
    if not is_name(name):
        raise StoreError(f"{name!r} cannot be the name of a file in {folder}.")
    return folder / name


def json_text(content: Mapping[str, Any]) -> str:
    """The content of a file, for people to read."""
    return json.dumps(content, indent=1) + "\n"


def _lines(rows: Sequence[RoundRow]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
