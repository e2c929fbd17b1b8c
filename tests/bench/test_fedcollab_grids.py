"""The grids of FedCollab: their cells, and a command that plays the reference of the only cells that it names."""

import csv

import pytest

from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from reports.published.lookup import FOLDER
from reports.tables import report
from tests.support.processes import in_this_process

METHODS = ("local", "fedavg", "fedprox", "fednova", "finetune", "per-fedavg", "pfedme", "ditto")
SETTINGS = {  # section 1 of the digest
    "label-shift": ("fmnist", "fedcollab-mlp", 200, 0.1),
    "feature-shift": ("cifar10", "fedcollab-cnn", 500, 0.01),
}


def test_table_1_is_at_the_settings_of_the_paper():
    cells = expand(load_grid("fedcollab_table1"), "paper")
    assert len(cells) == len(METHODS) * len(SETTINGS) * 5
    for cell in cells:
        config = cell.config
        assert (cell.dataset, config.model, config.rounds, config.lr) == SETTINGS[config.partition]
        assert (config.clients, config.participation, config.local_epochs, config.batch_size) == (20, 1, 1, 32)
        assert (config.momentum, config.weight_decay, config.transform) == (0, 0, "fedcollab")
    options = {
        "fedprox": {"mu": 0.1},
        "finetune": {"finetune_length": 2, "finetune_unit": "steps"},
        "per-fedavg": {"inner_lr": None},
        "pfedme": {"proximal_weight": 1.0, "inner_steps": 5, "personal_lr": 0.1},
        "ditto": {"proximal_weight": 1.0},
    }
    for cell in cells:
        own = options.get(cell.config.algorithm["name"], {})
        assert own.items() <= cell.config.algorithm.items(), cell.config.algorithm


def test_what_is_set_by_hand_wins_over_the_settings_of_a_dataset():
    cells = expand(load_grid("fedcollab_table1"), "paper", overrides={"rounds": 100, "lr": 0.5})
    assert {(cell.config.rounds, cell.config.lr) for cell in cells} == {(100, 0.5)}


@pytest.mark.parametrize("budget", ["small", "smoke"])
def test_small_budgets_leave_every_client_its_examples(budget):
    cells = expand(load_grid("fedcollab_table1"), budget)
    assert {(cell.config.partition, cell.config.model) for cell in cells} == {
        (partition, model) for partition, (_, model, *_) in SETTINGS.items()
    }
    assert all(cell.config.train_examples is None and cell.config.rounds <= 20 for cell in cells)


def test_every_published_number_of_these_methods_has_its_cell():
    grid = load_grid("fedcollab_table1")
    stored = to_json(grid, "paper", {}, expand(grid, "paper"))
    records = {
        cell["run"]: {"status": "done", "summary": {"last": {"own_accuracy": 0.5}}, "client_accuracies": [0.5] * 20}
        for cell in stored["cells"]
    }
    cells = report.build(stored, records).cells
    shown = {
        (cell.partition, cell.algorithm, cell.metric, cell.published.mean)
        for cell in cells.itertuples()
        if cell.published and cell.published.same_setting
    }
    name = {"local_accuracy": "own_accuracy"}
    with (FOLDER / "fedcollab.csv").open(newline="", encoding="utf-8") as file:
        published = [*csv.DictReader(file)]
    assert shown == {
        (line["partition"], line["algorithm"], name.get(line["metric"], line["metric"]), line["mean"])
        for line in published
        if line["table"] == "1" and line["variant"] == "" and line["partition"] in SETTINGS
    }
    assert len(shown) == 2 * (1 + 7 * 3)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_the_reference_is_played_beside_the_only_method_that_is_asked_for(tmp_path):
    grid = tmp_path / "gains.yaml"
    grid.write_text(
        """
axes: {partition: [feature-shift], algorithm: [local, fedavg, fedprox], seed: [0, 1]}
settings: {dataset: digits, model: mlp, clients: 4, rounds: 2, local_epochs: 1, test_examples: null}
report: {rows: [algorithm], columns: partition, metrics: [own_accuracy, ipr, rsd], compared: [algorithm],
         reference: {algorithm: local}, also: [best]}
"""
    )
    code, text = in_this_process("--grid", grid, "--only", "algorithm=fedavg", "--results-dir", tmp_path / "results")
    assert code == 0 and "4 done, 0 diverged, 0 failed" in text, text
    rows = [line for line in text.splitlines() if line.startswith(("| local", "| fedavg"))]
    local, fedavg, *best = (line.split("|")[1:-1] for line in rows)
    assert [bool(cell.strip()) for cell in local] == [True, True, False, False]
    assert all("±" in cell for cell in fedavg[1:]) and "no reference" not in text and len(best) == 2
