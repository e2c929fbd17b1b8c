"""The leaderboards and the table of FedVLS: who is in them, on what terms, and what stands beside published numbers."""

import csv
import functools
import re

import pytest

import algorithms
from bench.config.methods import build
from bench.config.schema import RunConfig
from bench.experiments.cells import Cell, to_json
from bench.experiments.cost import bytes_per_client, examples_to_train, is_bound
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.spec import ALL, TuningOptions
from bench.published.lookup import PAPERS
from bench.tuning.build import make_searches
from reports.tables import report

SHARED = ("leaderboard_mnist", "leaderboard_fmnist", "leaderboard_cifar10")
ONE_SHOT = {
    "oneshot",
    "ensemble",
    "ensemble-vote",
    "ensemble-weighted",
    "fens",
    "fens-linear",
    "fedlpa",
    "fedov",
    "fusefl",
}
NEEDS_GPU = {"dense", "f-dafl", "co-boosting"}
LEFT_OUT = {
    *("centralized", "oracle"),  # read the data of all clients
    "random-clusters",  # a control
    "dp-fedconcat",  # privacy
    *("fedcat-gc", "fedcat-dc", "fedconcat-ifca", "fedconcat-fedsoft", "fedconcat-fesem"),  # parts and mixtures
}
MORE = {"scaffold", "mofedsam", "fedgen"}  # send more than the model, by design
OWN_ROUNDS = {"fedconcat", "fedconcat-id", "fedconcat-ib", "fedcat", "clusamp"}
PUBLISHED_SETTINGS = 10


@functools.cache
def cells_of(name: str, budget: str = "paper") -> list[Cell]:
    return expand(load_grid(name), budget)


def one_of_each(name: str, partition: str) -> dict[str, RunConfig]:
    """Method -> the config of its first seed."""
    cells = [cell for cell in cells_of(name) if cell.setting("seed") == 0 and cell.config.partition == partition]
    return {cell.setting("algorithm"): cell.config for cell in cells}


def test_every_method_with_one_shared_model_is_on_a_board():
    found = {method for method in algorithms.REGISTRY if not _deploys_many(method)}
    on_board = {name: load_grid(name).axes["algorithm"] for name in (*SHARED, "leaderboard_oneshot")}
    assert {on_board[name][0] for name in SHARED} == {"fedavg"}
    assert {*on_board["leaderboard_fmnist"]} == found - LEFT_OUT - ONE_SHOT - NEEDS_GPU
    assert {*on_board["leaderboard_oneshot"], *load_grid("leaderboard_oneshot").axes["wrapper"]} - {"none"} == ONE_SHOT
    # The others have no more than the first wave.
    assert {*on_board["leaderboard_mnist"]} == {*on_board["leaderboard_cifar10"]} < {*on_board["leaderboard_fmnist"]}


@pytest.mark.slow
def test_fens_has_a_rival_on_the_same_models_and_all_others_start_alike():
    starts: dict[tuple, set[str]] = {}
    for cell in cells_of("leaderboard_oneshot"):
        base = cell.config.algorithm.get("base") or cell.config.algorithm
        if base["name"] == "oneshot":
            starts.setdefault((base["client_init"], base["hold_out"]), set()).add(cell.wrapper)
    assert starts == {
        ("common", 0.0): {"none", "ensemble", "ensemble-vote", "ensemble-weighted", "fedlpa"},
        ("independent", 0.1): {"ensemble", "fens", "fens-linear"},
    }


def _deploys_many(method: str) -> bool:
    return build(method, {}).personal


@pytest.mark.parametrize(("name", "partition"), [("leaderboard_mnist", "label-2"), ("leaderboard_cifar10", "dir-0.1")])
def test_methods_with_rounds_of_their_own_exchange_and_train_what_fedavg_does(name, partition):
    configs = one_of_each(name, partition)
    sent = {method: bytes_per_client(config) for method, config in configs.items()}
    fedavg, examples = sent.pop("fedavg"), examples_to_train(configs["fedavg"])
    for method, size in sent.items():
        more = method in MORE or is_bound(configs[method])
        assert size == pytest.approx(fedavg, rel=0.03) or (more and size > fedavg), method
    assert all(0.9 < examples_to_train(configs[method]) / examples < 1.2 for method in OWN_ROUNDS)
    # Of the others all settings are the same, but for the learning rate that FedAdagrad needs.
    terms = {"clients", "participation", "rounds", "local_epochs", "batch_size", "lr", "momentum", "weight_decay"}
    others = {method: config for method, config in configs.items() if method not in OWN_ROUNDS}
    assert len({repr(config.model_dump(include=terms)) for config in others.values() if config.lr == 0.01}) == 1
    assert {method for method, config in others.items() if config.lr != 0.01} <= {"fedadagrad"}


def test_on_mnist_methods_that_learn_nothing_with_their_defaults_have_settings_and_on_cifar10_they_have_none():
    settings = {"fedadam": (0.01, 0.01, 0.001), "fedyogi": (0.01, 0.01, 0.001), "fedadagrad": (0.0316, 0.1, 0.1)}
    for name, expected in (
        ("leaderboard_mnist", settings),
        ("leaderboard_cifar10", dict.fromkeys(settings, (0.01, 0.1, 0.001))),
    ):
        configs = one_of_each(name, "dir-0.1")
        methods = {method: configs[method].algorithm for method in settings}
        found = {key: (configs[key].lr, own["server_lr"], own["adaptivity"]) for key, own in methods.items()}
        assert found == expected


def test_each_search_of_the_board_on_mnist_begins_with_the_settings_of_the_grid():
    cells = [cell for cell in cells_of("leaderboard_mnist") if cell.config.partition == "label-2"]
    tuning = TuningOptions("random", samples=8, space=ALL, compares=True)
    searches = make_searches(cells, load_grid("leaderboard_mnist").report.model_dump(), tuning)
    outside = {
        (search.methods[-1], key)
        for search in searches.values()
        for key, where in search.space.items()
        if not (
            where.low <= search.usual[key] <= where.high if where.low is not None else search.usual[key] in where.grid
        )
    }
    assert outside == {("feddyn", "weight_decay")}, "which has one value, that of its paper's code"
    assert len(searches) == 36


@pytest.mark.parametrize("name", [*SHARED, "leaderboard_personal"])
def test_boards_compare_configurations_on_three_seeds(name):
    assert load_grid(name).search_seeds == [0, 1, 2]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("budget", ["paper", "small", "smoke"])
def test_fedcat_ends_with_a_model_and_is_evaluated_where_it_has_one(name, budget):
    for cell in cells_of(name, budget):
        if cell.setting("algorithm") in ("fedcat", "clusamp"):
            cohort = cell.config.cohort_size
            assert 1 < cohort < cell.config.clients
            assert (
                cell.config.rounds % cohort
                == cell.config.evaluate_every % cohort
                == 0
                < cell.config.rounds // cohort - 1
            )


def test_each_personal_method_has_one_row_beside_local_and_fine_tuned_fedavg():
    cells = [cell for cell in cells_of("leaderboard_personal") if cell.setting("seed") == 0]
    rows = [(cell.setting("algorithm"), cell.wrapper) for cell in cells if cell.config.partition == "label-2"]
    assert rows[:2] == [("local", "none"), ("fedavg", "finetune")] and ("fedbabu", "finetune") in rows
    assert len(rows) == len({method for method, _ in rows}) == 23
    for cell in cells:
        assert _deploys_many(cell.config.algorithm["name"])
        if cell.wrapper == "finetune":
            assert (cell.config.algorithm["finetune_length"], cell.config.algorithm["finetune_unit"]) == (5, "epochs")


def test_all_personal_methods_with_a_choice_are_scored_after_local_training_and_notes_and_marks_name_all():
    grid, configs = load_grid("leaderboard_personal"), one_of_each("leaderboard_personal", "label-2")
    after, before = (note for note in grid.report.notes if isinstance(note, str) and note.startswith("Scored "))
    assert after.startswith("Scored after ") and before.startswith("Scored before ")
    for method, config in configs.items():
        assert config.algorithm.get("scored", "after") == "after"
        title = algorithms.title_of(method).removesuffix(" (personal)")
        named = [re.search(rf"(?<![-\w]){title}\b", note) is not None for note in (after, before)]
        assert sum(named) == 1 and (named[0] or "scored" not in config.algorithm), method
        assert grid.report.names["algorithm"].get(method, title) == title + " (before)" * named[1]


@pytest.fixture(scope="module")
def fedvls():
    return report.build(to_json(load_grid("fedvls_table"), "paper", {}, cells_of("fedvls_table")), {})


def test_every_published_number_of_fedvls_stands_in_its_cell(fedvls, published):
    cells = fedvls.cells
    beside = {
        (cell.dataset, cell.model, cell.partition, cell.algorithm): cell.published.mean
        for cell in cells.itertuples()
        if cell.published.same_setting
    }
    names = ("dataset", "model", "partition", "algorithm")
    assert beside == {tuple(line[name] for name in names): line["mean"] for line in published}
    assert len(beside) == len(cells) == PUBLISHED_SETTINGS * 11
    assert beside["cifar10", "mobilenetv2", "dir-0.05", "fedvls"] == "75.71"
    assert beside["cifar100", "mobilenetv2", "label-20", "moon"] == "57.33"
    notes = " ".join(fedvls.notes)
    assert all(word in notes for word in ("FedGF", "AutoAugment", "weight decay", "Shards", "best round"))


@pytest.fixture
def published():
    with PAPERS["fedvls"].path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_fedvls_has_the_settings_of_the_paper_and_those_of_its_code_by_a_switch():
    options = {
        "fedprox": {"mu": 0.01},
        "moon": {"mu": 0.01, "temperature": 0.5},
        "fedexp": {"eps": 0.01},
        "fedlc": {"tau": 0.5},
        "fedrs": {"alpha": 0.7},
        "fedsam": {"rho": 0.1},
        "fedntd": {"beta": 0.1},
        "fedlmd": {"beta": 0.1},
    }
    decay = {"cifar10": 1e-5, "cifar100": 1e-4}
    for cell in cells_of("fedvls_table"):
        config, method = cell.config, cell.config.algorithm
        assert (config.clients, config.participation, config.local_epochs, config.batch_size) == (10, 1, 10, 64)
        assert (config.lr, config.momentum, config.weight_decay) == (0.01, 0.9, decay[cell.dataset])
        assert options.get(method["name"], {}).items() <= method.items()
        if method["name"] == "fedconcat":
            assert method["num_clusters"] in (2, 4)
        else:
            assert config.rounds == 100
        if method["name"] == "fedvls":
            assert method["distillation_weight"] == {"cifar10": 0.1, "cifar100": 0.5}[cell.dataset]
    paper, released = ({cell.id: cell for cell in cells_of("fedvls_table", budget)} for budget in ("paper", "released"))
    own = [cell for run, cell in released.items() if run not in paper]
    assert {(cell.setting("algorithm"), cell.config.weight_decay) for cell in own} == {("fedvls", 0)}
    assert len(own) == PUBLISHED_SETTINGS * 3 and len(released) == len(paper)


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("dataset", "model"), [("cifar10", "mobilenetv2"), ("cifar10", "resnet18"), ("cifar100", "mobilenetv2")]
)
def test_fedconcat_exchanges_about_what_the_rivals_of_fedvls_do(dataset, model):
    cells = [cell for cell in cells_of("fedvls_table") if (cell.dataset, cell.config.model) == (dataset, model)]
    sizes = {(cell.setting("algorithm"), str(cell.choice)): bytes_per_client(cell.config) for cell in cells}
    (rounds,) = {size for (method, _), size in sizes.items() if method != "fedconcat"}
    assert all(size == pytest.approx(rounds, rel=0.035) for size in sizes.values())
