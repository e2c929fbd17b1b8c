import math

import pytest


def cells_of(store, metric="accuracy", **options):
    """Cells of one metric as (partition, algorithm) -> line."""
    cells = store.build(**options).cells
    return {(c.partition, c.algorithm): c for c in cells[cells["metric"] == metric].itertuples()}


# 50, 52, 57: mean 53, squared deviations 9 + 1 + 16 = 26; 26 / 3 and 26 / 2.
@pytest.mark.parametrize(("std", "expected"), [("population", 2.943920), ("sample", 3.605551)])
def test_mean_and_std_are_those_worked_by_hand(store, std, expected):
    store.std = std
    cell = cells_of(store.add("cifar10 label-2", "fedavg", [0.50, 0.52, 0.57]))["label-2", "fedavg"]
    assert cell.mean == pytest.approx(53.0)
    assert cell.std == pytest.approx(expected, abs=1e-6)
    assert (cell.done, cell.seeds, cell.complete) == (3, 3, True)


@pytest.mark.parametrize("std", ["population", "sample"])
def test_one_seed_has_no_std(store, std):
    store.std = std
    cell = cells_of(store.add("cifar10 label-2", "fedavg", [0.5]))["label-2", "fedavg"]
    assert math.isnan(cell.std)


@pytest.mark.parametrize(("value", "expected"), [(None, 50.0), ("last", 50.0), ("best", 52.0), ("last10", 49.0)])
def test_value_switches_between_last_best_and_last_ten_rounds(store, value, expected):
    cells = cells_of(store.add("cifar10 label-2", "fedavg", [0.5, 0.5]), value=value)
    assert cells["label-2", "fedavg"].mean == pytest.approx(expected)


def test_the_setting_with_the_best_mean_over_seeds_is_chosen(store):
    # mu=1 has the best single seed, mu=5 the best mean.
    store.add("cifar10 label-2", "moon", [0.60, 0.40, 0.40], choice={"mu": 1})
    store.add("cifar10 label-2", "moon", [0.50, 0.50, 0.50], choice={"mu": 5})
    store.add("cifar10 label-2", "moon", [0.45, 0.45, 0.45], choice={"mu": 10})
    cell = cells_of(store)["label-2", "moon"]
    assert (cell.choice, cell.settings, cell.tried) == ("mu=5", 3, 3)
    assert cell.mean == pytest.approx(50)
    assert cell.run_ids == " ".join(other["run"] for other in store.cells[3:6])


def test_the_choice_is_made_in_each_cell_separately(store):
    for partition, scores in {"label-2": (0.5, 0.4), "dir-0.1": (0.4, 0.5)}.items():
        for mu, score in zip((1, 5), scores, strict=True):
            store.add(f"cifar10 {partition}", "moon", [score, score], choice={"mu": mu})
    cells = cells_of(store)
    assert cells["label-2", "moon"].choice == "mu=1"
    assert cells["dir-0.1", "moon"].choice == "mu=5"


def test_settings_that_tie_leave_the_first_of_the_grid(store):
    store.add("cifar10 label-2", "moon", [0.5, 0.5], choice={"mu": 5})
    store.add("cifar10 label-2", "moon", [0.5, 0.5], choice={"mu": 1})
    assert cells_of(store)["label-2", "moon"].choice == "mu=5"


def test_a_better_setting_with_seeds_missing_does_not_beat_a_complete_one(store):
    store.add("cifar10 label-2", "moon", [0.9, None, None], choice={"mu": 1})
    store.add("cifar10 label-2", "moon", [0.5, 0.5, 0.5], choice={"mu": 5})
    cell = cells_of(store)["label-2", "moon"]
    assert (cell.choice, cell.tried, cell.settings, cell.complete) == ("mu=5", 1, 2, False)


def test_a_setting_that_diverges_counts_as_tried(store):
    store.add("cifar10 label-2", "fedlc", [0.5, 0.5], choice={"tau": 1})
    store.add("cifar10 label-2", "fedlc", ["diverged", 0.9], choice={"tau": 5})
    cell = cells_of(store)["label-2", "fedlc"]
    assert (cell.choice, cell.tried, cell.complete) == ("tau=1", 2, True)


def test_a_setting_that_failed_does_not(store):
    store.add("cifar10 label-2", "fedlc", [0.5, 0.5], choice={"tau": 1})
    store.add("cifar10 label-2", "fedlc", ["failed", 0.9], choice={"tau": 5})
    assert not cells_of(store)["label-2", "fedlc"].complete


def test_per_client_models_have_tables_of_their_own(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5])
    store.add("cifar10 label-2", "local", [0.2, 0.2], personal=True)
    assert cells_of(store).keys() == {("label-2", "fedavg")}
    assert cells_of(store, "global_accuracy")["label-2", "local"].mean == pytest.approx(20)
    assert cells_of(store, "local_accuracy")["label-2", "local"].mean == pytest.approx(30)


def test_an_axis_may_be_any_setting_of_the_config(store):
    store.report |= {"rows": ["lr"]}
    store.add("cifar10 label-2", "fedavg", [0.5], config={"lr": 0.1})
    store.add("cifar10 label-2", "fedavg", [0.4], config={"lr": 0.01})
    text = store.render()
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:] == [
        "0.1",
        "0.01",
    ]


def test_seeds_may_be_columns(store):
    store.reproduces = None
    store.report |= {"columns": "seed"}
    lines = store.add("cifar10 label-2", "fedavg", [0.5, 0.4]).render()
    assert "| seed=0   | seed=1   |" in lines and "| **50.0** | 40.0     |" in lines


def test_cells_that_differ_in_an_axis_the_report_does_not_show_are_refused(store):
    store.add("cifar10 label-2", "fedavg", [0.5], clients=100)
    store.add("cifar10 label-2", "fedavg", [0.4], clients=200)
    with pytest.raises(ValueError, match=r"more than one run with seed 0 for \(cifar10, label-2, fedavg, \)"):
        cells_of(store)


def test_an_axis_that_no_cell_has_is_named(store):
    store.report |= {"columns": "colour"}
    with pytest.raises(ValueError, match="'colour', but no cell of the grid has a setting"):
        cells_of(store.add("cifar10 label-2", "fedavg", [0.5]))
