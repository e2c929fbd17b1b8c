"""What surrounds the runs of a grid."""

import pytest
import torch
from rich.console import Console

from bench.execution import scheduler
from bench.execution.driver import run_plan
from bench.execution.resources import Machines, Resources
from bench.execution.workspace import Workspace, tidy
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import single
from bench.experiments.spec import ExperimentSpec
from bench.results.artifacts import Folder
from bench.results.ids import hash_of
from bench.results.store import Store
from tests.support.planning import Experiment
from tests.support.untrained_run import CONFIG, RECORD, ROWS

CONFIGS = {hash_of(config): config for config in (CONFIG | {"seed": seed} for seed in range(4))}
ENDED, REPEATED, GOING, REMOVED = CONFIGS


@pytest.mark.parametrize("place", ["memory://shared", "disk"])
def test_only_runs_that_go_on_keep_their_folders_in_a_storage(tmp_path, place):
    storage = Folder(place if "://" in place else tmp_path / "shared")
    for run_id in (ENDED, REPEATED, GOING, REMOVED):
        (storage / run_id / "checkpoint").save("checkpoint.pt", torch.zeros(1))
    with Store(tmp_path / "results").locked() as store:
        for run_id in (ENDED, REPEATED):
            store.start(run_id, CONFIGS[run_id])
            store.finish(run_id, ROWS, RECORD | {"id": run_id})
        store.start(REPEATED, CONFIGS[REPEATED])
        store.start(GOING, CONFIGS[GOING])
        tidy(storage, store)
    assert storage.folders() == sorted([GOING, REPEATED])
    assert (storage / GOING / "checkpoint").names() == ["checkpoint.pt"]
    assert Folder(tmp_path / "nowhere").folders() == []


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_jobs_are_for_the_engine_that_was_asked_for_and_keep_their_ids(tmp_path, monkeypatch, engine):
    handed = []
    monkeypatch.setattr(scheduler, "run_jobs", lambda jobs, *others: handed.extend(jobs))
    grid = single({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"}, [0])
    request = Experiment(ExperimentSpec(grid, "smoke"), ExecutionOptions(engine=engine))
    with Store(tmp_path).locked() as store:
        plan = request.plan(store)
        workspace = Workspace(store, Machines(Resources()), request.options)
        run_plan(plan, request.spec, workspace, Console(quiet=True))
    assert [(job.id, job.engine) for job in handed] == [(expand(grid, "smoke")[0].id, engine)]
