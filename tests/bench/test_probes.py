"""Probes: what is measured on the states of finished runs, when, and what figures need."""

import copy

import pytest
import torch
import yaml

from algorithms.base import Deployed
from bench import probes, probing
from bench.evaluate import evaluate
from bench.folders import Folder
from bench.grid import expand
from bench.grid_spec import load_grid
from bench.plan import Request, keep_of, make_plan, training_of
from bench.probes import Probe, measure, probes_of
from bench.run import FINAL, Run, build_algorithm, build_task
from bench.store import Store
from datasets import load

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
def digits():
    return load("digits", None)


@pytest.fixture(scope="module")
def made(tmp_path_factory, digits):
    """A store in which both runs of GRID are done, the request, and its cells: without the wrapper, and with it."""
    folder = tmp_path_factory.mktemp("probes")
    (folder / "mine.yaml").write_text(yaml.safe_dump(GRID))
    grid = load_grid(str(folder / "mine.yaml"))
    request = Request(grid, "paper", {}, {}, None, {}, None)
    with Store(folder / "results").locked() as store:
        plan = make_plan(request, store)
        for cell in plan.todo:
            place = Folder(store.run_folder(cell.id))
            run = Run(cell.config, digits, folder=place, keep=keep_of(request, cell, store))
            store.start(cell.id, cell.config.canonical())
            if base := training_of(cell):
                run.take_over(Folder(store.run_folder(base.id)).load(FINAL, torch.device("cpu")))
            while not run.finished:
                run.step()
            store.finish(cell.id, run.rows, run.result())
        yield store, request, plan.cells


def figures(request) -> list[dict]:
    return [figure.model_dump() for figure in request.grid.report.figures]


def test_what_figures_need_is_measured_once(made):
    store, request, cells = made
    said = []
    measure(cells, figures(request), store, None, said.append)
    assert [line.split(" of ")[0] for line in said] == [*NAMES, "embedding-100"]
    assert all(store.probe(cells[0].id, name) for name in NAMES) and store.probe(cells[1].id, "embedding-100")
    again = []
    measure(cells, figures(request), store, None, again.append)
    assert again == []


def test_numbers_of_an_earlier_version_are_measured_again(made, monkeypatch):
    store, request, cells = made
    measure(cells, figures(request), store, None, print)
    monkeypatch.setattr(probes, "VERSION", 2)
    said = []
    measure(cells[:1], figures(request)[:1], store, None, said.append)
    assert len(said) == 1 and store.probe(cells[0].id, NAMES[0])["version"] == 2


def test_a_run_without_the_state_says_so_and_one_that_has_not_ended_is_left_alone(made):
    store, request, cells = made
    said = []
    measure(cells[:1], [{"kind": "weight-norms", "rounds": [2]}], store, None, said.append)
    (line,) = said
    assert "weight-norms-0002 of digits label-2 fedavg" in line and line.endswith("has no local-models-0002.pt.")
    other = expand(request.grid, "paper", seeds=[7])
    measure(other, figures(request), store, None, said.append)
    assert len(said) == 1


def test_a_run_keeps_the_states_that_its_figures_need_up_to_its_last_round(made):
    store, request, cells = made
    assert store.states(cells[0].id) == ["final.pt", "local-models-0001.pt", "local-models-0003.pt"]
    assert store.states(cells[1].id) == ["final.pt"]
    assert make_plan(request, store).todo == []


@pytest.mark.parametrize(("rounds", "found"), [(3, [1, 3]), (10, [1, 10]), (30, [1, 10, 30])])
def test_rounds_beyond_the_end_of_a_run_are_left_out(rounds, found):
    figure = {"kind": "weight-norms", "rounds": [1, 10, "last"]}
    assert probes_of(figure, rounds) == [Probe("weight-norms", number) for number in found]


def state(made, digits, cell: int, name: str):
    store, _, cells = made
    config = cells[cell].config
    place = store.run_folder((training_of(cells[cell]) or cells[cell]).id)
    return build_algorithm(config.algorithm), build_task(config, digits), torch.load(place / name, weights_only=True)


def test_norms_are_those_of_the_local_classifiers(made, digits):
    algorithm, task, models = state(made, digits, 0, "local-models-0001.pt")
    found = probing.weight_norms(Probe("weight-norms", 1), task, algorithm, models)
    rows = models["params"]["classifier.weight"][4]
    assert found["norms"][4] == pytest.approx([row.norm().item() for row in rows], rel=1e-5)
    assert found["label_counts"] == task.federation.label_counts.long().tolist()
    assert found["clients"] == list(range(12))


def test_similarity_is_of_the_outputs_of_local_models_on_test_images(made, digits):
    algorithm, task, models = state(made, digits, 0, "local-models-0003.pt")
    found = probing.cka(Probe("cka", 3, "linear"), task, algorithm, models)
    assert found["clients"] == list(range(probing.MOST_MODELS)) and [*found["layers"]] == [*task.model.layers()]
    same = copy.deepcopy(models)
    for leaf in same["params"].values():
        leaf[1] = leaf[0]
    alike = probing.cka(Probe("cka", 3, "linear"), task, algorithm, same)
    for name, pairs in alike["layers"].items():
        assert pairs[0][1] == pytest.approx(1) and pairs[0][0] == pytest.approx(1)
        assert found["layers"][name][0][1] < 1
    assert alike["layers"]["classifier"][0][2] == found["layers"]["classifier"][0][2]
    minibatch = probing.cka(Probe("cka", 3, "minibatch"), task, algorithm, models)
    assert minibatch["layers"]["classifier"] != found["layers"]["classifier"]


def test_predictions_before_and_after_are_those_of_the_deployed_models(made, digits):
    algorithm, task, final = state(made, digits, 1, FINAL)
    count = len(task.federation.test_labels)
    found = probing.embedding(Probe("embedding", option=count), task, algorithm, final)
    labels = torch.tensor(found["labels"])
    everyone = torch.arange(task.population)
    for name, method in (("before", algorithm.base), ("after", algorithm)):
        deployed: Deployed = method.deploy(task, final, everyone)
        right = (torch.tensor(found[name]) == labels).double().mean().item()
        assert right == pytest.approx(evaluate(task, deployed)["accuracy"])
    assert len(found["points"]) == count and found["before"] != found["after"]
