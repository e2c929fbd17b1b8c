"""Plays a search with Ray Tune: one trial is one configuration, with a run for each seed in lock step.

A trial reports the mean over seeds, so that searcher and scheduler see one number for a configuration. Runs are those of the
store on the split "validation": what one search has finished is not played again by another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import algorithms
from bench import tune as scheduling  # sets the environment that Ray reads
from bench.config import RunConfig, base_of, run_id
from bench.ledger import Ledger
from bench.resources import Machines
from bench.run import Keep, summarise
from bench.store import Store, StoreError
from bench.study import REDUCTION, Search, Study, stops, text_of
from bench.worker import Job, Worker

from ray import tune  # isort: skip
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler  # isort: skip
from ray.tune.search import Searcher  # isort: skip


@dataclass(frozen=True)
class Place:
    """Where the workers of a search write.

    Attributes:
        folder: has one for each run; an absolute path, or a URI that fsspec knows.
        mark: as in `bench.worker.Job`.
        bases: seed -> where the last state lies from which the runs of that seed start; see `bases_of`.
        checkpoint_seconds: least time between checkpoints of an unfinished run.
    """

    folder: str
    mark: str
    bases: Mapping[int, str]
    checkpoint_seconds: float = 60.0


class Configuration(tune.Trainable):
    """Workers that play the runs of one configuration, a worker per seed; all of them share its part of a machine."""

    def setup(self, config, search, place, data_dir, resources, ended):
        torch.set_num_threads(resources.threads)
        self._search, self._place, self._ended = search, place, ended
        self._data_dir, self._device = data_dir, resources.device
        self.reset_config(config)

    def reset_config(self, new_config):
        self._runs, self._failed = self._search.runs(new_config), False
        self._curves = {run: dict(self._ended.get(run, {})) for run in self._runs}  # round -> metric
        self._workers = {run: self._worker(run) for run in self._runs if run not in self._ended}
        self._stops = stops(self._search)
        return True

    def step(self):
        """Plays all seeds up to the next round at which configurations are compared.

        Returns:
            "value", the mean over seeds there; "round"; "runs", what each of them tells (see `_play`); "failed", whether one of
            them has failed; "broken", why nothing can be written any more, or "".
        """
        stop = self._stops.pop(0)
        told = [self._play(run, stop) for run in list(self._workers)]
        broken = next((one["broken"] for one in told if one["broken"]), "")
        done = not self._stops or self._failed or bool(broken)
        value = sum(_latest(curve, stop) for curve in self._curves.values()) / len(self._runs)
        return {"value": value, "round": stop, "runs": told, "failed": self._failed, "broken": broken, "done": done}

    def _worker(self, run: str) -> Worker:
        config, worker = self._runs[run], Worker(self._data_dir, self._device)
        place, folder = self._place, f"{self._place.folder}/{run}"
        base = place.bases.get(config.seed, "")
        worker.take(Job(run, config, folder, Keep(final=False), place.checkpoint_seconds, base=base, mark=place.mark))
        return worker

    def _play(self, run: str, stop: int) -> dict[str, Any]:
        """Plays a run up to a round, and tells all of it as `Worker.step` does."""
        worker, rows, notes, first = self._workers[run], [], [], None
        while True:
            said = worker.step(stop)
            first = said["first"] if first is None else min(first, said["first"])
            rows[said["first"] - first :] = said["rows"]
            notes += [said["note"]] if said["note"] else []
            if said["crowded"]:
                said["ended"] = {"status": "failed", "reason": "out of GPU memory: ask for a larger --gpus-per-trial"}
            if said["ended"] or said["broken"] or worker.round >= stop:
                break
        self._curves[run] |= {row["round"]: row[self._search.metric] for row in rows if self._search.metric in row}
        if said["ended"]:
            del self._workers[run]
            self._failed |= said["ended"]["status"] == "failed"
            if said["ended"]["status"] == "diverged":
                self._curves[run] = {0: 0.0}
        told = {"id": run, "config": self._runs[run].canonical(), "first": first, "rows": rows, "until": stop}
        return told | {"ended": said["ended"], "broken": said["broken"], "note": "; ".join(notes)}


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

    def __init__(
        self, search: Search, store: Store, say: Callable[[str], None], facts: Mapping, place: Place, total: int
    ):
        self._search, self._store, self._say, self._place, self._total = search, store, say, place, total
        self._bases = {seed: run_id(config) for seed, config in bases_of(search).items()}
        self._ledger = Ledger(store, facts)
        self._open: dict[str, dict[str, int]] = {}  # trial -> run -> rounds played, of runs that have not ended
        self._number = self.failed = 0
        self.trouble: Exception | None = None

    def __getstate__(self):
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

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

    def _take(self, trial, result) -> None:
        playing = self._open.setdefault(trial.trial_id, {})
        for told in result["runs"]:
            run = told["id"]
            if run not in playing:
                self._ledger.start(run, told["config"])
            self._ledger.take(run, told["first"], told["rows"])
            playing[run] = told["until"]
            if told["note"]:
                self._say(f"{text_of(trial.config)}, seed {told['config']['seed']}: {told['note']}")
            if told["ended"]:
                self._ledger.end(
                    run, told["ended"] | self._base_of(told["config"]["seed"]), f"{self._place.folder}/{run}"
                )
                del playing[run]
                if told["ended"]["status"] == "failed":
                    self._say(
                        f"{text_of(trial.config)}, seed {told['config']['seed']}: failed: {told['ended']['reason']}"
                    )
            else:
                self._ledger.write(run, told["rows"])

    def _close(self, trial) -> None:
        last, stopped = trial.last_result, self._open.pop(trial.trial_id, {})
        for run, rounds in stopped.items():
            reason = f"the search stopped it after round {rounds} of {self._search.template.rounds}"
            told = {"status": "stopped", "reason": reason, "summary": summarise(self._ledger.rows[run])}
            self._ledger.end(run, told, f"{self._place.folder}/{run}")
        self._number += 1
        reached = f"validation {self._search.metric.replace('_', ' ')} {100 * last['value']:.1f} %"
        if last["failed"]:
            self.failed, reached = self.failed + 1, "failed"
        elif stopped:
            reached += f", stopped after round {last['round']}"
        self._say(f"[{self._number}/{self._total}] {text_of(trial.config)}: {reached}")

    def _fail(self, trial) -> None:
        """Its process has died, again and again."""
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        reason = scheduling.reason_of(text)
        playing = self._open.pop(trial.trial_id, {})
        for run, config in self._search.runs(trial.config).items():
            if self._store.record(run) is None or run in playing:
                self._ledger.start(run, config.canonical())
                self._ledger.end(run, {"reason": reason, "traceback": text})
        self._number, self.failed = self._number + 1, self.failed + 1
        self._say(f"[{self._number}/{self._total}] {text_of(trial.config)}: failed: {reason}")

    def _base_of(self, seed: int) -> dict[str, Any]:
        base = self._bases.get(seed)
        return {"base_summary": (self._store.record(base) or {}).get("summary")} if base else {}


def play(
    study: Study,
    say: Callable[[str], None],
    *,
    place: Place,
    data_dir: Path | None,
    machines: Machines,
    storage: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Tries what is left of a search; its store must be locked, and the last states of the runs of `bases_of` be where `place`
    says.

    Args:
        say: is told of each configuration.
        data_dir, machines, storage, facts: as in `bench.tune.play`.

    Returns:
        How many configurations have failed now; the same search tries these again.

    Raises:
        KeyboardInterrupt, ValueError, StoreError: as `bench.tune.play`.
    """
    search, store, count = study.search, study.store, study.left
    if not count:
        return 0
    resources = machines.resources
    recorder = _Recorder(search, store, say, facts or {}, place, count)
    with scheduling.session(store, resources, machines.address, storage):
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


def _latest(curve: Mapping[int, float], stop: int) -> float:
    """The last metric up to a round; 0 where there is none, of a run that has failed or diverged."""
    rounds = [number for number in curve if number <= stop]
    return curve[max(rounds)] if rounds else 0.0
