"""A search on disk: its Optuna study, which proposes configurations, knows what they reached, and survives a kill.

searches/<name>.json       what is searched: settings, space, seeds, metric; and what was proposed
         <name>.journal    the study; `optuna-dashboard searches/<name>.journal` shows it
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bench.config.stale import Changes
from bench.results.grids import StoredSearch
from bench.results.searched import value_in
from bench.results.store import Store
from bench.seeding import seed_for
from bench.tuning.outcomes import Listed, Outcome, ValidationRun, list_runs, listed_for, ranked, stale, validation_runs
from bench.tuning.search import TPE, Search, stops
from search_spaces import Parameter

_MOST_DRAWS = 100  # for a configuration that was not tried yet
_TPE_DRAWS = 10  # of these: in a small space TPE draws the same good ones again and again


class Study:
    """What a search has tried, and what it tries next.

    The store and the list of proposals decide; the journal is written anew from them whenever the search is opened, so that a
    kill cannot make it contradict the runs.

    Attributes:
        search, store: what is searched, and where its runs are stored.
        optuna: `optuna.Study`, for its searchers, its figures and its dashboard.
    """

    def __init__(self, search: Search, store: Store, listed: Listed | None = None, keep_stale: bool = False):
        """Opens the search, or begins it; configurations that a killed driver has left, or that failed, are tried again first.

        The store must be locked.

        Args:
            listed: of `list_runs`, where several searches share it.
            keep_stale: whether runs count that earlier code has trained; else they are trained again.

        Raises:
            StoreError: if its file cannot be written.
        """
        self.search, self.store, self._keep_stale = search, store, keep_stale
        self._folder = store.folder / "searches"
        self._folder.mkdir(exist_ok=True)
        self._proposed = self._read_proposed()
        self._distributions = _distributions(search)
        listed = list_runs(store) if listed is None else listed
        self._runs = self._validation_runs(listed_for(search, listed))
        self._tried = {_key(self.search, params) for params in self._proposed}
        if search.searcher == "grid":  # points whose runs other searches have finished need no trial
            for params in search.points():
                if _key(self.search, params) not in self._tried and self._is_complete(params):
                    self._remember(params)
        self.optuna = self._new_journal()
        counting = self._proposed[: search.wanted]  # a longer search may have proposed more
        self._waiting = [params for params in counting if not self._add(params)]
        self._elsewhere = self._found_elsewhere()
        for params in self._elsewhere:
            self._add(params, found=True)
        self._write()

    @property
    def left(self) -> int:
        """Configurations that are still to be tried, at most."""
        unknown = self.search.size - len(self._proposed) - len(self._elsewhere)
        return len(self._waiting) + int(max(min(self.search.wanted - len(self._proposed), unknown), 0))

    @property
    def ended_runs(self) -> dict[str, ValidationRun]:
        """The validation runs in the store, by their ids, that need not be trained."""
        return {run: ended for run, ended in self._runs.items() if ended.complete}

    def stale_runs(self) -> dict[str, Changes]:
        """Run id -> what has changed since, of the runs that earlier code has trained and that are trained again."""
        counting = self._proposed[: self.search.wanted]
        runs = () if self._keep_stale else (run for params in counting for run in self.search.runs(params))
        return {run: changed for run in runs if (changed := stale(self.store, run))}

    def repeated(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Run id -> where it is to be written in the store, of the runs of a configuration that have ended there before."""
        folders = {
            run: (self.store.unfinished_folder(run), self.store.run_folder(run)) for run in self.search.runs(params)
        }
        return {run: str(folder) for run, (folder, usual) in folders.items() if folder != usual}

    def propose(self) -> optuna.trial.Trial | None:
        """The next configuration; None if there is no other one. What is proposed is on disk before it is tried."""
        if self._waiting:
            return self._ask(self._waiting.pop(0))
        if len(self._proposed) >= self.search.wanted:
            return None
        if trial := self._ask_for_a_new_one():
            self._remember(dict(trial.params))
            self._write()
        return trial

    def close(self, trial: optuna.trial.Trial, value: float | None, complete: bool) -> None:
        """A configuration has ended.

        Args:
            value: mean over seeds; None if it failed.
            complete: whether it was trained to the end.
        """
        state = TrialState.FAIL if value is None else TrialState.COMPLETE if complete else TrialState.PRUNED
        self.optuna.tell(trial, value if state == TrialState.COMPLETE else None, state=state)

    def close_if_known(self, trial: optuna.trial.Trial) -> float | None:
        """Closes a proposed configuration whose runs are all in the store by now, trained to the end: by another search, or as
        bases of other runs.

        Returns:
            The mean over seeds; None if something is left to train.
        """
        ids = self.search.runs(trial.params)
        runs = [*self._validation_runs(ids).values()]
        if len(runs) < len(ids) or not all(run.complete for run in runs):
            return None
        reached = {stop: sum(run.at(stop) for run in runs) / len(runs) for stop in stops(self.search)}
        for stop, value in reached.items():
            trial.report(value, stop)
        value = reached[self.search.template.rounds]
        self.close(trial, value, complete=True)
        return value

    def outcomes(self) -> list[Outcome]:
        """Every configuration that counts, and has not failed.

        The best first, of equal ones the earliest proposal; behind them those that diverged with a seed, which cannot be
        chosen; last those that were stopped. A search counts its own proposals, as many as it may try; if it learns from other
        searches, also those that they have finished.
        """
        counting = [*self._proposed[: self.search.wanted], *self._elsewhere]
        own = {run for params in counting for run in self.search.runs(params)}
        others = {run: ended for run, ended in self._runs.items() if run not in own}
        self._runs = others | self._validation_runs(own)
        return ranked(self.search, counting, self._runs, self._elsewhere)

    def _validation_runs(self, runs: Iterable[str]) -> dict[str, ValidationRun]:
        return validation_runs(self.search, self.store, runs, self._keep_stale)

    def _read_proposed(self) -> list[dict]:
        """What the search has proposed; nothing if its file is damaged: then it starts over, and finished runs count."""
        found = self.store.search(self.search.name)
        if not found:
            return []
        if not all(is_in_space(self.search, params) for params in found["proposed"]):
            path = self._folder / f"{self.search.name}.json"
            self.store.damaged[path] = "has proposed what is not in the space of the search"
            return []
        return found["proposed"]

    def _new_journal(self) -> optuna.Study:
        journal = self._folder / f"{self.search.name}.journal"
        for path in (journal, journal.with_name(journal.name + ".lock")):
            path.unlink(missing_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(study_name=self.search.name, storage=storage, direction="maximize")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([f"validation_{self.search.metric}"])
        described = self.search.describe()
        for key in ("metric", "searcher", "scheduler", "sampler"):
            if key in described:
                study.set_user_attr(key, described[key])
        study.set_user_attr("seeds", [*self.search.configs])
        return study

    def _is_complete(self, params: dict) -> bool:
        """Whether all runs of a configuration are in the store, trained to the end."""
        return all(run in self._runs and self._runs[run].complete for run in self.search.runs(params))

    def _add(self, params: dict, found: bool = False) -> bool:
        """Tells Optuna what a configuration has reached; False if its runs have not all ended."""
        ids = self.search.runs(params)
        if not all(run in self._runs for run in ids):
            return False
        runs, rungs = [self._runs[run] for run in ids], stops(self.search)
        if not all(one.complete or one.rounds in rungs[:-1] for one in runs):
            return False  # another search has stopped one at another round
        stopped = [one.rounds for one in runs if not one.complete]
        complete, last = not stopped, min(stopped, default=rungs[-1])
        reached = {stop: sum(one.at(stop) for one in runs) / len(runs) for stop in rungs if stop <= last}
        self.optuna.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=self._distributions,
                value=reached[last] if complete else None,
                state=TrialState.COMPLETE if complete else TrialState.PRUNED,
                intermediate_values=reached,
                user_attrs={"runs": [*ids], "found": found},
            )
        )
        return True

    def _found_elsewhere(self) -> list[dict]:
        """What this search learns from others: configurations of its space that it has not proposed, and whose runs others have
        all finished. Only a searcher with a model of the space can use them."""
        if not (self.search.warm_start and self.search.searcher == "optuna"):
            return []
        candidates: dict[str, dict] = {}
        for run in self._runs:
            config = self.store.config(run)
            params = {key: value_in(config, key) for key in self.search.space} if config else {}
            if config and is_in_space(self.search, params):
                candidates.setdefault(_key(self.search, params), params)
        return [params for key, params in candidates.items() if key not in self._tried and self._is_complete(params)]

    def _ask(self, params: dict) -> optuna.trial.Trial:
        self.optuna.enqueue_trial(params)
        return self._with_runs(self.optuna.ask(self._distributions))

    def _ask_for_a_new_one(self) -> optuna.trial.Trial | None:
        """What the searcher proposes; None if all of the space are known."""
        known = self._tried | {_key(self.search, params) for params in self._elsewhere}
        trial = _draw_new(self.optuna, self.search, self._distributions, len(self._proposed), known)
        return trial and self._with_runs(trial)

    def _with_runs(self, trial: optuna.trial.Trial) -> optuna.trial.Trial:
        trial.set_user_attr("runs", [*self.search.runs(trial.params)])
        return trial

    def _remember(self, params: dict) -> None:
        self._tried.add(_key(self.search, params))
        self._proposed.append(params)

    def _write(self) -> None:
        # Fewer than those of the search, if others have tried some.
        wanted = len(self._proposed) + self.left - len(self._waiting)
        content = {**self.search.describe(), "wanted": wanted, "proposed": self._proposed}
        self.store.write_search(self.search.name, cast(StoredSearch, content))


def is_in_space(search: Search, params: Mapping[str, Any]) -> bool:
    """Whether a search could have proposed a configuration."""
    return params.keys() == search.space.keys() and all(
        could_propose(search.space[key], value, search.searcher) for key, value in params.items()
    )


def could_propose(parameter: Parameter, value: Any, searcher: str = "random") -> bool:
    """Whether a searcher could have proposed the value."""
    if searcher == "grid" or parameter.low is None or parameter.high is None:
        return value in parameter.grid
    kinds = (int,) if parameter.is_whole else (int, float)  # a bool is none of them
    return type(value) in kinds and parameter.low <= value <= parameter.high


def draws(search: Search, number: int) -> Iterator[dict[str, Any]]:
    """The first configurations that a search at random proposes, so many at most: they follow from its settings and seeds."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, distributions, known = optuna.create_study(direction="maximize"), _distributions(search), set[str]()
    for proposed in range(number):
        trial = _draw_new(study, search, distributions, proposed, known)
        if trial is None:
            return
        known.add(_key(search, trial.params))
        yield dict(trial.params)


def _draw_new(
    study: optuna.Study,
    search: Search,
    distributions: dict[str, BaseDistribution],
    proposed: int,
    known: Collection[str],
) -> optuna.trial.Trial | None:
    """What the searcher draws after so many proposals, until it is none of the known ones; of a grid, and where hardly any
    other is left, the first of these; None if all of the space are known."""
    # So the best one is at least as good. A setting of one value has that one.
    single = {key: where.grid[0] for key, where in search.space.items() if where.low is None and len(where.grid) == 1}
    usual = search.usual | single
    is_grid = search.searcher == "grid"
    is_first = not (is_grid or search.of_study or proposed)
    if is_first and is_in_space(search, usual):
        study.enqueue_trial(usual)
        return study.ask(distributions)
    for draw in range(0 if is_grid else _MOST_DRAWS):
        # Each proposal has a seed of its own, so that it does not depend on where a driver was killed.
        study.sampler = _sampler(search, proposed, draw)
        trial = study.ask(distributions)
        if _key(search, trial.params) not in known:
            return trial
        study.tell(trial, state=TrialState.FAIL)
    left = next((params for params in search.points() if _key(search, params) not in known), None)
    if left is None:
        return None
    study.enqueue_trial(left)
    return study.ask(distributions)


def _key(search: Search, params: Mapping[str, Any]) -> str:
    """The same for configurations with the same runs: 1 and 1.0 are one value."""
    return " ".join(search.runs(params))


def _distributions(search: Search) -> dict[str, BaseDistribution]:
    return {key: _distribution(parameter, search) for key, parameter in search.space.items()}


def _distribution(parameter: Parameter, search: Search) -> BaseDistribution:
    if search.searcher == "grid" or parameter.low is None or parameter.high is None:
        return CategoricalDistribution(parameter.grid)
    if parameter.is_whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _sampler(search: Search, proposed: int, draw: int) -> BaseSampler:
    """The sampler of a draw: after so many proposed configurations, and so many draws that gave a known one."""
    if search.of_study or (search.searcher == "random" and search.shares_draws):
        data = search.template.dataset, search.template.partition
        return _SharedDraws(min(search.configs), "study" if search.of_study else "search", *data, proposed, draw)
    seed = seed_for(min(search.configs), "search", search.name, proposed, draw) % 2**32
    if search.searcher != "optuna" or draw >= _TPE_DRAWS:
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, **TPE)


class _SharedDraws(RandomSampler):
    """Draws each hyper-parameter from a stream of its name, so that methods with the same range try the same values."""

    def __init__(self, *key: Any):
        super().__init__()
        self._stream = key

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        sampler = RandomSampler(seed=seed_for(*self._stream, param_name) % 2**32)
        return sampler.sample_independent(study, trial, param_name, param_distribution)
