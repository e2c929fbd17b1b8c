"""Figures: the numbers behind them, what stands on them, and the files."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from bench.errors import ConfigError
from bench.experiments import figure_names
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.measurements.specs import REGISTRY, figure_of
from bench.results.store import Store
from reports.figures import curves as figure_curves
from reports.figures import lines as figures
from reports.figures.panels import Series, first_runs
from tests.support.processes import call_bench, imported_by

CLASSES = 4


@pytest.fixture
def trained(store):
    """Like `store.add`, and the runs have rounds: the score is reached in the last of three, each 10 s, 1 MB per
    direction and 1,000,000 examples longer than the one before; `silent` is the number of rounds without accuracy."""

    def add(
        row: str,
        algorithm: str,
        scores: list,
        silent: int = 0,
        slower: float = 0,
        diagnostics=None,
        traced=None,
        **options,
    ):
        first = len(store.cells)
        store.add(row, algorithm, scores, **options)
        for cell, score in zip(store.cells[first:], scores, strict=True):
            if not isinstance(score, float):
                continue
            lines = []
            for done in (1, 2, 3):
                spent = {"bytes_down": done * 1e6, "bytes_up": done * 1e6, "examples": done * 10**6}
                accuracy = {} if done <= silent else {"accuracy": score - 0.1 * (3 - done)}
                seconds = done * (10 + slower * cell["seed"])
                locals_ = {"local_models": {"clients": [3, 11], "accuracies": traced}} if traced else {}
                lines.append({"round": done, **spent, **accuracy, "seconds": seconds, **locals_})
            folder = store.folder / "runs" / cell["run"]
            (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            record = json.loads((folder / "record.json").read_text())
            (folder / "record.json").write_text(json.dumps(record | {"diagnostics": diagnostics or {}}))

    return add


def numbers(store, figure: dict, **options) -> Series:
    """The series of a figure of the grid's own metric."""
    return collected(store, figure, **options)["accuracy"]


def collected(store, figure: dict, **options) -> dict[str, Series]:
    """The series of a figure by metric."""
    stored = Store(store.save())
    grid = stored.grid("small_table@paper")
    records = {cell["run"]: stored.record(cell["run"]) for cell in grid["cells"] if cell["run"]}
    return figure_of(figure).collect(grid, {k: v for k, v in records.items() if v}, stored, **options)


def line(numbers: Series, panel: str, name: str) -> list[tuple]:
    """Points (x, mean, std) of a line, rounded; None for what is not there."""
    points = numbers.points[(numbers.points["panel"] == panel) & (numbers.points["line"] == name)]
    rows = points[["x", "mean", "std"]].astype(object).where(points[["x", "mean", "std"]].notna(), None)
    return [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows.itertuples(index=False)]


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def curves(x: str) -> dict:
    return {"kind": "curves", "x": x}


def test_local_models_rise_by_epochs_and_fall_where_they_are_averaged(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5, 0.6], traced=[[0.8, 0.9, 0.1], [0.7, 0.8, 0.2]])
    trained("cifar10 label-2", "moon", [0.5])
    found = numbers(store, {"kind": "local-models"})
    panel = "CIFAR-10, #C = 2, FedAvg, seed 0"
    assert found.lines == ("client 3", "client 11") and list(found.points["panel"].unique()) == [panel]
    drawn = line(found, panel, "client 11")
    assert drawn == [(x, y, None) for x, y in zip((1, 2, 2, 3, 4, 4, 5, 6, 6), (70, 80, 20) * 3, strict=True)]
    assert legend(figures.draw(found)) == ["client 3", "client 11"] and not found.caveats
    trained("svhn label-2", "fedavg", [0.5], traced=[[0.8, 0.1], [0.7, 0.2]], substitute="cifar10")
    found = numbers(store, {"kind": "local-models"})
    assert found.caveats == {"SVHN, #C = 2, FedAvg, seed 0": ["on CIFAR-10"]}


@pytest.mark.parametrize(
    "traced",
    [{"drift": 0.5}, {"clients": ["three"], "accuracies": [[0.5]]}, {"clients": [3], "accuracies": [0.5]}, [1]],
)
def test_what_a_callback_of_a_lab_has_traced_of_local_models_is_not_drawn(store, trained, traced):
    trained("cifar10 label-2", "fedavg", [0.5])
    rounds = store.folder / "runs" / store.cells[0]["run"] / "rounds.jsonl"
    lines = [json.loads(line) | {"local_models": traced} for line in rounds.read_text().splitlines()]
    rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not collected(store, {"kind": "local-models"})


@pytest.mark.parametrize(
    ("x", "places"),
    [
        ("rounds", [1, 2, 3]),
        ("communication", [2, 4, 6]),
        ("time", [11, 22, 33]),  # means of 10 s and 12 s per round
        ("examples", [1, 2, 3]),
    ],
)
def test_a_curve_is_the_mean_over_seeds_at_what_they_had_spent(store, trained, x, places):
    trained("cifar10 label-2", "fedavg", [0.5, 0.54], slower=2)
    expected = [(place, mean, 2.0) for place, mean in zip(places, (32.0, 42.0, 52.0), strict=True)]
    assert line(numbers(store, curves(x)), "CIFAR-10, #C = 2", "fedavg") == expected


def test_the_band_is_the_std_that_the_table_prints(store, trained):
    store.std = "sample"
    trained("cifar10 label-2", "fedavg", [0.5, 0.54])
    ((_, _, std), *_) = line(numbers(store, curves("rounds")), "CIFAR-10, #C = 2", "fedavg")
    assert std == pytest.approx(8**0.5, abs=1e-6)


def test_one_seed_has_no_band(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    found = numbers(store, curves("rounds"))
    assert line(found, "CIFAR-10, #C = 2", "fedavg") == [(1, 30.0, None), (2, 40.0, None), (3, 50.0, None)]
    figure = figures.draw(found)
    assert not figure.axes[0].collections and figure.legends[0].get_title().get_text() == ""


def test_rounds_without_accuracy_are_not_drawn_but_their_cost_counts(store, trained):
    trained("cifar10 label-2", "fedconcat", [0.5], silent=2)
    assert line(numbers(store, curves("communication")), "CIFAR-10, #C = 2", "fedconcat") == [(6, 50.0, None)]
    (axes,) = figures.draw(numbers(store, curves("communication"))).axes
    assert axes.get_xlim()[0] == 0


def test_a_curve_shows_the_choice_that_the_table_shows_and_only_runs_that_are_done(store, trained):
    for mu, score in ((0.01, 0.4), (1, 0.6)):
        trained("cifar10 label-2", "fedprox", [score, score], choice={"mu": mu})
    trained("cifar10 label-2", "moon", [0.5, "diverged", None])
    found = numbers(store, curves("rounds"))
    assert line(found, "CIFAR-10, #C = 2", "fedprox")[-1] == (3, 60.0, 0.0)
    assert line(found, "CIFAR-10, #C = 2", "moon")[-1] == (3, 50.0, None)
    assert found.caveats == {"CIFAR-10, #C = 2": ["MOON: 1/3 seeds, 1 diverged"]}


def test_a_run_without_the_metric_takes_no_point_from_the_others(store):
    store.reproduces, store.report["metric"] = None, "method/drift"
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    for number, cell in enumerate(store.cells[:2]):
        folder = store.folder / "runs" / cell["run"]
        rows, record = (folder / "rounds.jsonl"), json.loads((folder / "record.json").read_text())
        rows.write_text(rows.read_text().replace("}\n", f', "metrics": {{"method/drift": {number}.0}}}}\n'))
        record["summary"] = {value: {"accuracy": 0.5, "method/drift": number} for value in ("last", "best", "last10")}
        (folder / "record.json").write_text(json.dumps(record))
    found = Store(store.save())
    grid, records = found.grid("small_table@paper"), {cell["run"]: found.record(cell["run"]) for cell in store.cells}
    drift = figure_of(curves("rounds")).collect(grid, records, found)["method/drift"]
    assert drift.points["mean"].tolist() == [0.5] * 4 and drift.points["std"].tolist() == [0.5] * 4


def test_panels_are_rows_and_lines_are_columns_in_the_order_of_the_table(store, trained):
    for row in ("svhn label-2", "cifar10 label-2"):
        for algorithm in ("moon", "fedavg"):
            trained(row, algorithm, [0.5])
    store.add("fmnist label-2", "fedavg", [None])
    store.row_order = [["cifar10", "label-2"], ["svhn", "label-2"], ["fmnist", "label-2"]]
    store.column_order = ["fedavg", "moon"]
    figure = figures.draw(numbers(store, curves("communication")))
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-10, #C = 2", "SVHN, #C = 2"]
    assert legend(figure) == ["FedAvg", "MOON"]
    assert figure.get_supxlabel() == "Communication (MB per client)"
    assert figure.get_supylabel() == "Test accuracy (%)"


def test_centralized_is_in_all_panels_of_its_dataset_and_a_level_where_nothing_is_sent(store, trained):
    trained("cifar10 none", "centralized", [0.7, 0.72])
    for row in ("cifar10 label-2", "cifar10 dir-0.1", "svhn label-2"):
        trained(row, "fedavg", [0.5, 0.5])
    store.add("cifar10 label-3", "fedavg", [None, None])
    found = numbers(store, curves("communication"))
    assert list(found.points["panel"].unique()) == ["CIFAR-10, #C = 2", "CIFAR-10, Dir(0.1)", "SVHN, #C = 2"]
    for panel in ("CIFAR-10, #C = 2", "CIFAR-10, Dir(0.1)"):
        assert line(found, panel, "centralized") == [(None, 71.0, 1.0)]
        assert len(line(numbers(store, curves("time")), panel, "centralized")) == 3
    assert line(found, "SVHN, #C = 2", "centralized") == []


def test_lines_are_told_apart_by_more_than_colour_and_look_alike_in_all_figures(store, trained):
    names = [f"method-{number}" for number in range(12)]
    for name in names:
        trained("cifar10 label-2", name, [0.5])
    drawn = figures.draw(numbers(store, curves("rounds"))).axes[0].lines
    looks = {(each.get_color(), each.get_marker()) for each in drawn}
    assert len(looks) == 12
    found = numbers(store, curves("rounds"))
    alone = dataclasses.replace(found, points=found.points[found.points["line"] == "method-7"])
    (seventh,) = figures.draw(alone).axes[0].lines
    assert (seventh.get_color(), seventh.get_marker()) == (drawn[7].get_color(), drawn[7].get_marker())


def test_by_setting_shows_the_values_in_the_order_of_the_grid_and_others_as_a_level(store, trained):
    trained("cifar10 label-2", "fedavg", [0.4, 0.42])
    for clusters, score in ((1, 0.4), (10, 0.6), ("elbow", 0.65), (5, 0.7)):
        for mu in (0, 1):
            choice = {"num_clusters": clusters, "mu": mu}
            trained("cifar10 label-2", "fedconcat", [score - 0.1 * mu, score + 0.02 - 0.1 * mu], choice=choice)
    store.add("cifar10 label-2", "fedconcat", [0.1, None], choice={"num_clusters": 20})
    found = numbers(store, {"kind": "by-setting", "setting": "num_clusters"})
    expected = [("1", 41.0, 1.0), ("10", 61.0, 1.0), ("elbow", 66.0, 1.0), ("5", 71.0, 1.0), ("20", 10.0, None)]
    assert line(found, "CIFAR-10, #C = 2", "fedconcat") == expected
    assert line(found, "CIFAR-10, #C = 2", "fedavg") == [(None, 41.0, 1.0)]
    assert found.caveats == {"CIFAR-10, #C = 2": ["FedConcat at 20: 1/2 seeds"]}

    figure = figures.draw(found)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "elbow", "5", "20"]
    assert legend(figure) == ["FedAvg", "FedConcat"]
    assert figure.legends[0].get_title().get_text() == "mean ± std over 2 seeds"
    assert figure.get_supxlabel() == "Number of clusters ($K$)" and "last round" in figure.get_supylabel()
    best = numbers(store, {"kind": "by-setting", "setting": "num_clusters"}, value="best")
    assert line(best, "CIFAR-10, #C = 2", "fedavg") == [(None, 43.0, 1.0)]


@pytest.mark.parametrize("rows", [["algorithm"], ["algorithm", "clients"]])
def test_values_stand_in_the_order_of_the_grid_also_where_the_first_line_or_panel_lacks_some(store, trained, rows):
    store.report |= {"rows": rows, "columns": "partition", "compared": ["algorithm"]}
    for partition, scores in (("label-2", (None, 0.3)), ("dir-0.1", (0.5, 0.4)), ("iid", (0.6, 0.7))):
        for number, (algorithm, score) in enumerate(zip(("fedavg", "fedprox"), scores, strict=True)):
            clients = 20 + 20 * number * (len(rows) - 1)
            store.add(f"cifar10 {partition}", algorithm, [score], clients=clients, config={"clients": clients})
    found = numbers(store, {"kind": "by-setting", "setting": "partition"})
    assert len(found.points["panel"].unique()) == len(rows)
    assert found.ticks == ("#C = 2", "Dir(0.1)", "IID")
    assert [x for x, *_ in line(found, found.points["panel"].iloc[0], "fedavg")] == ["Dir(0.1)", "IID"]
    for axes in figures.draw(found).axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == [*found.ticks]


def test_the_std_of_a_single_run_is_not_called_one_over_seeds(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    found = numbers(store, {"kind": "by-setting", "setting": "clients"}, value="last10")
    spread = dataclasses.replace(found, points=found.points.assign(std=0.5))
    assert figures.draw(spread).legends[0].get_title().get_text() == "mean ± std over the last 10 evaluated rounds"


def test_by_setting_works_for_an_axis_that_is_a_row_or_a_column_of_the_table(store, trained):
    for clients, score in ((20, 0.6), (40, 0.5)):
        trained("cifar10 label-2", "fedavg", [score], clients=clients, config={"clients": clients})
    figure = {"kind": "by-setting", "setting": "clients"}
    expected = [("20", 60.0, None), ("40", 50.0, None)]
    store.report |= {"rows": ["dataset", "partition", "clients"]}
    assert line(numbers(store, figure), "CIFAR-10, #C = 2", "fedavg") == expected
    store.report |= {"rows": ["dataset", "algorithm", "partition"], "columns": "clients"}
    assert line(numbers(store, figure), "CIFAR-10, #C = 2", "fedavg") == expected


def test_pooled_data_with_several_values_of_the_setting_is_no_level(store, trained):
    for lr, score in ((0.1, 0.6), (0.01, 0.7)):
        trained("cifar10 none", "centralized", [score], choice={"lr": lr})
        trained("cifar10 label-2", "fedavg", [score - 0.2], choice={"lr": lr})
    found = numbers(store, {"kind": "by-setting", "setting": "lr"})
    assert line(found, "CIFAR-10, #C = 2", "centralized") == [("0.1", 60.0, None), ("0.01", 70.0, None)]
    figures.draw(found)


def test_figures_of_studies_are_over_studies_as_the_table_is(store, trained):
    store.reproduces = None
    store.ruleset = {"name": "tuned", "studies": [[0, 1], [2, 3], [4, 5]], "samples": 4}
    trained("cifar10 label-2", "fedavg", [0.50, 0.60, 0.70, 0.70, 0.40, 0.50])
    trained("cifar10 label-3", "fedavg", [0.50, 0.60, 0.90, "diverged", 0.40, 0.50])

    def drawn(figure: dict) -> tuple[Series, str]:
        found = numbers(store, figure)
        return found, figures.draw(found).legends[0].get_title().get_text()

    found, title = drawn(curves("rounds"))
    assert title == "mean ± std over 3 studies"
    assert line(found, "CIFAR-10, #C = 2", "fedavg")[-1] == (3.0, 56.666667, round(np.std([55, 70, 45]), 6))
    assert line(found, "CIFAR-10, #C = 3", "fedavg")[-1] == (3.0, 50.0, 5.0)  # without what is left of the lost study
    found, title = drawn({"kind": "by-setting", "setting": "partition"})
    assert title == "median ± std over 3 studies"
    assert line(found, "CIFAR-10", "fedavg") == [
        ("#C = 2", 55.0, round(np.std([55, 70, 45]), 6)),
        ("#C = 3", 45.0, 5.0),
    ]


def shares(first: int) -> dict:
    """Findings about two clients: one class each."""
    return {"distributions": [[float(label == client + first) for label in range(CLASSES)] for client in (0, 1)]}


def test_distributions_show_one_client_of_one_seed_as_every_method_reported_it(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    trained("cifar10 label-2", "fedconcat", [None, 0.5], diagnostics=shares(1))
    trained("cifar10 label-2", "fedconcat-id", [0.5], diagnostics=shares(0))
    trained("cifar10 label-2", "fedconcat-id", [None, 0.5], diagnostics=shares(2))
    store.cells = [cell for cell in store.cells if (store.folder / "runs" / cell["run"]).exists()]
    found = numbers(store, {"kind": "distributions", "client": 1})
    truth = [(0, 0.0, None), (1, 0.0, None), (2, 100.0, None), (3, 0.0, None)]
    assert line(found, "CIFAR-10, #C = 2, seed 1", "fedconcat (true)") == truth
    assert [mean for _, mean, _ in line(found, "CIFAR-10, #C = 2, seed 1", "fedconcat-id")] == [0, 0, 0, 100]
    assert set(found.points["line"]) == {"fedconcat (true)", "fedconcat-id"}

    figure = figures.draw(found)
    assert legend(figure) == ["FedConcat (true)", "FedConcat-ID"]
    assert figure.get_supxlabel() == "Class" and figure.get_supylabel() == "Label share of client 1 (%)"
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0, 0, 100, 0, 0, 0, 0, 100]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1", "2", "3"]
    places = sorted(round(bar.get_x() + bar.get_width() / 2, 6) for bar in figure.axes[0].patches)
    assert places == [-0.2, 0.2, 0.8, 1.2, 1.8, 2.2, 2.8, 3.2]


def test_distributions_on_other_images_say_so(store, trained):
    trained("svhn label-2", "fedconcat", [0.5], diagnostics=shares(0), substitute="cifar10")
    found = numbers(store, {"kind": "distributions", "client": 0})
    (axes,) = figures.draw(found).axes
    assert [text.get_text() for text in axes.texts] == ["on CIFAR-10"]


def test_image_folders_of_one_name_have_panels_of_their_own(store, trained):
    for season, score in (("spring", 0.5), ("autumn", 0.6)):
        trained(f"imagefolder:/home/{season}/leaves label-2", "fedavg", [score])
    found = numbers(store, curves("rounds"))
    assert [line(found, f"leaves ({season}), #C = 2", "fedavg")[-1][1] for season in ("spring", "autumn")] == [50, 60]
    assert found.points["panel"].nunique() == 2


@pytest.mark.slow
def test_files_are_written_whole_and_named_after_the_figure(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5, 0.52])
    store.report |= {"figures": [curves("communication"), {"kind": "by-setting", "setting": "clients"}]}
    paths, sentences = store.grid_report().write_figures(("communication", "time"))
    names = ("communication", "by-clients", "time")
    expected = [f"small_table@paper-{name}.{suffix}" for name in names for suffix in ("png", "pdf", "svg")]
    assert [path.name for path in paths] == expected and not sentences
    assert sorted(path.name for path in (store.folder / "reports").iterdir()) == sorted(expected)
    assert all(path.read_bytes().startswith((b"\x89PNG", b"%PDF", b"<?xml")) for path in paths)
    assert b"CreationDate" not in paths[1].read_bytes()
    drawing = paths[2].read_text()
    assert ">Communication (MB per client)</text>" in drawing and ">FedAvg</text>" in drawing, "text stays text"
    before = [path.read_bytes() for path in paths]
    again, _ = store.grid_report().write_figures(("communication", "time"))
    assert [path.read_bytes() for path in again] == before
    best, _ = store.grid_report().write_figures(("time",), value="best")
    assert best[-1].name == "small_table@paper-best-time.svg"


@pytest.mark.slow
def test_accuracies_of_other_models_get_figures_of_their_own(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    trained("cifar10 label-2", "ditto", [0.4], personal=True)
    path = store.folder / "runs" / store.cells[1]["run"] / "rounds.jsonl"
    last = json.loads((path.parent / "record.json").read_text())["summary"]["last"]
    rows = [json.loads(line) | last for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "accuracy"}) + "\n" for row in rows))
    store.report |= {"figures": [{"kind": "by-setting", "setting": "clients"}]}
    paths, _ = store.grid_report().write_figures()
    names = [f"small_table@paper-by-clients{of}.png" for of in ("", "-global_accuracy", "-local_accuracy")]
    assert [path.name for path in paths if path.suffix == ".png"] == names


def test_a_figure_with_nothing_to_draw_says_so(store):
    store.add("cifar10 label-2", "fedavg", [None])
    wanted = [curves("time"), {"kind": "by-setting", "setting": "num_clusters"}, {"kind": "distributions", "client": 0}]
    store.report |= {"figures": wanted}
    paths, sentences = store.grid_report().write_figures()
    assert not paths and not list((store.folder / "reports").iterdir())
    assert sentences == [
        f"Nothing to draw yet for {name} of small_table@paper: no run that is done has results for it."
        for name in ("time", "by-num_clusters", "distributions-client0")
    ]


@pytest.mark.slow
def test_report_draws_what_the_grid_lists_and_what_is_asked_for(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    store.report |= {"figures": [curves("rounds"), {"kind": "distributions", "client": 0}]}
    code, text = call_bench("report", "--results-dir", str(store.save()), "--figure", "time", "--figure", "examples")
    assert code == 0 and "Nothing to draw yet for distributions-client0 of small_table@paper" in text
    for name in ("rounds", "time", "examples"):
        assert f"reports/small_table@paper-{name}.png" in text
        assert (store.folder / "reports" / f"small_table@paper-{name}.pdf").exists()
    code, text = call_bench("report", "--results-dir", str(store.folder), "--figure", "tme")
    assert code == 2 and "Unknown figure 'tme'. Did you mean 'time'? Known: rounds, communication" in text


@pytest.mark.slow
def test_a_report_without_figures_does_not_import_matplotlib_and_figures_do_not_import_torch(store, trained):
    trained("cifar10 label-2", "fedavg", [0.5])
    command = ["report", "--results-dir", store.save()]
    assert "matplotlib" not in imported_by(*command)
    loaded = imported_by(*command, "--figure", "rounds")
    assert "matplotlib" in loaded and not loaded & {"torch", "ray"}


GRID = {
    "axes": {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg", "fedprox"]},
    "settings": {"clients": 20, "rounds": 3},
    "tuning": [{"when": {"algorithm": "fedprox"}, "options": {"mu": [0.1, 1]}}],
}


def grid_with(tmp_path, drawn: object):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(GRID | {"report": {"figures": drawn}}))
    return load_grid(str(path))


def test_the_figures_of_a_grid_are_stored_with_it(tmp_path):
    listed = [curves("communication"), {"kind": "by-setting", "setting": "mu"}, {"kind": "distributions"}]
    grid = grid_with(tmp_path, listed)
    stored = to_json(grid, "paper", {}, expand(grid, "paper"))["report"]["figures"]
    assert stored == [*listed[:2], {"kind": "distributions", "client": 0}]
    assert [figure_of(figure).name for figure in stored] == ["communication", "by-mu", "distributions-client0"]
    assert grid.digest("paper") == grid_with(tmp_path, []).digest("paper"), "figures do not make another grid"


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ([{"kind": "curve"}], "Unknown kind of figure 'curve'. Did you mean 'curves'?"),
        ([{"x": "time"}], "The kind of a figure is missing. Known: by-setting, cka, client-gains,"),
        ([{"kind": "curves"}], "curves: x is missing."),
        ([curves("tiem")], "Unknown x of curves 'tiem'. Did you mean 'time'?"),
        ([curves("time") | {"clinet": 1}], "curves: Unknown key 'clinet'. Known: kind, x."),
        ([{"kind": "distributions", "clinet": 1}], "Unknown key 'clinet'. Did you mean 'client'?"),
        ([{"kind": "distributions", "client": -1}], "client must be greater than or equal to 0, but got -1."),
        ([{"kind": "by-setting", "setting": "mue"}], "Unknown setting of a figure 'mue'. Did you mean 'mu'?"),
        ([{"kind": "cka", "estimator": "liner"}], "estimator must be 'linear' or 'minibatch', but got 'liner'."),
        ([{"kind": "cka", "round": "first"}], "A round must be a positive integer or last, but got 'first'."),
        ([{"kind": "weight-norms", "rounds": [0]}], "A round must be a positive integer or last, but got 0."),
        ([{"kind": "weight-norms", "rounds": []}], "rounds must name at least one round, such as 1 or last."),
        ([{"kind": "cka", "show": "clients", "layers": ["cnv1"]}], "Unknown layer 'cnv1'. Did you mean 'conv1'?"),
        ([{"kind": "cka", "layers": ["conv1"]}], "but this one shows layers; leave it out."),
        ([{"kind": "cka"}, {"kind": "cka"}], "more than one figure called cka-linear-layers"),
        ([{"kind": "embedding", "points": 3}], "points must be greater than 9, but got 3."),
        (["curves"], "but got 'curves'."),
        ("curves", "report.figures must be a list, but got 'curves'; write [curves]."),
    ],
)
def test_a_mistake_in_the_figures_of_a_grid_is_explained(tmp_path, drawn, said):
    with pytest.raises(ConfigError) as caught:
        grid_with(tmp_path, drawn)
    assert said in str(caught.value)


def test_no_figure_is_over_an_option_with_the_name_of_a_column_of_tables():
    with pytest.raises(
        ValueError, match="^mean cannot be an axis of tables and figures, which have a column of that name"
    ):
        figure_of({"kind": "by-setting", "setting": "mean"}).check(SimpleNamespace(known_settings=["mean"]))


def test_every_kind_and_every_axis_that_a_grid_may_name_has_a_picture(store, trained):
    trained("cifar10 label-2", "fedconcat", [0.5], diagnostics=shares(0), traced=[[0.8, 0.9, 0.1], [0.7, 0.8, 0.2]])
    wanted = [*map(curves, figure_names.CURVES), {"kind": "by-setting", "setting": "clients"}]
    wanted += [{"kind": "distributions", "client": 0}, {"kind": "local-models"}]
    of_features = {
        "cka",
        "weight-norms",
        "embedding",
        "separability",
        "encoder-features",
    }  # see test_feature_figures.py
    # see test_client_figures.py
    of_clients = {"client-gains", "divergences", "coalitions-by-capacity", "coalitions-by-examples"}
    assert {figure["kind"] for figure in wanted} | of_features | of_clients == {*REGISTRY}
    for figure in wanted:
        found = numbers(store, figure)
        assert len(found.points) and figures.draw(found).axes
        assert isinstance(found.points, pd.DataFrame)


def test_what_holds_for_all_lines_of_a_panel_is_said_once(store, trained):
    for algorithm in ("fedavg", "moon"):
        trained("svhn label-2", algorithm, [0.5], substitute="cifar10")
    assert numbers(store, curves("rounds")).caveats == {"SVHN, #C = 2": ["on CIFAR-10"]}
    trained("svhn label-2", "fedrs", [0.5, None], substitute="cifar10")
    assert numbers(store, curves("rounds")).caveats == {
        "SVHN, #C = 2": ["FedAvg: on CIFAR-10", "MOON: on CIFAR-10", "FedRS: 1/2 seeds, on CIFAR-10"]
    }


def test_by_setting_shows_accuracy_over_the_skew_of_partitions(store, trained):
    skews = {"label-2": (0.6, 0.7), "dir-0.1": (0.5, 0.5), "iid": (0.0, 0.02), "dir-0.5": None}
    trained("cifar10 none", "centralized", [0.9])
    for partition, skew in skews.items():
        first = len(store.cells)
        trained(f"cifar10 {partition}", "fedavg", [0.4, 0.42])
        for cell, distance in zip(store.cells[first:], skew or (), strict=False):
            path = store.folder / "runs" / cell["run"] / "record.json"
            record = json.loads(path.read_text()) | {"skew": {"hellinger": distance, "size_variation": 1}}
            path.write_text(json.dumps(record))
    figure = {"kind": "by-setting", "setting": "partition", "x": "hellinger"}
    found = numbers(store, figure)
    assert line(found, "CIFAR-10", "fedavg") == [(0.01, 41.0, 1.0), (0.5, 41.0, 1.0), (0.65, 41.0, 1.0)]
    assert line(found, "CIFAR-10", "centralized") == [(None, 90.0, None)]
    assert found.caveats == {"CIFAR-10": ["Centralized at #C = 2: 1 seed", "FedAvg at Dir(0.5): skew not recorded"]}
    drawn = figures.draw(found)
    assert drawn.get_supxlabel() == "Hellinger distance of clients' labels from all"
    (points,) = (each for each in drawn.axes[0].lines if len(each.get_xdata()) == 3 and each.get_marker() not in "|_")
    assert points.get_xdata().tolist() == pytest.approx([0.01, 0.5, 0.65])
    assert figure_of(figure).name == "by-partition-hellinger"
    assert figure_of(figure | {"x": None}).name == "by-partition"


def test_the_measure_of_skew_on_the_axis_must_be_known():
    with pytest.raises(ValueError, match=r"Unknown x of by-setting 'helinger'\. Did you mean 'hellinger'\?"):
        figure_of({"kind": "by-setting", "setting": "partition", "x": "helinger"})


@pytest.mark.parametrize("name", ["paper_figure9", "paper_figure16"])
def test_figures_9_and_16_of_fedconcat_are_curves_over_communication_with_a_line_for_each_number_of_clusters(
    trained, store, name
):
    layout = load_grid(name).report
    assert [figure.model_dump() for figure in layout.figures] == [curves("communication")]
    store.report |= {"rows": layout.rows, "columns": layout.columns, "names": layout.names}
    trained("cifar10 label-2", "fedavg", [0.5])
    for number in (1, 5, "elbow"):
        options = {"algorithm": {"name": "fedconcat", "num_clusters": number}}
        trained("cifar10 label-2", "fedconcat", [0.6], config=options)
    found = numbers(store, curves("communication"))
    assert [found.name_of(line) for line in found.lines] == ["FedAvg", "K = 1", "K = 5", "elbow"]
    assert line(found, "CIFAR-10, #C = 2", "num_clusters=5")[-1][:2] == (6.0, 60.0)


def test_a_curve_is_the_mean_over_seeds_at_the_rounds_that_all_have_evaluated():
    """As pandas has it, also where seeds differ in their rounds, and numbers are unknown."""
    rng = np.random.default_rng(0)
    runs = []
    for seed in range(3):
        rows = [
            {
                "round": number,
                "bytes_down": rng.random() * 1e6,
                "bytes_up": 3.0,
                "examples": 7 * number,
                "accuracy": rng.random(),
            }
            for number in range(1, 12)
            if (number + seed) % 5
        ]
        rows[3]["accuracy"] = None
        rows[5] = {key: value for key, value in rows[5].items() if key != "examples"}
        rows[6]["bytes_down"] = float("nan")
        runs.append(rows)
    found = pd.DataFrame(figure_curves._curve([[rows] for rows in runs], "accuracy", "sample"))
    frame = pd.DataFrame([row for rows in runs for row in rows]).dropna(subset="accuracy")
    frame = frame.assign(
        communication=(frame["bytes_down"] + frame["bytes_up"]) / 1e6, accuracy=100 * frame["accuracy"]
    )
    by_round = frame.groupby("round")
    expected = by_round[["communication", "examples", "accuracy"]].mean()
    expected["std"] = by_round["accuracy"].std()
    expected = expected[by_round.size() == 3]
    assert 0 < len(expected) < 11 and found["rounds"].tolist() == expected.index.tolist()
    assert np.allclose(found["communication"], expected["communication"], equal_nan=True, rtol=1e-12)
    assert np.allclose(1e6 * found["examples"], expected["examples"], equal_nan=True, rtol=1e-12)
    assert np.allclose(found[["mean", "std"]], expected[["accuracy", "std"]], rtol=1e-12)
    assert found["time"].isna().all()


def test_a_curve_of_seeds_without_a_common_round_has_no_point():
    rows = [[[{"round": number, "accuracy": 0.5}]] for number in (1, 2)]
    assert len(figure_curves._curve(rows, "accuracy", "sample")["mean"]) == 0
    assert len(figure_curves._curve([[[{"round": 1}]]], "accuracy", "sample")["mean"]) == 0


def test_first_runs_are_of_every_cell_also_of_methods_with_a_model_per_client(store):
    store.reproduces = store.verdict = None
    store.report = {**store.report, "metrics": ["accuracy", "local_accuracy"]}
    store.add("cifar10 label-2", "fedprox", [0.5, 0.6]).add("cifar10 label-2", "ditto", [0.5, 0.6], personal=True)
    saved = Store(store.save())
    grid = saved.grid(f"small_table@{store.budget}")
    records = {cell["run"]: saved.record(cell["run"]) for cell in grid["cells"]}
    found = [(title, config["algorithm"]["name"]) for title, config, _ in first_runs(grid, records)]
    assert found == [("CIFAR-10, #C = 2, FedProx, seed 0", "fedprox"), ("CIFAR-10, #C = 2, Ditto, seed 0", "ditto")]
