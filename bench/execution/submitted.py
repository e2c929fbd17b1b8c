"""Runs jobs by submitit: as an array of jobs of Slurm, or as plain processes on this machine. Neither needs Ray.

Each job is one process, which trains one run (see `bench.execution.job_file`). A job that Slurm has preempted, or whose time is
over, is queued again and goes on from its checkpoint. Where a process dies, its run is submitted again, as often as with Ray.
"""

import contextlib
import importlib
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import StoreError
from bench.execution import job_file
from bench.execution.job import Job
from bench.execution.job_file import BEGINS
from bench.execution.ray_environment import python_path
from bench.execution.resources import Machines
from bench.execution.run_recorder import OUT_OF_MEMORY, RETRIES, JobRecorder, RunCallback, given_up
from bench.execution.tracking import Tracker
from bench.execution.worker import WorkerReport
from bench.execution.workspace import shared_bases
from bench.files import stderr_to
from bench.results.store import JOBS, Store
from datasets import partition_files

_LOOK_SECONDS = 0.2  # between looks at the reports of jobs on this machine
_LOOK_SECONDS_SLURM = 2.0
_LARGEST_ARRAY = 1000  # jobs; Slurm's own bound is 1001 unless it is set
_TIMEOUTS = 100  # how often a job whose time is over is queued again
_FOREVER = 10 * 365 * 24 * 60  # minutes
_END_SECONDS = 10.0  # that processes get to end when the command is stopped
# Of `--slurm`, what other options say, and what a run of one process does not use.
_OWN = {"cpus_per_task": "--cpus-per-trial", "array": "--max-concurrent", "array_parallelism": "--max-concurrent"}
_UNUSED = ("nodes", "ntasks", "ntasks_per_node", "setup", "teardown", "srun_args", "additional_parameters", "requeue")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class Training:
    """What submitit starts in the process of a job, and again after it was queued again."""

    def __call__(self, path: str) -> None:
        job_file.train(Path(path))

    def checkpoint(self, path: str) -> Any:
        """What is queued again: the same, which finds the checkpoint of the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, path)


@dataclass
class _Submitted:
    """A job that has been submitted and has not ended.

    Attributes:
        handle: of submitit.
        path: its file.
        slot: its place among those at once on this machine.
        offset: bytes of its reports that have been read.
        host: the machine on which it began.
    """

    job: Job
    handle: Any
    path: Path
    slot: int = 0
    offset: int = 0
    host: str = ""


def read_slurm(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Values of `--slurm`: options of sbatch by their names, `gpus_per_node` or `gpus-per-node`; "true" for those
    without a value.

    Raises:
        ValueError: if there is no time, or something else that must not be there.
    """
    options: dict[str, Any] = {key.replace("-", "_"): value == "true" or value for key, value in pairs.items()}
    for key in options:
        if key in _OWN:
            raise ValueError(f"--slurm {key} is set by {_OWN[key]}; leave it out.")
        if key in _UNUSED:
            raise ValueError(
                f"--slurm {key} cannot be set: a run is one process of one job, queued again when it must."
            )
    if "time" not in options:
        raise ValueError(
            "--executor slurm needs the time of a job, as --slurm time=4:00:00; a run that takes longer is queued again."
        )
    return options | {"time": _minutes(options["time"])}


def check(executor: str) -> None:
    """Raises ValueError if submitit is not installed, or there is no Slurm here."""
    try:
        importlib.import_module("submitit")
    except ImportError as error:
        raise ValueError(
            f"--executor {executor} needs the package submitit, which is not installed ({error}); install it with: "
            "uv pip install --python .venv/bin/python submitit"
        ) from error
    absent = [name for name in ("sbatch", "srun", "sacct", "scancel") if not shutil.which(name)]
    if executor == "slurm" and absent:
        raise ValueError(
            f"--executor slurm needs Slurm's programs, but {', '.join(absent)} is not found: run the command on a machine from "
            "which jobs are submitted, or use --executor local."
        )


def run_jobs(
    jobs: list[Job],
    store: Store,
    callback: RunCallback,
    *,
    data_dir: Path | None,
    machines: Machines,
    storage: str | None = None,
    tracker: Tracker | None = None,
    names_hosts: bool = True,
) -> None:
    """Runs jobs as `bench.execution.scheduler.run_jobs` does; arguments as there.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the jobs have been cancelled.
        ValueError: if Slurm refuses the jobs.
        StoreError: if results or checkpoints cannot be written any more.
    """
    recorder = JobRecorder(store, callback, tracker)
    with _folder(store) as folder, contextlib.ExitStack() as at_end:
        if tracker:
            at_end.callback(tracker.finish)  # it may wait for a network, and be interrupted at that
        for stage in ([job for job in jobs if not job.base], [job for job in jobs if job.base]):
            with shared_bases([job.base for job in stage], store):
                _Stage(stage, recorder, callback, folder, data_dir, machines, names_hosts).run()


class _Stage:
    """Jobs of which none waits for another one."""

    def __init__(
        self,
        jobs: Sequence[Job],
        recorder: JobRecorder,
        callback: RunCallback,
        folder: Path,
        data_dir: Path | None,
        machines: Machines,
        names_hosts: bool,
    ):
        self._waiting, self._recorder, self._callback, self._folder = [*jobs], recorder, callback, folder
        self._data_dir, self._machines, self._names_hosts = data_dir, machines, names_hosts
        self._store, self._on_slurm = recorder.store, machines.executor == "slurm"
        self._executor = _executor(machines, folder)
        self._open: dict[str, _Submitted] = {}
        self._deaths: Counter[str] = Counter()

    def run(self) -> None:
        """Returns when every job has ended with a record."""
        try:
            while self._waiting or self._open:
                self._submit()
                for one in [*self._open.values()]:
                    self._look_at(one)
                if self._open:
                    time.sleep(_LOOK_SECONDS_SLURM if self._on_slurm else _LOOK_SECONDS)
        finally:
            self._cancel([*self._open.values()])

    def _submit(self) -> None:
        """Submits what may begin: all at once to Slurm, which has a queue, else as many as there are free places."""
        free = sorted({*range(self._machines.at_once)} - {one.slot for one in self._open.values()})
        count = _LARGEST_ARRAY if self._on_slurm else len(free)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if not batch:
            return
        slots = [0] * len(batch) if self._on_slurm else free
        paths = [self._write(job, slot) for job, slot in zip(batch, slots, strict=False)]
        with self._store.open_log() as log, stderr_to(log):  # which processes of submitit inherit
            handles = self._handles(paths)
        for job, path, slot, handle in zip(batch, paths, slots, handles, strict=False):
            self._open[job.id] = _Submitted(job, handle, path, slot)
        if self._on_slurm:
            array = handles[0].job_id.partition("_")[0]
            self._callback.on_message(f"Submitted to Slurm: job {array}, {len(batch)} run{'s' * (len(batch) > 1)}.")

    def _handles(self, paths: Sequence[Path]) -> list[Any]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            if self._on_slurm:
                return self._executor.map_array(Training(), [*map(str, paths)])
            return [self._executor.submit(Training(), str(path)) for path in paths]
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
            raise ValueError(f"Slurm has refused the jobs: {' '.join(str(error).split())}") from error

    def _write(self, job: Job, slot: int) -> Path:
        """Writes the file of a job, and begins its run, which waits for a machine of Slurm."""
        self._recorder.runs.start(job.id, job.config.canonical(), is_queued=True)
        if self._on_slurm:
            self._store.place(job.id, "")
        share, path = self._machines.resources, self._folder / f"{job.id}-{self._deaths[job.id]}.json"
        count = int(share.gpus)
        gpus = None if self._on_slurm else ",".join(_visible_gpus()[slot * count : (slot + 1) * count])
        partitions = self._store.folder / partition_files.FOLDER
        driver = 0 if self._on_slurm else os.getpid()
        job_file.write(path, job, self._data_dir, share, partitions, gpus, driver)
        return path

    def _look_at(self, one: _Submitted) -> None:
        """Writes what a job has reported; if it has died, it is submitted again, or given up."""
        is_over = one.handle.done()  # asked first: after its end it reports nothing
        lines, one.offset = job_file.read(job_file.reports_of(one.path), one.offset)
        for line in lines:
            if BEGINS in line:
                self._begin(one, line[BEGINS])
            elif one.job.id in self._open:
                self._record(one, WorkerReport(**line))
        if is_over and one.job.id in self._open:
            self._die(one)

    def _begin(self, one: _Submitted, host: str) -> None:
        one.host = host
        self._recorder.start(one.job)
        if self._on_slurm:
            self._store.place(one.job.id, host)

    def _record(self, one: _Submitted, report: WorkerReport) -> None:
        if report.storage_error:
            raise StoreError(report.storage_error + (f" (On the machine {one.host}.)" if self._on_slurm else ""))
        self._recorder.update(one.job, report, lambda: self._machine_of(one))
        if report.is_last:
            reason = report.machine_error or OUT_OF_MEMORY
            self._end(one, report.result or {"reason": reason})

    def _die(self, one: _Submitted) -> None:
        """A job has ended without a last report."""
        del self._open[one.job.id]
        self._cancel([one])  # what Slurm has suspended counts as ended
        one.path.unlink()
        job_file.reports_of(one.path).unlink()  # without which a process of it that is left ends
        self._deaths[one.job.id] += 1
        if (deaths := self._deaths[one.job.id]) <= RETRIES:
            self._recorder.postpone(one.job)
            self._waiting.insert(0, one.job)
            return
        if not one.host:
            self._begin(one, "")
        text = f"{one.handle.state}\n{one.handle.stderr() or ''}"
        self._end(one, given_up(text, deaths, self._store, f"run {one.job.id}"))

    def _end(self, one: _Submitted, result: Mapping[str, Any]) -> None:
        self._open.pop(one.job.id, None)
        host = {"host": one.host} if self._names_hosts and one.host else {}
        self._recorder.end(one.job, {**result, **host}, lambda: self._machine_of(one))

    def _machine_of(self, one: _Submitted) -> str:
        return one.host if self._on_slurm else ""

    def _cancel(self, submitted: Sequence[_Submitted]) -> None:
        """Ends jobs; those on this machine have ended afterwards, as far as they can."""
        if self._on_slurm:
            if ids := [one.handle.job_id for one in submitted]:
                subprocess.run(["scancel", *ids], capture_output=True)
            return
        for one in submitted:
            one.handle.cancel()
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and not all(one.handle.done() for one in submitted):
            time.sleep(0.05)


@contextlib.contextmanager
def _folder(store: Store) -> Iterator[Path]:
    """A folder in the results directory for the files of jobs, whose disk all machines of Slurm see. Jobs of a driver that was
    killed end when they find that their files are gone."""
    shutil.rmtree(store.folder / JOBS, ignore_errors=True)
    folder = store.folder / JOBS / secrets.token_hex(4)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(store.folder / JOBS, ignore_errors=True)


def _executor(machines: Machines, folder: Path) -> Any:
    """What submits jobs, whose processes find this code before what lies in their working directory."""
    import submitit
    from submitit.slurm import slurm

    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # what matters is said here
    share = machines.resources
    environment = {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH")), "PYTHONSAFEPATH": "1"}
    environment |= {"OMP_NUM_THREADS": str(share.threads)}
    if machines.executor == "local":
        os.environ |= environment
        local = submitit.LocalExecutor(folder)
        local.update_parameters(timeout_min=_FOREVER)
        return local
    known = slurm._get_default_parameters()
    options = {"job_name": "skewbench", **machines.slurm}
    cpus = {"cpus_per_task": share.threads, "array_parallelism": machines.max_concurrent or _LARGEST_ARRAY}
    others = {key: value for key, value in options.items() if key not in known}
    executor = submitit.SlurmExecutor(folder, max_num_timeout=_TIMEOUTS)
    executor.update_parameters(
        **{key: value for key, value in options.items() if key in known},
        **cpus,
        setup=[f"export {key}={shlex.quote(value)}" for key, value in environment.items()],
        additional_parameters={"requeue": True, **others},
    )
    return executor


def _minutes(text: str) -> int:
    """Minutes of a time of Slurm: MINUTES, HOURS:MINUTES:SECONDS, MINUTES:SECONDS, or DAYS- and hours before any of it."""
    if not (found := _TIME.fullmatch(text)):
        raise ValueError(f"--slurm time must be minutes, or as 4:00:00 or 1-12:00:00, but got {text}.")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        total = 1440 * int(days or 0) + 60 * hours + minutes + seconds / 60
    else:
        minutes, seconds = [*numbers, 0][:2]
        total = minutes + seconds / 60
    return max(1, round(total))


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    import torch

    return [*map(str, range(torch.cuda.device_count()))]
