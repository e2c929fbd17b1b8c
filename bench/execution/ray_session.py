"""A session of Ray: started or joined, checked, and ended, with what Ray says in the log of the results."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from bench.errors import StoreError, terminate
from bench.execution import cluster, ray_environment, ray_folder
from bench.execution.fleet import Fleet
from bench.execution.gpus import sees_gpu
from bench.execution.local_watch import LocalWatch
from bench.execution.recorder import Session, TrialRecorder
from bench.execution.resources import Resources, num_cores
from bench.execution.run_recorder import RETRIES
from bench.execution.trainable import WorkerTrainable
from bench.execution.worker import storage_trouble
from bench.execution.workspace import Workspace
from bench.results.store import Store

import ray  # isort: skip
from ray import tune  # isort: skip
from ray._private import node  # isort: skip
from ray.job_config import JobConfig  # isort: skip

_STARTS = 2  # Ray gives its own processes 30 seconds to start, which is little on a busy machine
_OBJECT_STORE_BYTES = 256 * 2**20  # enough: datasets are memory-mapped files, which do not go through it
_SILENT: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
# Processes of Ray's that start Python each and that no local session uses: the server of a dashboard, which starts even without
# one, an autoscaler, and what sends logs to the terminal.
_UNUSED = ("start_api_server", "start_monitor", "start_log_monitor")
Requests = Callable[[dict[str, Any]], tune.PlacementGroupFactory]


_current: list[Session] = []  # at most one: Ray has one session in a process


@contextlib.contextmanager
def session(workspace: Workspace, on_message: Callable[[str], None]) -> Iterator[Session]:
    """A session of Ray within the context; one that is there already is used, and left as it is.

    Args:
        on_message: gets lines on what is there, and on what the cluster lacks.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the workers have been stopped.
        ValueError: if Ray does not start, or the cluster cannot run the trials.
        StoreError: if results or checkpoints cannot be written any more.
    """
    store, machines = workspace.store, workspace.machines
    address, resources = machines.address, machines.resources
    if ray.is_initialized():
        yield _current[-1] if _current else Session(Fleet(address, on_message))
        return
    earlier_handler = signal.getsignal(signal.SIGTERM)
    own_folder = contextlib.nullcontext() if address else ray_folder.private()
    with _logged(store), _heard(), own_folder as folder, contextlib.ExitStack() as at_end:
        try:
            signal.signal(signal.SIGTERM, terminate)  # stops as cleanly as Ctrl-C
            watch = None
            if address:
                with store.open_log() as log:
                    cluster.join(address, resources.threads, log, on_message, machines.wait_seconds)
                watch = at_end.enter_context(cluster.Watch(on_message, store.remove_mark))
            elif folder is not None:
                _start_local(resources.threads, folder)
                at_end.enter_context(LocalWatch(store.remove_mark))
            fleet = Fleet(address, on_message, machines.wait_seconds)
            fleet.wait_for(resources, workspace.storage)
            if address:
                _check_authentication(on_message)
            _describe(fleet, resources, on_message)
            own = Session(fleet, watch)
            _current.append(own)
            at_end.callback(_current.remove, own)
            yield own
        except KeyboardInterrupt:
            # Where a thread of Ray's own has heard SIGTERM, its handler in C++ has set an alarm that aborts the process after
            # three seconds; stopping may take longer.
            signal.alarm(0)
            raise
        except (tune.TuneError, OSError) as error:  # Ray wraps most errors of a callback
            if trouble := storage_trouble(error, store.folder):
                raise StoreError(trouble) from error
            raise
        finally:
            signal.signal(signal.SIGTERM, earlier_handler or signal.SIG_DFL)
            at_end.close()
            ray.shutdown()


def fit(
    trainable: type[WorkerTrainable],
    resources: Resources,
    recorder: TrialRecorder,
    tune_config: tune.TuneConfig,
    param_space: dict[str, Any] | None = None,
    requests: Requests | None = None,
    **parameters: Any,
) -> None:
    """Runs the trials of one `Tuner`, which keeps nothing for itself: the recorder writes everything into its store. It ends
    early if the recorder asks for that.

    Args:
        resources: of each trial: only trials with the same resources can take turns in one process.
        requests: what Ray is asked for to place a trial, by its config; None for what `resources` says.
        parameters: further arguments of the trainable's `setup`.

    Raises:
        StoreError: if something could not be written.
    """
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what failed is in the records
    with_data = tune.with_parameters(trainable, resources=resources, **parameters)
    # Files of the Tuner's own, which mean nothing once it has ended, are not on the disk of the results.
    with ray_folder.private() as folder:
        run_config = tune.RunConfig(
            name="trials",
            storage_path=str(folder),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            callbacks=[recorder],
            stop=_WhenAsked(recorder),
        )
        tune.Tuner(
            tune.with_resources(with_data, requests or recorder.fleet.request(resources)),
            param_space=param_space,
            tune_config=tune_config,
            run_config=run_config,
        ).fit()
    recorder.check()


class _WhenAsked(tune.Stopper):
    """Ends a `Tuner` before its trials have ended, where the recorder asks for it."""

    def __init__(self, recorder: TrialRecorder):
        self._recorder = recorder

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._recorder.is_interrupted


def _describe(fleet: Fleet, resources: Resources, on_message: Callable[[str], None]) -> None:
    """Says what a cluster has, and what becomes of the GPUs of this machine."""
    gpus = ray.cluster_resources().get("GPU", 0)
    if fleet.address:
        on_message(fleet.describe("RAY_ADDRESS" if fleet.address == os.environ.get("RAY_ADDRESS") else ""))
    elif gpus and resources.gpus:
        on_message(fleet.describe())
    where = "The cluster" if fleet.address else "This machine"
    if gpus and not resources.gpus:
        why = "as --gpus-per-trial 0 says" if sees_gpu() or fleet.address else "because torch sees none of them"
        on_message(f"{where} has {gpus:g} GPUs, of which none is used, {why}.")
    elif fleet.address and resources.auto and not gpus:
        on_message("No machine has a GPU now, so trials train on CPUs; --gpus-per-trial 1 would wait for one.")


def _start_local(threads: int, folder: Path) -> None:
    """Starts Ray on this machine, its files in a folder; once more, with all processes, if it times out or misses one of them.
    Raises ValueError if it does not start."""
    ray_environment.prepare_local(threads)
    for attempt in range(_STARTS):
        try:
            with _without(() if attempt else _UNUSED):
                ray.init(
                    address="local",
                    # Ray itself counts all cores of the machine, also where this process may use only some of them.
                    num_cpus=min(num_cores(), int(ray._private.utils.get_num_cpus()) or 1),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(folder),
                    # Else workers would look for modules in the working directory first, which may have another `datasets`.
                    job_config=JobConfig(_client_job=True),
                    **_SILENT,
                )
            return
        except Exception as error:  # Ray has no error of its own for it
            ray.shutdown()
            if attempt == _STARTS - 1 or (isinstance(error, OSError) and "timed out" not in str(error)):
                raise ValueError(
                    f"Ray did not start ({cluster.first_line(error)}); the machine may be too busy. Nothing is lost: try the "
                    "same command again, or `run` with --executor local, which needs no Ray."
                ) from error


@contextlib.contextmanager
def _without(names: Iterable[str]) -> Iterator[None]:
    """Within the context, these methods of Ray's class of a node do nothing, as far as it has them: Ray has no settings for
    it."""
    with contextlib.ExitStack() as at_end:
        for name in names:
            if hasattr(node.Node, name):
                at_end.enter_context(mock.patch.object(node.Node, name, lambda *_, **__: None))
        yield


def _check_authentication(on_message: Callable[[str], None]) -> None:
    """Reports a cluster that anybody may join; its head node knows whether it requires a token. Raises ValueError if it
    requires none, but this driver does: then its workers cannot connect to the driver."""
    open_cluster = f"The Ray cluster at {ray.get_runtime_context().gcs_address} has no authentication"
    if not ray_environment.requires_token():  # and the cluster has accepted it
        on_message(
            f"{open_cluster}: whoever reaches it over the network can run programs on its machines. Start it with "
            "RAY_AUTH_MODE=token, as docs/cluster.md says."
        )
        return
    on_head = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(ray_environment.requires_token)
    if not ray.get(on_head.remote()):
        raise ValueError(
            f"{open_cluster}, but this command has RAY_AUTH_MODE=token, so its workers could not report to it. Start the "
            "cluster with RAY_AUTH_MODE=token as well, as docs/cluster.md says, or set RAY_AUTH_MODE=disabled here."
        )


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """Keeps SIGTERM from ending the process at once and without a word while Ray starts: Ray sets handlers of its own, the last
    one in C++ where it connects. Signals that come meanwhile wait until the handler of this session is back."""
    own = ray._private.worker.connect

    def connect(*arguments: Any, **options: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return own(*arguments, **options)
        finally:
            signal.signal(signal.SIGTERM, terminate)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    with (
        mock.patch.object(ray._private.utils, "set_sigterm_handler", lambda handler: None),
        mock.patch.object(ray._private.worker, "connect", connect),
    ):
        yield


def _logged(store: Store) -> contextlib.AbstractContextManager[Any]:
    """Writes what Ray says of processes that die to the results' log meanwhile. Ray prints a paragraph for each, from a
    thread of its own, and has neither a setting nor a logger for it, so the function that prints is replaced."""

    def log(data: dict[str, Any], **_: Any) -> None:
        store.log("\n".join(data["lines"]))

    return mock.patch.object(ray._private.worker, "print_to_stdstream", log, create=True)
