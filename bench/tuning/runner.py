"""Runs searches with Ray Tune: one trial is one configuration, with a run for each seed in lock step.

A trial reports the mean over seeds, so that searcher and scheduler see one number for a configuration. Runs are those of the
store on the split "validation": what one search has finished is not trained again by another. Searches run side by side: where
one has fewer configurations left than the machine has slots, the next one begins.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from bench.config.resolve import trained_by
from bench.config.schema import RunConfig, run_id
from bench.execution import ray_environment, ray_session  # noqa: F401
from bench.execution.gpu_sharing import GpuAllocator
from bench.execution.job import Job
from bench.execution.progress import RoundsBar
from bench.execution.recorder import Session, TrialRecorder
from bench.execution.resources import Resources
from bench.execution.run_recorder import OUT_OF_MEMORY, RETRIES, given_up, on_machine
from bench.execution.scheduler import inspect, make_allocator
from bench.execution.workspace import Workspace
from bench.experiments.labels import text_of
from bench.results.artifacts import Folder
from bench.results.metrics import summarise
from bench.results.store import Store
from bench.tuning.early_stopping import PerSearch
from bench.tuning.proposals import Proposals
from bench.tuning.search import Search
from bench.tuning.study import Study
from bench.tuning.trainable import Configuration, ConfigurationReport, SearchJob, SeedReport

from ray import tune  # isort: skip
from ray.tune.experiment import Trial  # isort: skip


@dataclass
class OpenSearch:
    """A search that has configurations left.

    Attributes:
        study: proposes them.
        job: the search as workers get it.
        label: begins each message about the search, where there are several: "Search 2 ".
        title: is printed when its first configuration starts; "" for nothing.
        failed: number of configurations that have failed.
    """

    study: Study
    job: SearchJob
    label: str = ""
    title: str = ""
    failed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._number = self.search.wanted - self.study.left  # of configurations that have ended
        self.ended = set(self.job.ended)
        self.base_ids = {seed: run_id(config) for seed, config in bases_of(self.search).items()}

    @property
    def search(self) -> Search:
        return self.study.search

    @property
    def rounds(self) -> int:
        """Of one configuration, all seeds together."""
        return len(self.search.configs) * self.search.template.rounds

    def name_of(self, params: Mapping[str, Any]) -> str:
        """A configuration for people."""
        return f"{self.label}{text_of(params)}"

    def described(self, value: float) -> str:
        """A mean over seeds, for people."""
        return f"validation {self.search.metric.replace('_', ' ')} {100 * value:.1f} %"

    def count(self, params: Mapping[str, Any], outcome: str, failed: bool) -> str:
        """Counts a configuration that has ended; returns the line that says so."""
        self._number += 1
        self.failed += failed
        return f"{self.label}[{self._number}/{self.search.wanted}] {text_of(params)}: {outcome}"


class ConfigurationRecorder(TrialRecorder):
    """Writes what configurations report into the store."""

    def __init__(
        self,
        searches: Mapping[str, OpenSearch],
        store: Store,
        on_message: Callable[[str], None],
        bar: RoundsBar,
        session: Session,
        allocator: GpuAllocator,
        shares: Mapping[str, Resources],
        deaths: Counter[str],
        names_hosts: bool = True,
    ):
        """
        Args:
            searches, shares: by the names of searches; a share is that of a configuration.
            deaths: as in `run_searches`.
        """
        super().__init__(store, session, names_hosts)
        self._searches, self._on_message, self._bar = searches, on_message, bar
        self._allocator, self._shares, self.shares = allocator, shares, list(shares.values())
        self._deaths = deaths
        self._put_back: set[str] = set()  # trials that have ended here, and are to be tried again elsewhere
        self._announced: set[str] = set()
        self._open: dict[str, dict[str, int]] = {}  # trial -> run -> rounds trained, of runs that have not ended

    def start(self, trial: Trial) -> None:
        name = trial.config["search"]
        search = self._searches[name]
        if search.title and name not in self._announced:
            self._on_message(search.title)
        self._announced.add(name)
        configs = search.search.runs(trial.config["params"])
        left = {run: config for run, config in configs.items() if run not in search.ended}
        for run, config in left.items():
            self.runs.start(run, config.canonical())
        self._open[trial.trial_id] = dict.fromkeys(left, 0)
        self._bar.update(trial.trial_id, 0)

    def runs_of(self, trial: Trial) -> list[str]:
        return [*self._open.get(trial.trial_id, {})]

    def put_back(self, trial: Trial) -> None:
        self._put_back.add(trial.trial_id)
        super().put_back(trial)

    def record(self, trial: Trial, report: ConfigurationReport) -> None:
        search, left = self._search(trial), self._open[trial.trial_id]
        if report.out_of_memory and self._has_more_room(search):
            self.put_back(trial)
            return
        if report.seed:
            self._record_seed(search, trial, report.seed)
        ended = len(search.search.configs) - len(left)
        self._bar.update(trial.trial_id, ended * search.search.template.rounds + sum(left.values()))

    def skip(self, name: str, params: dict[str, Any], value: float) -> None:
        """A configuration needs no trial: its runs have been trained meanwhile."""
        search = self._searches[name]
        self._bar.update(f"{name} {params}", search.rounds)
        self._on_message(search.count(params, f"{search.described(value)}, trained before", failed=False))

    def complete(self, trial: Trial) -> None:
        if trial.trial_id in self._put_back:
            return
        search, report = self._search(trial), trial.last_result["report"]
        stopped = self._open.pop(trial.trial_id, {})
        runs = search.search.runs(trial.config["params"])
        failed = report.failed or report.out_of_memory or any(self.store.status(run) == "failed" for run in runs)
        self._bar.update(trial.trial_id, search.rounds)
        for run, rounds in stopped.items():
            reason = f"the search stopped it after round {rounds} of {search.search.template.rounds}"
            if failed:
                reason = f"another seed of its configuration failed when it was at round {rounds}"
            result = {"status": "stopped", "reason": reason, "summary": summarise(self.runs.rows[run])}
            self.runs.end(run, {**result, **self.host_of(trial)}, self._folder_of(search, run))
        outcome, seeds = search.described(report.value), len(search.search.configs)
        if failed:
            outcome = "failed"
        elif diverged := sum(self.store.status(run) == "diverged" for run in runs):
            outcome = f"diverged with {diverged} of {seeds} seeds" if seeds > 1 else "diverged"
        elif stopped:
            outcome += f", stopped after round {report.round}"
        self._on_message(search.count(trial.config["params"], outcome, failed))

    def fail(self, trial: Trial, text: str, deaths: int) -> None:
        search, params = self._search(trial), trial.config["params"]
        if trial.trial_id not in self._open:  # its worker died before it could begin
            self.start(trial)
        configuration = next(iter(search.search.runs(params)))
        self._deaths[configuration] += deaths
        # Not Tune's own limit: it counts deaths of machines, too, and gives up at once between two trials.
        if self._deaths[configuration] <= RETRIES:
            self.put_back(trial)
            return
        result = given_up(text, self._deaths[configuration], self.store, f"configuration {search.name_of(params)}")
        self._bar.update(trial.trial_id, search.rounds)
        for run in self._open.pop(trial.trial_id):
            self.runs.end(run, {**result, **self.host_of(trial)})
        reason = on_machine(result["reason"], self.machine_of(trial))
        self._on_message(search.count(params, f"failed: {reason}", failed=True))

    def _record_seed(self, search: OpenSearch, trial: Trial, seed: SeedReport) -> None:
        run, report, left = seed.run, seed.worker, self._open[trial.trial_id]
        if run in search.ended:  # a worker has died, and another one trains the configuration again: the record stays
            if report.result:
                (Folder(search.job.folder_of(run, trial.config["repeated"])) / "checkpoint").remove()
            return
        name = f"{search.name_of(trial.config['params'])}, seed {seed.config.seed}"
        self.runs.update(run, report.start, report.rows)
        left[run] = seed.round
        if report.note:
            self._on_message(f"{name}: {on_machine(report.note, self.machine_of(trial))}")
        ended = report.result
        if report.out_of_memory:
            ended = {"status": "failed", "reason": OUT_OF_MEMORY}
        if not ended:
            self.store.append(run, report.rows)
            return
        result = {**ended, **self.host_of(trial)}
        if base := search.base_ids.get(seed.config.seed):
            result |= self.store.base_fields(base)
        record = self.runs.end(run, result, self._folder_of(search, run))
        del left[run]
        if record["status"] != "failed":
            search.ended.add(run)
        if record["status"] != "done":
            self._on_message(f"{name}: {record['status']}: {on_machine(record['reason'], self.machine_of(trial))}")

    def _has_more_room(self, search: OpenSearch) -> bool:
        """Whether a configuration can get a larger share of a GPU; what is being trained then continues with new shares."""
        share, seeds = self._shares[search.search.name], len(search.search.configs)
        return self._allocator.out_of_memory(_first_job(search), share, seeds)

    def _search(self, trial: Trial) -> OpenSearch:
        return self._searches[trial.config["search"]]

    def _folder_of(self, search: OpenSearch, run: str) -> str:
        """Where the worker of a run has written, if that is not the store."""
        return f"{search.job.folder}/{run}" if search.job.options.storage else ""


def run_searches(
    searches: Sequence[OpenSearch],
    workspace: Workspace,
    console: Console,
    on_message: Callable[[str], None],
    deaths: Counter[str],
) -> bool:
    """Tries the configurations that are left of searches, side by side; the last states of the runs of `bases_of` must be where
    the searches' jobs say.

    Args:
        console: where a bar shows the progress.
        on_message: gets a line for each configuration.
        deaths: first run of a configuration -> how often its worker has died so far; is counted up.

    Returns:
        Whether all have been tried. Else a machine was taken out, or a configuration needs more of a GPU: what is left has to
        be opened again and tried.

    Raises:
        KeyboardInterrupt, ValueError, StoreError: as `bench.execution.ray_session.session`.
    """
    if not searches:
        return True
    by_name = {search.search.name: search for search in searches}
    studies = {name: search.study for name, search in by_name.items()}
    count = sum(study.left for study in studies.values())
    rounds = sum(search.study.left * search.rounds for search in searches)
    bar, machines, options = RoundsBar(console, count, rounds), workspace.machines, workspace.options
    with ray_session.session(workspace, on_message) as session, bar:
        inspect(session.fleet, [(search.search.template, search.job.inputs) for search in searches], workspace)
        allocator = make_allocator(workspace, on_message, session.fleet)
        at_once = min(count, machines.max_concurrent or count)
        shares = {
            name: session.fleet.spread(allocator.of(_first_job(search), len(search.search.configs)), at_once)
            for name, search in by_name.items()
        }
        requests = {name: session.fleet.request(share) for name, share in shares.items()}
        recorder = ConfigurationRecorder(
            by_name, workspace.store, on_message, bar, session, allocator, shares, deaths, options.names_hosts
        )
        ray_session.fit(
            Configuration,
            next(iter(shares.values())),  # of which workers read the device and the threads, which are the same for all
            recorder,
            tune.TuneConfig(
                search_alg=Proposals(studies, recorder.skip),
                scheduler=PerSearch(studies),
                num_samples=count,
                max_concurrent_trials=machines.max_concurrent or None,
                reuse_actors=True,
            ),
            requests=lambda config: requests[config["search"]],
            jobs={name: search.job for name, search in by_name.items()},
            data_dir=options.data_dir,
        )
    return not recorder.is_interrupted


def _first_job(search: OpenSearch) -> Job:
    """A run of a search with the method's usual hyper-parameters, for a profile."""
    return search.job.job(run_id(search.search.template), search.search.template, {})


def bases_of(search: Search) -> dict[int, RunConfig]:
    """Seed -> the run whose last state a configuration starts from, of a method that only changes what another one deploys;
    empty for others, and for a search that has hyper-parameters of that other one, too."""
    template = search.template
    own = template.algorithm.keys() - {"base"}
    if trained_by(template) is None or not own >= search.space.keys():
        return {}
    return {seed: base for seed, config in search.configs.items() if (base := trained_by(config))}
