"""Sends rounds to Weights & Biases or MLflow while runs train, through Ray's own callbacks.

Ray's callbacks take a trial and one result at a time. A trial here is a position in a list of jobs, and reports the rounds of
about a second together; so they get an object that has the name and config of the run, and every round by itself.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.errors import require_known
from bench.files import stderr_to
from bench.results.columns import measured
from bench.results.store import Store

KINDS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}  # names of their packages
PROJECT = "skewbench"


def check(kind: str) -> None:
    """Raises ValueError if there is no such tracking service, or its package is not installed."""
    require_known("value of --track", [kind], KINDS)
    try:
        importlib.import_module(kind)
    except ImportError as error:
        raise ValueError(
            f"--track {kind} needs the package {kind}, which is not installed ({error}); install it with: "
            f".venv/bin/uv pip install --python .venv/bin/python {kind}"
        ) from error


class Tracked:
    """A run as Ray's callbacks see a trial.

    Attributes:
        trial_id: the run's id.
        config: its resolved config, options of the method as "algorithm/mu".
        experiment_dir_name: the grid, by which Weights & Biases groups runs.
        local_path: a folder for files of the tracker.
    """

    def __init__(self, run_id: str, name: str, config: Mapping[str, Any], grid: str, folder: Path):
        self.trial_id, self.experiment_dir_name, self.local_path = run_id, grid, str(folder)
        self.config = {"run": run_id, **_flat(config)}
        self._name = name

    def __str__(self) -> str:
        return self._name


class Tracker:
    """Sends what runs report to a tracking service. If the service fails, it says so once and sends nothing any more: the runs
    continue, and their results are in the store."""

    def __init__(self, kind: str, grid: str, names: Mapping[str, str], store: Store, on_message: Callable[[str], None]):
        """
        Args:
            kind: of KINDS; see `check`.
            grid: what the runs belong to, `<grid>@<budget>`.
            names: run id -> name of the run.
            store: has a folder for files of the tracker, and the log of what Ray says.
            on_message: gets a line if the service fails.

        Raises:
            ValueError: if the service cannot be reached, or refuses the user.
        """
        self._kind, self._grid, self._names, self._on_message = kind, grid, names, on_message
        self._folder = store.folder / "tracking"
        self._open: dict[str, Tracked] = {}  # runs that have begun and not ended
        self._reported: dict[str, int] = {}
        self._broken = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._callback = _callback(kind, grid, store)
        except Exception as error:  # whatever the library raises; nothing has begun yet
            raise ValueError(f"--track {kind}: {KINDS[kind]} does not take runs: {_first_line(error)}") from error

    def started(self, run_id: str, config: Mapping[str, Any]) -> None:
        """A run begins, or begins again after its worker has died."""
        if run_id not in self._open:
            name = f"{self._names[run_id]} ({run_id})"
            self._open[run_id] = run = Tracked(run_id, name, config, self._grid, self._folder)
            self._try(self._callback.log_trial_start, run)

    def reported(self, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rounds of a run; those that were sent before are not sent again."""
        run = self._open[run_id]
        for row in rows:
            number = row["round"]
            if number > self._reported.get(run_id, 0):
                self._reported[run_id] = number
                self._try(self._callback.log_trial_result, number, run, measured(row))

    def ended(self, run_id: str, failed: bool) -> None:
        """A run has ended."""
        if run := self._open.pop(run_id, None):
            self._try(self._callback.log_trial_end, run, failed=failed)

    def finish(self) -> None:
        """Ends the runs that were stopped, and waits for what is still being sent."""
        for run_id in list(self._open):
            self.ended(run_id, failed=True)
        self._try(self._callback.on_experiment_end, trials=[])

    def _try(self, send: Callable[..., None], *arguments: Any, **options: Any) -> None:
        if self._broken:
            return
        try:
            send(*arguments, **options)
        except Exception as error:  # of a library, a network, a server: whatever it is, runs do not depend on it
            self._broken = True
            self._on_message(
                f"Tracking by {KINDS[self._kind]} has stopped ({_first_line(error)}); the runs continue, and their "
                "results are in the results directory."
            )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _callback(kind: str, grid: str, store: Store) -> Any:
    """Ray's callback, set up; the services' own environment variables say where they are and who the user is."""
    callback: Any
    if kind == "wandb":
        from ray.air.integrations.wandb import WANDB_PROJECT_ENV_VAR, WandbLoggerCallback

        class ToWandb(WandbLoggerCallback):
            def _start_logging_actor(self, *arguments: Any, **options: Any) -> None:
                with store.open_log() as log, stderr_to(log):  # Ray warns of its own actors, and nobody can help it
                    super()._start_logging_actor(*arguments, **options)

        callback = ToWandb(project=os.environ.get(WANDB_PROJECT_ENV_VAR, PROJECT), group=grid)
    else:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        class ToMLflow(MLflowLoggerCallback):
            def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
                """As Ray's, which would also send the step as a metric `training_iteration`."""
                run = self._trial_runs[trial]
                self.mlflow_util.log_metrics(run_id=run, metrics_to_log=result, step=iteration)

        callback = ToMLflow(experiment_name=f"{PROJECT} {grid}")
    callback.setup()
    return callback


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
