"""Probes: what is measured on the states of finished runs, when, and what figures need."""

import copy
import json

import numpy as np
import pytest
import torch
import yaml

from algorithms.shared import row_files
from algorithms.shared.calibration import features_of
from bench.execution.job import Job
from bench.execution.worker import Worker
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.planning import training_of
from bench.experiments.spec import ExperimentSpec
from bench.measurements import features as probing
from bench.measurements.run import measure
from bench.measurements.specs import Probe, figure_of
from bench.results.artifacts import Folder
from bench.results.json_files import SEAL
from bench.results.store import Store
from bench.simulation.build import build_algorithm, build_task
from bench.simulation.retention import FINAL
from bench.simulation.run import Run
from reports import api
from tests.support.planning import Experiment
from tests.support.trained import store_run

GRID = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["label-2"],
        "algorithm": ["fedavg"],
        "wrapper": ["none", "ccvr"],
        "seed": [0],
    },
    "settings": {"clients": 12, "rounds": 3, "local_epochs": 2, "model": "mlp", "lr": 0.1, "evaluate_every": None},
    "report": {
        "columns": "wrapper",
        "figures": [
            {"kind": "cka", "show": "layers"},
            {"kind": "cka", "show": "clients", "estimator": "minibatch"},
            {"kind": "weight-norms", "rounds": [1, 10, "last"]},
            {"kind": "embedding", "points": 100},
            {"kind": "separability"},
        ],
    },
}
NAMES = ["cka-linear-0003", "cka-minibatch-0003", "weight-norms-0001", "weight-norms-0003"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, digits):
    """A store in which both runs of GRID are done, the request, and its cells: without the wrapper, and with it."""
    folder = tmp_path_factory.mktemp("probes")
    (folder / "mine.yaml").write_text(yaml.safe_dump(GRID))
    grid = load_grid(str(folder / "mine.yaml"))
    request = Experiment(ExperimentSpec(grid))
    with Store(folder / "results").locked() as store:
        plan = request.plan(store)
        for cell in plan.todo:
            place = Folder(store.run_folder(cell.id))
            run = Run(cell.config, digits, folder=place, retention=request.retention(cell, store))
            if base := training_of(cell):
                run.start_from_base(Folder(store.run_folder(base.id)).load(FINAL, torch.device("cpu")))
            store_run(store, cell, run)
        yield store, request, plan.cells


def trained_with(folder, digits, algorithm: str, keep: str):
    """A store in which both runs of GRID with another method are done, and their cells."""
    folder.mkdir()
    (folder / "mine.yaml").write_text(yaml.safe_dump(GRID | {"axes": GRID["axes"] | {"algorithm": [algorithm]}}))
    request = Experiment(ExperimentSpec(load_grid(str(folder / "mine.yaml"))), ExecutionOptions(keep=keep))
    store = Store(folder / "results")
    with store.locked():
        plan = request.plan(store)
        request.store_grid(plan, store)
        for cell in plan.todo:
            place = store.unfinished_folder(cell.id)
            retention = request.retention(cell, store, is_base=cell.id in plan.bases.values())
            base = plan.bases.get(cell.id)
            base_folder = str(store.run_folder(base)) if base else ""
            job = Job(cell.id, cell.config, str(place), retention, base=base_folder)
            worker, ended, rows = Worker(job, None, "cpu"), None, []
            store.start(cell.id, cell.config.canonical())
            while not ended:
                report = worker.step()
                rows[report.start :], ended = report.rows, report.result
            store.finish(cell.id, rows, ended | {"id": cell.id, "rounds": len(rows)})
        measure(plan.cells, figures(request), store, None, print)
        assert request.plan(store).todo == []
    return store, plan.cells


@pytest.mark.slow
def test_without_client_states_what_reads_a_last_state_is_as_it_was(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)  # client states in files, as those of large models
    (few, cells), (whole, _), (least, _) = (
        trained_with(tmp_path / keep, digits, "moon", keep) for keep in ("deployed", "all", "none")
    )
    moon, calibrated = (cell.id for cell in cells)
    states = {store: torch.load(store.run_folder(moon) / FINAL, weights_only=True) for store in (few, whole, least)}
    assert [len(state["clients"]["rows"]) for state in states.values()] == [0, 12, 0], "CCVR needs a state of its base"
    assert [store.record(moon)["kept"] for store in states] == ["deployed", "all", "deployed"]
    assert [store.record(calibrated)["kept"] for store in states] == ["deployed", "deployed", "deployed"]
    probes = [path.name for path in sorted(whole.run_folder(calibrated).glob("probe-*.json"))]
    assert probes == ["probe-embedding-100.json"]
    for store in (few, least):
        for run in (moon, calibrated):
            assert store.record(run)["summary"] == whole.record(run)["summary"]
            for probe in whole.run_folder(run).glob("probe-*.json"):
                assert (store.run_folder(run) / probe.name).read_text() == probe.read_text()
        first, second = (api.GridReport(one.folder, "mine", "full").render() for one in (store, whole))
        assert first == second


@pytest.fixture
def made(trained):
    """`trained`, and nothing is measured yet."""
    store, _, cells = trained
    for cell in cells:
        for path in store.run_folder(cell.id).glob("probe-*.json"):
            path.unlink()
    return trained


def figures(request) -> list:
    return request.spec.grid.report.figures


def test_what_figures_need_is_measured_once(made):
    store, request, cells = made
    said, again = [], []
    measure(cells, figures(request), store, None, said.append)
    assert [line.split(" of ")[0] for line in said] == [*NAMES, "embedding-100"]
    assert all(line.endswith(" s") for line in said)
    measure(cells, figures(request), store, None, again.append)
    assert again == []


def test_numbers_of_an_earlier_version_are_not_shown_and_measured_again(made, monkeypatch):
    store, request, cells = made
    norms = figure_of({"kind": "weight-norms", "rounds": [1]})
    measure(cells[:1], [norms], store, None, print)
    assert norms.results(store, cells[0].id, 3)
    monkeypatch.setattr(type(norms), "version", 2)
    assert norms.results(store, cells[0].id, 3) == {}
    measure(cells[:1], [norms], store, None, print)
    assert norms.results(store, cells[0].id, 3)


def test_numbers_of_another_shape_are_not_shown_and_named_as_damaged(made):
    store, request, cells = made
    norms = figure_of({"kind": "weight-norms", "rounds": [1]})
    store.write_probe(cells[0].id, "weight-norms-0001", {"version": 1, "result": {"clients": [0], "norms": [["x"]]}})
    assert norms.results(store, cells[0].id, 3) == {}
    (said,) = [what for path, what in store.damaged.items() if path.name == "probe-weight-norms-0001.json"]
    assert said == "does not hold what it should: result.label_counts is missing"


def test_a_run_without_the_state_says_so_and_one_that_has_not_ended_is_left_alone(made):
    store, request, cells = made
    said = []
    measure(cells[:1], [figure_of({"kind": "weight-norms", "rounds": [2]})], store, None, said.append)
    (line,) = said
    assert line.startswith("weight-norms-0002 of digits label-2") and "has no local-models-0002.pt; run it with" in line
    other = expand(request.spec.grid, "paper", seeds=[7])
    measure(other, figures(request), store, None, said.append)
    assert len(said) == 1


def test_a_measurement_that_fails_costs_nothing_else(made):
    store, request, cells = made
    state = store.run_folder(cells[0].id) / "local-models-0001.pt"
    whole, said = state.read_bytes(), []
    state.write_bytes(whole[:100])
    try:
        measure(cells[:1], figures(request)[2:3], store, None, said.append)
    finally:
        state.write_bytes(whole)
    assert said[0].endswith(" s") and "not measured" in said[1]


def test_runs_on_other_images_are_not_measured_on_these(made):
    store, request, cells = made
    path = store.run_folder(cells[0].id) / "record.json"
    record, said = path.read_text(), []
    content = {key: value for key, value in json.loads(record).items() if key != SEAL}
    path.write_text(json.dumps(content | {"data": {"kind": "x", "digest": "0bad"}}))
    try:
        measure(cells[:1], figures(request)[2:3], store, None, said.append)
    finally:
        path.write_text(record)
    assert all("the run saw other images (0bad)" in line for line in said) and len(said) == 1


@pytest.mark.parametrize(
    ("method", "changes", "local", "final"),
    [
        ("fedavg", {}, "local-models-0003.pt", None),
        ("fedconcat", {"encoder_rounds": 1, "classifier_rounds": 2, "num_clusters": 2}, None, None),
        ("ccvr", {}, None, FINAL),
        ("ccvr", {"evaluate_every": 1}, None, None),
        ("clsnorm", {}, None, None),
    ],
)
def test_only_methods_that_have_a_state_are_asked_for_it(tmp_path, method, changes, local, final):
    settings = {"clients": 12, "local_epochs": 1, "model": "mlp"} | ({} if method == "fedconcat" else {"rounds": 3})
    axes = {"dataset": ["digits"], "partition": ["label-2"], "algorithm": [method], "seed": [0]}
    shown = [{"kind": "cka", "show": "layers"}, {"kind": "embedding"}]
    content = {"axes": axes, "settings": settings | changes, "report": {"figures": shown}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    grid = load_grid(str(tmp_path / "mine.yaml"))
    (cell,) = expand(grid, "paper")
    cka, embedding = grid.report.figures
    assert cka.state_of(Probe("cka", 3, "linear"), cell.config) == local
    blocks = cell.config.model_copy(update={"algorithm": {"name": "fusefl"}})
    assert cka.state_of(Probe("cka", 3, "linear"), blocks) is None, "a run that is to keep such models is refused"
    assert embedding.state_of(Probe("embedding", option=2000), cell.config) == final
    with Store(tmp_path / "results").locked() as store:
        kept = Experiment(ExperimentSpec(grid), ExecutionOptions(keep="none")).retention(cell, store)
    assert kept.files() == [name for name in (final, local) if name]


def test_a_run_keeps_the_states_that_its_figures_need_up_to_its_last_round(made):
    store, request, cells = made
    assert store.states(cells[0].id) == ["final.pt", "local-models-0001.pt", "local-models-0003.pt"]
    assert store.states(cells[1].id) == ["final.pt"]
    assert request.plan(store).todo == []


@pytest.mark.parametrize(("rounds", "found"), [(3, [1, 3]), (10, [1, 10]), (30, [1, 10, 30])])
def test_rounds_beyond_the_end_of_a_run_are_left_out(rounds, found):
    figure = figure_of({"kind": "weight-norms", "rounds": [1, 10, "last"]})
    assert figure.probes(rounds) == [Probe("weight-norms", number) for number in found]


def state(trained, digits, cell: int, name: str):
    store, _, cells = trained
    config = cells[cell].config
    place = store.run_folder((training_of(cells[cell]) or cells[cell]).id)
    return build_algorithm(config.algorithm), build_task(config, digits), torch.load(place / name, weights_only=True)


def test_norms_are_those_of_the_local_classifiers(trained, digits):
    _, task, models = state(trained, digits, 0, "local-models-0001.pt")
    found = probing.weight_norms(task, models)
    rows = models["params"]["classifier.weight"][4]
    assert found["norms"][4] == pytest.approx([row.norm().item() for row in rows], rel=1e-5)
    assert found["label_counts"] == task.federation.label_counts.long().tolist()
    assert found["clients"] == list(range(12))


def test_similarity_is_of_the_outputs_of_local_models_on_test_images(trained, digits):
    _, task, models = state(trained, digits, 0, "local-models-0003.pt")
    found = probing.cka(task, models, "linear")
    assert found["clients"] == list(range(probing.MOST_MODELS)) and found["cohort"] == 12
    assert [*found["layers"]] == [*task.model.layers()]
    same = copy.deepcopy(models)
    for leaf in same["params"].values():
        leaf[1] = leaf[0]
    alike = probing.cka(task, same, "linear")
    for name, pairs in alike["layers"].items():
        assert pairs[0][1] == pytest.approx(1) and pairs[0][0] == pytest.approx(1)
        assert found["layers"][name][0][1] < 1
    assert alike["layers"]["classifier"][0][2] == found["layers"]["classifier"][0][2]
    minibatch = probing.cka(task, models, "minibatch")
    assert minibatch["layers"]["classifier"] != found["layers"]["classifier"]


def embedded(trained, digits, points: int):
    algorithm, task, final = state(trained, digits, 1, FINAL)
    store, _, cells = trained
    kept = torch.load(store.run_folder(cells[1].id) / FINAL, weights_only=True)
    return algorithm, task, final, probing.embedding(task, algorithm, final, kept, points)


@pytest.mark.slow
def test_predictions_before_and_after_are_those_that_the_table_shows(trained, digits):
    count = len(digits.test.labels)
    store, _, cells = trained
    *_, found = embedded(trained, digits, count)
    labels = np.array(found["labels"])
    for name, cell in (("before", cells[0]), ("after", cells[1])):
        accuracy = store.record(cell.id)["summary"]["last"]["accuracy"]
        assert np.mean(np.array(found[name]) == labels) == pytest.approx(accuracy)
    assert len(found["points"]) == count and found["before"] != found["after"]


def test_features_are_embedded_as_they_are_before_the_calibration_transforms_them(trained, digits, monkeypatch):
    seen = []
    monkeypatch.setattr(probing, "_plane", lambda features: seen.append(features) or features[:, :2])
    algorithm, task, final, _ = embedded(trained, digits, len(digits.test.labels))
    before = algorithm.base.deploy(task, final, torch.arange(12))
    expected = features_of(task, before, task.federation.test_images)
    np.testing.assert_allclose(seen[0], expected.double().numpy())


@pytest.mark.parametrize(("points", "expected"), [(3, 10), (100, 100), (355, 360), (10_000, 360)])
def test_any_number_of_points_can_be_asked_for(trained, digits, points, expected):
    _, task, _ = state(trained, digits, 1, FINAL)
    images, labels = probing._subset(task, points)
    assert len(images) == len(labels) == expected and len(labels.unique()) == 10


@pytest.mark.parametrize("features", [np.zeros((60, 5)), np.full((60, 5), np.nan)])
def test_features_without_a_spread_are_refused_before_they_reach_a_library_that_crashes(features):
    with pytest.raises(ValueError, match="not finite, or the same for all images"):
        probing._plane(features)
