"""Plays runs with Ray Tune: one trial is one run, workers are reused, results come back to the driver and its store.

Tune is a disposable scheduler here. What a run is, what was finished and what it reached stand in the store only.
"""

import errno
import logging
import os
import re
import shutil
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import images
from bench.checkpoint import Checkpoints, UnusableCheckpoint
from bench.config import RunConfig
from bench.folders import Folder, Unwritable
from bench.resources import Resources
from bench.run import Keep, Run
from bench.store import Store, StoreError

_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
}
for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402  (reads the variables above)
import torch  # noqa: E402
from ray import tune  # noqa: E402

ROOT = Path(__file__).parents[1]
PACKAGES = ("algorithms", "bench", "datasets", "reports")
REPORT_SECONDS = 1.0  # a trial reports at most this often; shorter rounds are sent together
RETRIES = 2  # of a run whose worker died; an error of the run itself would only come again
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
    """

    id: str
    config: RunConfig
    folder: str
    keep: Keep
    checkpoint_seconds: float = 60.0


class Watcher(Protocol):
    """Who is told how it goes."""

    def started(self, job: Job) -> None: ...
    def noted(self, job: Job, note: str) -> None: ...
    def advanced(self, job: Job, rounds: int) -> None: ...
    def ended(self, job: Job, record: dict) -> None: ...


class Trial(tune.Trainable):
    """A worker: plays one run after another, about a second per step."""

    def setup(self, config, jobs, data_dir, resources):
        torch.set_num_threads(resources.threads)
        self._jobs, self._data_dir, self._device = jobs, data_dir, resources.device
        self.reset_config(config)

    def reset_config(self, new_config):
        self._job, self._run = self._jobs[new_config["job"]], None
        return True

    def step(self):
        until, ended, broken = time.monotonic() + REPORT_SECONDS, None, ""
        try:
            run = self._run = self._run or self._begin()
            while not run.finished and time.monotonic() < until:
                run.step()
                if self._checkpoints.due and not run.finished:
                    self._checkpoints.save(run.checkpoint())
            ended = run.result() if run.finished else None
        except Exception as error:
            broken = storage_trouble(error, self._job.folder)
            ended = None if broken else _failure(error)
        first, rows = self._reported, self._run.rows[self._reported :] if self._run else []
        self._reported += len(rows)
        if ended or broken:
            self._run = None
        report = {"first": first, "rows": rows, "ended": ended, "note": self._note, "broken": broken}
        self._note = ""
        return report | {"done": bool(ended or broken)}

    def _begin(self):
        """The run, from its checkpoint if there is one; rounds are reported from the first one on."""
        job, self._reported, self._run, self._note = self._job, 0, None, ""
        dataset = images.load(job.config.dataset, job.config.transform, self._data_dir)
        folder = Folder(job.folder)
        run = Run(job.config, dataset, device=self._device, folder=folder, keep=job.keep)
        of = {"run": job.id, "engine": run.task.engine, "device": run.task.device.type}
        self._checkpoints = Checkpoints(folder / "checkpoint", of, job.checkpoint_seconds)
        try:
            checkpoint = self._checkpoints.load(run.task.device)
            if checkpoint:
                run.restore(checkpoint)
                self._note = f"goes on after round {run.round}"
        except UnusableCheckpoint as error:
            self._note = f"starts over: {error}"
            self._checkpoints.remove()
        return run


class _Recorder(tune.Callback):
    """Writes what the workers report into the store."""

    def __init__(self, jobs: list[Job], store: Store, watcher: Watcher, facts: dict):
        self._jobs, self._store, self._watcher, self._facts = jobs, store, watcher, facts
        self._rows: dict[str, list[dict]] = {}
        self._started: dict[str, str] = {}

    def __getstate__(self):
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

    def on_trial_start(self, iteration, trials, trial, **info):
        job = self._job(trial)
        self._rows[job.id], self._started[job.id] = [], _now()
        self._store.start(job.id, job.config.canonical())
        self._watcher.started(job)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        job, rows = self._job(trial), result["rows"]
        if result["broken"]:
            raise StoreError(result["broken"])
        if result["note"]:
            self._watcher.noted(job, result["note"])
        known = self._rows[job.id]
        known[result["first"] :] = rows
        if result["ended"]:
            self._end(job, result["ended"])
        elif rows:
            self._store.append(job.id, rows)
            self._watcher.advanced(job, len(known))

    def on_trial_error(self, iteration, trials, trial, **info):
        job = self._job(trial)
        if job.id not in self._started:  # its worker died before it could begin
            self.on_trial_start(iteration, trials, trial)
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        self._end(job, {"reason": reason_of(text), "traceback": text})

    def _job(self, trial) -> Job:
        return self._jobs[trial.config["job"]]

    def _end(self, job: Job, result: dict) -> None:
        rows = self._rows.pop(job.id, [])
        record = {
            "id": job.id,
            "status": "failed",
            "reason": "",
            "summary": {},
            **result,
            "rounds": len(rows),
        }
        record["versions"] = record.get("versions", {}) | {"ray": ray.__version__}
        record |= self._facts | {"started": self._started.get(job.id), "finished": _now()}
        own = self._store.playing_folder(job.id)
        elsewhere = None if job.folder == str(own) else Folder(job.folder)
        if elsewhere:
            elsewhere.copy_to(own)
        self._store.finish(job.id, rows, record)
        if elsewhere and record["status"] != "failed":
            elsewhere.remove()
        self._watcher.ended(job, record)


def play(
    jobs: list[Job],
    store: Store,
    watcher: Watcher,
    *,
    data_dir: Path | None,
    resources: Resources,
    max_concurrent: int = 0,
    address: str | None = None,
    facts: dict | None = None,
) -> None:
    """Plays jobs in their order, as many at once as the resources allow; every one ends with a record.

    Args:
        data_dir: where workers find the datasets.
        max_concurrent: bound on the trials at once, 0 for none.
        address: a running Ray cluster; None starts one on this machine.
        facts: goes into every record (commit).

    Raises:
        KeyboardInterrupt: on Ctrl-C, after the workers have been stopped.
        StoreError: if results or checkpoints cannot be written any more.
    """
    scratch = store.scratch()
    earlier_handler = signal.getsignal(signal.SIGTERM)
    try:
        _start_ray(address, resources)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill stops as cleanly as Ctrl-C
        trainable = tune.with_parameters(Trial, jobs=jobs, data_dir=data_dir, resources=resources)
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            param_space={"job": tune.grid_search(list(range(len(jobs))))},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=max_concurrent or None),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(scratch),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[_Recorder(jobs, store, watcher, facts or {})],
            ),
        )
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a failed trial is in its record
        tuner.fit()
    except tune.TuneError as error:  # what a callback raises comes wrapped
        trouble = storage_trouble(error, store.folder)
        if trouble:
            raise StoreError(trouble) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, earlier_handler or signal.SIG_DFL)
        ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def _start_ray(address: str | None, resources: Resources) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    threads = {"OMP_NUM_THREADS": str(resources.threads)}  # whatever library starts them
    if address:
        # The code goes to the machines of the cluster; images and torch must be there.
        code = {"py_modules": [str(ROOT / name) for name in PACKAGES], "excludes": ["__pycache__", "examples"]}
        try:
            ray.init(address=address, runtime_env={**code, "env_vars": threads}, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"No Ray cluster answers at --address {address} ({why}).") from error
        return
    os.environ |= threads | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}  # workers inherit them
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # everything stays on the loopback device
    memory = 256 * 2**20  # datasets are memory-mapped files, so next to nothing goes through Ray's object store
    ray.init(address="local", include_dashboard=False, object_store_memory=memory, **quiet)


def python_path(inherited: str | None) -> str:
    """Where workers find this code, before what they inherit; an empty part would be their working directory."""
    return os.pathsep.join(filter(None, [str(ROOT), inherited]))


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


def reason_of(text: str) -> str:
    """The error at the end of a traceback, in one line; without any, the process was killed from outside."""
    errors = re.findall(r"^(?:\w+\.)*(\w+: .+)$", text, re.MULTILINE)
    return errors[-1] if errors else "the worker process died"


def _failure(error: Exception) -> dict:
    text = traceback.format_exc()
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return {"status": "failed", "reason": reason, "traceback": text}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
