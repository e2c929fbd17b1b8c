"""What a layout says of values of axes, as cells have them."""

import json
from typing import get_type_hints

import pytest

from bench.experiments.expansion import expand
from bench.experiments.grid_loading import make_grid
from bench.experiments.labels import value_of
from bench.experiments.names_schema import Printed
from bench.experiments.reference import find_references
from bench.experiments.report_schema import Layout
from bench.experiments.spec import ExperimentSpec
from bench.results.grids import StoredLayout, StoredPrinted

AXES = {"dataset": ["digits"], "partition": ["label-2", "dir-0.50"], "participation": [0.5, 1], "seed": [0, 1]}


def asked(axes: dict, **report: object):
    settings = {"clients": 10, "rounds": 2, "local_epochs": 1}
    content = {"axes": {"algorithm": ["fedavg"], **axes}, "settings": settings, "report": report}
    return ExperimentSpec(make_grid("mine", content)).grid


@pytest.mark.parametrize(
    ("axis", "written", "resolved"), [("participation", 1, 1.0), ("partition", "dir-0.50", "dir-0.5")]
)
def test_what_cells_are_compared_with_is_written_as_in_the_axis(axis, written, resolved):
    other = "partition" if axis == "participation" else "participation"
    grid = asked(AXES, rows=[other], columns=axis, gains_over={axis: written}, against=written)
    assert repr(grid.report.gains_over) == repr(grid.report.against) == repr({axis: resolved})
    cells = [cell.to_json() for cell in expand(grid, "full")]
    assert repr(resolved) in {repr(value_of(cell, axis)) for cell in cells}


def test_runs_are_compared_with_references_however_their_number_is_written():
    layout = {"rows": ["partition"], "columns": "participation", "metrics": ["own_accuracy", "ipr"]}
    grid = asked(AXES, **layout, reference={"participation": 1})
    cells = [cell.to_json() for cell in expand(grid, "full")]
    find = find_references(grid.report.model_dump(), cells)
    assert [len(find(cell)) for cell in cells] == [1] * len(cells)


@pytest.mark.parametrize(
    ("methods", "key", "values"),
    [
        ({"algorithm": ["fedprox"]}, "mu", [0, 1]),
        ({"settings": {"algorithm": "fedprox"}}, "mu", [0, 1]),
        ({"algorithm": ["fedavg"], "wrapper": ["ccvr"]}, "tukey", [1, 0.5]),
        ({"algorithm": ["fedavg"], "settings": {"wrapper": "ccvr"}}, "tukey", [1, 0.5]),
    ],
)
def test_options_are_those_of_the_methods_of_the_grid_wherever_it_names_them(methods, key, values):
    axes = {"dataset": ["digits"], "partition": ["label-2"], key: values, "seed": [0]}
    settings = {"clients": 10, "rounds": 2, "local_epochs": 1} | methods.get("settings", {})
    axes |= {name: given for name, given in methods.items() if name != "settings"}
    report = {"rows": ["partition"], "columns": key, "names": {key: {values[0]: "none"}}, "against": values[0]}
    report["notes"] = [{"when": {key: values[0]}, "say": "A note."}]
    report["printed"] = {"without": {key: [values[1]]}}
    found = ExperimentSpec(make_grid("mine", {"axes": axes, "settings": settings, "report": report})).grid.report
    first, other = (str(float(value)) for value in values)
    assert found.names == {key: {first: "none"}} and str(found.against[key]) == first
    assert [str(one) for one in found.notes[0].when[key]] == [first]
    assert [str(one) for one in found.printed.without[key]] == [other]


def test_names_are_of_values_however_they_are_written():
    names = {"participation": {1: "all", 0.5: "half"}, "partition": {"dir-0.50": "Dir(0.5)"}}
    grid = asked(AXES, rows=["partition"], columns="participation", names=names)
    assert grid.report.names == {"participation": {"1.0": "all", "0.5": "half"}, "partition": {"dir-0.5": "Dir(0.5)"}}


def test_an_option_of_a_method_can_be_an_axis_beside_images_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "split.json").write_text(json.dumps({"train": [[0, 1], [2, 3]]}))
    axes = {"dataset": ["digits"], "partition": ["file:split.json"], "algorithm": ["fedconcat"], "num_clusters": [1, 2]}
    names = {"num_clusters": {1: "K = 1"}, "partition": {"file:split.json": "ours"}}
    found = asked(axes, rows=["partition"], columns="num_clusters", names=names).report.names
    assert found["num_clusters"] == {"1": "K = 1"}
    assert [*found["partition"]][0].startswith("file:split@") and "json" not in [*found["partition"]][0]


def test_a_stored_layout_has_every_field_of_the_file():
    """What a stored grid may hold is checked against these shapes."""
    of_own_files = {"std", "verdict"}  # not stored
    assert get_type_hints(StoredLayout).keys() == Layout.model_fields.keys() - of_own_files
    assert get_type_hints(StoredPrinted).keys() == Printed.model_fields.keys()
