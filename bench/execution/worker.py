"""A worker: trains one run after another, each from its checkpoint if there is one, and reports. Needs no scheduler."""

from __future__ import annotations

import errno
import os
import platform
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import algorithms
from bench import models
from bench.config.code_version import code_version
from bench.config.plain import TRACE
from bench.contract.places import failure_in_words
from bench.determinism import make_deterministic, uses_tf32
from bench.errors import HookError, StoreError
from bench.execution.gpus import NO_GPU
from bench.execution.job import CONTINUES, Inputs, Job, base_of
from bench.models import pretrained
from bench.profiling import device_name, give_back_memory, is_out_of_memory, keep_freed_memory
from bench.registry import KINDS, Registry
from bench.results.artifacts import GO_ON, DamagedState, Folder
from bench.results.records import RoundRow, methods_in
from bench.simulation import callbacks
from bench.simulation.checkpoints import Checkpoints, UnusableCheckpoint
from bench.simulation.retention import FINAL
from bench.simulation.run import Run
from datasets import DataError, own_data, resized

if TYPE_CHECKING:
    from bench.config.schema import RunConfig

_LOST_GPU = (
    "busy or unavailable",
    "no CUDA-capable device is detected",
    "No CUDA GPUs are available",
    "uncorrectable ECC error",
)
REPORT_SECONDS = 1.0  # a worker reports at most this often; shorter rounds are sent together
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_FORBIDDEN = (errno.EACCES, errno.EPERM)  # of a file elsewhere they say nothing of the storage


@dataclass(frozen=True)
class WorkerReport:
    """What a worker has done in one step: all that the driver gets from it, whatever executes it.

    At most one of `result`, `out_of_memory`, `storage_error` and `machine_error` is set.

    Attributes:
        start: number of rounds before `rows`; what was reported for rounds after these is replaced.
        rows: new rounds.
        note: what a person should know, or "".
        result: content of the record if the run has ended, else None.
        max_clients_per_vmap: the bound on clients at once that was found to be needed, or None.
        out_of_memory: whether the run does not fit beside its neighbours on the GPU.
        storage_error: why nothing can be written any more, or "".
        machine_error: why this machine can train no run of this kind, though another one may; or "".
    """

    start: int = 0
    rows: list[RoundRow] = field(default_factory=list)
    note: str = ""
    result: Mapping[str, Any] | None = None
    max_clients_per_vmap: int | None = None
    out_of_memory: bool = False
    storage_error: str = ""
    machine_error: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the worker can do no more for its job."""
        return bool(self.result or self.out_of_memory or self.storage_error or self.machine_error)


class UnfitMachine(Exception):
    """This machine cannot train a run, for a reason that is not the run's; says which."""


class Worker:
    """Trains one job, about a second per step."""

    def __init__(self, job: Job, data_dir: Path | None, device: str):
        self._job, self._data_dir, self._device = job, data_dir, device
        self._run: Run | None = None
        self._num_reported = 0  # rounds
        self._notes: list[str] = []
        keep_freed_memory()
        if device == "cuda":
            make_deterministic(job.tf32)

    @property
    def round(self) -> int:
        """Rounds of the job that are trained."""
        return self._run.round if self._run else 0

    def step(self, until_round: int | None = None) -> WorkerReport:
        """Trains for about a second, at least one round, but not beyond a round.

        Raises:
            RuntimeError: of CUDA; only another process gets a working GPU again.
        """
        report = self._try_to_train(until_round)
        if report.out_of_memory:  # only here, because the error held what did not fit
            report = self._reduce_memory()
        report = self._with_news(report)
        if report.is_last:
            self._run = None
        return report

    def _try_to_train(self, until_round: int | None) -> WorkerReport:
        """Trains, and reports how that ended, without the rounds."""
        try:
            self._run = self._run or self._begin()
            self._train(self._run, until_round)
            return WorkerReport(result=self._run.result() if self._run.finished else None)
        except Exception as error:
            return self._report_of(error)

    def _train(self, run: Run, until_round: int | None) -> None:
        end = time.monotonic() + REPORT_SECONDS
        while not run.finished and (until_round is None or run.round < until_round):
            run.step()
            if self._checkpoints.due and not run.finished:
                self._checkpoints.save(run.checkpoint())
            if time.monotonic() >= end:
                break

    def _report_of(self, error: Exception) -> WorkerReport:
        """What an error means for the run; raises it if this process cannot continue."""
        if machine_error := self._machine_trouble(error):  # first: a library on a lost GPU may seem to be out of memory
            return WorkerReport(machine_error=machine_error)
        if is_out_of_memory(error):
            return WorkerReport(out_of_memory=True)
        if storage_error := storage_trouble(error, self._job.folder):
            return WorkerReport(storage_error=storage_error)
        if "CUDA error" in str(error):
            raise error
        return WorkerReport(result=failure(error, self._job.config))

    def _machine_trouble(self, error: Exception) -> str:
        """What this machine lacks, if that is why a run could not be trained: the driver has found everything; "" else."""
        if self._device == "cuda" and not torch.cuda.is_available():
            return NO_GPU
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_GPU):
            return f"{NO_GPU} that works ({str(error).splitlines()[0]})"
        return str(error) if isinstance(error, UnfitMachine | DataError | pretrained.MissingWeights) else ""

    def _reduce_memory(self) -> WorkerReport:
        """After a GPU has run out of memory: the run goes on without CUDA graphs, or half as many clients train at once, or it
        needs fewer neighbours."""
        self._take_notes_of_graphs()
        if self._run and self._run.drop_graphs():
            torch.cuda.empty_cache()
            self._notes.append("out of GPU memory, continues without CUDA graphs")
            return WorkerReport()
        most = self._run.halve_clients_per_vmap() if self._run else None
        if most is None:
            self._run = None
        torch.cuda.empty_cache()
        if most is None:
            return WorkerReport(out_of_memory=True)
        self._notes.append(f"out of GPU memory, continues with {most} clients at once")
        return WorkerReport(max_clients_per_vmap=most)

    def _take_notes_of_graphs(self) -> None:
        if self._run and (graphs := self._run.task.graphs):
            self._notes += graphs.notes
            graphs.notes = []

    def _with_news(self, report: WorkerReport) -> WorkerReport:
        """The report with the rounds and notes since the one before."""
        self._take_notes_of_graphs()
        start, notes = self._num_reported, self._notes
        rows = self._run.rows[start:] if self._run else []
        self._num_reported, self._notes = start + len(rows), []
        return replace(report, start=start, rows=rows, note="; ".join(notes))

    def _begin(self) -> Run:
        """Builds the run, and continues from its checkpoint if there is one; its rounds are reported from the first on."""
        job, config, folder = self._job, self._job.config, Folder(self._job.folder)
        self._num_reported = 0
        give_back_memory()  # of the run before in this process, for one that needs less
        require_shared(job.marker)
        if self._device == "cuda" and not torch.cuda.is_available():
            raise UnfitMachine(NO_GPU)
        own_data.remember(job.inputs.own_data, config.dataset)
        dataset = resized.of_config(config, self._data_dir)
        _require_same(job.inputs, Inputs(code_version(config), dataset.digest), config.dataset)
        run = Run(
            config,
            dataset,
            device=self._device,
            engine=job.engine,
            folder=folder,
            retention=job.retention,
            max_clients_per_vmap=job.max_clients_per_vmap,
            data_dir=self._data_dir,
        )
        key = _checkpoint_key(job, run, dataset.digest)
        self._checkpoints = Checkpoints(folder / "checkpoint", key, job.checkpoint_seconds)
        if not self._restore(run):
            # States that an earlier attempt has left may be of other code, and this one need not keep the same ones.
            folder.remove([name for name in folder.names() if name.endswith(".pt")])
            if job.base:
                run.start_from_base(_last_state(job.base))
        return run

    def _restore(self, run: Run) -> bool:
        """Continues from the checkpoint; False if there is none that can be used."""
        try:
            checkpoint = self._checkpoints.load(run.task.device)
            if checkpoint:
                run.restore(checkpoint)
                self._notes.append(f"{CONTINUES} {run.round}")
                return True
        except UnusableCheckpoint as error:
            self._notes.append(f"starts over: {error}")
        return False


def _checkpoint_key(job: Job, run: Run, digest: str) -> dict[str, Any]:
    """What a checkpoint must agree in with the run that continues from it; the digest is that of the images."""
    return {
        "run": job.id,
        "images": digest,
        "engine": run.task.engine,
        **{f"code of {part}": version for part, version in code_version(job.config).items()},
        "torch": str(torch.__version__),
        "device": device_name(run.task.device),
        **uses_tf32(run.task.device),
        **({"weights": run.weights} if run.weights else {}),
        "threads": torch.get_num_threads(),
    }


def _last_state(base: str) -> dict[str, Any]:
    """The last state of the run of a base; raises RuntimeError if that run has left none."""
    folder = Folder(base)
    if FINAL not in folder.names():
        raise RuntimeError(f"the run of its base ({base_of(base)}) has failed")
    return folder.load(FINAL, torch.device("cpu"))


def one_of_each(runs: Iterable[tuple[RunConfig, Inputs]]) -> list[tuple[RunConfig, Inputs]]:
    """Of runs that need the same images and the same code, one: config of a run, and what the driver has of it."""
    different: dict[tuple, tuple[RunConfig, Inputs]] = {}
    for config, inputs in runs:
        images = (config.dataset, config.transform, str(config.image_size), inputs.images)
        different[*images, *sorted(inputs.code.items())] = (config, inputs)
    return [*different.values()]


def inspect_machine(runs: Iterable[tuple[RunConfig, Inputs]], data_dir: Path | None, device: str) -> str:
    """Why the machine of this process cannot train runs of a driver; "" if it can.

    Args:
        runs: config of a run, and what the driver has of it.
        data_dir, device: as in `Worker`.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return NO_GPU
    try:
        for config, inputs in runs:
            own_data.remember(inputs.own_data, config.dataset)
            dataset = resized.of_config(config, data_dir)
            _require_same(inputs, Inputs(code_version(config), dataset.digest), config.dataset)
    except (UnfitMachine, DataError) as error:
        return str(error)
    return ""


def _require_same(driver: Inputs, machine: Inputs, dataset: str) -> None:
    """Raises UnfitMachine if this machine has other code or other images than the driver."""
    differing = [_with_file(part) for part, version in driver.code.items() if machine.code.get(part) != version]
    if differing:
        raise UnfitMachine(
            f"its code of this run is not that of the command ({', '.join(differing)}): it was changed while the command "
            "ran, or another checkout is found first"
        )
    if driver.images and driver.images != machine.images:
        raise UnfitMachine(
            f"its images of {dataset} are not those of the command ({machine.images}, not {driver.images})"
        )


def _with_file(part: str) -> str:
    """A part of the code of a run, with its file if it is one: "algorithm fedmine in mylab/algorithms/fedmine.py"."""
    kind, _, name = part.partition(" ")
    entry = Registry(kind).get(name) if kind in KINDS else None
    return f"{part} in {entry.place}" if entry else part


def require_shared(marker: str) -> None:
    """Raises StoreError if this machine does not see a file of the driver: what it writes would be lost."""
    folder, _, name = marker.rpartition("/")
    if marker and name not in Folder(folder).names():
        raise StoreError(
            f"The machine {platform.node()} does not see {marker}, which the command has written: results and checkpoints need "
            "a place that all machines of the cluster see; name it by --storage."
        )


def storage_trouble(error: BaseException | None, folder: Path | str) -> str:
    """What to do if an error, or what led to it, says that files of a folder cannot be used any more, or that a disk cannot; ""
    for other errors."""
    while error:
        if isinstance(error, StoreError):
            return str(error)
        if isinstance(error, OSError) and (
            error.errno in _STORAGE_ERRORS or (error.errno in _FORBIDDEN and _lies_in(folder, error.filename))
        ):
            return f"Cannot use {error.filename or folder}: {os.strerror(error.errno)}. {GO_ON}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def _lies_in(folder: Path | str, name: object) -> bool:
    """Whether an error is of a file in a folder, or does not say of which file it is."""
    return not isinstance(name, str) or Path(os.path.abspath(name)).is_relative_to(os.path.abspath(folder))


def failure(error: Exception, config: RunConfig | None = None) -> dict[str, Any]:
    """The content of a record of a run that raised an error, with the whole traceback; its reason names the line
    of the method, the model or a callback in which it was raised.

    Args:
        config: of the run; None if it has none yet.
    """
    text = "".join(traceback.format_exception(error))
    first_line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    reason = str(error) if isinstance(error, DamagedState | HookError) else first_line
    if config:
        named = [algorithms.REGISTRY.get(name) for name in methods_in(config.algorithm)]
        entries = [entry for entry in (*named, models.REGISTRY.get(config.model)) if entry]
        looking = [callbacks.REGISTRY.get(name) for name in (*(spec["name"] for spec in config.callbacks), TRACE)]
        raised = (entry.failure(error) for entry in looking if entry and entry.has_raised(error))
        reason = next(raised, "") or failure_in_words(entries, error) or reason
    return {"status": "failed", "reason": reason, "traceback": text}
