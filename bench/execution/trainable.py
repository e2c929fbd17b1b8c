"""What every trial of Ray Tune is here: workers in a process of Ray's, which is reused for one trial after another."""

from pathlib import Path
from typing import Any, Protocol

import torch

from bench.execution import ray_environment  # noqa: F401
from bench.execution.job import Job
from bench.execution.resources import Resources
from bench.execution.worker import Worker

import ray  # isort: skip
from ray import tune  # isort: skip


class Report(Protocol):
    """What a trial has done in one step.

    Attributes:
        is_last: whether the trial has ended.
        storage_error: why nothing can be written any more, or "".
        machine_error: why this machine cannot train it, though another one may; or "".
    """

    @property
    def is_last(self) -> bool: ...
    @property
    def storage_error(self) -> str: ...
    @property
    def machine_error(self) -> str: ...


class WorkerTrainable(tune.Trainable):
    """A trial that reports what its workers do. Subclasses say which jobs a config of Tune stands for."""

    def setup(  # type: ignore[override]  # Tune passes what `with_parameters` got, by name
        self, config: dict[str, Any], data_dir: Path | None, resources: Resources, jobs: Any
    ) -> None:
        """
        Args:
            config: of Tune, for `begin`.
            data_dir: where the datasets are.
            resources: of one trial.
            jobs: of all trials; a config names those of one.
        """
        torch.set_num_threads(resources.threads)
        self._node_id = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        self._data_dir, self._resources, self._jobs = data_dir, resources, jobs
        self._is_announced = False
        self.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._is_announced = False
        self.begin(new_config)
        return True  # so Tune keeps the process

    def step(self) -> dict[str, Any]:
        """A report of the trial, and where it is; before the first round, which may take minutes, only where it is."""
        report = self.train_step() if self._is_announced else None
        self._is_announced = True
        return {"report": report, "node": self._node_id, "done": bool(report and report.is_last)}

    def begin(self, config: dict[str, Any]) -> None:
        """Makes the workers of another trial, in place of those before."""
        raise NotImplementedError

    def train_step(self) -> Report:
        """Trains for about a second."""
        raise NotImplementedError

    def new_worker(self, job: Job) -> Worker:
        return Worker(job, self._data_dir, self._resources.device)
