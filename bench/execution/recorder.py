"""Writes what the trials of Ray Tune report into the store."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import StoreError
from bench.execution import ray_environment  # noqa: F401
from bench.execution.cluster import Watch
from bench.execution.fleet import Fleet
from bench.execution.resources import Resources
from bench.execution.run_recorder import RunRecorder
from bench.execution.worker import storage_trouble
from bench.results.store import Store

from ray import tune  # isort: skip
from ray.tune.experiment import Trial  # isort: skip


@dataclass(frozen=True)
class Session:
    """A session of Ray.

    Attributes:
        fleet: its machines.
        watch: of a cluster; None where Ray was started on this machine.
    """

    fleet: Fleet
    watch: Watch | None = None


class TrialRecorder(tune.Callback):
    """Writes what the trials of one `Tuner` report into the store; subclasses know which runs a trial trains.

    Ray may keep an error of a callback to itself, so the first one is remembered: see `check`.

    Attributes:
        is_interrupted: whether the `Tuner` is to end now, so that another one places what has not ended elsewhere.
        shares: what trials of the `Tuner` get of a machine.
    """

    def __init__(self, store: Store, session: Session, names_hosts: bool = True):
        """
        Args:
            session: of Ray.
            names_hosts: whether a record says on which machine its run was trained.
        """
        self.store, self.runs = store, RunRecorder(store)
        self.fleet, self._watch, self._names_hosts = session.fleet, session.watch, names_hosts
        self.is_interrupted = False
        self.shares: list[Resources] = []
        self._nodes: dict[str, str] = {}  # trial that is running -> node id of its machine
        self._error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to restore them, which this project never does

    def start(self, trial: Trial) -> None:
        """A trial begins, or begins again after its worker has died."""
        raise NotImplementedError

    def record(self, trial: Trial, report: Any) -> None:
        """A trial has reported (see `bench.execution.trainable.Report`)."""
        raise NotImplementedError

    def put_back(self, trial: Trial) -> None:
        """A trial is to be trained elsewhere, or with more room: what has not ended is placed anew."""
        self.is_interrupted = True

    def complete(self, trial: Trial) -> None:
        """A trial has ended by itself, or was stopped early."""

    def fail(self, trial: Trial, text: str, deaths: int) -> None:
        """Tune has given a trial up.

        Args:
            text: what Ray wrote of its errors.
            deaths: how often its worker died.
        """
        raise NotImplementedError

    def runs_of(self, trial: Trial) -> list[str]:
        """Ids of the runs of a trial that have begun and not ended."""
        raise NotImplementedError

    def machine_of(self, trial: Trial) -> str:
        """The machine of a trial of a cluster, for people; "" on this machine alone, or if it is not known."""
        node = self._nodes.get(trial.trial_id)
        return self.fleet.name_of(node) if node and self.fleet.address else ""

    def host_of(self, trial: Trial) -> dict[str, str]:
        """What the record of a run of a trial says of its machine."""
        node = self._nodes.get(trial.trial_id)
        return {"host": self.fleet.host_of(node)} if node and self._names_hosts else {}

    def check(self) -> None:
        """After the `Tuner` has ended. Raises StoreError if something could not be written."""
        if self.is_interrupted and self.fleet.address:
            for run in self.runs.rows:
                self.store.place(run, "")
        if self._error:
            raise StoreError(storage_trouble(self._error, self.store.folder) or str(self._error)) from self._error

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._remember_errors(self.start, trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._remember_errors(self._place, trial, result["node"])
        if result["report"]:
            self._remember_errors(self._record, trial, result["report"])

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if self._watch and (gone := self._watch.take_gone()):
            self._remember_errors(self._lose, gone, trials)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._remember_errors(self._wait, trial)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._remember_errors(self.complete, trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        self._remember_errors(self.fail, trial, text, own_deaths(text))

    def _record(self, trial: Trial, report: Any) -> None:
        if report.storage_error:
            machine = self.machine_of(trial)
            raise StoreError(report.storage_error + (f" (On the machine {machine}.)" if machine else ""))
        if report.machine_error:
            self.fleet.blame(self._nodes[trial.trial_id], report.machine_error)
            self.put_back(trial)
            return
        self.record(trial, report)

    def _place(self, trial: Trial, node: str) -> None:
        """A trial is on a machine."""
        if self._nodes.get(trial.trial_id) == node:
            return
        self._nodes[trial.trial_id] = node
        if self.fleet.address:
            for run in self.runs_of(trial):
                self.store.place(run, self.fleet.name_of(node))

    def _lose(self, gone: list[str], trials: list[Trial]) -> None:
        """Machines have gone; what they were training waits for another one. If none is left for it, the `Tuner` ends."""
        for node in gone:
            waiting = [trial for trial in trials if self._nodes.get(trial.trial_id) == node and not trial.is_finished()]
            self.fleet.lose(node, bool(waiting))
            for trial in waiting:
                self._wait(trial)
        if not all(map(self.fleet.has_room, self.shares)):
            self.is_interrupted = True

    def _wait(self, trial: Trial) -> None:
        """A trial waits for a machine."""
        self._nodes.pop(trial.trial_id, None)
        if self.fleet.address:
            for run in self.runs_of(trial):
                self.store.place(run, "")

    def _remember_errors(self, write: Callable[..., None], *arguments: Any) -> None:
        try:
            write(*arguments)
        except (StoreError, OSError) as error:
            self._error = self._error or error
            raise


def own_deaths(text: str) -> int:
    """How often a worker has died of which Ray wrote a text, without those whose machine has gone: these say nothing of the
    run."""
    failures = re.split(r"^Failure # ", text, flags=re.MULTILINE)[1:] or [text]
    return sum("its node has died" not in failure and "node was terminated" not in failure for failure in failures)
