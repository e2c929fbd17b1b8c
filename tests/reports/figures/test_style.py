"""A method has one style in all figures, and lines of one figure have different styles."""

import itertools

import matplotlib
import pytest
from matplotlib.figure import Figure

import algorithms
from bench import plugins
from bench.experiments import grid_files
from bench.experiments.grid_loading import load_grid
from reports.figures import lines, style
from reports.figures.style import COLOURS, METHODS
from tests.support import method_files


def pairs(of: dict) -> list[tuple]:
    return [(style.color, style.marker) for style in of.values()]


def test_no_two_methods_are_given_one_style():
    assert set(METHODS) <= set(algorithms.REGISTRY)
    assert len(set(pairs(METHODS))) == len(METHODS)


@pytest.mark.slow
def test_methods_that_a_grid_compares_have_different_colours():
    alike = []
    for name in grid_files.names():
        grid = load_grid(name)
        methods = grid.axes.get("algorithm", [])
        styles = style.line_styles(methods, grid.report.model_dump().get("styles"))
        if len(methods) <= len(COLOURS):
            pairs = itertools.combinations(methods, 2)
            alike += [(name, one, other) for one, other in pairs if styles[one].color == styles[other].color]
    assert alike == []


def test_a_method_has_one_style_in_all_figures():
    alone = style.line_styles(["fedconcat"])["fedconcat"]
    beside = style.line_styles(["client 1", "moon", "fedavg", "fedconcat", "num_clusters=5"])
    assert beside["fedconcat"] == alone == METHODS["fedconcat"]
    assert style.line_styles(["fedconcat (true)"])["fedconcat (true)"] == alone
    assert style.line_styles(["fedprox mu=0.1"])["fedprox mu=0.1"] == METHODS["fedprox"]


def test_lines_of_one_method_share_its_colour_and_nothing_else():
    lines = ["fedconcat-ib", "scaffold", *(f"fedconcat, {rounds} encoder rounds" for rounds in (31, 50, 100))]
    found = style.line_styles(lines)
    assert list(found) == lines
    assert {found[line].color for line in lines[2:]} == {METHODS["fedconcat"].color}
    assert len({found[line].marker for line in lines[2:]}) == 3
    assert len({found[line].linestyle for line in lines[2:]}) == 3
    assert len(set(pairs(found))) == len(lines)


def test_more_lines_of_one_method_than_markers_take_other_colours():
    many = [f"fedprox mu={number}" for number in range(9)]
    beside = ["fedprox mu=1", "fedprox mu=2", "fedprox mu=3", "fesem", "clsprox", "fedconcat-fesem", "fedsam", "fedrep"]
    for shown in (many, beside):
        assert len(set(pairs(style.line_styles(shown)))) == len(shown)
    assert len(style.line_styles([f"fedprox mu={number}" for number in range(100)])) == 100


def test_lines_that_are_no_methods_take_colours_that_no_method_of_the_figure_has():
    others = [f"client {number}" for number in range(8)]
    found = style.line_styles(["fedavg", *others, "moon"])
    assert len({style.color for style in found.values()}) == len(COLOURS)
    assert found["fedavg"] == METHODS["fedavg"] and found["moon"] == METHODS["moon"]
    many = style.line_styles(["fedavg", *(str(number) for number in range(69))])
    assert len(set(pairs(many))) == 70
    assert len(style.line_styles([str(number) for number in range(100)])) == 100


def test_a_new_method_has_one_look_in_all_figures_that_no_other_method_has(tmp_path, monkeypatch):
    method_files.register(tmp_path, monkeypatch, {"fedams": '@registered("fedams")\nclass FedAMS:\n    pass\n'})
    alone, beside = style.line_styles(["fedams"]), style.line_styles(["client 1", "fedavg", "fedams"])
    assert alone["fedams"] == beside["fedams"]
    assert pairs(alone)[0] not in pairs(METHODS)


def test_a_method_of_a_lab_looks_the_same_where_its_folder_is_not(tmp_path, monkeypatch):
    method_files.register(tmp_path, monkeypatch, {"fedams": '@registered("fedams")\nclass FedAMS:\n    pass\n'})
    there = style.line_styles(["fedavg", "fedams", "fedams mu=1"], {"fedams": {}})
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert style.line_styles(["fedavg", "fedams", "fedams mu=1"], {"fedams": {}}) == there
    assert style.line_styles(["fedavg", "fedams"])["fedams"] != there["fedams"]


def test_methods_of_a_lab_have_strong_colours_that_no_method_beside_them_has():
    box = ["fedavg", "fedprox", "moon", "scaffold"]
    for name in (f"fedmine{number}" for number in range(20)):
        found = style.line_styles([*box, name, f"{name} mu=1", "fedother"], {name: {}, "fedother": {}})
        assert {line: found[line] for line in box} == style.line_styles(box)
        assert len({found[line].color for line in (*box, name, "fedother")}) == 6
        assert found[f"{name} mu=1"].color == found[name].color
    every = style.line_styles([*METHODS, "fedmine"], {"fedmine": {}})
    assert pairs(every).count((every["fedmine"].color, every["fedmine"].marker)) == 1, "all colours are taken"


def test_a_grid_says_how_a_method_is_drawn():
    own = {"fedprox": {"colour": METHODS["fedavg"].color, "marker": METHODS["fedavg"].marker, "size": 7.0}}
    found = style.line_styles(["fedavg", "fedprox mu=1", "fedprox mu=2"], own)
    usual = METHODS["fedprox"]
    assert found["fedprox mu=1"] == (METHODS["fedavg"].color, METHODS["fedavg"].marker, usual.linestyle, 7.0)
    assert found["fedprox mu=2"].color == METHODS["fedavg"].color and found["fedprox mu=2"].markersize == 7.0
    assert found["fedavg"].marker != METHODS["fedavg"].marker, "the grid comes first"


def test_classes_have_colours_of_their_own():
    for count in (1, 10, 11, 100):
        assert len(set(style.colours_of_classes(count))) == count


@pytest.mark.slow
def test_no_title_of_a_panel_is_cut_at_an_edge(tmp_path):
    def drawn(title: str) -> Figure:
        with matplotlib.rc_context(lines.STYLE):
            figure = Figure((7, 2), layout="constrained")
            for axes in figure.subplots(1, 4):
                axes.set(ylabel="Clients", title=title)
            lines.save(figure, tmp_path / "titles.png")
            figure.draw_without_rendering()
        return figure

    long = "DIGITS, #C = 2, FEDAVG, SEED 0, ROUND 1\nof ten clients"
    figure = drawn(long)
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)
    assert [axes.get_title().split() for axes in figure.axes] == [long.split()] * 4
    assert [axes.get_title() for axes in drawn("IID,\nround 1").axes] == ["IID,\nround 1"] * 4  # what fits stays
