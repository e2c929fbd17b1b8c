"""Plays runs with Ray Tune: one trial is one run, workers are reused, results come back to the driver and its store.

Tune is a disposable scheduler here. What a run is, what was finished and what it reached stand in the store only.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from unittest import mock

import torch

from bench.errors import StoreError
from bench.execution import gpu_sharing, ray_environment
from bench.execution.gpu_sharing import GpuAllocator
from bench.execution.job import BASE_PREFIX, Job
from bench.execution.recorder import RunRecorder
from bench.execution.resources import Machines, Resources
from bench.execution.tracking import Tracker
from bench.execution.worker import Worker, storage_trouble
from bench.results.artifacts import Folder
from bench.results.store import RAY_LOG, Store
from bench.simulation.retention import FINAL

import ray  # isort: skip
from ray import tune  # isort: skip

ROOT = Path(__file__).parents[2]
PACKAGES = ("algorithms", "bench", "datasets", "reports", "search_spaces")
_DIED = "the worker process died"
RETRIES = 2  # of a run whose worker died; an error of the run itself would only come again


class RunCallback(Protocol):
    """Is called as the runs of `run_jobs` go on: with a line for people, and with what each job has done."""

    def on_message(self, text: str) -> None: ...
    def on_start(self, job: Job) -> None: ...
    def on_postponed(self, job: Job) -> None: ...
    def on_note(self, job: Job, note: str) -> None: ...
    def on_progress(self, job: Job, rounds: int) -> None: ...
    def on_end(self, job: Job, record: dict) -> None: ...


class Trial(tune.Trainable):
    """A worker in a process of Ray's."""

    def setup(self, config, jobs, data_dir, resources):
        torch.set_num_threads(resources.threads)
        self._jobs, self._worker = jobs, Worker(data_dir, resources.device)
        self.reset_config(config)

    def reset_config(self, new_config):
        self._worker.take(self._jobs[new_config["job"]])
        return True

    def step(self):
        report = self._worker.step()
        return report | {"done": bool(report["ended"] or report["out_of_memory"] or report["broken"])}


class _Recorder(tune.Callback):
    """Writes what the workers report into the store."""

    def __init__(
        self, store: Store, callback: RunCallback, facts: dict, allocator: GpuAllocator, tracker: Tracker | None = None
    ):
        self._store, self._callback, self._allocator, self._tracker = store, callback, allocator, tracker
        self._runs = RunRecorder(store, facts)
        self._postponed: list[Job] = []
        self._deaths: Counter[str] = Counter()

    def begin(self, jobs: list[Job], share: Resources) -> None:
        """Other jobs from now on; trials name them by their position."""
        self._jobs, self._share = jobs, share

    def take_postponed(self) -> list[Job]:
        """The jobs that are to be played once more, and forgets them."""
        postponed, self._postponed = self._postponed, []
        return postponed

    def __getstate__(self):
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

    def on_trial_start(self, iteration, trials, trial, **info):
        job = self._job(trial)
        self._runs.start(job.id, job.config.canonical())
        self._callback.on_start(job)
        if self._tracker:
            self._tracker.started(job.id, job.config.canonical())

    def on_trial_result(self, iteration, trials, trial, result, **info):
        job, rows = self._job(trial), result["rows"]
        if result["broken"]:
            raise StoreError(result["broken"])
        if result["note"]:
            self._callback.on_note(job, result["note"])
        if result["block"]:
            self._allocator.reduce_block(job, result["block"])
        self._runs.take(job.id, result["first"], rows)
        if self._tracker:
            self._tracker.reported(job.id, rows)
        if result["ended"]:
            self._end(job, result["ended"])
        elif result["out_of_memory"]:
            self._make_room(job)
        elif rows:
            self._runs.write(job.id, rows)
            self._callback.on_progress(job, len(self._runs.rows[job.id]))

    def on_trial_error(self, iteration, trials, trial, **info):
        job = self._job(trial)
        if not self._runs.has_started(job.id):  # its worker died before it could begin
            self.on_trial_start(iteration, trials, trial)
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        self._deaths[job.id] += max(1, text.count("Failure # "))
        if self._deaths[job.id] <= RETRIES:  # Tune gives up at once where a worker dies while it takes over a job
            self._postpone(job)
        else:
            self._end(job, given_up(text, self._deaths[job.id], self._store, f"run {job.id}"))

    def _job(self, trial) -> Job:
        return self._jobs[trial.config["job"]]

    def _make_room(self, job: Job) -> None:
        if self._allocator.out_of_memory(job, self._share):
            self._postpone(job)
        else:
            self._end(job, {"reason": "out of memory, with a whole GPU for itself"})

    def _postpone(self, job: Job) -> None:
        self._postponed.append(job)
        self._callback.on_postponed(job)

    def _end(self, job: Job, result: dict) -> None:
        if job.base:
            result = result | {"base_summary": (self._store.record(_run_of(job.base)) or {}).get("summary")}
        record = self._runs.end(job.id, result, job.folder)
        self._callback.on_end(job, record)
        if self._tracker:
            self._tracker.ended(job.id, failed=record["status"] == "failed")


def run_jobs(
    jobs: list[Job],
    store: Store,
    callback: RunCallback,
    *,
    data_dir: Path | None,
    machines: Machines,
    storage: str | None = None,
    facts: dict | None = None,
    tracker: Tracker | None = None,
) -> None:
    """Runs jobs in their order, as many at once as the resources allow, those that need the states of others after all
    others; every one ends with a record.

    Args:
        data_dir: where workers find the datasets.
        storage: where workers of several machines write; only to be checked, jobs name their folders themselves.
        facts: goes into every record (commit).
        tracker: is told of every round.

    Raises:
        KeyboardInterrupt: on Ctrl-C, after the workers have been stopped.
        ValueError: if the cluster cannot run them.
        StoreError: if results or checkpoints cannot be written any more.
    """
    resources, address = machines.resources, machines.address
    with session(store, resources, address, storage, callback.on_message), contextlib.ExitStack() as at_end:
        if tracker:
            at_end.callback(tracker.finish)  # it may wait for a network, and be interrupted at that
        if address or resources.auto:
            callback.on_message(_found(address))
        allocator = _allocator(store, resources, callback, data_dir)
        recorder = _Recorder(store, callback, facts or {}, allocator, tracker)
        for waiting in ([job for job in jobs if not job.base], [job for job in jobs if job.base]):
            with shared_bases([job.base for job in waiting], store):
                while waiting:
                    groups: dict[Resources, list[Job]] = {}
                    for job in waiting:
                        groups.setdefault(allocator.of(job), []).append(replace(job, block=allocator.block_of(job)))
                    for share, members in groups.items():
                        recorder.begin(members, share)
                        _fit(members, share, recorder, store, data_dir, machines.max_concurrent)
                    waiting = recorder.take_postponed()


@contextlib.contextmanager
def session(
    store: Store, resources: Resources, address: str | None, storage: str | None, on_message: Callable[[str], None]
) -> Iterator[None]:
    """Ray is there meanwhile, unless it is there already; arguments and errors as in `run_jobs`.

    Args:
        on_message: is told if the cluster lets everybody in.
    """
    if ray.is_initialized():
        yield
        return
    earlier_handler = signal.getsignal(signal.SIGTERM)
    with _logged(store):
        try:
            _start_ray(address, resources)
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill stops as cleanly as Ctrl-C
            _check_machines(resources, address, storage)
            if address:
                _check_authentication(on_message)
            yield
        except (tune.TuneError, OSError) as error:  # what a callback raises comes wrapped, most of the time
            trouble = storage_trouble(error, store.folder)
            if trouble:
                raise StoreError(trouble) from error
            raise
        finally:
            signal.signal(signal.SIGTERM, earlier_handler or signal.SIG_DFL)
            ray.shutdown()
            shutil.rmtree(store.scratch_folder, ignore_errors=True)


def run_config(store: Store, callbacks: list) -> tune.RunConfig:
    """Of a scheduler that keeps nothing for itself; a failed trial is in its record, so nothing is printed."""
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    return tune.RunConfig(
        name="trials",
        storage_path=str(store.scratch()),
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        failure_config=tune.FailureConfig(max_failures=RETRIES),
        callbacks=callbacks,
    )


@contextlib.contextmanager
def shared_bases(places: Iterable[str], store: Store) -> Iterator[None]:
    """Finished runs whose states others need lie meanwhile where workers look for them: in the storage, if there is one."""
    runs = {place: _run_of(place) for place in places if place.rpartition("/")[2].startswith(BASE_PREFIX)}
    try:
        for place, run_id in runs.items():
            Folder(place).copy_from(store.run_folder(run_id), [FINAL])
        yield
    finally:
        for place in runs:
            Folder(place).remove()


def _run_of(place: str) -> str:
    """The run whose last state lies at a place."""
    return place.rpartition("/")[2].removeprefix(BASE_PREFIX)


def _fit(
    jobs: list[Job], share: Resources, recorder: _Recorder, store: Store, data_dir: Path | None, max_concurrent: int
) -> None:
    """Plays jobs that get the same share of a machine: only those can take turns on one worker."""
    trainable = tune.with_parameters(Trial, jobs=jobs, data_dir=data_dir, resources=share)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": share.cpus, "gpu": share.gpus}),
        param_space={"job": tune.grid_search(list(range(len(jobs))))},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=max_concurrent or None),
        run_config=run_config(store, [recorder]),
    )
    tuner.fit()


def _allocator(store: Store, resources: Resources, callback: RunCallback, data_dir: Path | None) -> GpuAllocator:
    """What jobs get of the machines that Ray has found."""
    found = ray.cluster_resources()
    gpus = found.get("GPU", 0)
    if resources.auto and not gpus:
        resources = Resources(resources.cpus)

    def profile(job: Job, block: int | None) -> gpu_sharing.Profile:
        measure = ray.remote(num_gpus=1, num_cpus=resources.cpus, max_calls=1)(gpu_sharing.measure)
        try:
            return ray.get(measure.remote(job.config, data_dir, block, job.engine))
        except ray.exceptions.RayError as error:
            raise gpu_sharing.Unprofiled(reason_of(str(error))) from error

    return GpuAllocator(
        store.folder / "shares.json",
        resources,
        hardware=", ".join(sorted(key for key in found if key.startswith("accelerator_type:"))),
        trials_by_cores=max(1, int(found.get("CPU", 1) / max(1, gpus) / resources.cpus)),
        profile=profile,
        on_message=callback.on_message,
    )


def _start_ray(address: str | None, resources: Resources) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    threads = {"OMP_NUM_THREADS": str(resources.threads)}  # whatever library starts them
    if address:
        # The code goes to the machines of the cluster; images and torch must be there.
        code = {"py_modules": [str(ROOT / name) for name in PACKAGES], "excludes": ["__pycache__"]}
        try:
            ray.init(address=address, runtime_env={**code, "env_vars": threads}, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.AuthenticationError) as error:
            if isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in str(error.__cause__):
                raise ValueError(
                    f"The Ray cluster at --address {address} asks for its token, which this machine does not give: set "
                    "RAY_AUTH_MODE=token, and have the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
                ) from error
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"No Ray cluster answers at --address {address} ({why}).") from error
        return
    os.environ |= threads | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}  # workers inherit them
    ray_environment.keep_strangers_out()
    memory = 256 * 2**20  # datasets are memory-mapped files, so next to nothing goes through Ray's object store
    try:
        ray.init(address="local", include_dashboard=False, object_store_memory=memory, **quiet)
    except Exception as error:  # Ray has no error of its own for it
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"Ray did not start ({why}); the machine may be too busy. Nothing is lost: try the same command again."
        ) from error


def _check_machines(resources: Resources, address: str | None, storage: str | None) -> None:
    """Raises ValueError if no machine has what a trial needs, which Ray would wait for without end, or if several machines
    have no place that all of them see."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    has_gpus = any(machine.get("GPU", 0) for machine in machines)
    needed = {"CPU": resources.cpus, "GPU": has_gpus if resources.auto else resources.gpus}
    if not any(all(machine.get(key, 0) >= amount for key, amount in needed.items()) for machine in machines):
        raise ValueError(
            f"A trial needs {needed['CPU']:g} CPUs and {needed['GPU']:g} GPUs of one machine, but none of the {len(machines)} "
            "machines of the cluster has them; ask for less."
        )
    if address and len(machines) > 1 and storage is None:
        raise ValueError(
            f"The cluster has {len(machines)} machines: name by --storage where all of them can write, a shared folder or "
            "an object store."
        )


def _check_authentication(on_message: Callable[[str], None]) -> None:
    """Names a cluster that anybody may join; its first machine knows whether it asks for a token.

    Raises:
        ValueError: if it does not, but this driver does: then its workers do not get through to the driver.
    """
    cluster = f"The Ray cluster at {ray.get_runtime_context().gcs_address} has no authentication"
    if not ray_environment.asks_for_token():  # and has been let in
        on_message(
            f"{cluster}: whoever reaches it over the network can run programs on its machines. Start it with "
            "RAY_AUTH_MODE=token, as docs/cluster.md says."
        )
        return
    on_head = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(ray_environment.asks_for_token)
    if not ray.get(on_head.remote()):
        raise ValueError(
            f"{cluster}, but this command has RAY_AUTH_MODE=token, so its workers could not report to it. Start the cluster "
            "with RAY_AUTH_MODE=token as well, as docs/cluster.md says, or set RAY_AUTH_MODE=disabled here."
        )


@contextlib.contextmanager
def _logged(store: Store) -> Iterator[None]:
    """What Ray says of processes that die goes to the results' log meanwhile. Ray would print a paragraph for each, and has no
    setting for it."""

    def log(data, **how):
        store.log("\n".join(data["lines"]))

    with mock.patch.object(ray._private.worker, "print_to_stdstream", log, create=True):
        yield


def _found(address: str | None) -> str:
    """What trials can use: a cluster may be another one than was meant, and a GPU may not be there."""
    have, free = ray.cluster_resources(), ray.available_resources()
    cpus, gpus = (f"{free.get(key, 0):g} of {have.get(key, 0):g} {key}s free" for key in ("CPU", "GPU"))
    count = len(ray.nodes())
    cluster = f"The Ray cluster at {ray.get_runtime_context().gcs_address}: {count} machine{'s' * (count > 1)}"
    return f"{cluster if address else 'This machine'}, {cpus}, {gpus}."


def python_path(inherited: str | None) -> str:
    """Where workers find this code, before what they inherit; an empty part would be their working directory."""
    return os.pathsep.join(filter(None, [str(ROOT), inherited]))


def given_up(text: str, times: int, store: Store, who: str) -> dict[str, str]:
    """The content of the record of a run that was given up, with the traceback of its error. If it had none, and its worker
    was killed, what Ray has to say goes to the results' log.

    Args:
        text: what Ray wrote of it.
        times: how often its worker died.
        who: what the text is about, for the log.
    """
    reason = reason_of(text)
    if reason != _DIED:
        return {"reason": reason, "traceback": text}
    store.log(f"{who}\n{text}")
    often = f"{times} time{'s' * (times > 1)}"
    return {"reason": f"{_DIED} {often} (killed, or out of memory); see {RAY_LOG} in the results directory"}


def reason_of(text: str) -> str:
    """The error at the end of a traceback, in one line; without any, the process was killed from outside."""
    has_traceback = re.search(r'^ +File "', text, re.MULTILINE)
    errors = re.findall(r"^(?:\w+\.)*(\w+: .+)$", text, re.MULTILINE) if has_traceback else []
    return errors[-1] if errors else _DIED
