"""Two results directories, cell by cell."""

import pandas as pd
import yaml

from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.spec import ExperimentSpec
from bench.results.ids import hash_of
from bench.results.store import Store
from reports.exports import results_diff
from tests.support import stores as stores_module
from tests.support.stored_experiments import store_cells
from tests.support.stores import LABEL, cells, finish, results

LABEL_2, DIR = cells("label-2", "fedavg"), cells("dir-0.1", "fedavg")


def scores(of: tuple, *values: float) -> dict:
    return {cell.id: value for cell, value in zip(of, values, strict=False)}


def lines(found: results_diff.Comparison) -> list[tuple]:
    return [tuple(line) for line in found.tables["accuracy"].itertuples(index=False)]


def test_the_same_results_are_identical_whatever_clocks_and_devices_say(tmp_path):
    one = results(tmp_path / "a", LABEL_2, scores(LABEL_2, 0.5, 0.6), device="cpu", commit="c1")
    other = results(tmp_path / "b", LABEL_2, scores(LABEL_2, 0.5, 0.6), device="cuda", commit="c1")
    found = results_diff.compare(LABEL, one, other)
    assert lines(found) == [("digits", "label-2", "fedavg", "55.0±5.0", "55.0±5.0", "+0.0±0.0", "identical")]
    assert (found.shared, found.differing, found.facts) == (2, {}, {"device": (["cpu"], ["cuda"])})
    text = results_diff.render(found)
    assert "- 2 runs are in both, with identical numbers." in text and "- device: cpu in A, cuda in B" in text


def test_differences_are_paired_by_seed_and_runs_with_other_numbers_are_named(tmp_path):
    one = results(tmp_path / "a", LABEL_2, scores(LABEL_2, 0.5, 0.6, 0.9))
    other = results(tmp_path / "b", LABEL_2, scores(LABEL_2, 0.5, 0.64))
    found = results_diff.compare(LABEL, one, other)
    # Seeds 0 and 1 are in both: differences 0 and 4 points, mean 2, population std 2.
    assert lines(found)[0][3:] == ("66.7±17.0", "57.0±7.0", "+2.0±2.0", "1 of 2 differ")
    assert found.differing == {LABEL_2[1].id: "accuracy of round 1: 0.5 and 0.54"}
    text = results_diff.render(found)
    assert "- 1 of 2 runs that both have differ in their numbers:" in text
    assert f"- {LABEL_2[1].id}: accuracy of round 1" in text


def test_cells_that_only_one_side_has_are_said(tmp_path):
    one = results(tmp_path / "a", LABEL_2 + DIR, scores(LABEL_2, 0.5))
    other = results(tmp_path / "b", LABEL_2 + DIR, scores(DIR, 0.25))
    found = results_diff.compare(LABEL, one, other)
    assert [line[1:2] + line[3:] for line in lines(found)] == [
        ("label-2", "50.0", "", "", "only in A"),
        ("dir-0.1", "", "25.0", "", "only in B"),
    ]
    assert "No run has ended on both sides." in results_diff.render(found)


def test_runs_of_another_version_of_a_method_are_compared_by_their_seeds(tmp_path):
    one = results(tmp_path / "a", LABEL_2, scores(LABEL_2, 0.5, 0.6))
    other = results(tmp_path / "b", LABEL_2, scores(LABEL_2, 0.53, 0.63))
    grid = other.grid(LABEL)
    for cell in grid["cells"]:
        record, rows = other.record(cell["run"]), other.rows(cell["run"])
        cell["config"]["versions"]["algorithm"] = 2
        cell["run"] = hash_of(cell["config"])
        if record:
            other.start(cell["run"], cell["config"])
            other.finish(cell["run"], rows, record | {"id": cell["run"]})
    other.write_grid(LABEL, grid)
    found = results_diff.compare(LABEL, one, other)
    assert lines(found)[0][3:] == ("55.0±5.0", "58.0±5.0", "+3.0±0.0", "other runs")
    assert found.shared == 0


def test_what_differs_at_one_tuning_choice_is_not_mixed_with_others(tmp_path):
    grid = {
        "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedprox"], "seed": [0, 1]},
        "tuning": [{"when": {"algorithm": "fedprox"}, "options": {"mu": [0.01, 0.1]}}],
    }
    path = tmp_path / "tuned.yaml"
    path.write_text(yaml.safe_dump(grid))
    loaded, stores = load_grid(str(path)), [Store(tmp_path / side) for side in "ab"]
    for store, accuracy in zip(stores, (0.5, 0.6), strict=True):
        label = store_cells(store, ExperimentSpec(loaded, "paper"))
        for cell in expand(loaded, "paper"):
            if (cell.choice["mu"], cell.setting("seed")) != (0.1, 1):
                finish(store, cell, accuracy + cell.choice["mu"])
    table = results_diff.compare(label, *stores).tables["accuracy"]
    assert [line[3:] for line in table.itertuples(index=False)] == [
        ("mu=0.01", "51.0±0.0", "61.0±0.0", "+10.0±0.0", "2 of 2 differ"),
        ("mu=0.1", "60.0", "70.0", "+10.0", "1 of 1 differ"),
    ]


def test_accuracies_that_the_report_shows_come_first(tmp_path, monkeypatch):
    summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5, "own_accuracy": 0.5})
    row = stores_module._row
    monkeypatch.setattr(stores_module, "_row", lambda *of: row(*of) | {"own_accuracy": row(*of)["accuracy"]})
    stores = [results(tmp_path / side, LABEL_2, scores(LABEL_2, 0.5), summary=summary) for side in "ab"]
    assert [*results_diff.compare(LABEL, *stores).tables] == ["accuracy", "own_accuracy"]
    for store in stores:
        grid = store.grid(LABEL)
        with store.locked():
            store.write_grid(LABEL, grid | {"report": {**grid["report"], "metric": "own_accuracy"}})
    assert [*results_diff.compare(LABEL, *stores).tables] == ["own_accuracy", "accuracy"]


def test_a_grid_without_results_says_so(tmp_path):
    one, other = (results(tmp_path / side, LABEL_2, {}) for side in "ab")
    found = results_diff.compare(LABEL, one, other)
    assert not found.tables and "No run of it is done in A or B." in results_diff.render(found)


def test_a_choice_of_a_search_that_only_one_side_has_does_not_differ(tmp_path):
    plain = results(tmp_path / "a", LABEL_2, {}).grid(LABEL)
    tuned = plain | {"cells": [cell | {"tuned": {"hparams": {"lr": 0.1}}} for cell in plain["cells"]]}
    other = plain | {"cells": [cell | {"tuned": {"hparams": {"lr": 0.2}}} for cell in plain["cells"]]}
    assert results_diff._differing_choices([tuned, plain]) == {}
    assert set(results_diff._differing_choices([tuned, other]).values()) == {("lr=0.1", "lr=0.2")}


def test_names_of_others_are_text_in_its_markdown():
    table = pd.DataFrame({"algorithm": ["<img src=x>\nfed*mine|"], "A": ["50.0"]})
    text = results_diff.render(results_diff.Comparison("mine@paper", {"accuracy": table}, 0, {}, {}, {}))
    assert r"| \<img src=x> fed\*mine\| | 50.0 |" in " ".join(text.split())
