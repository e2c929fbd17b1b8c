"""The client x class table and its picture."""

import re

import numpy as np
import pytest
from PIL import Image

from datasets import Dataset, Split
from datasets.partitions import parse
from datasets.show import count_table, draw_bubbles, tables

LABELS = np.arange(2000) % 10
CLASSES = tuple(f"class-{label}" for label in range(10))


def test_the_table_counts_each_class_at_each_client():
    table = count_table([np.array([0, 1, 4]), np.array([2, 3])], np.array([0, 1, 1, 2, 0]), ("a", "b", "c"))
    assert table.columns.tolist() == ["a", "b", "c", "total"]
    assert table.index.name == "client"
    assert table.to_numpy().tolist() == [[2, 1, 0, 3], [0, 1, 1, 2]]


@pytest.mark.parametrize("num_clients", [1, 40, 200])
def test_a_png_of_any_population_stays_of_a_printable_size(tmp_path, num_clients):
    table = count_table(parse("iid").split(LABELS, num_clients, 10, 0), LABELS, CLASSES)
    draw_bubbles(table, tmp_path / "plot.png", title="iid")
    with Image.open(tmp_path / "plot.png") as image:
        assert 400 < image.width < 3200
        assert 400 < image.height < 1600


def test_bubble_areas_are_proportional_to_the_counts(tmp_path):
    table = count_table(parse("dir-0.5").split(LABELS, 10, 10, 0), LABELS, CLASSES)
    draw_bubbles(table, tmp_path / "plot.svg")
    svg = (tmp_path / "plot.svg").read_text()
    bubbles = svg.split('<g id="PathCollection_1">')[1].split("<g id=")[0]
    outlines = re.findall(r'<path d="(.*?)"', bubbles, flags=re.DOTALL)
    x_values = [np.array(re.findall(r"-?[\d.]+", outline), dtype=float)[::2] for outline in outlines]
    areas = np.array([np.ptp(x) for x in x_values]) ** 2
    counts = table.drop(columns="total").to_numpy()
    counts = counts[counts > 0]
    assert np.allclose(areas / areas.sum(), counts / counts.sum(), rtol=1e-3)


def test_the_tables_of_a_shift_name_labels_as_their_clients_do(tmp_path):
    labels = np.arange(4000) % 20
    files = (
        Split(np.zeros((3200, 1, 1, 1), np.uint8), labels[:3200]),
        Split(np.zeros((800, 1, 1, 1), np.uint8), labels[:800]),
    )
    names = tuple(f"class-{label}" for label in range(20))
    few = np.where(np.arange(800) < 400, 0, labels[:800])  # half of the test images are of class 0
    dataset = Dataset("x", files[0], Split(files[1].images, few), names, "", "", "", "")
    parts = tables(parse("concept-shift"), dataset, 4, 0)
    assert list(parts) == ["training", "testing"]
    # y stays y; 5 - y; 19 - y; 14 + y.
    assert parts["testing"].drop(columns="total").idxmax(axis=1).tolist() == [
        "class-0",
        "class-5",
        "class-19",
        "class-14",
    ]
    draw_bubbles(parts["training"], tmp_path / "plot.png", "both", parts["testing"])
    draw_bubbles(parts["training"], tmp_path / "one.png", "training alone")
    with Image.open(tmp_path / "plot.png") as both, Image.open(tmp_path / "one.png") as one:
        assert both.width == one.width and both.height == pytest.approx(2 * one.height, abs=2)
    assert list(tables(parse("iid"), dataset, 4, 0)) == ["training"]


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path):
    table = count_table([np.arange(10)], LABELS, CLASSES)
    with pytest.raises(ValueError, match=r"ending in one of .*\.png.*\.svg.*, but got .*plot\.xyz"):
        draw_bubbles(table, tmp_path / "plot.xyz")
