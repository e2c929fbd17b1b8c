"""What the page of a board begins with."""

import re
from itertools import pairwise

import pytest

from reports.figures.style import METHODS
from reports.html.curves import _luminance
from tests.support.pages import embedded

# In the order of ranks. FedAvg and FedDyn have one colour in all figures; the last has that of FedAvg in a wrapper.
METHODS_OF_BOARD = ("fedprox", "fedavg", "feddyn", "moon")


@pytest.fixture
def page(store):
    store.reproduces = None
    store.report = {"rows": ["algorithm", "wrapper"], "columns": "partition", "metric": "accuracy"}
    store.report |= {"compared": ["algorithm", "wrapper"], "standings": "seeds", "metrics": ["accuracy"]}
    names = [*((name, "none") for name in METHODS_OF_BOARD), ("fedavg", "finetune")]
    around = {"finetune": {"algorithm": {"name": "finetune", "base": {"name": "fedavg"}}}}
    for place, (name, wrapper) in enumerate(names):
        for row in ("cifar10 label-2", "cifar10 label-3"):
            store.add(row, name, [0.9 - place / 10, 0.9 - place / 10], wrapper=wrapper, config=around.get(wrapper, {}))
    return store.render(format="html")


def test_a_leader_has_the_colour_of_its_curve_and_leaders_are_told_apart(page):
    data = embedded(page)
    scale = data["board"][1]["spec"]["layer"][1]["encoding"]
    leaders, dashes = scale["color"]["scale"]["domain"], scale["strokeDash"]["scale"]["range"]
    for theme in data["themes"].values():
        colours = theme["config"]["range"]["ordinal"]
        of_curves = theme["colours"]
        assert colours[:4] == [of_curves[name] for name in ("FedProx", "FedAvg", "FedDyn", "MOON")]
        looks = {(colour, *dash) for colour, dash in zip(colours, dashes, strict=True)}
        assert len(looks) == len(leaders) == 5
    assert METHODS["fedavg"].color == METHODS["feddyn"].color == data["themes"]["light"]["colours"]["FedAvg"]


def test_rounds_have_whole_ticks_and_one_run_is_no_runs(page, store):
    specs = embedded(page)["curves"]["specs"]["accuracy"]
    axes = {x: spec["layer"][0]["encoding"]["x"]["axis"] for x, spec in specs.items()}
    assert axes["rounds"]["tickMinStep"] == 1 and "tickMinStep" not in axes["time"]
    store.cells = store.cells[:1]
    text = store.render(format="html")
    assert ">1 row<" in text and ">1 run<" in text and "1 rows<" not in text


def test_the_page_says_who_is_first_above_the_pictures(page):
    parts = [
        "<h2>Standings</h2>",
        "First by mean rank of accuracy: FedProx (1.0 [1.0, 1.0], too narrow",
        'id="board-0"',
    ]
    places = [page.index(part) for part in parts]
    assert all(one < other for one, other in pairwise(places))


def test_intervals_stand_out_from_both_backgrounds(page):
    """The guidelines require a contrast of 3:1 of graphics that one needs; opaque, as what shines through takes of it."""
    mark = embedded(page)["board"][0]["spec"]["layer"][0]["mark"]
    assert mark["type"] == "rule" and mark.get("opacity", 1) == 1
    for background in re.findall(r"--page: (#\w{6})", page)[:2]:
        dark, light = sorted(map(_luminance, (mark["color"], background)))
        assert (light + 0.05) / (dark + 0.05) >= 3
