"""Runs that wait in a results directory for another machine, which may have nothing but torch.

`python -m bench describe --configs DIR` writes them: the config of each run, the grid, and `waiting.json`, which says what else
a worker has to know. `python -m bench.worker DIR` trains them. DIR is a results directory as any other: `python -m bench import
DIR` takes what has ended.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from bench.config.plain import PlainConfig
from bench.errors import ConfigError, StoreError
from bench.execution import submitted
from bench.execution.dealing import check_partitions_of_labs
from bench.execution.job import Inputs, Job
from bench.execution.job_file import read_retention
from bench.execution.resources import Machines
from bench.execution.worker import inspect_machine, one_of_each
from bench.execution.workspace import Workspace
from bench.experiments.execution_options import ExecutionOptions
from bench.files import write_file
from bench.results.ids import is_run_id
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.json_schema import is_integer, is_text, mismatch, one_of
from bench.results.records import FINISHED, RunRecord, is_code
from bench.results.store import Store
from bench.simulation.retention import Final, StateRetention
from datasets import own_data, partition_files, resized

FILE = "waiting.json"
_WAITING = {
    "run": is_run_id,
    "base": (one_of(""), is_run_id),
    "retention": {"final?": one_of(*get_args(Final)), "rounds?": [is_integer], "local_models?": [is_integer]},
    "code": is_code,
    "images?": is_text,
    "before?": is_text,
}


class Waiting(NamedTuple):
    """A run to train.

    Attributes:
        run: its id.
        base: id of the finished run from whose last state it starts; "" if it trains itself.
        retention: which states it keeps.
        code, images: as in `bench.execution.job.Inputs`.
        before: when the run ended that this one repeats; "" if there is none.
    """

    run: str
    base: str
    retention: StateRetention
    code: Mapping[str, str]
    images: str = ""
    before: str = ""


def write(store: Store, runs: Iterable[Waiting]) -> None:
    """Adds runs, whose configs are there, to the list of those that wait; what has ended is taken off.

    Raises:
        StoreError: as `read`.
    """
    added = {one.run: one for one in runs}
    earlier = [one for one in _listed(store) if one.run not in added and not _has_ended(one, store)]
    listed = [one._asdict() | {"retention": asdict(one.retention)} for one in (*added.values(), *earlier)]
    write_file(store.folder / FILE, json.dumps(listed, indent=1) + "\n")


def read(store: Store) -> list[Job]:
    """The jobs of the runs that wait.

    Raises:
        StoreError: if there is no list, it is none of runs, or the config of a run is missing.
    """
    if not (store.folder / FILE).exists():
        raise StoreError(
            f"{store.folder} holds no {FILE}; `python -m bench describe --grid NAME --configs DIR` writes one."
        )
    left = [one for one in _listed(store) if not _has_ended(one, store)]
    for kept in partition_files.kept(store.folder):
        partition_files.parse(f"file:{kept}")  # from now on this process knows it
    return [_job(one, store) for one in left]


def train(folder: Path, machines: Machines, data_dir: Path | None) -> bool:
    """Trains the runs that wait in a results directory, and prints a line when one begins or ends.

    Returns:
        Whether none has failed.

    Raises:
        StoreError: as `read`, or if another driver is at work there.
        ConfigError: if this machine lacks something that runs need.
    """
    store, said = Store(folder), _Lines()
    store.check_exists()
    with store.locked(said.on_message):
        jobs = read(store)
        said.on_message(f"{len(jobs)} run{'s' * (len(jobs) != 1)} to train, at most {machines.at_once} at once.")
        _check(jobs, store, machines.resources.device, data_dir, said)
        submitted.run_jobs(jobs, Workspace(store, machines, ExecutionOptions(data_dir)), said)
    left = (
        f"{said.failed} failed and wait: the same command trains them again."
        if said.failed
        else "Nothing waits any more."
    )
    said.on_message(f"{left} Copy the folder back, and type: python -m bench import {folder}")
    return not said.failed


def _check(jobs: list[Job], store: Store, device: str, data_dir: Path | None, said: "_Lines") -> None:
    """Raises ConfigError if this machine cannot train one of the jobs; says which images are incomplete."""
    looked_at = one_of_each((job.config, job.inputs) for job in jobs)
    try:
        why = inspect_machine(looked_at, data_dir, device)
    except KeyError as error:
        why = f"nothing is called {error} here; name the folder of the lab by --plugins"
    if why:
        raise ConfigError([f"This machine cannot train the runs of {store.folder}: {why.rstrip('.')}."])
    notes = {config.dataset: resized.of_config(config, data_dir).note for config, _ in looked_at}
    for dataset, note in notes.items():
        if note:
            said.on_message(f"The images of {dataset}: {note}.")
    check_partitions_of_labs((job.config for job in jobs), data_dir)


class _Lines:
    """Prints what happens to jobs, without Rich."""

    def __init__(self) -> None:
        self.failed = 0

    def on_message(self, text: str) -> None:
        print(text, flush=True)

    def on_start(self, job: Job) -> None:
        print(f"{_name(job)} begins", flush=True)

    def on_postponed(self, job: Job) -> None:
        print(f"{_name(job)} waits: its process has ended", flush=True)

    def on_note(self, job: Job, note: str) -> None:
        print(f"{_name(job)}: {note}", flush=True)

    def on_progress(self, job: Job, examples: float) -> None:
        pass

    def on_end(self, job: Job, record: RunRecord) -> None:
        self.failed += record["status"] == "failed"
        why = f": {record['reason']}" if record["reason"] else ""
        print(f"{_name(job)} {record['status']} after round {record['rounds']}{why}", flush=True)


def _name(job: Job) -> str:
    config = job.config
    return f"{job.id} ({config.dataset} {config.partition} {config.algorithm['name']} seed {config.seed})"


def _listed(store: Store) -> list[Waiting]:
    """The runs of the list, if there is one."""
    path = store.folder / FILE
    try:
        written = read_bytes(path)
        if written is None:
            return []
        content = parse(path, written)
        if found := mismatch(content, [_WAITING]):
            raise Damaged(path, f"is not a list of runs: {found}")
        return [Waiting(**{**one, "retention": read_retention(one["retention"])}) for one in content]
    except (Damaged, TypeError) as error:  # TypeError: for a key that there is not
        what = error if isinstance(error, Damaged) else f"{path} is not a list of runs: {error}"
        raise StoreError(f"{what}; remove it, and write the runs again by describe --configs.") from error


def _has_ended(one: Waiting, store: Store) -> bool:
    record = store.record(one.run)
    return bool(record and record["status"] in FINISHED and record.get("finished", "") != one.before)


def _job(one: Waiting, store: Store) -> Job:
    stored = store.config(one.run)
    if stored is None:
        raise StoreError(f"{store.run_folder(one.run)} has no config; write the runs again by describe --configs.")
    config = cast(Any, PlainConfig(stored))  # has the attributes of a RunConfig
    return Job(
        one.run,
        config,
        str(store.unfinished_folder(one.run)),
        one.retention,
        base=str(store.run_folder(one.base)) if one.base else "",
        inputs=Inputs(one.code, one.images, own_data.of_config(config)),
    )
