"""A worker: plays one run after another, from its checkpoint where there is one, and says how it goes. Needs no scheduler."""

import errno
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import images
from bench.checkpoint import Checkpoints, UnusableCheckpoint
from bench.config import RunConfig
from bench.folders import Folder, Unwritable
from bench.run import Keep, Run
from bench.store import StoreError

REPORT_SECONDS = 1.0  # a worker reports at most this often; shorter rounds are sent together
_GO_ON = "What was finished is kept; mend this, and the same command goes on."
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Job:
    """One run to play.

    Attributes:
        id: its run id.
        folder: where its worker writes checkpoints and states: an absolute path, or a URI that fsspec knows.
        keep: which states.
        checkpoint_seconds: least time between checkpoints of the unfinished run; 0 for one after every round.
        block: clients that train at once on the vectorised engine, at most; None for no bound.
    """

    id: str
    config: RunConfig
    folder: str
    keep: Keep
    checkpoint_seconds: float = 60.0
    block: int | None = None


class Worker:
    """Plays the job that it was given last, about a second per step."""

    def __init__(self, data_dir: Path | None, device: str):
        self._data_dir, self._device = data_dir, device
        if device == "cuda":
            make_deterministic()

    def take(self, job: Job) -> None:
        """Another job, instead of the one before."""
        self._job, self._run = job, None
        self._block, self._reported, self._note = job.block, 0, ""

    def step(self) -> dict[str, Any]:
        """Plays on for a while.

        Returns:
            "rows" of new rounds, and "first", the number of rounds before them (those reported from there on are replaced);
            "ended": the record's content if the run has ended, else None; "note": what a person should know, or "";
            "block": the bound on clients at once that was found to be needed, or None; "crowded": whether the run does not
            fit beside its neighbours on the GPU; "broken": why nothing can be written any more, or "".
        """
        until = time.monotonic() + REPORT_SECONDS
        said = {"ended": None, "block": None, "crowded": False, "broken": ""}
        try:
            run = self._run = self._run or self._begin()
            while not run.finished:
                run.step()
                if self._checkpoints.due and not run.finished:
                    self._checkpoints.save(run.checkpoint())
                if time.monotonic() >= until:
                    break
            said["ended"] = run.result() if run.finished else None
        except torch.OutOfMemoryError as error:
            said |= self._with_less_memory(error)
        except Exception as error:
            broken = storage_trouble(error, self._job.folder)
            said |= {"broken": broken} if broken else {"ended": failure(error)}
        rows, first = self._run.rows[self._reported :] if self._run else [], self._reported
        note, self._note, self._reported = self._note, "", first + len(rows)
        if said["ended"] or said["broken"] or said["crowded"]:
            self._run = None
        return {"first": first, "rows": rows, "note": note, **said}

    def _begin(self) -> Run:
        """The run, from its checkpoint if there is one; rounds are reported from the first one on."""
        job, self._reported = self._job, 0
        dataset = images.load(job.config.dataset, job.config.transform, self._data_dir)
        folder = Folder(job.folder)
        run = Run(job.config, dataset, device=self._device, folder=folder, keep=job.keep, block=self._block)
        of = {"run": job.id, "engine": run.task.engine, "device": run.task.device.type}
        self._checkpoints = Checkpoints(folder / "checkpoint", of, job.checkpoint_seconds)
        try:
            checkpoint = self._checkpoints.load(run.task.device)
            if checkpoint:
                run.restore(checkpoint)
                self._note = self._note or f"goes on after round {run.round}"
        except UnusableCheckpoint as error:
            self._note = f"starts over: {error}"
            self._checkpoints.remove()
        return run

    def _with_less_memory(self, error: Exception) -> dict[str, Any]:
        """What to do after a GPU has run out of memory: train half as many clients at once, from the last checkpoint on, or
        have fewer neighbours."""
        task = self._run.task if self._run else None
        self._run = None  # what it holds must go before the next attempt
        torch.cuda.empty_cache()
        if task is None or task.engine != "vectorised":
            return {"crowded": True}
        most = min(self._block or task.population, len(task.sample_cohort(0).ids))
        if most == 1:
            return {"crowded": True}
        self._block = most // 2
        self._note = f"out of GPU memory, goes on with {self._block} clients at once"
        return {"block": self._block}


def make_deterministic() -> None:
    """Asks torch for kernels that give the same numbers in every run; before this process touches a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def storage_trouble(error: BaseException | None, folder: Path | str) -> str:
    """What to do if an error, or what led to it, says that nothing can be written any more; "" for other errors."""
    while error:
        if isinstance(error, StoreError):
            return str(error)
        if isinstance(error, Unwritable):
            return f"{error} {_GO_ON}"
        if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
            return f"Cannot write to {folder}: {os.strerror(error.errno)}. {_GO_ON}"
        error = error.__cause__ or error.__context__
    return ""


def failure(error: Exception) -> dict[str, Any]:
    """The content of a record of a run that raised an error."""
    text = "".join(traceback.format_exception(error))
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return {"status": "failed", "reason": reason, "traceback": text}
