"""Runs jobs without Ray: as an array of jobs of Slurm, which submitit submits, or as plain processes on this machine.

Each job is one process, which trains one run (see `bench.execution.job_file`). A job that Slurm has preempted, or whose time is
over, is queued again and goes on from its checkpoint. Where a process dies, or loses its GPU, its run is submitted again, as
often as with Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.execution import job_file
from bench.execution.gpus import NO_GPU
from bench.execution.job import Job
from bench.execution.job_file import BEGINS
from bench.execution.processes import Process, environment
from bench.execution.resources import Machines, Resources, choose
from bench.execution.run_recorder import (
    OUT_OF_MEMORY,
    OUT_OF_MEMORY_BESIDE,
    RETRIES,
    JobRecorder,
    RunCallback,
    given_up,
)
from bench.execution.slurm_options import asks_for_gpus, read_slurm
from bench.execution.worker import WorkerReport, storage_trouble
from bench.execution.workspace import Workspace, shared_bases
from bench.files import stderr_to
from bench.results.store import JOBS, Store
from datasets import partition_files

if TYPE_CHECKING:
    from bench.execution.tracking import Tracker  # which knows Ray

_LOOK_SECONDS = 0.2  # between looks at the reports of jobs on this machine
_LOOK_SECONDS_SLURM = 2.0
_LARGEST_ARRAY = 1000  # jobs; Slurm's own bound is 1001 unless it is set
# States in which a job waits; sacct says the first four.
_PAUSED = {"SUSPENDED", "RESIZING", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_PAUSED |= {"CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESV_DEL_HOLD", "REQUEUE_FED"}
_PREEMPTED = "PREEMPTED"
_PREEMPTED_SECONDS = 1200.0  # submitit asks for states every 10 minutes
_QUEUE_SECONDS = 60  # between two calls of squeue
_REFUSED_SECONDS = 60.0  # until a submission that Slurm has refused is tried again
_TIMEOUTS = 100  # how often a job whose time is over is queued again
_ROOM = 2**16  # bytes that a disk must have left for reports
_END_SECONDS = 10.0  # that processes get to end when the command is stopped


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
        handle: of submitit, or a `Process`.
        path: its file.
        slot: its place on this machine.
        offset: bytes of its reports that have been read.
        host: the machine on which it began.
        preempted_at: when Slurm was first seen to have preempted it, if it has not been seen in another state since.
    """

    job: Job
    handle: Any
    path: Path
    slot: int = 0
    offset: int = 0
    host: str = ""
    preempted_at: float | None = None


def machines(
    executor: str, cpus_per_trial: float, gpus_per_trial: str, max_concurrent: int, slurm: Mapping[str, str]
) -> Machines:
    """What a job gets, from the options of the command line. Of this machine `auto` is a whole GPU if there is one; Slurm is
    asked for GPUs by the options of sbatch.

    Raises:
        ValueError: if there is no Slurm here, or no submitit for it, or an option does not go with the executor.
    """
    if executor == "local":
        return Machines(replace(choose(cpus_per_trial, gpus_per_trial), auto=False), max_concurrent, executor=executor)
    try:
        importlib.import_module("submitit")
    except ImportError as error:
        raise ValueError(
            f"--executor {executor} needs the package submitit, which is not installed ({error}); install it with: "
            ".venv/bin/uv pip install --python .venv/bin/python submitit"
        ) from error
    if not all(map(shutil.which, ("sbatch", "srun", "sacct", "squeue", "scancel"))):
        raise ValueError(
            "--executor slurm needs Slurm's programs (sbatch, srun, sacct, squeue, scancel): run the command on a machine from "
            "which jobs are submitted, or use --executor local."
        )
    options = read_slurm(slurm)
    if gpus_per_trial != "auto" or cpus_per_trial < 1 or not float(cpus_per_trial).is_integer():
        raise ValueError(
            "--executor slurm needs a whole number as --cpus-per-trial, and GPUs are named by --slurm gpus_per_node=1: leave "
            f"--gpus-per-trial out; but got {cpus_per_trial:g} and {gpus_per_trial}."
        )
    gpus = asks_for_gpus(options)
    share = Resources(cpus_per_trial, float(gpus), "cuda" if gpus else "cpu")
    return Machines(share, max_concurrent, executor=executor, slurm=options)


def run_jobs(jobs: list[Job], workspace: Workspace, callback: RunCallback, tracker: Tracker | None = None) -> None:
    """Runs jobs as `bench.execution.scheduler.run_jobs` does; arguments as there.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the jobs have been cancelled.
        ValueError: if Slurm refuses the jobs.
        StoreError: if results or checkpoints cannot be written any more.
    """
    store, recorder = workspace.store, JobRecorder(workspace.store, callback, tracker)
    with _folder(store) as folder, contextlib.ExitStack() as at_end:
        if tracker:
            at_end.callback(tracker.finish)  # it may wait for a network, and be interrupted at that
        submitter = _Submitter(recorder, folder, workspace)
        for stage in ([job for job in jobs if not job.base], [job for job in jobs if job.base]):
            with shared_bases([job.base for job in stage], store):
                submitter.run(stage)


@dataclass
class _Submitter:
    """Submits jobs, and looks at them until they have ended. A GPU or machine that one of them has lost gets no later ones.

    Attributes:
        folder: for the files of jobs.
        waiting: jobs that are to be submitted.
    """

    recorder: JobRecorder
    folder: Path
    workspace: Workspace
    waiting: list[Job] = field(default_factory=list)
    _open: dict[str, _Submitted] = field(default_factory=dict)
    _leaving: list[_Submitted] = field(default_factory=list)  # ended, but their processes have not
    _deaths: Counter[str] = field(default_factory=Counter)
    _attempts: Counter[str] = field(default_factory=Counter)
    _refused_at: float | None = None
    _lost: dict[str, str] = field(default_factory=dict)  # GPUs here, or machines of Slurm, that are lost -> why

    def __post_init__(self) -> None:
        self._store, self.machines = self.workspace.store, self.workspace.machines
        self._on_slurm = self.machines.executor == "slurm"
        if self._on_slurm:
            self._executor = _executor(self.machines, self.folder)

    def run(self, jobs: list[Job]) -> None:
        """Returns when every one of these jobs, of which none waits for another one, has ended with a record."""
        self.waiting = jobs
        try:
            while self.waiting or self._open or self._leaving:
                self._leaving = [one for one in self._leaving if not one.handle.done()]
                self._submit()
                for one in [*self._open.values()]:
                    self._look_at(one)
                if self.waiting or self._open or self._leaving:
                    time.sleep(_LOOK_SECONDS_SLURM if self._on_slurm else _LOOK_SECONDS)
        finally:
            self._cancel([*self._open.values(), *self._leaving])

    def _submit(self) -> None:
        """Submits what may begin: all at once to Slurm, which has a queue, else as many as there are free places."""
        taken = {one.slot for one in (*self._open.values(), *self._leaving)}
        places = {slot for slot in range(self._num_places()) if self._on_slurm or self._gpus(slot) not in self._lost}
        if not places and self.waiting and not self._open:
            why = next(iter(self._lost.values()))
            advice = " A GPU in exclusive mode needs --gpus-per-trial 1." if "busy" in why else ""
            raise _cannot_go_on(f"{why}.{advice}")
        free = sorted(places - taken)[: max(0, self.machines.at_once - len(taken))]
        count = self._num_to_submit() if self._on_slurm else len(free)
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        if not batch or self._on_slurm and self._refused_at and time.monotonic() < self._refused_at + _REFUSED_SECONDS:
            self.waiting = [*batch, *self.waiting]
            return
        slots = [0] * len(batch) if self._on_slurm else free
        paths = [self._write(job, slot) for job, slot in zip(batch, slots, strict=False)]
        try:
            with self._store.open_log() as log, stderr_to(log):  # which processes of submitit inherit
                handles = self._handles(paths)
        except ValueError as error:
            if not self._open:
                raise
            # Slurm was busy, or has as many jobs of this user as it may have: those that are there go on.
            if self._refused_at is None:
                self.recorder.callback.on_message(f"{error} Tried again every {_REFUSED_SECONDS:g} seconds.")
            self._refused_at, self.waiting = time.monotonic(), [*batch, *self.waiting]
            return
        self._refused_at = None
        for job, path, slot, handle in zip(batch, paths, slots, handles, strict=False):
            self._open[job.id] = _Submitted(job, handle, path, slot)
        if self._on_slurm:
            array = handles[0].job_id.partition("_")[0]
            self.recorder.callback.on_message(
                f"Submitted to Slurm: job {array}, {len(batch)} run{'s' * (len(batch) > 1)}."
            )

    def _num_to_submit(self) -> int:
        """How many jobs Slurm may get now: it bounds those at once of an array, but not of several arrays together."""
        most = self.machines.max_concurrent
        return max(0, most - len(self._open)) if most and self._open else _LARGEST_ARRAY

    def _handles(self, paths: Sequence[Path]) -> list[Any]:
        if not self._on_slurm:
            return [Process(path, self.machines.resources.threads) for path in paths]
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            return self._executor.map_array(Training(), [*map(str, paths)])
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
            raise ValueError(f"Slurm has refused the jobs: {' '.join(str(error).split())}") from error

    def _write(self, job: Job, slot: int) -> Path:
        """Writes the file of a job, and begins its run, which waits for a machine of Slurm."""
        self.recorder.runs.start(job.id, job.config.canonical(), is_queued=True)
        if self._on_slurm:
            self._store.place(job.id, "")
        share, path = self.machines.resources, self.folder / f"{job.id}-{self._attempts[job.id]}.json"
        self._attempts[job.id] += 1
        gpus = None if self._on_slurm else self._gpus(slot)
        partitions = self._store.folder / partition_files.FOLDER
        driver = 0 if self._on_slurm else os.getpid()
        job_file.write(path, job, self.workspace.options.data_dir, share, partitions, gpus, driver)
        return path

    def _num_places(self) -> int:
        """Places of jobs on this machine: more than are taken at once where others have GPUs that are lost."""
        machines = self.machines
        if self._on_slurm or not machines.resources.gpus:
            return machines.at_once
        return max(machines.at_once, machines.places_on_gpus)

    def _gpus(self, slot: int) -> str:
        """Those of a place on this machine, as CUDA_VISIBLE_DEVICES names them; "" without."""
        share = self.machines.resources.gpus
        if not share:
            return ""
        visible, count = _visible_gpus(), max(1, int(share))
        first = slot * count % len(visible)  # shares of one GPU: each GPU gets one before one of them gets two
        return ",".join(visible[first : first + count])

    def _look_at(self, one: _Submitted) -> None:
        """Writes what a job has reported; if it has died, it is submitted again, or given up."""
        is_over = self._is_over(one)  # asked first: after its end it reports nothing
        lines, one.offset = job_file.read(job_file.reports_of(one.path), one.offset)
        for line in lines:
            if BEGINS in line:
                self._begin(one, line[BEGINS])
            elif one.job.id in self._open:
                self._record(one, WorkerReport(**line))
        if is_over and one.job.id in self._open:
            self._die(one)

    def _is_over(self, one: _Submitted) -> bool:
        """Whether the process of a job has ended, and is not started again by Slurm.

        submitit takes a job that waits, such as one that is suspended, for one that has ended. One that is preempted it takes
        for one that is queued again, which depends on the site: after a while it is submitted again.
        """
        if not self._on_slurm:
            return one.handle.done()
        state = one.handle.state
        if state in _PAUSED:
            return False
        if state != _PREEMPTED:
            one.preempted_at = None
            return one.handle.done()
        one.preempted_at = one.preempted_at or time.monotonic()
        return time.monotonic() > one.preempted_at + _PREEMPTED_SECONDS

    def _begin(self, one: _Submitted, host: str) -> None:
        one.host = host
        self.recorder.start(one.job)
        if self._on_slurm:
            self._store.place(one.job.id, host)

    def _record(self, one: _Submitted, report: WorkerReport) -> None:
        if report.storage_error:
            raise StoreError(report.storage_error + (f" (On the machine {one.host}.)" if self._on_slurm else ""))
        self.recorder.update(one.job, report, lambda: self._machine_of(one))
        if report.machine_error.startswith(NO_GPU):
            self._lose_gpu(one, report.machine_error)
        elif report.machine_error and not self._on_slurm:  # so would the other runs end, one after another
            raise _cannot_go_on(f"{report.machine_error.rstrip('.')}.")
        elif report.is_last:
            gpus = self.machines.resources.gpus
            shared = f"{OUT_OF_MEMORY_BESIDE} ({gpus:g} of it); ask for more by --gpus-per-trial"
            reason = report.machine_error or (shared if 0 < gpus < 1 else OUT_OF_MEMORY)
            self._end(one, report.result or {"reason": reason})

    def _die(self, one: _Submitted) -> None:
        """A job has ended without a last report: it has died, or could not write one."""
        _require_room(self.folder)
        if self._tries_again(one):
            return
        if not one.host:
            self._begin(one, "")
        text = f"{one.handle.state}\n{one.handle.stderr() or ''}"
        self._end(one, given_up(text, self._deaths[one.job.id], self._store, f"run {one.job.id}"))

    def _lose_gpu(self, one: _Submitted, why: str) -> None:
        """A job has lost its GPU, which gets no more runs. Of a machine of Slurm no GPU does, for jobs that are submitted from
        now on."""
        place = one.host if self._on_slurm else self._gpus(one.slot)
        is_new = place not in self._lost
        if is_new:
            where = f"The machine {place}" if self._on_slurm else f"GPU {place} of this machine"
            self.recorder.callback.on_message(f"{where} takes no more runs: {why}.")
            self._lost[place] = why
        if self._on_slurm:
            named = [self.machines.slurm.get("exclude"), *self._lost]
            self._executor.update_parameters(exclude=",".join(filter(None, named)))
        # Jobs that wait in Slurm's queue may come to a machine again that is left out of later ones: not without end.
        if not self._tries_again(one, is_death=self._on_slurm and not is_new):
            self._end(one, {"reason": why})

    def _tries_again(self, one: _Submitted, is_death: bool = True) -> bool:
        """Submits the run of a job that has ended once more, unless it has died too often.

        Args:
            is_death: whether that counts against the run.
        """
        del self._open[one.job.id]
        self._cancel([one])  # Slurm might still queue it again
        one.path.unlink()
        job_file.reports_of(one.path).unlink()  # without which a process of it that is left ends
        self._deaths[one.job.id] += is_death and not one.preempted_at  # which is no fault of the run
        if self._deaths[one.job.id] > RETRIES:
            return False
        self.recorder.postpone(one.job)
        self.waiting.insert(0, one.job)
        return True

    def _end(self, one: _Submitted, result: Mapping[str, Any]) -> None:
        self._open.pop(one.job.id, None)
        if not self._on_slurm:
            self._leaving.append(one)
        host = {"host": one.host} if self.workspace.options.names_hosts and one.host else {}
        self.recorder.end(one.job, {**result, **host}, lambda: self._machine_of(one))

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


def _cannot_go_on(why: str) -> ValueError:
    return ValueError(f"This machine cannot go on: {why} Nothing is lost: the same command continues.")


def _require_room(folder: Path) -> None:
    """Raises OSError if nothing can be written into a folder any more, as where the disk is full."""
    probe = folder / "probe"
    try:
        probe.write_bytes(bytes(_ROOM))
    finally:
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def _folder(store: Store) -> Iterator[Path]:
    """A folder in the results directory for the files of jobs, whose disk all machines of Slurm see. Jobs of a driver that was
    killed end when they find that their files are gone.

    Raises:
        StoreError: in place of an OSError within the context that says that files cannot be written any more.
    """
    shutil.rmtree(store.folder / JOBS, ignore_errors=True)
    folder = store.folder / JOBS / secrets.token_hex(4)
    folder.mkdir(parents=True)
    try:
        yield folder
    except OSError as error:
        if trouble := storage_trouble(error, store.folder):
            raise StoreError(trouble) from error
        raise
    finally:
        shutil.rmtree(store.folder / JOBS, ignore_errors=True)


def _executor(machines: Machines, folder: Path) -> Any:
    """What submits jobs to Slurm."""
    import submitit

    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # what matters is said here
    share = machines.resources
    known = submitit.SlurmExecutor._valid_parameters()  # others go to sbatch as they are
    options = {"job_name": "skewbench", **machines.slurm}
    cpus = {"cpus_per_task": share.threads, "array_parallelism": machines.max_concurrent or _LARGEST_ARRAY}
    others = {key: value for key, value in options.items() if key not in known}
    if subprocess.run(["sacct", "--noheader", "--jobs=1"], capture_output=True).returncode:
        submitit.SlurmJob.watcher = _watcher_of_queue()
    executor = submitit.SlurmExecutor(folder, max_num_timeout=_TIMEOUTS)
    executor.update_parameters(
        **{key: value for key, value in options.items() if key in known},
        **cpus,
        setup=[f"export {key}={shlex.quote(value)}" for key, value in environment(share.threads).items()],
        additional_parameters={"requeue": True, **others},
    )
    return executor


def _watcher_of_queue() -> Any:
    """What asks squeue for the states of jobs, where Slurm has no accounts: by sacct, submitit would not see that one dies."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Watcher(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            own = ["--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T"]
            return ["squeue", *own] if super()._make_command() else None

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            text = string if isinstance(string, str) else string.decode()
            states = dict(line.strip().split("|") for line in text.splitlines() if line.count("|") == 1)
            # Slurm lists a job for some minutes after its end, and then no longer.
            return {job: {"State": states.get(job, "COMPLETED")} for job in self._registered}

    return Watcher(delay_s=_QUEUE_SECONDS)


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    import torch

    return [*map(str, range(torch.cuda.device_count()))]
