"""`python -m bench tune` from the search to the table of the final runs, killed in the middle."""

import json
import os
import signal
from collections import Counter

import pytest

from bench.results.store import Store
from tests.support.processes import Driver, call_bench, wait_until

# One worker at a time, where it does not matter how many: each imports torch and Ray, which takes longer than these runs.
ALONE = ("--max-concurrent", 1)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
SETTING = ["--algorithm", "fedprox", "--dataset", "digits", "--partition", "label-2", "--seeds", "0,1"]
SMALL = ["--set", "clients=12,rounds=9,local_epochs=2,model=mlp,lr=0.1", "--checkpoint-seconds", "0"]


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def of_split(store: Store, split: str) -> dict[str, dict]:
    return {run: record for run, config, record in store.ended() if config["split"] == split}


def test_a_search_that_is_killed_goes_on_and_its_winner_is_trained_on_all_data(results):
    command = (*SETTING, *SMALL, "--results-dir", results)
    driver = Driver(*command, command="tune")
    store = Store(results)
    wait_until(lambda: len(of_split(store, "validation")) >= 2, driver)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    before = {run: store.rows(run) for run in of_split(store, "validation")}
    code, text = call_bench("tune", *command, *ALONE)
    assert code == 0, text
    validation, test = of_split(store, "validation"), of_split(store, "test")
    assert len(validation) == 8 and len(test) == 2, "four configurations, two seeds; the best one once more"
    assert all(store.rows(run) == rows for run, rows in before.items()), "what was finished was not trained again"
    best = max((0.001, 0.01, 0.1, 1), key=lambda mu: mean(store, validation, mu))
    chosen = {config["algorithm"]["mu"] for run, config, _ in store.ended() if run in test}
    assert chosen == {best}
    assert (
        "Hyper-parameters were chosen on validation data (15% of each class of each client; no test image was read)"
        in text
    )
    assert f"| μ={best}" in text
    code, text = call_bench("tune", *command)
    assert code == 0 and "2 finished, 0 to run" in text and "[1/" not in text


def mean(store: Store, runs: dict[str, dict], mu: float) -> float:
    configs = {run: config for run, config, _ in store.ended()}
    own = [record for run, record in runs.items() if configs[run]["algorithm"]["mu"] == mu]
    return sum(record["summary"]["last"]["accuracy"] for record in own) / len(own)


def test_asha_stops_early_what_does_badly_and_says_so(results):
    search = ("--searcher", "optuna", "--scheduler", "asha", "--samples", 6, *ALONE)
    code, text = call_bench("tune", *SETTING, *SMALL, "--results-dir", results, *search)
    assert code == 0, text
    records = [json.loads(path.read_text()) for path in results.glob("runs/*/record.json")]
    stopped = [record for record in records if record["status"] == "stopped"]
    assert stopped and all(record["reason"].startswith("the search stopped it after round") for record in stopped)
    assert all(record["rounds"] in (1, 3) for record in stopped)
    assert "stopped after round" in text and list((results / "reports").glob("search-*-rungs.png"))


def test_a_calibration_is_searched_on_one_training_and_tested_on_another(results):
    ccvr = ["--algorithm", "ccvr", *SETTING[2:], *SMALL, "--searcher", "random", "--samples", 2]
    code, text = call_bench("tune", *ccvr, *ALONE, "--results-dir", results)
    assert code == 0, text
    store = Store(results)
    ended = [config for _, config, _ in store.ended()]
    methods = {
        split: Counter(config["algorithm"]["name"] for config in ended if config["split"] == split)
        for split in ("validation", "test")
    }
    assert methods["validation"] == {"fedavg": 2, "ccvr": 4}, "two seeds, two configurations"
    assert methods["test"] == {"fedavg": 2, "ccvr": 2}


def test_a_grid_is_tuned_on_validation_data_with_as_many_configurations_for_each_method(results, tmp_path):
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "axes: {dataset: [digits], partition: [label-2], algorithm: [fedavg, fedconcat], seed: [0, 1]}\n"
        "settings: {clients: 12, rounds: 3, local_epochs: 1, model: mlp, lr: 0.1, encoder_rounds: 1, classifier_rounds: 2}\n"
    )
    tuned = ("--grid", grid, "--tuned", "validation", "--samples", 2, *ALONE, "--results-dir", results)
    code, text = call_bench("run", *tuned)
    assert code == 0, text
    assert (
        "Search 2 of 2: digits label-2 fedconcat: num_clusters, lr, weight_decay; 2 configurations, seeds 0, 1" in text
    )
    assert (
        "Best of 2 configurations per cell by mean validation accuracy" in text and "## Chosen hyper-parameters" in text
    )
    store = Store(results)
    assert Counter(config["algorithm"]["name"] for _, config, _ in store.ended()) == {"fedavg": 6, "fedconcat": 6}
    code, again = call_bench("run", *tuned)
    assert code == 0 and "4 finished, 0 to run" in again and "Search 1" not in again
    assert again.split("# mine")[1].split("Saved")[0] == text.split("# mine")[1].split("Saved")[0]


def test_a_place_for_which_nothing_can_be_chosen_leaves_the_rest_of_the_table(results, tmp_path):
    axes = "{dataset: [digits], partition: [label-2], algorithm: [fedavg, fedprox], seed: [0, 1]}"
    settings = "{clients: 12, rounds: 3, local_epochs: 1, model: mlp}"
    (tmp_path / "mine.yaml").write_text(f"axes: {axes}\nsettings: {settings}\n")
    (tmp_path / "wild.yaml").write_text("lr: {grid: [1.0e+30], low: 1.0e+29, high: 1.0e+30}\n")
    space = ("--space", f"own,training,fedprox={tmp_path / 'wild.yaml'}")
    command = ("run", "--grid", tmp_path / "mine.yaml", "--tuned", "validation", "--samples", 2, *space)
    code, text = call_bench(*command, "--results-dir", results, *ALONE)
    said = " ".join(text.split())
    assert code == 1, text
    assert "2 configurations, seeds 0, 1: each configuration diverged with one of its seeds" in said
    assert "For 1 place of the table no configuration could be chosen" in said and "tried again by" not in said
    assert "| FedAvg " in text and "diverged with 2 of 2 seeds" in text
    (label,) = Store(results).grids()
    assert {cell["algorithm"] for cell in Store(results).grid(label)["cells"]} == {"fedavg"}
