"""A worker: plays one run after another, from its checkpoint where there is one, and says how it goes. Needs no scheduler."""

import errno
import os
import platform
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from bench.errors import StoreError
from bench.execution.code_version import code_version
from bench.execution.job import BASE_PREFIX, Job
from bench.profiling import device_name
from bench.results.artifacts import GO_ON, DamagedState, Folder
from bench.results.checkpoints import Checkpoints, UnusableCheckpoint
from bench.simulation.retention import FINAL
from bench.simulation.run import Run
from datasets import resized

REPORT_SECONDS = 1.0  # a worker reports at most this often; shorter rounds are sent together
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)


class Worker:
    """Plays the job that it was given last, about a second per step.

    Attributes:
        round: of the job at which it is.
    """

    def __init__(self, data_dir: Path | None, device: str):
        self._data_dir, self._device = data_dir, device
        if device == "cuda":
            make_deterministic()

    @property
    def round(self) -> int:
        return self._run.round if self._run else 0

    def take(self, job: Job) -> None:
        """Another job, instead of the one before."""
        self._job, self._run = job, None
        self._reported, self._notes = 0, []

    def step(self, until_round: int | None = None) -> dict[str, Any]:
        """Plays on for a while, but not beyond a round.

        Returns:
            "rows" of new rounds, and "first", the number of rounds before them (those reported from there on are replaced);
            "ended": the record's content if the run has ended, else None; "note": what a person should know, or "";
            "block": the bound on clients at once that was found to be needed, or None; "out_of_memory": whether the run does
            not fit beside its neighbours on the GPU; "broken": why nothing can be written any more, or "".

        Raises:
            RuntimeError: of CUDA; only another process gets a working GPU again.
        """
        until = time.monotonic() + REPORT_SECONDS
        report = {"ended": None, "block": None, "out_of_memory": False, "broken": ""}
        try:
            run = self._run = self._run or self._begin()
            while not run.finished and (until_round is None or run.round < until_round):
                run.step()
                if self._checkpoints.due and not run.finished:
                    self._checkpoints.save(run.checkpoint())
                if time.monotonic() >= until:
                    break
            report["ended"] = run.result() if run.finished else None
        except Exception as error:
            short = is_out_of_memory(error)
            if not short and "CUDA error" in str(error):
                raise
            broken = "" if short else storage_trouble(error, self._job.folder)
            if not short:
                report |= {"broken": broken} if broken else {"ended": failure(error)}
        else:
            short = False
        if short:  # here, because until now the error has held what did not fit
            report |= self._with_less_memory()
        rows, first = self._run.rows[self._reported :] if self._run else [], self._reported
        note, self._notes, self._reported = "; ".join(self._notes), [], first + len(rows)
        if report["ended"] or report["broken"] or report["out_of_memory"]:
            self._run = None
        return {"first": first, "rows": rows, "note": note, **report}

    def _begin(self) -> Run:
        """The run, from its checkpoint if there is one; rounds are reported from the first one on."""
        job, self._reported = self._job, 0
        require_shared(job.marker)
        config, folder = job.config, Folder(job.folder)
        dataset = resized.load(config.dataset, config.transform, self._data_dir, config.image_size)
        how = {"engine": job.engine, "retention": job.retention, "block": job.block}
        run = Run(config, dataset, device=self._device, folder=folder, **how)
        if job.base:
            run.take_over(_last_state(job.base))
        of = {"run": job.id, "images": dataset.digest, "engine": run.task.engine, "code": code_version(config)}
        of |= {
            "torch": str(torch.__version__),
            "device": device_name(run.task.device),
            "threads": torch.get_num_threads(),
        }
        self._checkpoints = Checkpoints(folder / "checkpoint", of, job.checkpoint_seconds)
        try:
            checkpoint = self._checkpoints.load(run.task.device)
            if checkpoint:
                run.restore(checkpoint)
                self._notes.append(f"goes on after round {run.round}")
        except UnusableCheckpoint as error:
            self._notes.append(f"starts over: {error}")
        return run

    def _with_less_memory(self) -> dict[str, Any]:
        """What to do after a GPU has run out of memory: train half as many clients at once, or have fewer neighbours."""
        run = self._run
        block = run.halve_block() if run else None
        if block is None:
            self._run = run = None
        torch.cuda.empty_cache()
        if block is None:
            return {"out_of_memory": True}
        self._notes.append(f"out of GPU memory, goes on with {block} clients at once")
        return {"block": block}


def _last_state(base: str) -> dict[str, Any]:
    """With which the run of a base ended."""
    place = Folder(base)
    if FINAL not in place.names():
        raise RuntimeError(f"the run of its base ({base.rpartition('/')[2].removeprefix(BASE_PREFIX)}) has failed")
    return place.load(FINAL, torch.device("cpu"))


def require_shared(marker: str) -> None:
    """Raises StoreError if this machine does not see a file of the driver: what it writes would be lost."""
    place, _, name = marker.rpartition("/")
    if marker and name not in Folder(place).names():
        raise StoreError(
            f"The machine {platform.node()} does not see {marker}, which the driver has written: results and checkpoints need "
            "a place that all machines of the cluster see; name it by --storage."
        )


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU, or a library on it, has no memory left."""
    phrases = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in phrases)
    )


def make_deterministic() -> None:
    """Asks torch for kernels that give the same numbers in every run; before this process touches a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def storage_trouble(error: BaseException | None, folder: Path | str) -> str:
    """What to do if an error, or what led to it, says that files cannot be used any more; "" for other errors."""
    while error:
        if isinstance(error, StoreError):
            return str(error)
        if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
            return f"Cannot use {error.filename or folder}: {os.strerror(error.errno)}. {GO_ON}"
        error = error.__cause__ or error.__context__
    return ""


def failure(error: Exception) -> dict[str, Any]:
    """The content of a record of a run that raised an error."""
    text = "".join(traceback.format_exception(error))
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, DamagedState):
        reason = str(error)
    return {"status": "failed", "reason": reason, "traceback": text}
