"""The searcher of Ray Tune for one or several studies."""

from collections.abc import Mapping
from typing import Any

import optuna

from bench.execution import ray_environment  # noqa: F401
from bench.tuning.study import Study

from ray.tune.search import Searcher  # isort: skip


class Proposals(Searcher):
    """Ray's view of studies, which propose their configurations one study after the other.

    What a study proposes depends on its own configurations only.
    """

    def __init__(self, studies: Mapping[str, Study]):
        """Takes studies by the names of their searches."""
        super().__init__(metric="value", mode="max")
        self._studies, self._unfinished = studies, list(studies)
        self._next: tuple[str, optuna.trial.Trial] | None = None
        self._running: dict[str, tuple[str, optuna.trial.Trial]] = {}

    def suggest(self, trial_id: str) -> Any:
        self._next = self._next or self._propose()
        if self._next is None:
            return Searcher.FINISHED
        if self._runs(self._next) & {run for other in self._running.values() for run in self._runs(other)}:
            return None  # two searches have come to the same run, of which only one worker can write the files
        (name, proposal), self._next = self._next, None
        self._running[trial_id] = name, proposal
        return {"search": name, "params": dict(proposal.params)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if result["round"]:
            self._running[trial_id][1].report(result["value"], result["round"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        name, proposal = self._running.pop(trial_id)
        study, report = self._studies[name], result["report"] if result and not error else None
        if report is None or report.failed or report.storage_error:
            study.close(proposal, None, complete=False)
        else:
            study.close(proposal, report.value, complete=report.round == study.search.template.rounds)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the studies are on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: Tune never restores here."""

    def _propose(self) -> tuple[str, optuna.trial.Trial] | None:
        while self._unfinished:
            name = self._unfinished[0]
            if proposal := self._studies[name].propose():
                return name, proposal
            self._unfinished.pop(0)
        return None

    def _runs(self, proposed: tuple[str, optuna.trial.Trial]) -> set[str]:
        name, proposal = proposed
        return set(self._studies[name].search.runs(proposal.params))
