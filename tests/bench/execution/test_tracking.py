"""What a tracking service is told: every round of every run, under the run's own name; and that runs do not depend on it."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.execution import tracking
from bench.execution.job import Job
from bench.execution.resources import Resources
from bench.execution.scheduler import JobTrials
from bench.execution.tracking import Tracker
from bench.execution.worker import WorkerReport
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from tests.support.processes import call_bench
from tests.support.sessions import ALONE
from tests.support.untrained_run import RUN

CONFIG = {"algorithm": {"name": "fedprox", "mu": 0.1}, "dataset": "digits", "seed": 0}
ROWS = [{"round": 1, "loss": 2.0, "local_models": {"clients": [0]}}, {"round": 2, "loss": 1.0, "accuracy": 0.5}]


@pytest.fixture
def mlflow(monkeypatch):
    """A stand-in for the package; `told` lists what it was told."""
    told = []

    class Client:
        def __init__(self, **options): ...

        def create_run(self, run_name, experiment_id, tags):
            told.append(("run", run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id=f"mlflow-{run_name}"))

        def log_param(self, run_id, key, value):
            told.append(("param", run_id, key, value))

        def log_metric(self, run_id, key, value, step):
            told.append(("metric", run_id, key, value, step))

        def set_terminated(self, run_id, status):
            told.append(("end", run_id, status))

    def module(name, **content):
        made = ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def nothing(*arguments, **options):
        return None

    made = module(
        "mlflow",
        __version__="2.16.0",
        create_experiment=lambda name, artifact_location=None: told.append(("experiment", name)),
        **dict.fromkeys(
            ("set_tracking_uri", "set_registry_uri", "get_tracking_uri", "get_registry_uri", "active_run"), nothing
        ),
        **dict.fromkeys(("get_experiment_by_name", "get_run"), nothing),
    )
    module("mlflow.exceptions", MlflowException=RuntimeError)
    module("mlflow.tracking", MlflowClient=Client)
    module("mlflow.utils")
    module("mlflow.utils.mlflow_tags", MLFLOW_RUN_NAME="mlflow.runName")
    made.told = told
    return made


@pytest.fixture
def said():
    return []


@pytest.fixture
def tracker(tmp_path, said):
    return lambda kind="mlflow": Tracker(
        kind, "table@small", dict.fromkeys(("a1", RUN), "digits fedprox seed 0"), Store(tmp_path), said.append
    )


def test_every_round_reaches_the_service_by_itself(mlflow, tracker, said):
    one = tracker()
    one.started("a1", CONFIG)
    one.reported("a1", ROWS)
    one.ended("a1", failed=False)
    one.finish()
    run = "mlflow-digits fedprox seed 0 (a1)"
    assert mlflow.told[:2] == [("experiment", "skewbench table@small"), ("run", "digits fedprox seed 0 (a1)")]
    params = {key: value for kind, _, key, value in (line for line in mlflow.told if line[0] == "param")}
    assert params == {"run": "a1", "algorithm/name": "fedprox", "algorithm/mu": 0.1, "dataset": "digits", "seed": 0}
    metrics = [line[1:] for line in mlflow.told if line[0] == "metric" and line[2] in ("loss", "accuracy")]
    assert metrics == [(run, "loss", 2.0, 1), (run, "loss", 1.0, 2), (run, "accuracy", 0.5, 2)]
    assert {line[2] for line in mlflow.told if line[0] == "metric"} == {"round", "loss", "accuracy"}
    assert mlflow.told[-1] == ("end", run, "FINISHED") and said == []


def test_a_run_that_begins_again_is_one_run_and_tells_no_round_twice(mlflow, tracker):
    one = tracker()
    for rows in (ROWS[:1], ROWS):
        one.started("a1", CONFIG)
        one.reported("a1", rows)
    one.finish()
    assert [line[0] for line in mlflow.told].count("run") == 1
    assert [line[4] for line in mlflow.told if line[2:3] == ("loss",)] == [1, 2]
    assert mlflow.told[-1][2] == "FAILED", "stopped before its end"


def down(*arguments, **options):
    raise ConnectionError("no answer\nfrom there")


def test_a_service_that_does_not_answer_is_named_before_anything_runs(mlflow, tracker, monkeypatch):
    monkeypatch.setattr(mlflow, "create_experiment", down)
    with pytest.raises(ValueError, match="^--track mlflow: MLflow does not take runs: ConnectionError: no answer$"):
        tracker()


def test_a_service_that_fails_later_is_named_once_and_left_alone(mlflow, tracker, said, monkeypatch):
    one = tracker()
    one.started("a1", CONFIG)
    one.reported("a1", ROWS[:1])
    before = list(mlflow.told)
    monkeypatch.setattr(sys.modules["mlflow.tracking"], "MlflowClient", down)
    one.reported("a1", ROWS)
    one.ended("a1", failed=False)
    one.finish()
    assert said == [
        "Tracking by MLflow has stopped (ConnectionError: no answer); the runs continue, and their results are in the results "
        "directory."
    ]
    assert mlflow.told == before


def test_weights_and_biases_gets_project_group_and_rounds(tracker, said, monkeypatch):
    told = []

    class Callback:
        def __init__(self, **options):
            told.append(options)

        def __getattr__(self, name):
            return lambda *arguments, **options: told.append((name, *map(str, arguments)))

    monkeypatch.setattr("ray.air.integrations.wandb.WandbLoggerCallback", Callback)
    one = tracker("wandb")
    one.started("a1", CONFIG)
    one.reported("a1", ROWS)
    one.ended("a1", failed=True)
    one.finish()
    assert told[0] == {"project": "skewbench", "group": "table@small"} and said == []
    names = [call[0] for call in told[1:]]
    assert names == ["setup", "log_trial_start", *["log_trial_result"] * 2, "log_trial_end", "on_experiment_end"]


def test_what_ray_prints_of_the_actors_of_weights_and_biases_is_in_its_log(tracker, tmp_path, monkeypatch, capfd):
    class Callback:
        def __init__(self, **options): ...

        def setup(self): ...

        def log_trial_start(self, trial):
            self._start_logging_actor(trial)

        def _start_logging_actor(self, trial):
            os.write(2, b"core_worker.cc: Actor with class name: '_WandbLoggingActor' has constructor arguments ...")

    monkeypatch.setattr("ray.air.integrations.wandb.WandbLoggerCallback", Callback)
    tracker("wandb").started("a1", CONFIG)
    assert capfd.readouterr().err == "" and "_WandbLoggingActor" in (tmp_path / "ray.log").read_text()


def test_the_scheduler_tells_the_tracker_what_workers_report(mlflow, tracker, tmp_path):
    class RunCallback:
        def __getattr__(self, name):
            return lambda *arguments: None

    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    trial = SimpleNamespace(trial_id="t", config={"job": 0})
    one = tracker()
    result = {"status": "done", "summary": dict.fromkeys(("last", "best", "last10"), {})}
    rounds = [WorkerReport(0, ROWS[:1]), WorkerReport(1, ROWS[1:], result=result)]
    with Store(tmp_path / "results").locked() as store:
        recorder = JobTrials(store, RunCallback(), allocator=None, session=ALONE, tracker=one)
        recorder.assign([Job(RUN, config, str(store.unfinished_folder(RUN)), StateRetention())], Resources())
        recorder.on_trial_start(0, [trial], trial)
        for report in rounds:
            recorder.on_trial_result(0, [trial], trial, {"report": report, "node": "n"})
        assert len(list(store.run_folder(RUN).glob("events.out.tfevents.*"))) == 1
    assert [line[3:] for line in mlflow.told if line[2:3] == ("loss",)] == [(2.0, 1), (1.0, 2)]
    assert mlflow.told[-1][0] == "end" and ("param", mlflow.told[-1][1], "partition", "iid") in mlflow.told


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mlflwo", "Unknown value of --track 'mlflwo'. Did you mean 'mlflow'? Known: wandb, mlflow."),
        ("wandb", "--track wandb needs the package wandb, which is not installed"),
    ],
)
def test_what_cannot_be_tracked_is_said_before_anything_runs(kind, sentence, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        tracking.check(kind)
    setting = ["--algorithm", "fedavg", "--dataset", "digits", "--partition", "iid"]
    code, _ = call_bench("run", *setting, "--track", kind, "--results-dir", tmp_path / "results")
    assert code == 2 and not (tmp_path / "results").exists()
