"""What frozen encoders know: encoders by their definition, losses of the published tables' runs on small images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.experiments.cost import heads_to_train
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.spec import ExperimentSpec
from bench.measurements import heads
from bench.measurements.encoders import Encoders, head_losses, label_information, plane, project
from bench.measurements.run import measure
from bench.measurements.tables import table_of
from bench.results.artifacts import Folder
from bench.results.store import Store
from bench.simulation.build import build_task
from bench.simulation.run import Run
from datasets import load
from tests.support.planning import Experiment
from tests.support.trained import store_run

DIGITS = {"dataset": "digits", "model": "mlp"}
LABELS = np.repeat([0, 2, 1], 20)
# Of the run of Table 6 at the budget smoke on the digits of scikit-learn: row -> losses of a classifier and of a decoder.
EXCHANGE = {
    "fe1-own": [2.20676, 0.174721],
    "fe1-exchange": [2.22503, 0.181752],
    "fe2-own": [2.22325, 0.181883],
    "fe2-exchange": [2.1964, 0.174965],
}
POOLED = {
    "fe1": [2.1978, 0.178039],
    "fe2": [2.1933, 0.178233],
    "favg": [2.19684, 0.178158],
    "fe": [2.15749, 0.177709],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store in which the runs of Tables 6 and 7 and of Figures 5 and 6 are done, on digits at the budget smoke."""
    with Store(tmp_path_factory.mktemp("encoders")).locked() as store:
        for name in ("paper_table6", "paper_figure6"):
            train(store, Experiment(ExperimentSpec(load_grid(name), "smoke", overrides=DIGITS)), load("digits", None))
        yield store


def train(store, request, dataset) -> None:
    """What is not finished of a grid, in this process."""
    for cell in request.plan(store).todo:
        kept = request.retention(cell, store)
        run = Run(cell.config, dataset, folder=Folder(store.run_folder(cell.id)), retention=kept)
        store_run(store, cell, run)


@pytest.fixture(scope="module")
def task_and_models(trained):
    """The task of Table 6, and the models that its two clients have trained."""
    (cell,) = expand(load_grid("paper_table6"), "smoke", overrides=DIGITS)
    models = Folder(trained.run_folder(cell.id)).load("local-models-0001.pt", torch.device("cpu"))
    return build_task(cell.config, load("digits", None)), models


def values_of(store, grid: str) -> list[dict]:
    """What is measured for the table and the figures of a grid."""
    spec = load_grid(grid)
    (cell,) = expand(spec, "smoke", overrides=DIGITS)
    measure([cell], spec.report.needs, store, None, print)
    found = [part.results(store, cell.id, cell.config.rounds) for part in spec.report.needs]
    return [result for results in found for result in results.values()]


# Grids


def test_the_grids_say_what_the_paper_says():
    (cell,) = expand(load_grid("paper_table6"), "paper")
    local = cell.config
    assert (local.dataset, local.partition, local.clients, local.first_clients, local.seed) == (
        "fmnist",
        "label-2",
        40,
        2,
        1,
    )
    assert (local.local_epochs, local.batch_size, local.lr, local.momentum, local.weight_decay) == (
        50,
        64,
        0.01,
        0.9,
        1e-5,
    )
    assert (local.algorithm["name"], local.rounds, local.train_examples, local.model) == (
        "local",
        1,
        None,
        "simple-cnn",
    )
    for name in ("paper_table7", "paper_figure5"):
        assert [one.id for one in expand(load_grid(name), "paper")] == [cell.id], "one run is for all three"
    (averaged,) = expand(load_grid("paper_figure6"), "paper")
    fedavg = averaged.config
    assert (fedavg.algorithm["name"], fedavg.rounds, fedavg.local_epochs, fedavg.first_clients) == ("fedavg", 5, 10, 2)


@pytest.mark.parametrize("grid", ["paper_table6", "paper_figure6"])
def test_every_budget_fits_every_dataset_of_the_small_cnn(grid):
    for budget, epochs in (("paper", (50, 10)), ("small", (10, 2)), ("smoke", (5, 2))):
        for dataset in ("fmnist", "mnist", "cifar10", "svhn"):
            (cell,) = expand(load_grid(grid), budget, overrides={"dataset": dataset})
            assert (cell.config.train_examples is None) == (budget == "paper")
            assert cell.config.clients == 40 and cell.config.local_epochs == epochs[grid == "paper_figure6"]


# Numbers


@pytest.mark.parametrize(("grid", "expected"), [("paper_table6", EXCHANGE), ("paper_table7", POOLED)])
def test_losses_are_what_they_were(trained, grid, expected):
    (found,) = values_of(trained, grid)
    assert [*found["values"]] == [*expected]
    for row, losses in expected.items():
        assert [*found["values"][row].values()] == pytest.approx(losses, rel=1e-4), row
    assert found["clients"] == [0, 1] and found["classes"][9] == "9"
    owned = [[label for label, count in enumerate(counts) if count] for counts in found["label_counts"]]
    assert owned == [[0, 2], [1, 9]], "the classes of appendix C"


@pytest.mark.slow
def test_figures_show_the_same_images_under_every_encoder(trained):
    pca, tsne = values_of(trained, "paper_figure5")
    assert [*pca["panels"]] == [*tsne["panels"]] == ["fe1", "fe2", "fe"]
    rounds = values_of(trained, "paper_figure6")
    assert [[*one["panels"]] for one in rounds] == [["favg"]] * 10
    for one in (pca, tsne, *rounds):
        assert one["labels"] == pca["labels"] and one["owners"] == pca["owners"]
        assert {len(panel["points"]) for panel in one["panels"].values()} == {len(pca["labels"])}
    assert pca["panels"]["fe"]["axes"][0].startswith("component 1 (")
    assert tsne["panels"]["fe"]["axes"] == ["t-SNE dimension 1", "t-SNE dimension 2"]


@pytest.mark.slow
def test_on_real_handwriting_concatenation_tells_more_about_classes_than_averaging(real_data, tmp_path):
    """The claim of Table 7."""
    request = Experiment(
        ExperimentSpec(load_grid("paper_table7"), "small", overrides={"dataset": "mnist"}), ExecutionOptions(real_data)
    )
    with Store(tmp_path).locked() as store:
        train(store, request, load("mnist", real_data))
        (cell,) = request.plan(store).cells
        measure([cell], request.spec.grid.report.needs, store, real_data, print)
        (result,) = request.spec.grid.report.needs[0].results(store, cell.id, 1).values()
        losses = {name: of["cls_loss"] for name, of in result["values"].items()}
    assert losses["fe"] < min(losses["fe1"], losses["fe2"], losses["favg"])


# Encoders


def test_the_average_is_weighted_by_examples_and_concatenation_puts_features_side_by_side(task_and_models):
    encoders = Encoders(*task_and_models)
    first, second, mean = (encoders._model(name)[0]["linear1.weight"] for name in ("fe1", "fe2", "favg"))
    sizes = [len(rows) for rows in encoders.rows]
    assert sizes[0] != sizes[1]
    torch.testing.assert_close(mean, (sizes[0] * first + sizes[1] * second) / sum(sizes))
    apart = [encoders.features(name) for name in ("fe1", "fe2")]
    assert torch.equal(encoders.features("fe"), torch.cat(apart, 1))
    assert apart[0].shape == (sum(sizes), 64)


def test_heads_see_the_examples_they_are_named_after(task_and_models, monkeypatch):
    known, seen = [], []
    monkeypatch.setattr(heads, "classification_loss", lambda examples, *rest: known.append((examples, rest[-1])) or 1.0)
    monkeypatch.setattr(heads, "reconstruction_loss", lambda examples, *rest: seen.append((examples, rest[-1])) or 1.0)
    head_losses(*task_and_models, "exchange", 8)
    head_losses(*task_and_models, "pooled", 8)
    assert [examples.targets.unique().tolist() for examples, _ in known] == [
        *([0, 2], [1, 9], [1, 9], [0, 2]),
        *([[0, 1, 2, 9]] * 4),
    ]
    assert [key for _, key in known] == [key for _, key in seen] == [0, 1, 1, 0, 2, 2, 2, 2], "the key of their batches"
    task, encoders = task_and_models[0], Encoders(*task_and_models)
    assert torch.equal(seen[1][0].targets, task.federation.images[encoders.rows[1]].flatten(1) / 255)
    assert torch.equal(seen[1][0].features, known[1][0].features)
    assert torch.equal(known[4][0].features, encoders.features("fe1"))


def test_the_width_of_the_decoder_changes_its_loss_only(task_and_models):
    wide, linear = (head_losses(*task_and_models, "pooled", width)["values"]["fe1"] for width in (256, 0))
    assert wide["cls_loss"] == linear["cls_loss"] and wide["rec_loss"] != linear["rec_loss"]


def test_a_loss_that_is_not_finite_is_none(task_and_models, monkeypatch):
    monkeypatch.setattr(heads, "classification_loss", lambda *_: float("inf"))
    assert head_losses(*task_and_models, "pooled", 0)["values"]["fe"]["cls_loss"] is None


def test_information_about_labels_is_that_of_a_classifier_on_test_images_of_its_classes(task_and_models, monkeypatch):
    task, given = task_and_models[0], []
    monkeypatch.setattr(heads, "information", lambda *of: given.append(of) or heads.Information(0.5, 1.0))
    found = label_information(*task_and_models, "exchange")
    assert found["values"]["fe2-exchange"] == {"information": 0.5, "entropy": 1.0} and found["clients"] == [0, 1]
    label_information(*task_and_models, "pooled")
    owned = [*([0, 2], [1, 9], [1, 9], [0, 2]), *([[0, 1, 2, 9]] * 4)]
    assert [known.targets.unique().tolist() for known, *_ in given] == owned
    assert [tested.targets.unique().tolist() for _, tested, *_ in given] == owned
    encoders, labels = Encoders(*task_and_models), task.federation.test_labels
    rows = ((labels == 1) | (labels == 9)).nonzero().flatten()
    expected = encoders.of_images("fe1", task.federation.test_images, rows)
    assert torch.equal(given[1][1].features, expected) and len(expected) == len(rows)
    assert given[-1][1].features.shape[1] == 2 * expected.shape[1], "fe is both"
    own = (torch.tensor([3, 5]), torch.tensor([8]))
    apart = replace(task, federation=replace(task.federation, test_clients=own))
    label_information(apart, task_and_models[1], "exchange")
    assert given[-1][1].targets.tolist() == labels[own[0]].tolist()
    assert given[-2][1].targets.tolist() == labels[own[1]].tolist()


def test_information_that_is_not_finite_is_none(task_and_models, monkeypatch):
    monkeypatch.setattr(heads, "information", lambda *_: heads.Information(float("nan"), 1.0))
    assert label_information(*task_and_models, "pooled")["values"]["fe"] == {"information": None, "entropy": 1.0}


def test_a_grid_may_have_a_table_of_information(trained):
    grid = load_grid("paper_table7")
    wanted = {"kind": "encoder-information", "examples": "pooled"}
    (cell,) = expand(grid, "smoke", overrides=DIGITS)
    said = []
    measure([cell], [table_of(wanted)], trained, None, said.append)
    (result,) = table_of(wanted).results(trained, cell.id, 1).values()
    found = result["values"]
    assert [*found] == ["fe1", "fe2", "favg", "fe"] and said[0].startswith("encoder-information-pooled-0001 of digits")
    assert all(of["information"] < of["entropy"] for of in found.values())
    assert heads_to_train(cell.config, wanted)[0] == 4


def test_points_are_at_most_so_many_of_each_client(task_and_models):
    found = plane(*task_and_models, ["fe"], "pca", 7)
    assert found["owners"] == [0] * 7 + [1] * 7 and len(found["panels"]["fe"]["points"]) == 14
    assert set(found["labels"][:7]) <= {0, 2} and set(found["labels"][7:]) <= {1, 9}


def test_what_cannot_be_compared_is_refused(task_and_models):
    task, models = task_and_models
    alone = {part: models[part] for part in ("params", "buffers")} | {"ids": models["ids"][:1]}
    with pytest.raises(ValueError, match="encoders of two clients are compared, but the cohort has 1"):
        Encoders(task, alone)
    (cell,) = expand(load_grid("paper_table6"), "smoke", overrides=DIGITS | {"partition": "noise-0.1"})
    with pytest.raises(ValueError, match="compared on clean images, but the partition adds noise"):
        Encoders(build_task(cell.config, load("digits", None)), models)
    broken = models | {"params": {name: leaf * float("nan") for name, leaf in models["params"].items()}}
    with pytest.raises(ValueError, match="features are not finite"):
        plane(task, broken, ["fe1"], "pca", 5)


# The plane


@pytest.fixture
def features():
    """Three classes on three corners, with a little noise."""
    rng = np.random.default_rng(0)
    return 5 * np.eye(8)[LABELS] + 0.1 * rng.standard_normal((60, 8))


def test_pca_tells_how_much_of_the_variance_an_axis_has():
    line = np.outer(np.arange(10.0), [3, 4])  # points 5 apart on one line
    points, names = project(np.pad(line, ((0, 0), (0, 1))), "pca", 0)
    assert np.allclose(np.abs(np.diff(points[:, 0])), 5) and np.allclose(points[:, 1], 0)
    assert names == ("component 1 (100% of variance)", "component 2 (0% of variance)")


def test_features_that_are_all_alike_have_a_picture_too():
    points, names = project(np.ones((5, 3)), "pca", 0)
    assert np.allclose(points, 0) and names[0] == "component 1 (0% of variance)"


def test_tsne_keeps_classes_together_and_depends_on_its_seed_only(features):
    points, names = project(features, "tsne", 1)
    assert names == ("t-SNE dimension 1", "t-SNE dimension 2")
    nearest = np.argsort(((points[:, None] - points) ** 2).sum(2), axis=1)[:, 1]
    assert (LABELS[nearest] == LABELS).all()
    assert np.array_equal(points, project(features, "tsne", 1)[0])


def test_tsne_takes_fewer_points_than_its_usual_neighbourhood(features):
    assert project(features[::12], "tsne", 0)[0].shape == (5, 2)
