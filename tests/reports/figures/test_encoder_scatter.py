"""Pictures of features: where points lie, and what stands on the paper."""

import numpy as np
import pytest
from matplotlib import image

from reports.figures import encoder_scatter
from reports.figures.encoder_scatter import Panel, draw, project

LABELS = np.repeat([0, 2, 1], 20)
CLIENTS = np.repeat([0, 0, 1], 20)
CLASSES = ("coat", "bag", "shirt")


@pytest.fixture
def features():
    """Three classes on three corners, with a little noise."""
    rng = np.random.default_rng(0)
    return 5 * np.eye(8)[LABELS] + 0.1 * rng.standard_normal((60, 8))


def drawn(monkeypatch, tmp_path, panels, view="pca", **changes):
    """The figure that `draw` would save."""
    figures = []
    monkeypatch.setattr(encoder_scatter, "save", lambda figure, path: figures.append(figure))
    given = {"labels": LABELS, "clients": CLIENTS, "classes": CLASSES, "stem": tmp_path / "f", "title": "all"}
    draw(panels, view=view, **(given | changes))
    return figures[0]


def test_pca_tells_how_much_of_the_variance_an_axis_has():
    line = np.outer(np.arange(10.0), [3, 4])  # points 5 apart on one line
    points, names = project(np.pad(line, ((0, 0), (0, 1))), "pca", 0)
    assert np.allclose(np.abs(np.diff(points[:, 0])), 5) and np.allclose(points[:, 1], 0)
    assert names == ("component 1 (100% of variance)", "component 2 (0% of variance)")


def test_features_that_are_all_alike_have_a_picture_too():
    points, names = project(np.ones((5, 3)), "pca", 0)
    assert np.allclose(points, 0) and names[0] == "component 1 (0% of variance)"


def test_tsne_keeps_classes_together_and_depends_on_its_seed_only(features):
    points, names = project(features, "tsne", 1)
    assert names == ("t-SNE dimension 1", "t-SNE dimension 2")
    nearest = np.argsort(((points[:, None] - points) ** 2).sum(2), axis=1)[:, 1]
    assert (LABELS[nearest] == LABELS).all()
    assert np.array_equal(points, project(features, "tsne", 1)[0])


def test_tsne_takes_fewer_points_than_its_usual_neighbourhood(features):
    assert project(features[::12], "tsne", 0)[0].shape == (5, 2)


def test_an_unknown_view_is_named():
    with pytest.raises(ValueError, match="Unknown view 'tnse'. Did you mean 'tsne'?"):
        project(np.ones((5, 3)), "tnse", 0)


def test_a_figure_has_a_file_per_format_of_several_hundred_pixels(features, tmp_path):
    given = {"title": "all", "stem": tmp_path / "name@smoke+lr=0.5"}
    png, pdf, svg = draw([Panel("a", features)] * 5, LABELS, CLIENTS, CLASSES, **given)
    assert [path.name for path in (png, pdf, svg)] == [f"name@smoke+lr=0.5.{of}" for of in ("png", "pdf", "svg")]
    height, width, _ = image.imread(png).shape
    assert width > 1000 and 1 < width / height < 2, "two rows of three panels"
    assert pdf.read_bytes().startswith(b"%PDF") and ">component 1" in svg.read_text()


def test_every_class_of_every_client_has_its_points_in_every_panel(features, monkeypatch, tmp_path):
    figure = drawn(monkeypatch, tmp_path, [Panel("one", features), Panel("two", features[:, ::-1])])
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["one", "two"]
    for axes in panels:
        found = {group.get_label(): len(group.get_offsets()) for group in axes.collections}
        assert found == {"coat (client 0)": 20, "shirt (client 0)": 20, "bag (client 1)": 20}
        assert axes.get_xlabel().startswith("component 1 (") and axes.get_ylabel().startswith("component 2 (")
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"coat (client 0)", "shirt (client 0)", "bag (client 1)"}
    assert figure.get_suptitle() == "all"


def test_colours_are_of_classes_and_markers_of_clients(features, monkeypatch, tmp_path):
    figure = drawn(monkeypatch, tmp_path, [Panel("one", features)], clients=np.arange(60) % 2)
    groups = {group.get_label(): group for group in figure.axes[0].collections}
    colour = {name: tuple(group.get_facecolor()[0]) for name, group in groups.items()}
    shape = {name: group.get_paths()[0].vertices.shape for name, group in groups.items()}
    assert colour["coat (client 0)"] == colour["coat (client 1)"] != colour["bag (client 0)"]
    assert shape["coat (client 0)"] == shape["bag (client 0)"] != shape["coat (client 1)"]


def test_tsne_has_no_numbers_at_its_axes(features, monkeypatch, tmp_path):
    figure = drawn(monkeypatch, tmp_path, [Panel("one", features)], view="tsne")
    assert len(figure.axes[0].get_xticks()) == len(figure.axes[0].get_yticks()) == 0
