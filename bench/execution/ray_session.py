"""A session of Ray: started or joined, checked, and ended, with what Ray says in the log of the results."""

import contextlib
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from bench.errors import StoreError
from bench.execution import ray_environment
from bench.execution.recorder import TrialRecorder
from bench.execution.resources import Resources
from bench.execution.trainable import WorkerTrainable
from bench.execution.worker import storage_trouble
from bench.results.store import Store

import ray  # isort: skip
from ray import tune  # isort: skip

RETRIES = 2  # of a run whose worker died; an error of the run itself would only come again
_STARTS = 2  # Ray gives its own processes 30 seconds to start, which is little on a busy machine
_OBJECT_STORE_BYTES = 256 * 2**20  # enough: datasets are memory-mapped files, which do not go through it
_SILENT: Any = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextlib.contextmanager
def session(
    store: Store, resources: Resources, address: str | None, storage: str | None, on_message: Callable[[str], None]
) -> Iterator[None]:
    """A session of Ray within the context; one that is there already is used, and left as it is.

    Args:
        resources: of each trial.
        address: a running Ray cluster; None starts Ray on this machine.
        storage: where workers of several machines write; only checked.
        on_message: gets a line if the cluster has no authentication.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the workers have been stopped.
        ValueError: if Ray does not start, or the cluster cannot run the trials.
        StoreError: if results or checkpoints cannot be written any more.
    """
    if ray.is_initialized():
        yield
        return
    earlier_handler = signal.getsignal(signal.SIGTERM)
    with _logged(store):
        try:
            if address:
                _join(address, resources.threads)
            else:
                _start_local(resources.threads)
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops as cleanly as Ctrl-C
            _check_machines(resources, address, storage)
            if address:
                _check_authentication(on_message)
            yield
        except (tune.TuneError, OSError) as error:  # Ray wraps most errors of a callback
            if trouble := storage_trouble(error, store.folder):
                raise StoreError(trouble) from error
            raise
        finally:
            signal.signal(signal.SIGTERM, earlier_handler or signal.SIG_DFL)
            ray.shutdown()
            shutil.rmtree(store.scratch_folder, ignore_errors=True)


def fit(
    trainable: type[WorkerTrainable],
    resources: Resources,
    recorder: TrialRecorder,
    tune_config: tune.TuneConfig,
    param_space: dict[str, Any] | None = None,
    **parameters: Any,
) -> None:
    """Runs the trials of one `Tuner`, which keeps nothing for itself: the recorder writes everything into its store.

    Args:
        resources: of each trial: only trials with the same resources can take turns in one process.
        parameters: further arguments of the trainable's `setup`.

    Raises:
        StoreError: if something could not be written.
    """
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what failed is in the records
    with_data = tune.with_parameters(trainable, resources=resources, **parameters)
    run_config = tune.RunConfig(
        name="trials",
        storage_path=str(recorder.store.scratch()),
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        failure_config=tune.FailureConfig(max_failures=RETRIES),
        callbacks=[recorder],
    )
    tune.Tuner(
        tune.with_resources(with_data, {"cpu": resources.cpus, "gpu": resources.gpus}),
        param_space=param_space,
        tune_config=tune_config,
        run_config=run_config,
    ).fit()
    recorder.check()


def describe(address: str | None) -> str:
    """What trials can use: a cluster may be another one than was meant, and a GPU may not be there."""
    total, free = ray.cluster_resources(), ray.available_resources()
    cpus, gpus = (f"{free.get(key, 0):g} of {total.get(key, 0):g} {key}s free" for key in ("CPU", "GPU"))
    count = len(ray.nodes())
    cluster = f"The Ray cluster at {ray.get_runtime_context().gcs_address}: {count} machine{'s' * (count > 1)}"
    return f"{cluster if address else 'This machine'}, {cpus}, {gpus}."


def _join(address: str, threads: int) -> None:
    """Connects to a running cluster; raises ValueError if none answers, or it refuses this machine."""
    try:
        ray.init(address=address, runtime_env=ray_environment.cluster_runtime_env(threads), **_SILENT)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.AuthenticationError) as error:
        if isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in str(error.__cause__):
            raise ValueError(
                f"The Ray cluster at --address {address} asks for its token, which this machine does not give: set "
                "RAY_AUTH_MODE=token, and have the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
            ) from error
        raise ValueError(f"No Ray cluster answers at --address {address} ({_first_line(error)}).") from error


def _start_local(threads: int) -> None:
    """Starts Ray on this machine, once more if it times out; raises ValueError if it does not start."""
    ray_environment.prepare_local(threads)
    for attempt in range(_STARTS):
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **_SILENT)
            return
        except Exception as error:  # Ray has no error of its own for it
            ray.shutdown()
            if attempt == _STARTS - 1 or "timed out" not in str(error):
                raise ValueError(
                    f"Ray did not start ({_first_line(error)}); the machine may be too busy. Nothing is lost: try the same "
                    "command again."
                ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _check_machines(resources: Resources, address: str | None, storage: str | None) -> None:
    """Raises ValueError if no machine has what a trial needs, for which Ray would wait without end, or if several machines have
    no storage that all of them see."""
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
    """Reports a cluster that anybody may join; its head node knows whether it requires a token. Raises ValueError if it
    requires none, but this driver does: then its workers cannot connect to the driver."""
    cluster = f"The Ray cluster at {ray.get_runtime_context().gcs_address} has no authentication"
    if not ray_environment.requires_token():  # and the cluster has accepted it
        on_message(
            f"{cluster}: whoever reaches it over the network can run programs on its machines. Start it with "
            "RAY_AUTH_MODE=token, as docs/cluster.md says."
        )
        return
    on_head = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(ray_environment.requires_token)
    if not ray.get(on_head.remote()):
        raise ValueError(
            f"{cluster}, but this command has RAY_AUTH_MODE=token, so its workers could not report to it. Start the cluster "
            "with RAY_AUTH_MODE=token as well, as docs/cluster.md says, or set RAY_AUTH_MODE=disabled here."
        )


def _logged(store: Store) -> contextlib.AbstractContextManager[Any]:
    """Writes what Ray says of processes that die to the results' log meanwhile. Ray prints a paragraph for each, from a
    thread of its own, and has neither a setting nor a logger for it, so the function that prints is replaced."""

    def log(data: dict[str, Any], **_: Any) -> None:
        store.log("\n".join(data["lines"]))

    return mock.patch.object(ray._private.worker, "print_to_stdstream", log, create=True)
