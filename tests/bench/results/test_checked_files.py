"""What the parts of a stored file must agree in, beyond their types."""

import json
from pathlib import Path

import pytest

from bench.results.json_files import Damaged
from bench.results.schema import check_grid, check_probe, check_search
from tests.support.searching import make, try_next
from tests.support.stores import LABEL, cells, results

LABEL_2 = cells("label-2", "fedavg")


@pytest.fixture
def grid(tmp_path) -> dict:
    """A stored grid of three seeds, without its seal."""
    return results(tmp_path / "results", LABEL_2, {}).grid(LABEL)


def check(grid: dict) -> dict:
    return check_grid(Path(f"{LABEL}.json"), json.dumps(grid).encode())


def test_studies_are_of_seeds_that_no_other_study_has_and_one_is_of_cells(grid):
    def with_studies(*studies: list[int]) -> dict:
        return grid | {"ruleset": {"name": "tuned", "studies": [*studies], "samples": 2}}

    assert check(with_studies([0], [1, 2]))["ruleset"]["studies"] == [[0], [1, 2]]
    for wrong in ([[0], []], [[0, 1], [1, 2]], [[0, 0]]):
        with pytest.raises(Damaged, match="a study has no seed, or one of another study"):
            check(with_studies(*wrong))
    with pytest.raises(Damaged, match="no cell has a seed of its studies"):
        check(with_studies([7], [8]))


def test_the_columns_of_a_table_are_none_of_its_rows(grid):
    report = grid["report"]
    with pytest.raises(Damaged, match="its columns are one of its rows"):
        check(grid | {"report": report | {"columns": report["rows"][0]}})


def test_a_probe_of_label_counts_has_a_count_of_each_class_for_each_client():
    def probe(*counts: list[int]) -> bytes:
        return json.dumps({"version": 1, "result": {"classes": ["a", "b"], "label_counts": [*counts]}}).encode()

    path = Path("probe-label-counts.json")
    assert check_probe(path, probe([1, 2], [3, 4]))["result"]["label_counts"] == [[1, 2], [3, 4]]
    for wrong in ([1, 2], [3]), ([1, 2, 3],):
        with pytest.raises(Damaged, match="a client does not have a count of each class"):
            check_probe(path, probe(*wrong))


def test_a_search_has_proposed_values_for_all_of_its_space_and_nothing_else(tmp_path):
    from bench.results.store import Store
    from bench.tuning.study import Study

    store = Store(tmp_path / "results")
    with store.locked():
        search = make()
        try_next(Study(search, store), store)
    (path,) = (store.folder / "searches").glob("*.json")
    content = json.loads(path.read_text())
    content.pop("sha256", None)
    assert check_search(path, json.dumps(content).encode())["proposed"]
    for wrong in ({}, content["proposed"][0] | {"alpha": 0.5}):
        with pytest.raises(Damaged, match="has proposed what is not in its space"):
            check_search(path, json.dumps(content | {"proposed": [wrong]}).encode())
