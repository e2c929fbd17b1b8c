"""Widths of papers: what tables and figures do with them."""

import itertools
from pathlib import Path

import matplotlib.text
import pandas as pd
import pytest

from reports import widths
from reports.figures import lines
from reports.figures.panels import Series
from tests.support.processes import call_bench

LINES = ("fedavg", "a-method-with-a-name")


def texts_of(figure) -> list:
    """All texts of a figure that are shown."""
    return [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("panels", [1, 4])
@pytest.mark.parametrize("name", [None, *widths.TEMPLATES])
def test_figures_have_the_width_that_is_asked_for_and_letters_of_7_points(panels, name):
    wanted = widths.TEMPLATES[name] if name else widths.read("3.25in")
    points = pd.DataFrame(
        [
            (f"CIFAR-10, Dir(0.{panel}), 50 clients", line, x, 50.0, 1.0)
            for panel in range(panels)
            for line in LINES
            for x in (1.0, 100.0)
        ],
        columns=["panel", "line", "x", "mean", "std"],
    )
    caveats = {points["panel"][0]: ["a-method-with-a-name: 1/3 seeds"]}
    figure = lines.draw(Series("curves", "Communication round", "Test accuracy (%)", LINES, points, 3, caveats), wanted)
    assert figure.get_figwidth() == (wanted.column if panels == 1 else wanted.text)
    assert min(text.get_fontsize() for text in texts_of(figure)) >= 7
    figure.draw_without_rendering()
    right, panel_boxes = figure.bbox.width, [axes.get_tightbbox() for axes in figure.axes]
    assert all(box.x0 >= -1 and box.x1 <= right + 1 for box in panel_boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(panel_boxes, 2))


def test_a_width_is_a_length_of_2_to_20_inches():
    assert widths.read("84 mm").text == pytest.approx(3.307, abs=1e-3) and widths.read("252pt").column == pytest.approx(
        3.487, abs=1e-3
    )
    for wrong in ("5.5", "1in", "500cm", "wide", "-3in"):
        with pytest.raises(
            ValueError, match="A width must be a number with in, cm, mm or pt, from 2 to 20 inches, such as"
        ):
            widths.read(wrong)


def test_the_command_takes_a_width_or_a_template(store):
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    folder = str(store.save())
    code, _ = call_bench("report", "--results-dir", folder, "--template", "icml")
    text = next(Path(folder, "reports").glob("*.tex")).read_text()
    assert code == 0 and r"\def\tablelimit{3.25in}" in text
    for options, said in (
        (["--template", "nips"], "Unknown value of --template 'nips'."),
        (["--width", "wide"], "such as 5.5in, but got 'wide'"),
        (["--width", "5in", "--template", "icml"], "Set either --width or --template, but not both."),
    ):
        code, text = call_bench("report", "--results-dir", folder, *options)
        assert code and said in text
