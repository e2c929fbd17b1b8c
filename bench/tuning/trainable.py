"""A configuration of a search as a trial of Ray Tune: a run for each seed, in lock step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.execution import ray_environment  # noqa: F401
from bench.execution.job import Job
from bench.execution.worker import Worker
from bench.simulation.retention import StateRetention
from bench.tuning.outcomes import latest
from bench.tuning.search import stops

from ray import tune  # isort: skip


@dataclass(frozen=True)
class Place:
    """Where the workers of a search write.

    Attributes:
        folder: has one for each run; an absolute path, or a URI that fsspec knows.
        is_elsewhere: whether that is not the folder of the store's own runs.
        marker: as in `bench.execution.job.Job`.
        bases: seed -> where the last state lies from which the runs of that seed start; see `bases_of`.
        checkpoint_seconds: least time between checkpoints of an unfinished run.
        engine: as in `bench.execution.job.Job`.
    """

    folder: str
    is_elsewhere: bool
    marker: str
    bases: Mapping[int, str]
    checkpoint_seconds: float = 60.0
    engine: str = "auto"


class Configuration(tune.Trainable):
    """Workers that play the runs of one configuration, a worker per seed; all of them share its part of a machine."""

    def setup(self, config, search, place, data_dir, resources, ended):
        torch.set_num_threads(resources.threads)
        self._search, self._place, self._ended = search, place, ended
        self._data_dir, self._device = data_dir, resources.device
        self.reset_config(config)

    def reset_config(self, new_config):
        self._runs, self._failed = self._search.runs(new_config), False
        self._curves = {run: {} for run in self._runs}  # round -> metric
        self._workers = {run: self._worker(run) for run in self._runs if run not in self._ended}
        self._stops = stops(self._search)
        return True

    def step(self):
        """Plays one seed on for about a second, but not beyond the next round at which configurations are compared.

        Returns:
            "runs": what the seed has reported (see `_step_run`), nothing if all have ended; "failed", whether one of them has
            failed; "broken", why nothing can be written any more, or ""; and when all of them have come to that round, "round",
            and "value", the mean over seeds there; until then round is 0.
        """
        stop, reports, broken = self._stops[0], [], ""
        behind = [run for run, worker in self._workers.items() if worker.round < stop]
        if behind:
            reports = [self._step_run(behind[0], stop)]
            broken = reports[0]["broken"]
            behind = [run for run in behind if run in self._workers and self._workers[run].round < stop]
        over = self._failed or bool(broken)  # then it is worth nothing, and nobody is compared with it
        report = {"runs": reports, "failed": self._failed, "broken": broken, "value": 0.0, "round": 0, "done": over}
        if behind or over:
            return report
        self._stops.pop(0)
        value = sum(self._at(run, stop) for run in self._runs) / len(self._runs)
        return report | {"value": value, "round": stop, "done": not self._stops}

    def _at(self, run: str, stop: int) -> float:
        return self._ended[run].at(stop) if run in self._ended else latest(self._curves[run], stop)

    def _worker(self, run: str) -> Worker:
        config, worker = self._runs[run], Worker(self._data_dir, self._device)
        place, folder = self._place, f"{self._place.folder}/{run}"
        base = place.bases.get(config.seed, "")
        retention, seconds = StateRetention(final="none"), place.checkpoint_seconds
        worker.take(Job(run, config, folder, retention, seconds, place.engine, base=base, marker=place.marker))
        return worker

    def _step_run(self, run: str, stop: int) -> dict[str, Any]:
        """Plays a run on, and tells what `Worker.step` says about it, with its id, its config and the round at which it is."""
        worker = self._workers[run]
        report = worker.step(stop)
        until = worker.round
        if report["out_of_memory"]:
            report["ended"] = {"status": "failed", "reason": "out of GPU memory: ask for a larger --gpus-per-trial"}
        self._curves[run] |= {
            row["round"]: row[self._search.metric] for row in report["rows"] if self._search.metric in row
        }
        if report["ended"]:
            del self._workers[run]
            self._failed |= report["ended"]["status"] == "failed"
            if report["ended"]["status"] == "diverged":
                self._curves[run] = {0: 0.0}
        return report | {"id": run, "config": self._runs[run].canonical(), "until": until}
