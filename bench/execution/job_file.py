"""A job as a file, for executors whose workers are processes of their own: `python -m bench.worker FILE`.

Beside <run>.json, which says what to train, the driver makes an empty <run>.jsonl, to which the worker appends a line for each
`WorkerReport`. When the driver removes them, nobody waits for the run any more, and the worker ends.
"""

import contextlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import torch

from bench import plugins
from bench.config.plain import PlainConfig
from bench.execution.job import Inputs, Job
from bench.execution.resources import Resources
from bench.execution.worker import Worker, WorkerReport
from bench.results.ids import hash_of
from bench.results.json_files import parse
from bench.results.schema import check_config
from bench.simulation.retention import StateRetention
from datasets import of_labs, own_data, partition_files

# What is the same in a job and in its file.
_SAME = tuple(field.name for field in fields(Job) if field.name not in ("config", "retention", "inputs"))
BEGINS = "begins"  # key of the line by which a worker says on which machine it begins, or begins again


def write(
    path: Path,
    job: Job,
    data_dir: Path | None,
    resources: Resources,
    partitions: Path,
    gpus: str | None = None,
    driver: int = 0,
) -> None:
    """Writes a job, and an empty file for the reports of its worker.

    Args:
        data_dir: where the worker finds the datasets.
        resources: what it gets.
        partitions: the folder in which partition files of users are kept.
        gpus: those that it may use, as in CUDA_VISIBLE_DEVICES; None where the scheduler says so.
        driver: id of the process that starts the worker, and reads the reports; 0 where that is on another machine.
    """
    own = job.inputs.own_data
    content = {
        **{key: getattr(job, key) for key in _SAME},
        "config": job.config.canonical(),
        "retention": asdict(job.retention),
        "code": dict(job.inputs.code),
        "images": job.inputs.images,
        "dataset": own.dataset,
        "partition": str(partition_files.keep(own.partition, partitions)) if own.partition else "",
        "data_dir": str(data_dir or ""),
        "plugins": [str(folder) for folder in plugins.folders()],
        "device": resources.device,
        "threads": resources.threads,
        "gpus": gpus,
        "driver": driver,
    }
    path.write_text(json.dumps(content))
    reports_of(path).touch()


def reports_of(path: Path) -> Path:
    """The file with the reports of the job of a file."""
    return path.with_suffix(".jsonl")


def train(path: Path) -> WorkerReport | None:
    """Trains the job of a file to its end, or until its driver has gone.

    Reports on a job that a driver has written go to the file beside it. Of a config alone (`config.json` of a run in a results
    directory) nothing is kept, and the reports are printed.

    Returns:
        The last report; None if there is nobody who waits for it.

    Raises:
        Damaged: if the file holds neither.
        ConfigError: if the folder of a lab is not there.
    """
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return None  # the driver has ended before a scheduler began this
    with tempfile.TemporaryDirectory() as nothing_kept:
        given = parse(path, written)
        is_job = isinstance(given, dict) and "config" in given
        content = given if is_job else _alone(check_config(path, written), nothing_kept)
        plugins.use(content["plugins"])
        if content["gpus"] is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = content["gpus"]  # torch reads it when it first uses a GPU
        torch.set_num_threads(content["threads"])
        data_dir = Path(content["data_dir"]) if content["data_dir"] else None
        of_labs.look_in(data_dir)
        worker = Worker(_job(content), data_dir, content["device"])
        say = _to(reports_of(path), content["driver"]) if is_job else _print
        if not say({BEGINS: os.environ.get("SLURMD_NODENAME") or platform.node()}):
            return None
        while True:
            report = worker.step()
            if not say(vars(report)):
                return None
            if report.is_last:
                return report


def read(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The lines of a file of reports after an offset, and the offset after them. What a worker that was killed has written of a
    line is left out."""
    with open(path, "rb") as file:
        file.seek(offset)
        written = file.read()
    whole = written[: written.rfind(b"\n") + 1]
    lines = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                lines.append(found)
    return lines, offset + len(whole)


def _alone(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The job of a config, of which nothing is kept."""
    return {
        "id": hash_of(dict(config)),
        "config": config,
        "folder": folder,
        "checkpoint_seconds": math.inf,
        "retention": {"final": "none"},
        **dict.fromkeys(("base", "marker", "images", "dataset", "partition"), ""),
        **{"engine": "auto", "tf32": False, "max_clients_per_vmap": None, "code": {}, "plugins": [], "gpus": None},
        **{"data_dir": os.environ.get("SKEWBENCH_DATA", ""), "device": "cpu", "threads": 1},
    }


def _job(content: Mapping[str, Any]) -> Job:
    partition = partition_files.parse(f"file:{content['partition']}") if content["partition"] else None
    return Job(
        **{key: content[key] for key in _SAME},
        config=cast(Any, PlainConfig(content["config"])),  # has the attributes of a RunConfig
        retention=read_retention(content["retention"]),
        inputs=Inputs(content["code"], content["images"], own_data.DataOfUser(content["dataset"], partition)),
    )


def read_retention(stored: Mapping[str, Any]) -> StateRetention:
    """As `asdict` has written it; raises TypeError if there is a key that it does not write."""
    kept: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    return StateRetention(**kept)


def _to(path: Path, driver: int) -> Callable[[Mapping[str, Any]], bool]:
    """What appends a line to a file, and says whether somebody reads it."""

    def say(line: Mapping[str, Any]) -> bool:
        if driver and os.getppid() != driver:  # another process has taken its children
            return False
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return False
        try:  # the first line break ends what a worker before, which was killed, has left of a line
            left = f"\n{json.dumps(line)}\n".encode()
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)
        return True

    return say


def _print(line: Mapping[str, Any]) -> bool:
    print(json.dumps(line), flush=True)
    return True
