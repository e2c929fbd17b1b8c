"""Names of the columns of tables, which no axis may have."""

from bench.experiments.report_schema import TABLE_COLUMNS
from reports.tables.aggregate import SETTING, cell_keys, collect_runs


def test_all_columns_of_runs_and_cells_are_known(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.6, 0.7]).add("cifar10 label-2", "moon", [0.4, 0.6, 0.5])
    report = store.grid_report()
    grid, records = report.expanded, report.records
    axes = {*SETTING, *cell_keys(grid)} - {"published_as"} | {"seed"}
    frames = report.build().cells, collect_runs(grid, records, "accuracy", "last10")
    assert {column for frame in frames for column in frame} - axes <= TABLE_COLUMNS
