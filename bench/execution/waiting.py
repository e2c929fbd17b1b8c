"""Runs that wait in a results directory for another machine, which may have nothing but torch.

`python -m bench describe --configs DIR` writes them: the config of each run, the grid, and `waiting.json`, which says what else
a worker has to know. `python -m bench.worker DIR` trains them. DIR is a results directory as any other: `python -m bench import
DIR` takes what has ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.config.plain import PlainConfig
from bench.errors import ConfigError, StoreError
from bench.execution import submitted
from bench.execution.job import Inputs, Job
from bench.execution.job_file import read_retention
from bench.execution.resources import Machines
from bench.execution.worker import inspect_machine
from bench.results.ids import is_run_id
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.records import RunRecord
from bench.results.store import UNFINISHED, Store
from bench.simulation.retention import StateRetention
from datasets import own_data, partition_files

FILE = "waiting.json"


class Waiting(NamedTuple):
    """A run to train.

    Attributes:
        run: its id.
        base: id of the finished run from whose last state it starts; "" if it trains itself.
        retention: which states it keeps.
        code: as in `bench.execution.job.Inputs`.
    """

    run: str
    base: str
    retention: StateRetention
    code: Mapping[str, str]


def write(store: Store, runs: Iterable[Waiting]) -> None:
    """Writes which runs wait, in their order, whose configs are there; replaces an earlier list."""
    listed = [one._asdict() | {"retention": asdict(one.retention)} for one in runs]
    (store.folder / FILE).write_text(dumps(listed, indent=1) + "\n")


def read(store: Store) -> list[Job]:
    """The jobs of the runs that wait and have not ended; of a run that has ended with other code, too.

    Raises:
        StoreError: if there is no list, or the config of a run is missing.
        Damaged: if it is not a list of runs.
    """
    path = store.folder / FILE
    written = read_bytes(path)
    if written is None:
        raise StoreError(
            f"{store.folder} holds no {FILE}; `python -m bench describe --grid NAME --configs DIR` writes one."
        )
    try:
        found = [Waiting(**one) for one in parse(path, written)]
        runs = [one._replace(retention=read_retention(cast(Any, one.retention))) for one in found]
    except (TypeError, AttributeError) as error:
        raise Damaged(path, "is not a list of runs") from error
    if not all(is_run_id(one.run) and (not one.base or is_run_id(one.base)) for one in runs):
        raise Damaged(path, "names something that is no run")
    for kept in sorted((store.folder / partition_files.FOLDER).glob("[!.]*.npz")):
        partition_files.parse(f"file:{kept}")  # from now on this process knows it
    return [_job(one, store) for one in runs if not _has_ended(one, store)]


def train(folder: Path, machines: Machines, data_dir: Path | None) -> bool:
    """Trains the runs that wait in a results directory, and prints a line when one begins or ends.

    Returns:
        Whether none has failed.

    Raises:
        StoreError, Damaged: as `read`, or if another driver is at work there.
        ConfigError: if this machine lacks something that runs need.
    """
    store, said = Store(folder), _Lines()
    store.check_exists()
    with store.locked(said.on_message):
        jobs = read(store)
        print(f"{len(jobs)} runs to train, at most {machines.at_once} at once.", flush=True)
        looked_at = {(job.config.dataset, job.config.transform, str(job.config.image_size)): job for job in jobs}
        why = inspect_machine(
            ((job.config, job.inputs) for job in looked_at.values()), data_dir, machines.resources.device
        )
        if why:
            raise ConfigError([f"This machine cannot train the runs of {store.folder}: {why.rstrip('.')}."])
        submitted.run_jobs(jobs, store, said, data_dir=data_dir, machines=machines)
    return not said.failed


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

    def on_progress(self, job: Job, rounds: int) -> None:
        pass

    def on_end(self, job: Job, record: RunRecord) -> None:
        self.failed += record["status"] == "failed"
        why = f": {record['reason']}" if record["reason"] else ""
        print(f"{_name(job)} {record['status']}, {record['rounds']} rounds{why}", flush=True)


def _name(job: Job) -> str:
    config = job.config
    return f"{job.id} ({config.dataset} {config.partition} {config.algorithm['name']} seed {config.seed})"


def _has_ended(one: Waiting, store: Store) -> bool:
    record = store.record(one.run)
    return bool(record and record["status"] not in UNFINISHED and record.get("code", one.code) == dict(one.code))


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
        inputs=Inputs(one.code, "", own_data.of_config(config)),
    )
