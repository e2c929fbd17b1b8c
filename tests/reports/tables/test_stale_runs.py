"""What tables say of runs that were trained before the code changed."""

import pytest

from bench.config.code_version import code_version
from bench.results.store import Store
from reports import api
from tests.support.earlier_code import earlier
from tests.support.processes import imported_after
from tests.support.stores import LABEL, cells, finish, results

GRID, BUDGET = LABEL.split("@")
FEDAVG, OTHERS = cells("label-2", "fedavg"), cells("label-2", "fedprox")
NOTE = (
    "FedAvg: 2 runs of earlier code (algorithms/fedavg.py: FedAvg changed since), so that the numbers may be others now; run "
    "the grid to train them again."
)


@pytest.fixture
def store(tmp_path) -> Store:
    """Two of three runs of FedAvg are stale, none of FedProx."""
    store = results(tmp_path / "results", (*FEDAVG, *OTHERS), {FEDAVG[0].id: 0.5})
    with store.locked():
        digest = earlier(store, "algorithm fedavg", "algorithms/fedavg.py", "FedAvg")
        for cell in FEDAVG[1:]:
            finish(store, cell, 0.6, code=code_version(cell.config) | {"algorithm fedavg": digest})
        for cell in OTHERS:
            finish(store, cell, 0.7, code=code_version(cell.config))
    return store


def test_a_table_names_the_methods_with_stale_runs_and_what_has_changed(store):
    text = api.GridReport(store, GRID, BUDGET).render()
    assert NOTE in text
    assert text.count("2/3 seeds of earlier code") == 1 and text.count("earlier code") == 2


def test_a_published_layout_has_a_mark_for_it(store):
    assert "†: 2/3 seeds of earlier code." in api.GridReport(store, GRID, BUDGET).render(style="paper")


def test_a_page_and_figures_have_it_too(store):
    assert "FedAvg changed since" in api.GridReport(store, GRID, BUDGET).render(format="html")


def test_tables_of_current_runs_say_nothing(tmp_path):
    made = {cell.id: 0.5 for cell in FEDAVG}
    store = results(tmp_path / "results", FEDAVG, made, code=code_version(FEDAVG[0].config))
    assert "earlier code" not in api.GridReport(store, GRID, BUDGET).render()


@pytest.mark.slow
def test_a_report_on_stale_runs_imports_neither_torch_nor_ray(store):
    rendered = f"api.GridReport({str(store.folder)!r}, {GRID!r}, {BUDGET!r}).render()"
    loaded = imported_after(f"from reports import api\nassert 'earlier code' in {rendered}")
    assert not loaded & {"torch", "ray"}
