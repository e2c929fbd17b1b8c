"""Plays a search with Ray Tune: one trial is one configuration, with a run for each seed in lock step.

A trial reports the mean over seeds, so that searcher and scheduler see one number for a configuration. Runs are those of the
store on the split "validation": what one search has finished is not played again by another.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

import algorithms
from bench.config.resolve import base_of
from bench.config.schema import RunConfig, run_id
from bench.errors import StoreError
from bench.execution import ray_environment  # noqa: F401
from bench.execution import scheduler as scheduling
from bench.execution.progress import RoundsBar
from bench.execution.recorder import RunRecorder
from bench.execution.resources import Machines
from bench.experiments.labels import text_of
from bench.results.artifacts import Folder
from bench.results.metrics import summarise
from bench.tuning.search import REDUCTION, Search, stops
from bench.tuning.study import Study
from bench.tuning.trainable import Configuration, Place

from ray import tune  # isort: skip
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler  # isort: skip
from ray.tune.search import Searcher  # isort: skip


class _Proposals(Searcher):
    """Ray's view of a study."""

    def __init__(self, study: Study):
        super().__init__(metric="value", mode="max")
        self._study, self._open = study, {}

    def suggest(self, trial_id):
        trial = self._study.propose()
        if trial is None:
            return Searcher.FINISHED
        self._open[trial_id] = trial
        return dict(trial.params)

    def on_trial_result(self, trial_id, result):
        if result["round"]:
            self._open[trial_id].report(result["value"], result["round"])

    def on_trial_complete(self, trial_id, result=None, error=False):
        failed = error or result is None or result["failed"] or result["broken"]
        whole = bool(result) and result["round"] == self._study.search.template.rounds
        self._study.close(self._open.pop(trial_id), None if failed else result["value"], whole)

    def save(self, checkpoint_path):
        """Nothing: the study is on disk."""

    def restore(self, checkpoint_path):
        """Nothing: Tune never restores here."""


class _Recorder(tune.Callback):
    """Writes what configurations report into the store.

    Attributes:
        failed: number of configurations that have.
        trouble: an error in writing, which Ray would keep to itself.
    """

    def __init__(self, study: Study, place: Place, on_message: Callable[[str], None], facts: Mapping, bar: RoundsBar):
        self._study, self._place, self._on_message, self._bar = study, place, on_message, bar
        self._search, self._store = study.search, study.store
        self._bases = {seed: run_id(config) for seed, config in bases_of(self._search).items()}
        self._runs = RunRecorder(self._store, facts)
        self._ended = set(study.ended_runs)
        self._open: dict[str, dict[str, int]] = {}  # trial -> run -> rounds played, of runs that have not ended
        self._number, self.failed = self._search.wanted - study.left, 0
        self.trouble: Exception | None = None

    def __getstate__(self):
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

    def on_trial_start(self, iteration, trials, trial, **info):
        self._keeping_trouble(self._start, trial)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["broken"]:
            self.trouble = StoreError(result["broken"])
            raise self.trouble
        self._keeping_trouble(self._take, trial, result)

    def on_trial_complete(self, iteration, trials, trial, **info):
        self._keeping_trouble(self._close, trial)

    def on_trial_error(self, iteration, trials, trial, **info):
        self._keeping_trouble(self._fail, trial)

    def _keeping_trouble(self, write: Callable, *arguments) -> None:
        try:
            write(*arguments)
        except (StoreError, OSError) as error:
            self.trouble = error
            raise

    def _start(self, trial) -> None:
        runs = {run: config for run, config in self._search.runs(trial.config).items() if run not in self._ended}
        for run, config in runs.items():
            self._runs.start(run, config.canonical())
        self._open[trial.trial_id] = dict.fromkeys(runs, 0)
        self._bar.advance(trial.trial_id, 0)

    def _take(self, trial, result) -> None:
        playing = self._open[trial.trial_id]
        for report in result["runs"]:
            run = report["id"]
            if run in self._ended:  # a worker has died, and another one plays the configuration again
                self._forget(run, report)
                continue
            name = f"{text_of(trial.config)}, seed {report['config']['seed']}"
            self._runs.take(run, report["first"], report["rows"])
            playing[run] = report["until"]
            if report["note"]:
                self._on_message(f"{name}: {report['note']}")
            if report["ended"]:
                end = report["ended"] | self._base_of(report["config"]["seed"])
                self._runs.end(run, end, self._folder_of(run))
                del playing[run]
                if report["ended"]["status"] != "failed":
                    self._ended.add(run)
                if report["ended"]["status"] != "done":
                    self._on_message(f"{name}: {report['ended']['status']}: {report['ended']['reason']}")
            else:
                self._runs.write(run, report["rows"])
        ended = len(self._search.configs) - len(playing)
        self._bar.advance(trial.trial_id, ended * self._search.template.rounds + sum(playing.values()))

    def _forget(self, run: str, report: Mapping) -> None:
        """A run that is in the store: it ends as it did, and nothing of it is left where workers write."""
        if report["ended"]:
            (Folder(self._place.folder) / run / "checkpoint").remove()

    def _folder_of(self, run: str) -> str:
        """Where its worker has written, if that is not the store."""
        return f"{self._place.folder}/{run}" if self._place.is_elsewhere else ""

    def _close(self, trial) -> None:
        last, stopped = trial.last_result, self._open.pop(trial.trial_id, {})
        self._bar.advance(trial.trial_id, None)
        for run, rounds in stopped.items():
            reason = f"the search stopped it after round {rounds} of {self._search.template.rounds}"
            if last["failed"]:
                reason = f"another seed of its configuration has failed when it was at round {rounds}"
            end = {"status": "stopped", "reason": reason, "summary": summarise(self._runs.rows[run])}
            self._runs.end(run, end, self._folder_of(run))
        self._number += 1
        reached = f"validation {self._search.metric.replace('_', ' ')} {100 * last['value']:.1f} %"
        if last["failed"]:
            self.failed, reached = self.failed + 1, "failed"
        elif stopped:
            reached += f", stopped after round {last['round']}"
        self._on_message(f"[{self._number}/{self._search.wanted}] {text_of(trial.config)}: {reached}")

    def _fail(self, trial) -> None:
        """Its process has died, again and again."""
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        about = f"configuration {text_of(trial.config)}"
        end = scheduling.given_up(text, max(1, text.count("Failure # ")), self._store, about)
        if trial.trial_id not in self._open:  # its worker died before it could begin
            self._start(trial)
        self._bar.advance(trial.trial_id, None)
        for run in self._open.pop(trial.trial_id):
            self._runs.end(run, end)
        self._number, self.failed = self._number + 1, self.failed + 1
        self._on_message(f"[{self._number}/{self._search.wanted}] {text_of(trial.config)}: failed: {end['reason']}")

    def _base_of(self, seed: int) -> dict[str, Any]:
        base = self._bases.get(seed)
        return {"base_summary": (self._store.record(base) or {}).get("summary")} if base else {}


def run_search(
    study: Study,
    on_message: Callable[[str], None],
    *,
    place: Place,
    data_dir: Path | None,
    machines: Machines,
    storage: str | None = None,
    facts: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> int:
    """Tries what is left of a search; its store must be locked, and the last states of the runs of `bases_of` be where `place`
    says.

    Args:
        on_message: is told of each configuration.
        console: where a bar shows how far it is; None for none.
        data_dir, machines, storage, facts: as in `bench.execution.scheduler.run_jobs`.

    Returns:
        How many configurations have failed now; the same search tries these again.

    Raises:
        KeyboardInterrupt, ValueError, StoreError: as `bench.execution.scheduler.run_jobs`.
    """
    search, store, count = study.search, study.store, study.left
    if not count:
        return 0
    resources = machines.resources
    of_one = len(search.configs) * search.template.rounds
    bar = RoundsBar(console or Console(quiet=True), of_one, count)
    recorder = _Recorder(study, place, on_message, facts or {}, bar)
    with scheduling.session(store, resources, machines.address, storage, on_message), bar:
        trainable = tune.with_parameters(
            Configuration,
            search=search,
            place=place,
            data_dir=data_dir,
            resources=resources,
            ended=study.ended_runs,
        )
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            tune_config=tune.TuneConfig(
                search_alg=_Proposals(study),
                scheduler=asha(study) if search.scheduler == "asha" else FIFOScheduler(),
                num_samples=count,
                max_concurrent_trials=machines.max_concurrent or None,
                reuse_actors=True,
            ),
            run_config=scheduling.run_config(store, [recorder]),
        )
        tuner.fit()
    if recorder.trouble:
        raise StoreError(str(recorder.trouble)) from recorder.trouble
    return recorder.failed


def asha(study: Study) -> AsyncHyperBandScheduler:
    """Stops early what does badly, compared with all that the search has tried, before a kill as well."""
    search = study.search
    scheduler = AsyncHyperBandScheduler(
        time_attr="round",
        metric="value",
        mode="max",
        grace_period=stops(search)[0],
        reduction_factor=REDUCTION,
        max_t=search.template.rounds,
    )
    for trial in study.optuna.get_trials(deepcopy=False):
        earlier = SimpleNamespace(trial_id=f"earlier-{trial.number}")
        scheduler.on_trial_add(None, earlier)
        for stop, value in sorted(trial.intermediate_values.items()):
            scheduler.on_trial_result(None, earlier, {"round": stop, "value": value})
    return scheduler


def bases_of(search: Search) -> dict[int, RunConfig]:
    """Seed -> the run whose last state a configuration starts from, of a method that only changes what another one deploys;
    empty for others, and where the search is about that other one, too."""
    template = search.template
    own = template.algorithm.keys() - {"base"}
    post_hoc = algorithms.load(template.algorithm["name"]).post_hoc and template.evaluate_every is None
    if not post_hoc or not own >= search.space.keys():
        return {}
    return {seed: base_of(config) for seed, config in search.configs.items()}
