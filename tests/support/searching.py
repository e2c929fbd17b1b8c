"""Searches for tests, and runs of theirs as if they had been trained."""

from bench.experiments import expansion as grids
from bench.experiments.grid_loading import single
from bench.experiments.spec import TuningOptions
from bench.results.store import Store
from bench.tuning.build import make_searches
from bench.tuning.search import Search
from bench.tuning.study import Study

SETTING = {"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"}
SMALL = {"clients": 12, "rounds": 9, "local_epochs": 1, "model": "mlp", "lr": 0.1}

STAGES = {"rounds": None, "encoder_rounds": 1, "classifier_rounds": 2}


def make(algorithm="fedprox", overrides=None, **options) -> Search:
    settings = {key: value for key, value in (SMALL | (overrides or {})).items() if value is not None}
    grid = single(SETTING | {"algorithm": algorithm}, [0, 1])
    cells = grids.expand(grid, "paper", overrides=settings)
    (search,) = make_searches(cells, grid.report.model_dump(), TuningOptions(**options)).values()
    return search


def finish(
    search: Search, store: Store, params: dict, *scores: float, status: str = "done", rounds: int = 9, **record
) -> None:
    """Runs of a configuration, as if they had been trained; with what their records say besides."""
    for (run, config), reached in zip(search.runs(params).items(), scores, strict=True):
        store.start(run, config.canonical())
        rows = [{"round": number + 1, "accuracy": reached} for number in range(rounds)]
        summary = {value: {"accuracy": reached} for value in ("last", "best", "last10")}
        usual = {"id": run, "status": status, "reason": "", "rounds": rounds, "summary": summary}
        store.finish(run, rows, usual | record)


def try_next(study: Study, store: Store, *scores: float, **how) -> dict | None:
    """What the study proposes, trained with these scores; without any it is left running."""
    trial = study.propose()
    if trial is None:
        return None
    params = dict(trial.params)
    if scores:
        finish(study.search, store, params, *scores, **how)
        study.close(trial, sum(scores) / len(scores), complete=how.get("status", "done") != "stopped")
    return params
