"""What the runs of a results directory are doing at this moment: read without its lock, while a driver may be at work.

Of a run that has ended only a few keys of `record.json` are read. Whether its other files fit is what a report checks.
"""

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from bench.results.driver_mark import Driver
from bench.results.ids import is_run_id
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.json_schema import is_integer, is_number, is_text, mismatch, shape_of
from bench.results.records import Status, is_code
from bench.results.store import MACHINE, Store

_RECORD = {
    "id": is_text,
    "status": shape_of(Status),
    "seconds?": is_number,
    "finished?": (is_text, None),
    "code?": is_code,
    "base_code?": is_code,
}


class RunState(NamedTuple):
    """A run that has begun.

    Attributes:
        status: how it ended; "running" if a driver is at work on it, "waiting" if that waits for a machine of a cluster,
            "interrupted" if it has not ended and no driver is at work.
        rounds: that it has trained so far; 0 of one that has ended.
        examples: that it has trained on so far; 0 of one that has ended, and where its rounds do not say.
        seconds: of training and evaluation, of one that has not ended those so far; None where its record or rounds do not say.
        finished: when it ended; None of one that has not ended, and where its record does not say.
        machine: of a cluster, where it is running; "" elsewhere.
        code: `code` and `base_code` of its record, those that it has.
    """

    status: Status | Literal["running", "waiting", "interrupted"]
    rounds: int = 0
    seconds: float | None = None
    finished: str | None = None
    examples: int = 0
    machine: str = ""
    code: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class Snapshot(NamedTuple):
    """What a results directory holds at one moment.

    Attributes:
        driver: the one that is at work, or the last one if that was killed; None if there is neither.
        runs: run id -> state of every run that has begun; one that is being repeated is running.
    """

    driver: Driver | None
    runs: dict[str, RunState]

    @property
    def running(self) -> list[str]:
        """Ids of the runs that a driver is at work on."""
        return [run for run, state in self.runs.items() if state.status == "running"]


def read_snapshot(store: Store) -> Snapshot:
    """Reads the state of every run. Damaged records are listed in `store.damaged`, and their runs are left out.

    Raises:
        StoreError: if there is no such directory, or a part of it is a link, or no folder.
    """
    store.check_exists()
    driver = store.driver()
    begun: Collection[str] = driver.runs if driver and driver.is_at_work else ()
    states: dict[str, RunState] = {}
    for folder in _run_folders(store.folder / "runs"):
        try:
            state = _ended(folder) or _unfinished(store, folder, begun)
        except Damaged as error:
            store.damaged[error.path] = error.what
            continue
        if state:
            states[folder.name] = state
    for folder in _run_folders(store.folder / "repeating") if begun else ():
        state = None if (folder / "record.json").exists() else _unfinished(store, folder, begun)
        if state and state.status in ("running", "waiting"):
            states[folder.name] = state
    return Snapshot(driver, states)


def _run_folders(part: Path) -> list[Path]:
    """The folders of runs in a part of the directory."""
    try:
        with os.scandir(part) as entries:
            names = [each.name for each in entries if is_run_id(each.name) and each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [part / name for name in sorted(names)]


def _ended(folder: Path) -> RunState | None:
    """The state of a run that has a record.

    Raises:
        Damaged: if the record is not readable, or that of another run.
    """
    path = folder / "record.json"
    written = read_bytes(path)
    if written is None:
        return None
    record = parse(path, written)
    if found := mismatch(record, _RECORD):
        raise Damaged(path, f"does not hold what it should: {found}")
    if record["id"] != folder.name:
        raise Damaged(path, f"is the record of another run, {record['id']}")
    code = {key: record[key] for key in ("code", "base_code") if key in record}
    return RunState(record["status"], 0, _seconds(record), record.get("finished"), code=code)


def _unfinished(store: Store, folder: Path, begun: Collection[str]) -> RunState | None:
    """The state of a run without a record; None if nothing of it is there yet.

    Args:
        begun: the runs that the driver at work has begun; an earlier one has left all others.
    """
    if not (folder / "config.json").exists():
        return None
    is_running = folder.name in begun
    last = _last_row(store, folder / "rounds.jsonl")
    rounds, examples = (value if is_integer(value := last.get(key, 0)) else 0 for key in ("round", "examples"))
    machine = _machine(folder) if is_running else None
    status: Any = "interrupted" if not is_running else "waiting" if machine == "" else "running"
    return RunState(status, rounds, _seconds(last), examples=examples, machine=machine or "")


def _machine(folder: Path) -> str | None:
    """The machine of a cluster on which a run is; "" while it waits for one, None where that is not written."""
    try:
        written = read_bytes(folder / MACHINE)
    except Damaged:
        return None
    return None if written is None else "".join(filter(str.isprintable, written.decode(errors="replace")))


def _last_row(store: Store, path: Path) -> dict[str, Any]:
    """The last complete line; {} if there is none, or the file is damaged, which `store.damaged` then names. A driver may be
    writing another line."""
    try:
        lines = (read_bytes(path) or b"").split(b"\n")[:-1]
        row = json.loads(lines[-1]) if lines else {}
    except Damaged as error:
        store.damaged[error.path] = error.what
        return {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _seconds(written: Mapping[str, Any]) -> float | None:
    """The seconds that a record or a row names, if they are a time."""
    seconds: Any = written.get("seconds")
    return seconds if is_number(seconds) and math.isfinite(seconds) and seconds >= 0 else None
