"""A search on disk: its Optuna study, which proposes configurations, knows what they reached, and survives a kill.

searches/<name>.json       what is searched: settings, space, seeds, metric
         <name>.journal    the study; `optuna-dashboard searches/<name>.journal` shows it
"""

import itertools
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bench.config import RunConfig, run_id, with_options
from bench.names import file_name
from bench.seeds import seed_for
from bench.store import Store, write_file
from search_spaces import Parameter, Space

VALIDATION = "validation"
SEARCHERS = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
METRICS = ("accuracy", "global_accuracy", "local_accuracy")
REDUCTION = 3  # one configuration in so many goes on from a rung, and the next rung is after so many times more rounds
_RUNGS = 2  # before the last round
_FROM_STORE = "runs"  # user attribute of trials that no searcher proposed: they were found among finished runs


@dataclass(frozen=True)
class Search:
    """What is searched, and how.

    Attributes:
        configs: for each seed, the config on the split "validation", with the method's usual hyper-parameters.
        space: where they are searched.
        searcher: "grid", "random" or "optuna" (TPE).
        scheduler: "none", or "asha", which stops what does badly.
        metric: the validation accuracy that counts.
        samples: configurations that are tried, at most; all of a grid.
    """

    configs: Mapping[int, RunConfig]
    space: Space
    searcher: str
    scheduler: str
    metric: str
    samples: int

    @property
    def template(self) -> RunConfig:
        """The config of the first seed."""
        return next(iter(self.configs.values()))

    @property
    def name(self) -> str:
        """Of its files: another one for whatever makes its numbers not comparable; more samples continue a search."""
        config = self.template
        parts = [config.algorithm["name"], config.dataset, config.partition, run_id(self._key())[:8]]
        return file_name("-".join(parts))

    def runs(self, params: Mapping[str, Any]) -> dict[str, RunConfig]:
        """Run id -> config of one configuration, a run per seed."""
        configs = [with_options(config, params) for config in self.configs.values()]
        return {run_id(config): config for config in configs}

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        space = {key: parameter.model_dump() for key, parameter in self.space.items()}
        how = {"searcher": self.searcher, "scheduler": self.scheduler, "metric": self.metric, "samples": self.samples}
        configs = {str(seed): config.canonical() for seed, config in self.configs.items()}
        return {"configs": configs, "space": space, **how}

    def _key(self) -> dict[str, Any]:
        return {key: value for key, value in self.describe().items() if key != "samples"}


class Outcome(NamedTuple):
    """What one configuration reached.

    Attributes:
        params: hyper-parameter -> value.
        runs: their ids, a run per seed.
        scores: of the runs in their last round, in [0, 1]; 0 for one that diverged or failed.
        rounds: that all of them have played.
        whole: whether they were trained to the end.
    """

    params: dict[str, Any]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    rounds: int
    whole: bool

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)


class Study:
    """The Optuna study of a search.

    Attributes:
        search, store: what is searched, and where its runs are.
        optuna: `optuna.Study`.
        distributions: hyper-parameter -> where the searcher looks.
    """

    def __init__(self, search: Search, store: Store):
        """Opens or makes it, and puts it in order after a kill: what was being tried is tried again first.

        The store must be locked.
        """
        self.search, self.store = search, store
        folder = store.folder / "searches"
        folder.mkdir(exist_ok=True)
        write_file(folder / f"{search.name}.json", json.dumps(search.describe(), indent=1) + "\n")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.storage = JournalStorage(JournalFileBackend(str(folder / f"{search.name}.journal")))
        self.distributions = {key: _distribution(parameter, search) for key, parameter in search.space.items()}
        self.optuna = optuna.create_study(
            study_name=search.name, storage=self.storage, direction="maximize", load_if_exists=True
        )
        self.sampler = self.optuna.sampler = _sampler(search, len(self.optuna.get_trials(deepcopy=False)))
        self._try_again()
        if search.searcher == "grid":
            self._enqueue_grid()
        if search.searcher == "optuna":
            self._learn_from_finished_runs()

    @property
    def left(self) -> int:
        """Configurations that are still to be tried; those that wait are tried first."""
        waiting = len(self.optuna.get_trials(deepcopy=False, states=[TrialState.WAITING]))
        return waiting if self.search.searcher == "grid" else max(self.search.samples - len(self.own()), waiting)

    def searcher(self, kind: type):
        """Ray's searcher on this study: `ray.tune.search.optuna.OptunaSearch`, which this module need not import."""
        return kind(
            self.distributions,
            metric="value",
            mode="max",
            sampler=self.sampler,
            study_name=self.search.name,
            storage=self.storage,
        )

    def ended_runs(self) -> dict[str, float]:
        """Run id -> metric of the validation runs in the store that have ended, and need not be played."""
        ended = self.store.ended()
        return {
            run: score(record, self.search.metric) for run, config, record in ended if config["split"] == VALIDATION
        }

    def outcomes(self) -> list["Outcome"]:
        """Every configuration that was tried or found in the store: the best first, those that were stopped last."""
        found = {}
        states = [TrialState.COMPLETE, TrialState.PRUNED]
        for trial in self.optuna.get_trials(deepcopy=False, states=states):
            records = {run: self.store.record(run) for run in self.search.runs(trial.params)}
            if all(records.values()):
                scores = [score(record, self.search.metric) for record in records.values()]
                rounds = min(record["rounds"] for record in records.values())
                whole = not any(record["status"] == "stopped" for record in records.values())
                found[tuple(records)] = Outcome(trial.params, tuple(records), tuple(scores), rounds, whole)
        return sorted(found.values(), key=lambda one: (not one.whole, -one.rounds, -one.mean))

    def own(self) -> list[optuna.trial.FrozenTrial]:
        """Configurations that this search has proposed and tried to an end."""
        states = [TrialState.COMPLETE, TrialState.PRUNED]
        trials = self.optuna.get_trials(deepcopy=False, states=states)
        return [trial for trial in trials if _FROM_STORE not in trial.user_attrs]

    def _try_again(self) -> None:
        """What was being tried when the driver was killed waits to be tried again."""
        for trial in self.optuna.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
                self.optuna.enqueue_trial(trial.params, skip_if_exists=False)

    def _enqueue_grid(self) -> None:
        """All points of the grid, as far as samples allow, in its order, unless they were tried or wait already."""
        trials = self.optuna.get_trials(deepcopy=False)
        there = [
            trial.system_attrs.get("fixed_params", trial.params) for trial in trials if trial.state != TrialState.FAIL
        ]
        points = itertools.product(*(parameter.grid for parameter in self.search.space.values()))
        for values in itertools.islice(points, self.search.samples):
            params = dict(zip(self.search.space, values, strict=True))
            if params not in there:
                self.optuna.enqueue_trial(params)

    def _learn_from_finished_runs(self) -> None:
        """What other searches have found out about the same settings, as trials of this one."""
        known = {json.dumps(trial.params, sort_keys=True) for trial in self.optuna.get_trials(deepcopy=False)}
        for params, value in finished_points(self.search, self.store):
            fits = all(
                self.distributions[key]._contains(self.distributions[key].to_internal_repr(params[key]))
                for key in params
            )
            if fits and json.dumps(params, sort_keys=True) not in known:
                attributes = {_FROM_STORE: [*self.search.runs(params)]}
                trial = optuna.trial.create_trial(
                    params=params, distributions=self.distributions, value=value, user_attrs=attributes
                )
                self.optuna.add_trial(trial)


def stops(search: Search) -> list[int]:
    """Rounds after which a configuration reports; the first is the least that each gets, the last the end."""
    last = search.template.rounds
    if search.scheduler == "none":
        return [last]
    first = max(1, last // REDUCTION**_RUNGS)
    return [*(stop for stop in (first * REDUCTION**rung for rung in range(_RUNGS + 1)) if stop < last), last]


def finished_points(search: Search, store: Store) -> Iterable[tuple[dict, float]]:
    """Points of the space all of whose runs have ended in a store, and the mean of their metric."""
    scores = {}
    candidates: dict[str, dict] = {}
    for run, config, record in store.ended():
        if config["split"] == VALIDATION and config["seed"] in search.configs:
            scores[run] = score(record, search.metric)
            params = {key: _value_in(config, key) for key in search.space}
            candidates[json.dumps(params, sort_keys=True)] = params
    for params in candidates.values():
        try:
            runs = search.runs(params)
        except ValueError:
            continue  # values of another method
        if scores.keys() >= runs.keys():
            yield params, sum(scores[run] for run in runs) / len(runs)


def score(record: Mapping, metric: str) -> float:
    """What a run reached in the last round that it played; 0 if it diverged or failed."""
    return record["summary"]["last"].get(metric, 0.0) if record["status"] in ("done", "stopped") else 0.0


def text_of(params: Mapping[str, Any]) -> str:
    """ "mu=0.01, tau=0.5", as people read it."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in params.items()
    )


def _value_in(config: Mapping, key: str) -> Any:
    """A setting, or an option of the method or of one inside; None if there is none of that name."""
    if key in config:
        return config[key]
    method = config["algorithm"]
    while isinstance(method, Mapping):
        if key in method:
            return method[key]
        method = method.get("base")
    return None


def _holds(parameter: Parameter, value: Any) -> bool:
    """Whether a searcher could have proposed the value."""
    if parameter.low is None:
        return value in parameter.grid
    return isinstance(value, int | float) and parameter.low <= value <= parameter.high


def _distribution(parameter: Parameter, search: Search) -> BaseDistribution:
    if search.searcher == "grid" or parameter.low is None:
        return CategoricalDistribution(parameter.grid)
    if parameter.is_whole:
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _sampler(search: Search, tried: int) -> BaseSampler:
    """A grid's points wait in the study, so that nothing is left to a sampler.

    Args:
        tried: trials of the study; a search that goes on must not draw again what it drew first.
    """
    seed = seed_for(min(search.configs), "search", tried) % 2**32
    if search.searcher != "optuna":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Configurations that are tried at the same time keep away from each other.
        return TPESampler(seed=seed, constant_liar=True)
