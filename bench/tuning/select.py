"""Hyper-parameters from searches: runs that a search starts from, its configurations, what was chosen for places of a table."""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import references
from bench.config.resolve import with_one_length, with_options
from bench.config.schema import RunConfig, run_id
from bench.config.stale import Changes, why_repeated
from bench.errors import ConfigError
from bench.execution import driver
from bench.execution.workspace import Workspace, shared_bases
from bench.experiments.cells import Cell
from bench.experiments.images import View, view_of
from bench.experiments.planning import has_last_state, used_other_files
from bench.experiments.spec import SETS, ExperimentSpec, TuningOptions
from bench.files import path_in_words
from bench.results.records import DATA_SETTINGS
from bench.results.store import Store
from bench.simulation.data import divide
from bench.simulation.retention import StateRetention
from bench.tuning.build import make_searches
from bench.tuning.outcomes import ENDED, Outcome, list_runs, stale
from bench.tuning.search import Search
from bench.tuning.study import Study
from datasets import resized


def searches_of(spec: ExperimentSpec, cells: Iterable[Cell]) -> dict[str, Search]:
    """Place of cells (see `bench.experiments.spec.TuningOptions.place`) -> their search, for the cells whose images are there.

    Raises:
        ConfigError: with everything that is wrong.
        ValueError: if the experiment is not tuned.
    """
    tuning = spec.tuning
    if tuning is None:
        raise ValueError(f"{spec.label} is not tuned on validation data, so it has no searches.")
    given = {
        "split": "a search is on validation data, what follows it on test data.",
        "validation_share": "it is an option of its own, --validation-share.",
        "seed": "it is an option of its own, --seeds.",
    }
    mistakes = [f"--set {key} cannot be used here: {why}" for key, why in given.items() if key in spec.overrides]
    if mistakes:
        raise ConfigError(mistakes)
    fixed = with_one_length({**spec.grid.axes, **spec.overrides}) if tuning.compares else ()
    there = [cell for cell in cells if not cell.missing]
    if SETS in tuning.spaces and spec.grid.is_fixed_by(()):
        raise ConfigError(
            [f"{spec.grid.name} has no tuning set with several points, so --space {SETS} has nothing to search."]
        )
    searches = make_searches(there, spec.grid.report.model_dump(), tuning, fixed, spec.grid.tuning)
    replaced = with_one_length(spec.overrides)
    searched = {key: True for search in searches.values() for key in search.space if key in replaced}
    if searched:
        names, by_hand = ", ".join(searched), [key for key in spec.overrides if key in with_one_length(searched)]
        mistake = f"--set {', '.join(by_hand)} cannot be used here: {names} is searched; leave it out, or take another --space."
        raise ConfigError([mistake])
    return searches


def choose(
    searches: Mapping[str, Search],
    tuning: TuningOptions,
    workspace: Workspace,
    console: Console,
    on_message: Callable[[str], None],
    session: contextlib.ExitStack,
    save: Callable[[Study, list[Outcome], bool], list[Path]],
) -> dict[str, dict[str, Any]]:
    """Does what is left of searches, and saves their tables and figures.

    Args:
        searches: of `searches_of`.
        tuning: of the experiment.
        session: where Ray, if it is needed, is left for what follows.
        save: writes the table of a search and, if they are wanted, its figures, and returns the files.

    Returns:
        Place of cells -> what was chosen and how (see `describe_choice`): the configuration with the best mean over seeds among
        those that were trained to the end and diverged with no seed; of studies also one that diverged, where all did. Places
        where none can be chosen are absent; `on_message` gets the reason.

    Raises:
        KeyboardInterrupt, StoreError: as `bench.execution.scheduler.run_jobs`.
        ValueError: if clients cannot set enough aside; or after all searches, if nothing can be chosen for any place.
        datasets.DataError: if there are no images.
    """
    store, options = workspace.store, workspace.options
    digests = _check_data(searches.values(), options.data_dir)
    listed = list_runs(store)
    # Places may share a study.
    studies = {search.name: Study(search, store, listed, options.keep_stale) for search in searches.values()}
    _say_what_counts(studies.values(), digests, store, on_message)
    failures: dict[str, int] = {}
    if any(study.left for study in studies.values()):
        from bench.execution import ray_session  # Ray takes seconds to import

        session.enter_context(ray_session.session(workspace, on_message))
        failures = _run_searches(studies, workspace, console, on_message)
    found, troubles, spaces = dict[str, dict[str, Any]](), [], _spaces_searched(store)
    for name, study in studies.items():
        failed, outcomes = failures.get(name, 0), study.outcomes()
        saved = save(study, outcomes, not tuning.compares)
        if not tuning.compares:
            beside = len(saved) - 1
            on_message(f"Saved: {path_in_words(saved[0])}, and {beside} file{'s' * (beside != 1)} beside it")
        if best := best_of(outcomes, tuning):
            limits = _limits(study, outcomes, failed, len(spaces[_configs(study.search.describe())]), on_message)
            found[name] = describe_choice(study.search, best, outcomes) | limits
        else:
            troubles.append(_trouble(study.search, failed, len(outcomes)))
    if tuning.compares and studies:
        on_message(
            f"Saved: {path_in_words(store.folder / 'reports')}/search-..., the configurations of {len(studies)} searches"
        )
    if troubles and not found:
        raise ValueError(" ".join(troubles))
    for trouble in troubles:
        on_message(trouble)
    return {key: found[search.name] for key, search in searches.items() if search.name in found}


def _say_what_counts(
    studies: Collection[Study], digests: Mapping[View | str, str], store: Store, on_message: Callable[[str], None]
) -> None:
    """Which finished runs of searches are trained again, and which count although they have read other images."""
    _say_stale(
        {run: since for study in studies for run, since in study.stale_runs().items()}, "of searches", store, on_message
    )
    finished = {run: study.search.template for study in studies for run in study.ended_runs}
    for sentence in used_other_files(finished, digests, store, " of searches"):
        advice = "to search on this one alone, name another --results-dir."
        on_message(f"{sentence}: their accuracies are compared with those of this one; {advice}")


def _limits(
    study: Study, outcomes: Iterable[Outcome], failed: int, spaces: int, on_message: Callable[[str], None]
) -> dict[str, int]:
    """What tables say against a choice, as numbers beside those of `describe_choice`.

    Args:
        failed: configurations that cannot be chosen.
        spaces: that were searched here for the same runs.
    """
    title = title_of(study.search)
    copies = len({_digest(study.store, run) for one in outcomes for run in one.runs} - {None})
    if failed:
        on_message(
            f"{title}: {_configurations(failed)} failed and cannot be chosen, and tables will say so; the same command tries "
            f"{'it' if failed == 1 else 'them'} again."
        )
    if spaces > 1:
        on_message(f"{title}: this is one of {spaces} spaces searched here, and tables will say so.")
    counts = {"failed": (failed, 0), "copies": (copies, 1), "spaces": (spaces, 1)}
    return {what: count for what, (count, usual) in counts.items() if count > usual}


def best_of(outcomes: Sequence[Outcome], tuning: TuningOptions) -> Outcome | None:
    """The first of sorted outcomes that can be chosen; None if there is none. In studies also one that diverged, where all did:
    its runs will show that the study has missed."""
    able = (one for one in outcomes if one.is_choice)
    others = (one for one in outcomes if tuning.studies and one.complete)
    return next(able, None) or next(others, None)


def describe_choice(search: Search, chosen: Outcome, outcomes: list[Outcome]) -> dict[str, Any]:
    """What was chosen and how, as JSON values.

    Args:
        outcomes: among which it was chosen.
    """
    usual = run_id(with_options(search.template, {}))
    at_end = [
        key
        for key, one in search.space.items()
        if any(_holds(search, chosen, key, value) for value in one.beyond(chosen.params[key], search.searcher))
    ]
    return {
        "hparams": chosen.params,
        "score": chosen.mean,
        "metric": search.metric,
        "seeds": [*search.configs],
        "share": search.template.validation_share,
        "searcher": search.searcher,
        "scheduler": search.scheduler,
        "tried": len(outcomes),
        "alike": sum(one.is_like(chosen) for one in outcomes),
        "defaults": any(run_id(with_options(search.template, one.params)) == usual for one in outcomes),
        "space": {key: parameter.describe(search.searcher) for key, parameter in search.space.items()},
        "search": search.name,
    } | ({"at_end": at_end} if at_end else {})


def _holds(search: Search, chosen: Outcome, key: str, value: float) -> bool:
    """Whether what was chosen may have another value of a hyper-parameter: an end may be where its values end, too."""
    try:
        with_options(search.template, {**chosen.params, key: value})
    except ConfigError:
        return False
    return True


def _spaces_searched(store: Store) -> dict[str, set[str]]:
    """Configs of a stored search -> the spaces in which searches have varied these configs: whoever tries spaces until one wins
    has searched in all of them."""
    found = defaultdict[str, set[str]](set)
    for name in store.searches():
        if search := store.search(name):
            ranges = {key: {**about, "source": ""} for key, about in search["space"].items()}
            found[_configs(search)].add(json.dumps(ranges, sort_keys=True))
    return found


def _configs(search: Mapping[str, Any]) -> str:
    return json.dumps(search["configs"], sort_keys=True)


def _check_data(searches: Iterable[Search], data_dir: Path | None) -> dict[View | str, str]:
    """Digests of the images of searches.

    Raises:
        ValueError: if clients have too few examples to set aside; checked before workers start.
    """
    checked, digests = set(), dict[View | str, str]()
    for config in (config for search in searches for config in search.configs.values()):
        key = tuple(getattr(config, name) for name in (*DATA_SETTINGS, "seed"))
        if key not in checked:
            checked.add(key)
            images = resized.of_config(config, data_dir)
            digests[view_of(config)] = images.digest
            divide(config, images)
    return digests


def _digest(store: Store, run: str) -> str | None:
    """That of the images on which a run of the store was trained; None if its record does not say."""
    record: Mapping[str, Any] = store.record(run) or {}
    return record.get("data", {}).get("digest")


def _run_searches(
    studies: dict[str, Study], workspace: Workspace, console: Console, on_message: Callable[[str], None]
) -> dict[str, int]:
    """Runs what is left of searches, side by side, after the runs from whose states they start: these may be configurations of
    other searches, which then need no training. Studies that had to be opened again replace those before.

    Returns:
        Name of a search -> how many of its configurations have failed.
    """
    from bench.tuning import runner

    store, options = workspace.store, workspace.options
    left = [name for name, study in studies.items() if study.left]
    bases = {name: runner.bases_of(studies[name].search) for name in left}
    of_all = [base for own in bases.values() for base in own.values()]
    _train_bases(of_all, workspace, console, on_message)
    folders = {
        name: {seed: workspace.base_folder(run_id(config)) for seed, config in own.items()}
        for name, own in bases.items()
    }
    shared = dict.fromkeys(folder for own in folders.values() for folder in own.values())
    failed: dict[str, int] = {}
    deaths: Counter[str] = Counter()
    with workspace.marker() as marker, shared_bases(shared, store):
        while left:
            searches = []
            for name in left:
                study = studies[name]
                inputs = driver.inputs_of(study.search.template, options.data_dir)
                job = runner.SearchJob(
                    study.search,
                    workspace.root,
                    folders[name],
                    study.ended_runs,
                    options,
                    marker,
                    inputs,
                )
                searches.append(runner.OpenSearch(study, job, *_label_and_title(name, studies)))
            are_tried = runner.run_searches(searches, workspace, console, on_message, deaths)
            # Those that had failed before an interruption are tried again.
            failed |= {search.search.name: search.failed for search in searches}
            if are_tried:
                break
            listed = list_runs(store)
            studies.update({name: Study(studies[name].search, store, listed, options.keep_stale) for name in left})
            left = [name for name in left if studies[name].left]
    return failed


def _label_and_title(name: str, studies: Mapping[str, Study]) -> tuple[str, str]:
    """How messages call one of several searches, and the line that explains it; "" for a single search."""
    if len(studies) == 1:
        return "", ""
    number = list(studies).index(name) + 1
    return f"Search {number} ", f"Search {number} of {len(studies)}: {title_of(studies[name].search)}"


def _say_stale(changed: Mapping[str, Changes], which: str, store: Store, on_message: Callable[[str], None]) -> None:
    """A line for each set of changes: which runs are trained again."""
    runs_by_reason: dict[str, int] = {}
    for since in changed.values():
        reason = why_repeated(since, store)
        runs_by_reason[reason] = runs_by_reason.get(reason, 0) + 1
    for reason, count in runs_by_reason.items():
        on_message(f"{count} run{'s' * (count > 1)} {which} run{'s' * (count == 1)} again: {reason}")


def _train_bases(
    bases: Iterable[RunConfig], workspace: Workspace, console: Console, on_message: Callable[[str], None]
) -> None:
    """Runs from whose last states the configurations start, those that are not in the store, or stale; see
    `bench.tuning.runner.bases_of`."""
    store, wanted = workspace.store, {run_id(config): config for config in bases}
    changed = {run: since for run in wanted if not workspace.options.keep_stale and (since := stale(store, run))}
    _say_stale(changed, "from which searches start", store, on_message)
    lacking = {run: config for run, config in wanted.items() if run in changed or not has_last_state(store, run)}
    names = {
        run: f"for the search, {config.algorithm['name']} on validation data, seed {config.seed}"
        for run, config in lacking.items()
    }
    if lacking:
        retention = dict.fromkeys(lacking, StateRetention())
        driver.run_configs(lacking, names, retention, {}, workspace, console)


def runs_there(search: Search, store: Store, keep_stale: bool) -> tuple[int, int]:
    """How many runs of the configurations that count have ended and not failed, and how many are trained again because earlier
    code has trained them; none of these with `keep_stale`."""
    stored = store.search(search.name)
    proposed = stored["proposed"][: search.wanted] if stored else []
    runs = {run for params in proposed for run in search.runs(params) if store.status(run) in ENDED}
    again = 0 if keep_stale else sum(bool(stale(store, run)) for run in runs)
    return len(runs) - again, again


def title_of(search: Search) -> str:
    """A search on the terminal."""
    config, method = search.template, " with base ".join(reversed(search.methods))
    words = [*map(references.without_digest, (config.dataset, config.partition)), method]
    seeds = ", ".join(map(str, search.configs))
    return f"{' '.join(words)}: {', '.join(search.space)}; {search.wanted} configurations, seeds {seeds}"


def _trouble(search: Search, failed: int, ended: int) -> str:
    others = "each configuration that did not fail" if failed else "each configuration"
    how = f"{others} diverged with one of its seeds at least" if ended else "no configuration has ended"
    more = "more by --samples, " * (search.wanted < search.size)
    again = f" {_configurations(failed)} failed; the same command tries {'it' if failed == 1 else 'them'} again."
    return (
        f"{title_of(search)}: {how}, so none can be chosen; try {more}another --space, or leave the method out."
        f"{again * bool(failed)}"
    )


def _configurations(count: int) -> str:
    return f"{count} configurations have" if count > 1 else "1 configuration has"
