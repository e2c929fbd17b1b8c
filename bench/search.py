"""Plays a search with Ray Tune: one trial is one configuration, with a run for each seed in lock step.

A trial reports the mean over seeds, so that searcher and scheduler see one number for a configuration. Runs are those of the
store on the split "validation": what one search has finished is not played again by another.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import algorithms
from bench import tune as scheduling  # sets the environment that Ray reads
from bench.config import RunConfig, base_of, run_id
from bench.ledger import Ledger
from bench.resources import Resources
from bench.run import Keep, summarise
from bench.store import Store, StoreError
from bench.study import REDUCTION, Search, Study, score, stops, text_of
from bench.worker import Job, Worker

from ray import tune  # isort: skip
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler  # isort: skip
from ray.tune.search.optuna import OptunaSearch  # isort: skip


class Configuration(tune.Trainable):
    """Workers that play the runs of one configuration, a worker per seed."""

    def setup(self, config, search, place, checkpoint_seconds, data_dir, resources, ended, bases):
        torch.set_num_threads(resources.threads)
        self._search, self._place, self._checkpoint_seconds = search, place, checkpoint_seconds
        self._data_dir, self._device, self._ended, self._bases = data_dir, resources.device, ended, bases
        self.reset_config(config)

    def reset_config(self, new_config):
        self._runs = self._search.runs(new_config)
        self._latest = {run: self._ended[run] for run in self._runs if run in self._ended}  # run -> metric
        self._workers = {run: self._worker(run) for run in self._runs if run not in self._ended}
        # What is known beforehand was trained to the end; it would be unfair to compare that at an early rung.
        self._stops = stops(self._search) if self._workers else [self._search.template.rounds]
        return True

    def step(self):
        stop = self._stops.pop(0)
        told = [self._play(run, stop) for run in list(self._workers)]
        value = sum(self._latest[run] for run in self._runs) / len(self._runs)
        return {"value": value, "round": stop, "runs": told, "done": not self._workers}

    def _worker(self, run: str) -> Worker:
        config, worker = self._runs[run], Worker(self._data_dir, self._device)
        base = self._bases.get(config.seed, "")
        folder = f"{self._place}/{run}"
        worker.take(Job(run, config, folder, Keep(final=False), self._checkpoint_seconds, base=base))
        return worker

    def _play(self, run: str, stop: int) -> dict[str, Any]:
        """Plays a run up to a round, and tells all of it as `Worker.step` does."""
        worker, rows, notes, first = self._workers[run], [], [], None
        while True:
            said = worker.step(stop)
            first = said["first"] if first is None else min(first, said["first"])
            rows[said["first"] - first :] = said["rows"]
            notes += [said["note"]] if said["note"] else []
            if said["broken"]:
                raise StoreError(said["broken"])
            if said["crowded"]:
                said["ended"] = {"status": "failed", "reason": "out of GPU memory: ask for a larger --gpus-per-trial"}
            if said["ended"] or worker.round >= stop:
                break
        scores = [row[self._search.metric] for row in rows if self._search.metric in row]
        if said["ended"]:
            del self._workers[run]
            self._latest[run] = score(said["ended"], self._search.metric)
        elif scores:
            self._latest[run] = scores[-1]
        told = {"id": run, "config": self._runs[run].canonical(), "first": first, "rows": rows, "until": stop}
        return told | {"ended": said["ended"], "note": "; ".join(notes)}


class _Recorder(tune.Callback):
    """Writes what configurations report into the store."""

    def __init__(self, search: Search, store: Store, say: Callable[[str], None], facts: Mapping, total: int):
        self._search, self._ledger, self._say, self._total = search, Ledger(store, facts), say, total
        self._open: dict[str, dict[str, int]] = {}  # trial -> run -> rounds played, of runs that have not ended
        self._number = 0

    def __getstate__(self):
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

    def on_trial_result(self, iteration, trials, trial, result, **info):
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
                self._ledger.end(run, told["ended"])
                del playing[run]
                if told["ended"]["status"] == "failed":
                    self._say(f"{text_of(trial.config)} failed: {told['ended']['reason']}")
            else:
                self._ledger.write(run, told["rows"])

    def on_trial_complete(self, iteration, trials, trial, **info):
        stopped = self._open.pop(trial.trial_id, {})
        for run, rounds in stopped.items():
            reason = f"the search stopped it after round {rounds} of {self._search.template.rounds}"
            self._ledger.end(run, {"status": "stopped", "reason": reason, "summary": summarise(self._ledger.rows[run])})
        self._number += 1
        rounds = f", stopped after round {max(stopped.values())}" if stopped else ""
        self._say(
            f"[{self._number}/{self._total}] {text_of(trial.config)}: validation {self._search.metric.replace('_', ' ')} "
            f"{100 * trial.last_result['value']:.1f} %{rounds}"
        )

    def on_trial_error(self, iteration, trials, trial, **info):
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        for run in self._open.pop(trial.trial_id, {}):
            self._ledger.end(run, {"reason": scheduling.reason_of(text), "traceback": text})
        self._say(f"{text_of(trial.config)} failed: {scheduling.reason_of(text)}")


def play(
    search: Search,
    store: Store,
    say: Callable[[str], None],
    *,
    data_dir: Path | None,
    resources: Resources,
    max_concurrent: int = 0,
    address: str | None = None,
    checkpoint_seconds: float = 60.0,
    facts: Mapping[str, Any] | None = None,
) -> Study:
    """Tries what is left of a search; the store must be locked, and have the last states of the runs of `bases_of`.

    Args:
        say: is told of each configuration.
        data_dir, resources, max_concurrent, address, facts: as in `bench.tune.play`.

    Raises:
        KeyboardInterrupt, ValueError, StoreError: as `bench.tune.play`.
    """
    study = Study(search, store)
    count = study.left
    if not count:
        return study
    with scheduling.session(store, resources, address):
        trainable = tune.with_parameters(
            Configuration,
            search=search,
            place=str(store.folder / "runs"),
            checkpoint_seconds=checkpoint_seconds,
            data_dir=data_dir,
            resources=resources,
            ended=study.ended_runs(),
            bases={seed: str(store.run_folder(run_id(config))) for seed, config in bases_of(search).items()},
        )
        at_end = search.template.rounds
        early = AsyncHyperBandScheduler(
            time_attr="round", grace_period=stops(search)[0], reduction_factor=REDUCTION, max_t=at_end
        )
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            tune_config=tune.TuneConfig(
                metric="value",
                mode="max",
                search_alg=study.searcher(OptunaSearch),
                scheduler=early if search.scheduler == "asha" else FIFOScheduler(),
                num_samples=count,
                max_concurrent_trials=max_concurrent or None,
                reuse_actors=True,
            ),
            run_config=scheduling.run_config(store, [_Recorder(search, store, say, facts or {}, count)]),
        )
        tuner.fit()
    return study


def bases_of(search: Search) -> dict[int, RunConfig]:
    """Seed -> the run whose last state a configuration starts from, of a method that only changes what another one deploys;
    empty for others, and where the search is about that other one, too."""
    own = search.template.algorithm.keys() - {"base"}
    if not algorithms.load(search.template.algorithm["name"]).post_hoc or not own >= search.space.keys():
        return {}
    return {seed: base_of(config) for seed, config in search.configs.items()}
