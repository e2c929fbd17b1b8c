"""A whole search: the runs that it starts from, its configurations, what was chosen, and the request to train that on all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import images
from bench.config import run_id
from bench.cost import examples_to_train
from bench.driver import commit
from bench.grid_spec import make_grid
from bench.plan import Request
from bench.resources import Resources
from bench.resources import choose as choose_resources
from bench.run import FINAL, Keep, build_task
from bench.store import Store
from bench.study import Outcome, Search, text_of
from bench.worker import Job


@dataclass(frozen=True)
class Playing:
    """Where and how runs are played; as the options of `run`."""

    data_dir: Path | None
    results_dir: Path
    cpus: float
    gpus: float
    max_concurrent: int
    checkpoint_seconds: float


def choose(search: Search, playing: Playing, console: Console, say: Callable[[str], None]) -> tuple[Outcome, str]:
    """Plays what is left of a search, and saves its table and figures.

    Returns:
        The configuration with the best mean over seeds among those that were trained to the end, and one sentence about how it
        was chosen.

    Raises:
        ValueError: if none was.
        datasets.DataError: if there are no images.
    """
    from bench.search import play  # Ray takes seconds to import
    from reports import search_report

    template = search.template
    dataset = images.load(template.dataset, template.transform, playing.data_dir)
    for config in search.configs.values():
        build_task(config, dataset)  # so that too few examples to set aside are told before workers start, and once
    resources = choose_resources(playing.cpus, f"{playing.gpus:g}", None)
    store = Store(playing.results_dir)
    with store.locked():
        _train_bases(search, playing, store, resources, console)
        study, failed = play(
            search,
            store,
            say,
            data_dir=playing.data_dir,
            resources=resources,
            max_concurrent=playing.max_concurrent,
            checkpoint_seconds=playing.checkpoint_seconds,
            facts={"commit": commit()},
        )
        outcomes = study.outcomes()
        for path in search_report.write(study, outcomes):
            say(f"Saved: {path}")
    if failed:
        raise ValueError(
            f"{failed} configurations have failed, so the best one is not known; the same command tries them again."
        )
    whole = [one for one in outcomes if one.whole]
    if not whole:
        raise ValueError("No configuration of the search was trained to the end, so none can be chosen.")
    return whole[0], how_chosen(search, whole[0], len(outcomes))


def _train_bases(search: Search, playing: Playing, store: Store, resources: Resources, console: Console) -> None:
    """Runs from whose last states the configurations start, those that are not in the store; see `bench.search.bases_of`."""
    from bench import tune
    from bench.progress import Display
    from bench.search import bases_of

    wanted = {run_id(config): config for config in bases_of(search).values()}
    lacking = {run: config for run, config in wanted.items() if FINAL not in store.states(run)}
    shown = {
        run: (f"{config.algorithm['name']} seed {config.seed}", examples_to_train(config))
        for run, config in lacking.items()
    }
    if not lacking:
        return
    with Display(console, shown).shown() as display:
        jobs = [
            Job(run, config, str(store.playing_folder(run)), Keep(), playing.checkpoint_seconds)
            for run, config in lacking.items()
        ]
        tune.play(
            jobs,
            store,
            display,
            data_dir=playing.data_dir,
            resources=resources,
            max_concurrent=playing.max_concurrent,
            facts={"commit": commit()},
        )


def how_chosen(search: Search, chosen: Outcome, tried: int) -> str:
    """One sentence for the table of the final runs."""
    params = text_of(chosen.params)
    where = "; ".join(f"{key} in {parameter.describe(search.searcher)}" for key, parameter in search.space.items())
    return (
        f"Chosen on validation data ({search.template.validation_share:.0%} of each class of each client; no test image was "
        f"read): {params}, with {100 * chosen.mean:.1f} % {search.metric.replace('_', ' ')} there, mean over seeds "
        f"{', '.join(map(str, search.configs))}; searched: {where}, by {search.searcher}"
        f"{'' if search.scheduler == 'none' else f' with {search.scheduler}'}, {tried} configurations. "
        "Then trained on all training data."
    )


def final_request(
    search: Search,
    params: Mapping[str, Any],
    note: str,
    *,
    setting: Mapping[str, str],
    budget: str,
    overrides: Mapping[str, Any],
    seeds: list[int],
    playing: Playing,
) -> Request:
    """What `run` does with the chosen hyper-parameters: train on all training data, test.

    The grid is named after the search: what a longer search chooses takes the place of what a shorter one has chosen.
    """
    name = "-".join(str(setting[key]) for key in ("algorithm", "dataset", "partition"))
    content = {
        "title": f"{name}, tuned on validation data",
        "axes": {key: [setting[key]] for key in ("dataset", "partition", "algorithm")} | {"seed": seeds},
        "settings": dict(params),
        "report": {"notes": [note]},
    }
    return Request(
        grid=make_grid(f"tuned-{search.name}", content),
        budget=budget,
        only={},
        overrides=overrides,
        seeds=seeds,
        substitutes={},
        data_dir=playing.data_dir,
        checkpoint_seconds=playing.checkpoint_seconds,
    )
