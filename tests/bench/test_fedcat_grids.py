"""From a command to the tables of FedCat, on generated handwriting of few writers."""

import pytest

from tests.support.leaf import write_femnist
from tests.support.processes import call_bench

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_table_1_at_its_smallest_budget_says_which_data_are_missing_and_runs_on_those_that_are_there(tmp_path):
    data, results = tmp_path / "data", tmp_path / "results"
    data.mkdir()
    cells = ("--grid", "fedcat_table1", "--budget", "smoke", "--data-dir", data, "--results-dir", results)
    code, text = call_bench("run", *cells)
    assert code == 0 and text.count("no data: FEMNIST (") == 3 * 6, text  # in the tables of best, last and last10
    write_femnist(data, writers=21)
    code, text = call_bench("run", *cells)
    assert code == 0 and "6 done, 0 diverged, 0 failed" in text, text
    table = (results / "reports" / "fedcat_table1@smoke.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| FEMNIST ")]
    assert [row.count("(8") for row in rows] == [6, 6, 6], "published numbers beside the measured ones, in three tables"
    assert table.count("no data: CIFAR-10 (") == 3 * 3 * 6
    assert (
        "best of FedAvg, FedProx, SCAFFOLD, FedGen, CluSamp) in" in table and "Budget smoke is not the paper's" in table
    )


def test_table_3_at_its_smallest_budget_runs_on_real_images(real_data, tmp_path):
    cells = ("--grid", "fedcat_table3", "--budget", "smoke", "--only", "partition=dir-1")
    code, text = call_bench("run", *cells, "--data-dir", real_data, "--results-dir", tmp_path)
    assert code == 0, text
    row = next(line for line in text.splitlines() if line.startswith("| CIFAR-10 "))
    assert all(f"({published}, " in row for published in (55.69, 57.54, 59.12, 61.45))
