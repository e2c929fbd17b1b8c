"""Pictures of features: what is in the panels, and how classes and clients are told apart."""

import json

import numpy as np

from bench.measurements.specs import figure_of
from bench.results.store import Store
from reports.figures.encoder_features import Panels

FIGURE = {"kind": "encoder-features", "encoders": ["fe1", "fe"], "rounds": ["last"], "view": "pca", "points": 20}
LABELS = np.repeat([0, 2, 1], 20)
CLIENTS = np.repeat([0, 0, 1], 20)
CLASSES = ["coat", "bag", "shirt"]


def panel(shift: float = 0.0, axes=("component 1 (60% of variance)", "component 2 (30% of variance)")) -> dict:
    points = np.random.default_rng(0).standard_normal((60, 2)) + shift
    return {"points": points.tolist(), "axes": list(axes)}


def shown(panels: dict, owners=CLIENTS) -> Panels:
    return Panels("cifar10", panels, LABELS, owners, CLASSES)


def test_panels_are_of_the_encoders_and_rounds_that_the_figure_names(store):
    store.add("cifar10 label-2", "local", [0.5])
    (cell,) = store.cells
    names = {4: "encoder-features-pca-fe1-fe-20-0004", 2: "encoder-features-pca-fe1-fe-20-0002"}
    result = {"panels": {"fe1": panel(), "fe": panel(1)}, "labels": LABELS.tolist(), "owners": CLIENTS.tolist()}
    for name in names.values():
        path = store.folder / "runs" / cell["run"] / f"probe-{name}.json"
        path.write_text(json.dumps({"version": 1, "result": {"classes": CLASSES, **result}}))
    found = Store(store.save())
    grid = found.grid("small_table@paper")
    records = {cell["run"]: found.record(cell["run"])}
    (one,) = figure_of(FIGURE).collect(grid, records, found)
    assert [*one.panels] == ["$f_{e1}$: client 0 alone", "$f_e$: both concatenated"]
    assert one.title.startswith("CIFAR-10, #C = 2, Local, seed 0")
    (several,) = figure_of(FIGURE | {"rounds": [2, "last"]}).collect(grid, records, found)
    assert [*several.panels][::2] == ["$f_{e1}$: client 0 alone, round 2", "$f_{e1}$: client 0 alone, round 4"]
    (figure,) = figure_of(FIGURE).drawings(grid, records, found).values()
    assert [axes.get_title() for axes in figure.axes] == [*one.panels]
    assert figure_of(FIGURE | {"points": 7}).drawings(grid, records, found) == {}, "nothing is measured for it"


def test_a_figure_has_a_file_per_format(store):
    store.add("cifar10 label-2", "local", [0.5])
    store.report |= {"figures": [FIGURE]}
    _, sentences = store.grid_report().write_figures()
    assert sentences[0].startswith("Nothing to draw yet for encoder-features-pca")


def test_five_panels_take_two_rows_of_three():
    figure = figure_of(FIGURE).draw([shown({str(number): panel() for number in range(5)})])
    width, height = figure.get_size_inches()
    assert width == 7 and 1 < width / height < 2
    assert len([axes for axes in figure.axes if axes.axison]) == 5


def test_every_class_of_every_client_has_its_points_in_every_panel():
    figure = figure_of(FIGURE).draw([shown({"one": panel(), "two": panel(1)})])
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    for axes in figure.axes:
        found = {group.get_label(): len(group.get_offsets()) for group in axes.collections}
        assert found == {"coat (client 0)": 20, "shirt (client 0)": 20, "bag (client 1)": 20}
        assert axes.get_xlabel().startswith("component 1 (") and axes.get_ylabel().startswith("component 2 (")
    (block,) = figure.subfigs
    (legend,) = block.legends
    assert {text.get_text() for text in legend.get_texts()} == {"coat (client 0)", "shirt (client 0)", "bag (client 1)"}
    assert block.get_suptitle() == "Features of both clients' images: cifar10"


def test_colours_are_of_classes_and_markers_of_clients():
    figure = figure_of(FIGURE).draw([shown({"one": panel()}, owners=np.arange(60) % 2)])
    groups = {group.get_label(): group for group in figure.axes[0].collections}
    colour = {name: tuple(group.get_facecolor()[0]) for name, group in groups.items()}
    shape = {name: group.get_paths()[0].vertices.shape for name, group in groups.items()}
    assert colour["coat (client 0)"] == colour["coat (client 1)"] != colour["bag (client 0)"]
    assert shape["coat (client 0)"] == shape["bag (client 0)"] != shape["coat (client 1)"]


def test_tsne_has_no_numbers_at_its_axes():
    figure = figure_of(FIGURE).draw([shown({"one": panel(axes=("t-SNE dimension 1", "t-SNE dimension 2"))})])
    assert len(figure.axes[0].get_xticks()) == len(figure.axes[0].get_yticks()) == 0


def test_each_run_has_a_block_of_its_own():
    figure = figure_of(FIGURE).draw([shown({"one": panel()}), shown({"two": panel()})])
    assert [block.axes[0].get_title() for block in figure.subfigs] == ["one", "two"]
