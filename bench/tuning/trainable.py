"""A configuration of a search as a trial of Ray Tune: a run for each seed, in lock step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.config.schema import RunConfig
from bench.execution import ray_environment  # noqa: F401
from bench.execution.job import Inputs, Job
from bench.execution.trainable import WorkerTrainable
from bench.execution.worker import Worker, WorkerReport
from bench.experiments.execution_options import ExecutionOptions
from bench.simulation.retention import StateRetention
from bench.tuning.outcomes import ValidationRun, is_score, latest
from bench.tuning.search import Search, stops


@dataclass(frozen=True)
class SearchJob:
    """A search as its workers get it.

    Attributes:
        search: what is searched.
        folder: has a folder for each of its runs; an absolute path, or a URI that fsspec knows.
        bases: seed -> where the last state lies from which the runs of that seed start; see `bench.tuning.runner.bases_of`.
        ended: run id -> what is known of a validation run that need not be trained.
        options: how its runs are executed; with a storage, `folder` is in it, else in the store.
        marker, inputs: as in `bench.execution.job.Job`; the inputs are those of all its runs.
    """

    search: Search
    folder: str
    bases: Mapping[int, str]
    ended: Mapping[str, ValidationRun]
    options: ExecutionOptions
    marker: str = ""
    inputs: Inputs = field(default_factory=Inputs)

    def folder_of(self, run: str, repeated: Mapping[str, str]) -> str:
        """Where the worker of one of its runs writes.

        Args:
            repeated: see `bench.tuning.study.Study.repeated`; in a storage these runs have the same folders as others.
        """
        return f"{self.folder}/{run}" if self.options.storage else repeated.get(run, f"{self.folder}/{run}")

    def job(self, run: str, config: RunConfig, repeated: Mapping[str, str]) -> Job:
        """One of its runs, which keeps no states; arguments as of `folder_of`."""
        return Job(
            run,
            config,
            self.folder_of(run, repeated),
            StateRetention(final="none"),
            self.options.checkpoint_seconds,
            self.options.engine,
            self.options.tf32,
            base=self.bases.get(config.seed, ""),
            marker=self.marker,
            inputs=self.inputs,
        )


@dataclass(frozen=True)
class SeedReport:
    """What the worker of one seed has reported.

    Attributes:
        run: its run id.
        round: that it has reached.
    """

    run: str
    config: RunConfig
    round: int
    worker: WorkerReport


@dataclass(frozen=True)
class ConfigurationReport:
    """What a configuration has done in one step.

    Attributes:
        seed: the report of the seed that was trained; None if all of them have ended.
        failed: whether a seed has failed.
        round: the round at which all seeds have arrived, if configurations are compared there; else 0.
        value: then the mean of the metric over seeds; else 0.
        is_last: whether the configuration has ended.
    """

    seed: SeedReport | None
    failed: bool
    round: int
    value: float
    is_last: bool

    @property
    def storage_error(self) -> str:
        return self.seed.worker.storage_error if self.seed else ""

    @property
    def machine_error(self) -> str:
        return self.seed.worker.machine_error if self.seed else ""

    @property
    def out_of_memory(self) -> bool:
        """Whether a run did not fit beside its neighbours on the GPU."""
        return bool(self.seed and self.seed.worker.out_of_memory)


class Configuration(WorkerTrainable):
    """A trial that trains the runs of one configuration, a worker per seed; all of them share its part of a machine. Its
    config has the name of a search, the hyper-parameters, and what `Study.repeated` says; jobs are by the names of their
    searches."""

    def begin(self, config: dict[str, Any]) -> None:
        job: SearchJob = self._jobs[config["search"]]
        self._search, self._ended, self._failed = job.search, job.ended, False
        self._configs = self._search.runs(config["params"])
        self._curves: dict[str, dict[int, float]] = {run: {} for run in self._configs}  # round -> metric
        self._workers: dict[str, Worker] = {
            run: self.new_worker(job.job(run, own, config["repeated"]))
            for run, own in self._configs.items()
            if run not in self._ended
        }
        self._stops = stops(self._search)

    def step(self) -> dict[str, Any]:
        """As every trial, with the keys that searchers and schedulers of Tune read."""
        result = super().step()
        report = result["report"]
        return result | {"round": report.round if report else 0, "value": report.value if report else 0.0}

    def train_step(self) -> ConfigurationReport:
        """Trains one seed for about a second, but not beyond the next round at which configurations are compared."""
        stop, seed = self._stops[0], None
        if behind := self._behind(stop):
            seed = self._train_seed(behind[0], stop)
        # After an error the configuration is worth nothing, and none is compared with it.
        report = ConfigurationReport(seed, self._failed, round=0, value=0.0, is_last=self._failed)
        if report.storage_error or report.machine_error or report.out_of_memory:
            return replace(report, is_last=True)
        if self._failed or self._behind(stop):
            return report
        self._stops.pop(0)
        value = sum(self._metric_at(run, stop) for run in self._configs) / len(self._configs)
        return replace(report, round=stop, value=value, is_last=not self._stops)

    def _behind(self, stop: int) -> list[str]:
        """The runs that have not reached a round."""
        return [run for run, worker in self._workers.items() if worker.round < stop]

    def _metric_at(self, run: str, stop: int) -> float:
        return self._ended[run].at(stop) if run in self._ended else latest(self._curves[run], stop)

    def _train_seed(self, run: str, stop: int) -> SeedReport:
        worker = self._workers[run]
        report, reached = worker.step(stop), worker.round
        metric = self._search.metric
        self._curves[run] |= {row["round"]: score for row in report.rows if is_score(score := row.get(metric))}
        if report.result:
            del self._workers[run]
            self._failed |= report.result["status"] == "failed"
            if report.result["status"] == "diverged":
                self._curves[run] = {0: 0.0}
        return SeedReport(run, self._configs[run], reached, report)
