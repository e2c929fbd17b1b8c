"""Curves of the page: which of their points it shows."""

import json
import re

import numpy as np
import pytest

from reports import api
from reports.figures.style import METHODS
from reports.html import curves


@pytest.mark.parametrize("count", [1, 2, 20, 21, 99, 100, 101, 5000])
def test_a_thinned_line_keeps_its_ends_and_its_extremes(count):
    means = np.random.default_rng(count).random(count)
    for most in (20, 100):
        shown = curves._shown(means, most)
        assert len(shown) <= most and [*shown] == sorted({*shown.tolist()})
        assert {0, count - 1, means.argmin(), means.argmax()} <= {*shown.tolist()}
        if count <= most:
            assert len(shown) == count


def test_a_page_says_that_its_lines_are_thinned(store, monkeypatch):
    store.add("cifar10 label-2", "fedavg", [0.1, 0.2, 0.3])

    def page() -> str:
        return store.render(format="html")

    assert curves._THINNED not in page()
    monkeypatch.setattr(curves, "_shown", lambda means, most: np.array([0, len(means) - 1]))
    assert page().count(curves._THINNED) == 1


def test_the_more_lines_a_page_has_the_fewer_points_each_shows(store, monkeypatch):
    for number in range(3):
        store.add(f"cifar10 label-{number + 1}", "fedavg", [0.1, 0.2, 0.3])
    folder, asked = store.save(), []
    monkeypatch.setattr(curves, "_shown", lambda means, most: asked.append(most) or np.arange(len(means)))
    for most_of_page in (20_000, 90, 3):
        monkeypatch.setattr(curves, "_MOST_OF_PAGE", most_of_page)
        api.GridReport(folder, "small_table", store.budget).render(format="html")
    assert asked == [100] * 3 + [30] * 3 + [20] * 3


def test_curves_of_one_colour_differ_in_their_dashes_as_a_page_has_no_markers(store):
    """Seven methods have FedAvg's colour, and four kinds of dashes are printed."""
    store.reproduces = None
    methods = [name for name, style in METHODS.items() if style.color == METHODS["fedavg"].color]
    for method in methods:
        store.add("cifar10 label-2", method, [0.5])
    page = store.render(format="html")
    found = json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>', page)[1])["curves"]
    looks = {tuple(dashes) for dashes in found["dashes"].values()}
    assert len(looks) == len(methods) == 7 and found["dashes"]["FedAvg"] == [1, 0]
    scale = found["specs"]["accuracy"]["rounds"]["layer"][1]["encoding"]["strokeDash"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == found["dashes"]
