"""The scheduler of Ray Tune for one or several studies: which configurations are stopped early."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from bench.execution import ray_environment  # noqa: F401
from bench.tuning.search import REDUCTION, stops
from bench.tuning.study import Study

from ray.tune.experiment import Trial  # isort: skip
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler  # isort: skip


class PerSearch(FIFOScheduler):
    """Starts configurations in their order, and compares only those of one search with each other."""

    def __init__(self, studies: Mapping[str, Study]):
        """Takes studies by the names of their searches."""
        super().__init__()
        self._schedulers = {name: _scheduler(study) for name, study in studies.items()}

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self._of(trial).on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._of(trial).on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._of(trial).on_trial_remove(tune_controller, trial)

    def _of(self, trial: Trial) -> TrialScheduler:
        return self._schedulers[trial.config["search"]]


def _scheduler(study: Study) -> TrialScheduler:
    return asha(study) if study.search.scheduler == "asha" else FIFOScheduler()


def asha(study: Study) -> AsyncHyperBandScheduler:
    """Stops a configuration that does badly, compared with all that the search has tried, also before a kill."""
    search = study.search
    scheduler = AsyncHyperBandScheduler(
        time_attr="round",
        metric="value",
        mode="max",
        grace_period=stops(search)[0],
        reduction_factor=REDUCTION,
        max_t=search.template.rounds,
    )
    controller: Any = None  # which this scheduler does not use
    for trial in study.optuna.get_trials(deepcopy=False):
        earlier: Any = SimpleNamespace(trial_id=f"earlier-{trial.number}")  # of a trial it uses nothing else
        scheduler.on_trial_add(controller, earlier)
        for stop, value in sorted(trial.intermediate_values.items()):
            scheduler.on_trial_result(controller, earlier, {"round": stop, "value": value})
    return scheduler
