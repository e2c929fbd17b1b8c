"""Figures about clients: how much their data differ, their coalitions over C, and what each gains over training alone."""

import itertools
import json

import numpy as np
import pytest
import torch
import yaml

from bench.errors import ConfigError
from bench.experiments.grid_loading import load_grid
from bench.experiments.spec import ExperimentSpec
from bench.measurements.run import measure
from bench.measurements.specs import figure_of
from bench.results.artifacts import Folder
from bench.results.store import Store
from bench.simulation.build import build_task
from bench.simulation.run import Run
from datasets import load
from reports import api, widths
from reports.figures import client_gains, coalitions_by_capacity, coalitions_by_examples, divergences
from tests.support.planning import Experiment
from tests.support.trained import store_run

GAINS, DIVERGENCES = {"kind": "client-gains"}, {"kind": "divergences"}
CAPACITIES = {"kind": "coalitions-by-capacity", "smallest": 0.5, "largest": 50.0}
PARTNERS = {"kind": "coalitions-by-examples", "y": "clients"}
FIGURES = [GAINS, DIVERGENCES, CAPACITIES, PARTNERS]
NAMES = ("client-gains", "divergences", "coalitions-by-capacity", "coalitions-by-examples-clients")
FOUND = {
    "coalitions": [0, 1, 0, 1],
    "divergences": [[0, 0.9, -0.1, 0.8], [0.9, 0, 1, 0.2], [-0.1, 1, 0, 0.7], [0.8, 0.2, 0.7, 0]],
}


@pytest.fixture
def grid(store):
    """A store of a grid with a reference, methods with and without FedCollab, and clients with test data of their own."""
    store.report = {
        **{"rows": ["algorithm", "wrapper"], "columns": "partition", "metric": "own_accuracy"},
        **{"metrics": ["own_accuracy", "ipr"], "compared": ["algorithm", "wrapper"]},
        **{"reference": {"algorithm": "local", "wrapper": "none"}, "figures": FIGURES},
    }
    store.std, store.reproduces, store.verdict = "sample", None, None
    return store


def play(store, setting: str, algorithm: str, own: list, capacity: float | None = None, **options) -> None:
    """Adds a cell per seed; with a capacity inside FedCollab, whose record has FOUND."""
    first = len(store.cells)
    method = {"name": "fedcollab", "base": {"name": algorithm}, "capacity": capacity}
    wrapped = {"wrapper": "fedcollab", "config": {"algorithm": method}} if capacity else {"wrapper": "none"}
    scores = [None if one is None else float(np.mean(one)) for one in own]
    store.add(setting, algorithm, scores, own=own, **wrapped, **options)
    for cell in store.cells[first:] if capacity else ():
        change_record(store, cell["run"], lambda record: record.update(diagnostics=FOUND))


def change_record(store, run_id: str, change) -> None:
    path = store.folder / "runs" / run_id / "record.json"
    if path.exists():
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))


def stored(store) -> tuple[dict, dict, Store]:
    """The grid, its records, and the store."""
    found = Store(store.save())
    grid = found.grid("small_table@paper")
    return grid, found.records_of(grid), found


def texts(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_panels_of_settings_of_which_one_is_left_out_of_configs_say_in_what_they_differ(grid):
    for number, delta in enumerate(({}, {"delta": 0.1})):
        method = {"name": "fedcollab", "base": {"name": "fedavg"}, "capacity": 10.0, **delta}
        grid.add("digits label-shift", "fedavg", [0.5], wrapper="fedcollab", config={"algorithm": method})
        change_record(grid, grid.cells[number]["run"], lambda record: record.update(diagnostics=FOUND))
    shown = [panel.title for panel in divergences.divided(*stored(grid)[:2])]
    assert shown == [f"Digits, label shift, delta={delta}, seed 0" for delta in (0.05, 0.1)]


# Gains of clients


def test_gains_are_sorted_within_each_seed_and_then_averaged_over_seeds(grid):
    play(grid, "digits label-shift", "local", [[0.5, 0.5, 0.5], [0.6, 0.4, 0.5]])
    play(grid, "digits label-shift", "fedavg", [[0.9, 0.4, 0.6], [0.5, 0.7, 0.5]])
    found = figure_of(GAINS).collect(*stored(grid))
    points = found.points
    assert points["x"].tolist() == [1, 2, 3] and set(points["line"]) == {"fedavg"}
    # gains in points: -10, 10, 40 and -10, 0, 30
    assert points["mean"].tolist() == pytest.approx([-10, 5, 35])
    assert points["std"].tolist() == pytest.approx([0, 50**0.5, 50**0.5])
    assert figure_of(GAINS).collect(*stored(grid), "best") is None, "nothing is known of other rounds"
    assert found.seeds == 2 and found.y_label.endswith("over Local (points)") and not found.caveats


def test_a_method_stands_above_itself_in_coalitions_on_the_same_scale(grid):
    for setting in ("digits label-shift", "digits feature-shift"):
        play(grid, setting, "local", [[0.5, 0.5]])
        for method in ("fedavg", "ditto"):
            play(grid, setting, method, [[0.1, 0.6]])
            play(grid, setting, method, [[0.7, 0.8]], capacity=10.0)
    (figure,) = figure_of(GAINS).drawings(*stored(grid)).values()
    assert texts(figure) == [f"{shift} shift{one}" for one in ("", " + FedCollab") for shift in ("label", "feature")]
    upper, _, lower, _ = figure.axes
    assert upper.get_ylim() == lower.get_ylim() and upper.get_ylim()[0] < -40 and upper.get_ylim()[1] > 30
    zero = [line for line in upper.lines if list(line.get_ydata()) == [0, 0]]
    assert len(zero) == 1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "Ditto"]


def test_panels_that_are_not_all_there_do_not_share_scales_of_other_settings(grid):
    for setting in ("digits label-shift", "digits feature-shift"):
        play(grid, setting, "local", [[0.5, 0.5]])
        play(grid, setting, "fedavg", [[0.1, 0.6]])
    play(grid, "digits label-shift", "fedavg", [[0.7, 0.8]], capacity=10.0)
    assert figure_of(GAINS).collect(*stored(grid)).columns == 0


def test_seeds_without_a_reference_are_left_out_and_counted(grid):
    play(grid, "digits label-shift", "local", [[0.5, 0.5], None])
    play(grid, "digits label-shift", "fedavg", [[0.9, 0.4], [0.1, 0.1]])
    found = figure_of(GAINS).collect(*stored(grid))
    assert found.points["mean"].tolist() == pytest.approx([-10, 40]) and found.points["std"].isna().all()
    assert found.caveats == {"label shift": ["Local: 1/2 seeds", "FedAvg: 1/2 seeds with a reference"]}


def test_without_a_reference_without_test_data_and_without_runs_there_is_one_sentence(grid):
    play(grid, "digits label-shift", "fedavg", [[0.9, 0.4]])
    play(grid, "digits label-shift", "local", [None])
    grid.add("digits dir-0.1", "fedavg", [0.5], wrapper="none")
    grid.add("digits dir-0.1", "local", [0.5], wrapper="none")
    paths, sentences = grid.grid_report().write_figures()
    assert paths == [] and [line.split(" of ")[0] for line in sentences] == [
        f"Nothing to draw yet for {name}" for name in NAMES
    ]


# Divergences and coalitions


def test_clients_are_ordered_by_coalition_and_framed(grid):
    play(grid, "digits label-shift", "fedavg", [None, [0.5] * 4, [0.5] * 4], capacity=10.0)
    play(grid, "digits label-shift", "ditto", [None, [0.6] * 4], capacity=10.0)
    (panel,) = figure_of(DIVERGENCES).collect(*stored(grid))  # bases share what does not depend on them
    assert panel.title == "Digits, label shift, seed 1"
    assert panel.order.tolist() == [0, 2, 1, 3] and panel.bounds.tolist() == [0, 2, 4]
    (figure,) = figure_of(DIVERGENCES).drawings(*stored(grid)).values()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2", "1", "3"]
    assert axes.images[0].get_array().tolist()[0] == [0, -0.1, 0.9, 0.8] and axes.images[0].get_clim() == (0, 1)
    assert [(frame.get_x(), frame.get_width()) for frame in axes.patches] == [(-0.5, 2), (1.5, 2)]
    assert texts(figure) == ["Digits, label shift, seed 1\nC = 10: 2 coalitions"]


def test_settings_and_options_of_fedcollab_have_panels_of_their_own_in_the_order_of_the_grid(grid):
    play(grid, "svhn label-shift", "fedavg", [[0.5] * 4], capacity=10.0, substitute="digits")
    play(grid, "cifar10 feature-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    play(grid, "cifar10 feature-shift", "moon", [[0.5] * 4], capacity=8.0)
    play(grid, "cifar10 feature-shift", "moon", [[0.5] * 4], capacity=8.0, clients=8)
    panels = figure_of(DIVERGENCES).collect(*stored(grid))
    assert [(panel.title, panel.capacity) for panel in panels] == [
        ("SVHN, label shift, clients=40 (on Digits), seed 0", 10),
        ("CIFAR-10, feature shift, clients=40, seed 0", 10),
        ("CIFAR-10, feature shift, clients=40, seed 0", 8),
        ("CIFAR-10, feature shift, clients=8, seed 0", 8),
    ]
    figure = figure_of(DIVERGENCES).draw(panels)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert figure.bbox.y0 <= axes.title.get_window_extent().y0
        assert axes.title.get_window_extent().y1 <= figure.bbox.y1


def measured(grid, ends: list[float], coalitions: list[list[int]]) -> coalitions_by_capacity.ByCapacity:
    """The one panel, with a measurement."""
    probe = {"version": 1, "result": {"ends": ends, "coalitions": coalitions}}
    name = "probe-coalitions-by-capacity-0.5-50.0.json"
    (grid.folder / "runs" / grid.cells[0]["run"] / name).write_text(json.dumps(probe))
    (panel,) = figure_of(CAPACITIES).collect(*stored(grid))
    return panel


@pytest.mark.parametrize(
    ("of_run", "said"),
    [
        ([0, 1, 0, 1], "2 coalitions for C from 3.00 to 20.00"),
        ([0, 1, 2, 3], "4 coalitions for C below 3.00"),
        ([0, 0, 0, 0], "1 coalition for C above 20.00"),
        ([0, 0, 1, 1], "2 coalitions at C = 10"),
    ],
)
def test_the_range_of_c_with_the_coalitions_of_the_run_is_named(grid, monkeypatch, of_run, said):
    monkeypatch.setitem(FOUND, "coalitions", of_run)
    play(grid, "digits label-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    panel = measured(grid, [0.5, 3, 20, 50], [[0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 0, 0]])
    figure = figure_of(CAPACITIES).draw([panel])
    assert texts(figure) == [f"Digits, label shift, seed 0\n{said}"]
    counts, strip = figure.axes
    assert counts.patches[-1].get_data().values.tolist() == [4, 2, 1]
    assert len(counts.patches) == 1 + (panel.same is not None)
    (mesh,) = strip.collections
    assert mesh.get_array().shape == (4, 3) and (mesh.get_array()[:, 0] == -1).all(), "all are alone"
    assert strip.get_xscale() == "log" and strip.get_ylim() == (3.5, -0.5)


def test_a_coalition_keeps_its_colour_when_others_join_or_leave(grid):
    play(grid, "digits label-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    panel = measured(grid, [0.5, 3, 20, 50], [[0, 1, 2, 1], [0, 1, 0, 1], [0, 1, 1, 1]])
    before, own, after = coalitions_by_capacity._colours(panel).tolist()
    assert own == [0, 1, 0, 1]
    assert before == [-1, 1, -1, 1] and after == [-1, 1, 1, 1]


# Coalitions over numbers of examples


@pytest.fixture
def sized(grid, monkeypatch):
    """The grid; records of its runs have clients of 10, 30, 10 and 1000 examples, the first and the third together."""
    monkeypatch.setitem(FOUND, "num_examples", [10, 30, 10, 1000])
    monkeypatch.setitem(FOUND, "coalitions", [0, 0, 0, 1])
    return grid


def test_each_client_has_a_point_at_its_number_of_examples_and_the_size_of_its_coalition(sized):
    play(sized, "digits label-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    (figure,) = figure_of(PARTNERS).drawings(*stored(sized)).values()
    (axes,) = figure.axes
    (points,) = axes.collections
    assert points.get_offsets().tolist() == [[10, 3], [30, 3], [1000, 1]], "two clients are one point"
    first, second, _ = points.get_sizes()
    assert first == 2 * second and [text.get_text() for text in axes.texts] == ["×2"]
    assert axes.get_xscale() == "log" and texts(figure) == ["Digits, label shift, seed 0\nC = 10: 2 coalitions"]
    assert figure.get_supylabel() == "Clients in its coalition"


@pytest.mark.slow
@pytest.mark.parametrize("width", ["7in", "3.25in"])
def test_texts_of_points_and_ticks_do_not_overlap(sized, width):
    """Sizes as those of twenty clients with a subset each, of which many are close."""
    examples = np.array([400] * 10 + [4000] * 3 + [4100] * 4 + [5000] * 3)
    coalitions = np.array([0] * 5 + [1] * 5 + [2] * 6 + [3] * 4)
    run = divergences.Divided("Digits", 10.0, np.arange(20), coalitions, np.zeros((20, 20)), examples, "r", {})
    figure = figure_of(PARTNERS).draw(
        [coalitions_by_examples.Partners(run, "clients", coalitions_by_examples._values(run, "clients"))] * 4,
        widths.read(width),
    )
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["×4", "×10", "×6"]
        ticks = [text for text in axes.get_xticklabels() if text.get_text()]
        boxes = [text.get_window_extent() for text in (*axes.texts, *ticks, axes.title)]
        assert len(ticks) > 1 and not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_or_at_the_weight_that_all_others_have_in_its_coalition(sized):
    play(sized, "digits label-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    weight = PARTNERS | {"y": "weight"}
    (panel,) = figure_of(weight).collect(*stored(sized))
    assert panel.values.tolist() == pytest.approx([0.8, 0.4, 0.8, 0])
    (figure,) = figure_of(weight).drawings(*stored(sized)).values()
    assert figure.get_supylabel() == "Weight of other clients"


def test_clients_of_like_size_are_on_a_linear_axis_and_records_without_sizes_have_no_panel(sized, monkeypatch):
    play(sized, "digits label-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    monkeypatch.setitem(FOUND, "num_examples", [10, 30, 10, 99])
    play(sized, "digits feature-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    monkeypatch.delitem(FOUND, "num_examples")
    play(sized, "digits concept-shift", "fedavg", [[0.5] * 4], capacity=10.0)
    (figure,) = figure_of(PARTNERS).drawings(*stored(sized)).values()
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]


# From runs to pictures


@pytest.mark.slow
def test_figures_are_drawn_of_runs_that_were_played(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    axes = {
        "partition": ["feature-shift"],
        "algorithm": ["local", "fedavg"],
        "wrapper": ["none", "fedcollab"],
        "seed": [0],
    }
    settings = {"dataset": "digits", "model": "mlp", "clients": 4, "rounds": 1, "local_steps": 2, "lr": 0.1}
    tuning = [{"when": {"wrapper": "fedcollab"}, "options": {"discriminator_rounds": [20]}}]
    report = {"rows": ["algorithm", "wrapper"], "columns": "partition", "metrics": ["own_accuracy", "ipr"]}
    report |= {"compared": ["algorithm", "wrapper"], "reference": {"algorithm": "local", "wrapper": "none"}}
    report |= {"figures": [{"kind": figure["kind"]} for figure in FIGURES]}
    content = {"axes": axes, "settings": settings, "tuning": tuning, "report": report}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    request = Experiment(ExperimentSpec(load_grid(str(tmp_path / "mine.yaml"))))
    digits = load("digits", None)
    with Store(tmp_path / "results").locked() as store:
        plan = request.plan(store)
        request.store_grid(plan, store)
        for cell in plan.todo:
            run = Run(cell.config, digits, folder=Folder(store.run_folder(cell.id)))
            store_run(store, cell, run)
        said = []
        measure(plan.cells, request.spec.grid.report.needs, store, None, said.append)
        assert len(said) == sum(cell.wrapper == "fedcollab" for cell in plan.cells) > 0
        assert not [line for line in said if "not measured" in line]
    paths, sentences = api.GridReport(store, "mine", "full").write_figures()
    assert sentences == [] and [path.name for path in paths if path.suffix == ".png"] == [
        f"mine@full-{name}.png" for name in NAMES
    ]
    expanded = store.grid("mine@full")
    (partners,) = figure_of(PARTNERS).collect(expanded, store.records_of(expanded), store)
    config = plan.cells[0].config
    assert partners.run.num_examples.tolist() == build_task(config, digits).sizes(torch.arange(4))
    (panel,) = figure_of(CAPACITIES).collect(expanded, store.records_of(expanded), store)
    assert panel.ends[[0, -1]].tolist() == [0.5, 50] and panel.coalitions[-1].tolist() == [0] * 4
    assert panel.coalitions.max(1).argmax() == 0, "the smaller C, the more coalitions"


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (GAINS, "The figure client-gains compares runs with others: name these by reference, as {algorithm: local}."),
        (CAPACITIES | {"smallest": 50}, "smallest must be less than largest (50), but got 50."),
        (CAPACITIES | {"smallest": 0}, "smallest must be greater than 0, but got 0."),
        (PARTNERS | {"y": "share"}, "y must be 'clients' or 'weight', but got 'share'."),
    ],
)
def test_a_mistake_is_explained(tmp_path, figure, said):
    axes = {"partition": ["label-shift"], "algorithm": ["fedavg"], "seed": [0]}
    content = {
        "axes": axes,
        "settings": {"dataset": "digits", "model": "mlp", "clients": 4},
        "report": {"figures": [figure]},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as caught:
        load_grid(str(tmp_path / "mine.yaml"))
    assert said in str(caught.value)


@pytest.mark.parametrize(("settings", "columns"), [(4, 4), (5, 0)])
def test_settings_are_columns_if_they_are_few(settings, columns):
    places = [((variant,), (str(setting),)) for setting in range(settings) for variant in "ab"]
    frames, found = client_gains._arranged([(place, place) for place in places])
    assert found == columns and [variant for (variant,), _ in frames] == ["a"] * settings + ["b"] * settings
