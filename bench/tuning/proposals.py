"""The searcher of Ray Tune for one or several studies."""

from collections.abc import Callable, Mapping
from typing import Any

import optuna

from bench.execution import ray_environment  # noqa: F401
from bench.tuning.study import Study

from ray.tune.search import Searcher  # isort: skip


class Proposals(Searcher):
    """Ray's view of studies, which propose their configurations one study after the other.

    What a study proposes depends on its own configurations only.
    """

    def __init__(self, studies: Mapping[str, Study], on_known: Callable[[str, dict[str, Any], float], None]):
        """
        Args:
            studies: by the names of their searches.
            on_known: gets the search, the hyper-parameters and the mean over seeds of a configuration that needs no trial,
                because its runs have been trained meanwhile.
        """
        super().__init__(metric="value", mode="max")
        self._studies, self._unfinished, self._on_known = studies, list(studies), on_known
        self._next: tuple[str, optuna.trial.Trial] | None = None
        self._running: dict[str, tuple[str, optuna.trial.Trial]] = {}

    def suggest(self, trial_id: str) -> Any:
        while (proposed := self._next or self._propose()) is not None:
            self._next, (name, proposal) = proposed, proposed
            if self._runs(proposed) & {run for other in self._running.values() for run in self._runs(other)}:
                return None  # two searches have come to the same run, of which only one worker can write the files
            self._next, known = None, self._studies[name].close_if_known(proposal)
            if known is None:
                self._running[trial_id] = proposed
                params = dict(proposal.params)
                return {"search": name, "params": params, "repeated": self._studies[name].repeated(params)}
            self._on_known(name, dict(proposal.params), known)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if result["round"]:
            self._running[trial_id][1].report(result["value"], result["round"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        name, proposal = self._running.pop(trial_id)
        study, report = self._studies[name], result["report"] if result and not error else None
        if report is None or report.failed or not report.round:  # without a round it has not been trained to an end
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
