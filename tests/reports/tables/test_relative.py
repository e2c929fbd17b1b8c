"""Metrics that compare clients with those of a reference run: the numbers of FedCollab's authors, and small tables by hand."""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from bench.measurements.specs import figure_of
from bench.results.metrics import METRICS, compare_clients
from bench.results.store import Store as ResultStore

AUTHORS = json.loads((Path(__file__).parents[1] / "fedcollab_accuracies.json").read_text())["settings"]
LAYOUT = {
    "rows": ["algorithm", "wrapper"],
    "columns": "partition",
    "metric": "own_accuracy",
    "metrics": ["own_accuracy", "ipr", "rsd"],
    "compared": ["algorithm", "wrapper"],
    "reference": {"algorithm": "local", "wrapper": "none"},
}
LOCAL = [0.5, 0.5, 0.5, 0.6]
HIGH, LOW = [0.7, 0.5, 0.6, 0.6], [0.3, 0.6, 0.7, 0.6]  # above LOCAL: 2 of 4; strictly
EVEN = [0.6, 0.6, 0.6, 0.7]  # all above by the same


def add(store, row: str, algorithm: str, *own: list | str | None, wrapper: str = "none", **more):
    """A cell with the accuracies of clients for each seed, or how a run has ended instead."""
    scores = [float(np.mean(seed)) if isinstance(seed, list) else seed for seed in own]
    method = {"name": algorithm, **more.get("choice", {})}
    config = {"algorithm": method if wrapper == "none" else {"name": wrapper, "base": method}}
    return store.add(row, algorithm, scores, own=list(own), wrapper=wrapper, config=config, **more)


@pytest.fixture
def grid(store):
    store.reproduces = store.verdict = None
    store.report = dict(LAYOUT)
    store.std = "sample"
    return store


@pytest.fixture
def table(grid):
    """Two settings, two seeds; local is the reference."""
    for row in ("fmnist label-shift", "cifar10 feature-shift"):
        add(grid, row, "local", LOCAL, LOCAL)
        add(grid, row, "fedavg", HIGH, LOW)
        add(grid, row, "fedavg", EVEN, EVEN, wrapper="fedcollab")
    return grid


def found(report, metric, row, partition="label-shift"):
    """The line of a cell."""
    cells = report.cells.set_index(["metric", "algorithm", "wrapper", "partition"])
    return cells.loc[metric, *row, partition]


def cell_of(report, row, title):
    table = report.combined
    (line,) = (line for line in table.rows if line.labels == row)
    return line.cells[[name.plain for name in table.titles].index(title)]


def test_all_numbers_that_the_authors_print_follow_from_the_accuracies_of_their_clients(grid):
    rows = {"local": ("local", "none"), "global": ("fedavg", "none"), "fedcollab": ("fedavg", "fedcollab")}
    for partition, setting in AUTHORS.items():
        for run, (algorithm, wrapper) in rows.items():
            own = [count / setting["test_images"] for count in setting["correct"][run]]
            add(grid, f"{setting['dataset']} {partition}", algorithm, own, wrapper=wrapper)
    report, checked = grid.build(), 0
    for partition, setting in AUTHORS.items():
        for run, printed in setting["readme"].items():
            for name, number in printed.items():
                cell = found(report, {"acc": "own_accuracy"}.get(name, name), rows[run], partition)
                assert round(cell["mean"] / 100, 4) == number, (partition, run, name)
                checked += 1
    assert checked == 21


def test_shares_are_strict_and_spreads_are_those_of_a_population():
    assert compare_clients("ipr", HIGH, LOCAL) == 0.5 and compare_clients("ipr", LOCAL, LOCAL) == 0
    assert compare_clients("rsd", HIGH, LOCAL) == pytest.approx(np.std([0.2, 0, 0.1, 0]))


def test_the_caption_of_the_paper_style_explains_metrics_that_are_no_accuracies(table):
    def facts() -> str:
        lines = table.render(style="paper").rstrip().splitlines()
        return [line for line in lines if line and not line.startswith("- ")][-1]

    explained = (
        "IPR: share of the clients, in percent, whose accuracy on their own test data is above that in the reference run, "
        "strictly; RSD: std over the clients (population) of the gain in accuracy on their own test data over the reference "
        "run, in points; reference: Local; mean±std (sample) over 2 seeds (0, 1)."
    )
    own = "own accuracy: that of the model that each client uses on the client's own test data, mean over clients"
    what = "accuracy in percent on the test split, at the last round"
    assert facts() == f"Simple CNN, 40 clients, 4 rounds; {what}; {own}; {explained}"
    table.report |= {"metric": "ipr", "metrics": ["ipr", "rsd"]}
    assert facts() == f"Simple CNN, 40 clients, 4 rounds; on the test split, at the last round; {explained}"


@pytest.mark.parametrize("examples", [50, 350, 500])
def test_the_same_counts_are_equal_however_a_device_divides(examples):
    divided = [count / examples for count in range(examples + 1)]
    multiplied = [count * (1 / examples) for count in range(examples + 1)]
    assert divided != multiplied
    assert compare_clients("ipr", multiplied, divided) == compare_clients("ipr", divided, multiplied) == 0
    assert compare_clients("ipr", [(1 + count) / examples for count in range(examples)], multiplied[:-1]) == 1


def test_each_seed_is_compared_with_the_reference_of_its_seed(grid):
    add(grid, "fmnist label-shift", "local", LOCAL, [0.65] * 4)
    add(grid, "fmnist label-shift", "fedavg", HIGH, HIGH)
    shares = found(grid.build(), "ipr", ("fedavg", "none"))
    assert shares["mean"] == pytest.approx((50 + 25) / 2) and shares["std"] == pytest.approx(np.std([50, 25], ddof=1))


def test_a_cell_without_a_reference_says_so_instead_of_a_number(grid):
    add(grid, "fmnist label-shift", "local", LOCAL, "failed", None)
    add(grid, "fmnist label-shift", "fedavg", HIGH, HIGH, HIGH)
    add(grid, "cifar10 feature-shift", "fedavg", HIGH, HIGH, HIGH)
    report = grid.build()
    some = cell_of(report, ("fedavg", "none"), "label shift IPR")
    assert some.measured == "50.0" and some.caveats == ("1/3 seeds", "others no reference")
    none = cell_of(report, ("fedavg", "none"), "feature shift IPR")
    assert none.measured == "" and none.caveats == ("no reference",)
    assert cell_of(report, ("fedavg", "none"), "feature shift own accuracy").measured == "60.0±0.0"
    lines = [*csv.DictReader(StringIO(grid.render(format="csv")))]
    assert {(line["metric"], line["lacking"]) for line in lines if line["partition"] == "feature-shift"} == {
        ("own_accuracy", ""),
        ("ipr", "no reference"),
        ("rsd", "no reference"),
    }


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "other",
    [{"clients": 8}, {"config": {"split": "validation"}}]
    + [{"config": {key: 2}} for key in ("first_clients", "train_examples", "test_examples", "dirichlet_seed_override")]
    + [{"config": {"validation_share": 0.2}}, {"config": {"image_size": 16}}, {"config": {"transform": "none"}}],
    ids=str,
)
def test_a_run_on_other_data_is_no_reference(grid, other):
    grid.report |= {"rows": ["algorithm"], "compared": ["algorithm"], "reference": {"algorithm": "local"}}
    grid.add("fmnist label-shift", "local", [0.525], own=[LOCAL], **other)
    grid.add("fmnist label-shift", "fedavg", [0.6], own=[HIGH])
    cell = cell_of(grid.build(), ("fedavg",), "label shift RSD")
    assert cell.measured == "" and cell.caveats == ("no reference",)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_with_another_number_of_clients_is_no_reference(grid, count):
    grid.report |= {"rows": ["algorithm"], "compared": ["algorithm"], "reference": {"algorithm": "local"}}
    grid.add("fmnist label-shift", "local", [float(np.mean(LOCAL[:count]))], own=[LOCAL[:count]])
    grid.add("fmnist label-shift", "fedavg", [0.6], own=[HIGH])
    assert cell_of(grid.build(), ("fedavg",), "label shift IPR").caveats == ("no reference",)


def test_runs_whose_clients_have_no_test_data_are_named(grid):
    grid.report |= {"rows": ["algorithm"], "compared": ["algorithm"], "reference": {"algorithm": "local"}}
    grid.add("fmnist label-2", "local", [0.5], personal=True).add("fmnist label-2", "fedavg", [0.6])
    cell = cell_of(grid.build(), ("fedavg",), "#C = 2 IPR")
    assert cell.measured == "" and cell.caveats == ("no test data of clients",)


def test_a_tuned_reference_is_the_best_one_and_metrics_are_of_the_point_that_the_first_chooses(grid):
    add(grid, "fmnist label-shift", "local", [0.1] * 4, choice={"lr": 0.1})
    add(grid, "fmnist label-shift", "local", LOCAL, choice={"lr": 0.01})
    add(grid, "fmnist label-shift", "fedavg", [0.51, 0.51, 0.51, 0.61], choice={"lr": 0.1})  # the better IPR
    add(grid, "fmnist label-shift", "fedavg", HIGH, choice={"lr": 0.01})
    report = grid.build()
    shares, spread = (found(report, metric, ("fedavg", "none")) for metric in ("ipr", "rsd"))
    assert shares["mean"] == 50 and shares["choice"] == spread["choice"] == "lr=0.01"
    assert (shares["tried"], shares["settings"], shares["complete"]) == (2, 2, True)


def test_a_tuned_reference_with_more_seeds_wins_over_a_better_one(grid):
    add(grid, "fmnist label-shift", "local", [0.9] * 4, choice={"lr": 0.1})
    add(grid, "fmnist label-shift", "local", LOCAL, LOCAL, choice={"lr": 0.01})
    add(grid, "fmnist label-shift", "fedavg", HIGH, HIGH)
    assert found(grid.build(), "ipr", ("fedavg", "none"))["mean"] == 50


def test_the_smallest_spread_is_the_best_everywhere(table):
    table.report |= {"standings": True, "gains_over": {"wrapper": "none"}}
    report = table.build()
    for metric in ("own_accuracy", "ipr", "rsd"):
        best = report.cells[(report.cells["metric"] == metric) & report.cells["best"]]
        assert {*zip(best["algorithm"], best["wrapper"], strict=True)} == {("fedavg", "fedcollab")}, metric
    ranks = report.standings_data.query("measure == 'mean_rank' and metric == 'rsd'")
    assert dict(zip(ranks["column"], ranks["value"], strict=True)) == {"fedavg none": 2.0, "fedavg fedcollab": 1.0}
    before, after = (found(report, "rsd", ("fedavg", wrapper)) for wrapper in ("none", "fedcollab"))
    assert after["mean"] < before["mean"] and after["gain"] == pytest.approx(before["mean"] - after["mean"])
    assert "A positive difference in RSD is a decrease." in report.notes
    assert (
        "Bold: best mean of the partition among the complete cells, all of them where several print alike."
        in report.notes
    )


def test_where_methods_of_one_wrapper_compete_a_footnote_says_what_a_setting_is(table):
    table.report |= {"compared": ["algorithm"]}
    notes = table.build().notes
    assert "Bold: best mean of the setting among the complete cells, all of them where several print alike." in notes
    assert "Cells of one setting differ in algorithm only." in notes


def test_agreement_takes_the_smallest_published_spread_as_the_winner(grid):
    grid.reproduces = {"paper": "fedcollab", "table": 1, "own": ["fedavg fedcollab"]}
    grid.report |= {"metrics": ["rsd"], "metric": "rsd"}
    about = {"model": "mlp-784-200-200-10", "clients": 20}
    add(grid, "fmnist label-shift", "local", LOCAL, LOCAL, **about)
    add(grid, "fmnist label-shift", "fedavg", HIGH, HIGH, **about)
    add(grid, "fmnist label-shift", "fedavg", EVEN, EVEN, wrapper="fedcollab", variant="+fedcollab", **about)
    report = grid.build()
    assert cell_of(report, ("fedavg", "fedcollab"), "label shift RSD").published[0] == "5.99±0.41"
    (sentence,) = (note for note in report.notes if note.startswith("Agreement"))
    assert "same winner in 1 of 1" in sentence and "in 1 of 1 for FedAvg + FedCollab" in sentence


def test_metrics_stand_side_by_side_and_the_reference_is_not_compared_with_itself(table):
    report = table.build()
    shown = report.combined
    assert shown.row_keys == ("algorithm", "wrapper")
    names = ("own accuracy", "IPR", "RSD")
    blocks = ("label shift", "feature shift")
    assert [(block.plain, count) for block, count in shown.blocks] == [(block, 3) for block in blocks]
    assert shown.columns == names * 2
    assert [title.plain for title in shown.titles] == [f"{block} {name}" for block in blocks for name in names]
    local = shown.rows[0]
    assert local.labels == ("local", "none") and [cell and cell.measured for cell in local.cells[:3]] == [
        "52.5±0.0",
        None,
        None,
    ]
    assert report.main == (shown,) and [table.metric for table in report.tables] == LAYOUT["metrics"]


def test_all_formats_show_all_metrics(table):
    texts = {format: table.render(format=format) for format in ("md", "tex", "csv", "html")}
    assert texts["md"].count("| Method ") == 1 and "| 100.0±0.0" in texts["md"].replace("**", "")
    assert texts["tex"].count(r"\begin{\tablefloat}") == 1
    assert (
        r"\multicolumn{3}{c}{label shift}" in texts["tex"] and r"\cmidrule(lr){3-5}\cmidrule(lr){6-8}" in texts["tex"]
    )
    lines = [*csv.DictReader(StringIO(texts["csv"]))]
    assert all(f"- {name}: " in texts["md"] for name in ("own accuracy", "IPR", "RSD")), "as in the headings"
    assert {line["metric"] for line in lines} == {*LAYOUT["metrics"]} and "lacking" not in lines[0]
    page = texts["html"]
    assert page.count('<th scope="col" data-type="cost"><button type="button">label shift RSD</button>') == 1
    assert "<h2>Own accuracy, IPR, RSD</h2>" in page and "rsd (last)" in page
    panels = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["curves"]["panels"]
    assert [panel["title"] for panel in panels] == [
        f"{partition}{wrapper}" for partition in ("label shift", "feature shift") for wrapper in ("", " + FedCollab")
    ], "a panel per setting, of accuracy only"
    assert [*panels[0]["lines"]] == ["Local", "FedAvg"]


def test_further_rounds_show_the_accuracies_only(table):
    table.report |= {"also": ["best", "last10"]}
    report = table.build()
    assert [(further.title, further.columns) for further in report.further] == [
        ("Accuracy, at the best round, found on the split itself", ("own accuracy",) * 2),
        ("Accuracy, mean of the last 10 evaluated rounds", ("own accuracy",) * 2),
    ]
    assert {*report.further_cells["metric"]} == {"own_accuracy"} and {*report.cells["value"]} == {"last"}
    best = table.build(value="best")
    assert best.combined.columns == ("own accuracy",) * 2


def test_figures_have_a_line_per_contender_and_curves_are_of_accuracy(grid):
    add(grid, "fmnist label-shift", "local", LOCAL)
    add(grid, "fmnist label-shift", "fedprox", HIGH, choice={"mu": 0.1})
    add(grid, "fmnist label-shift", "fedprox", EVEN, choice={"mu": 1})
    store = ResultStore(grid.save())
    expanded = store.grid("small_table@paper")
    records = store.records_of(expanded)
    curves = figure_of({"kind": "curves", "x": "rounds"}).collect(expanded, records, store)
    assert [*curves] == ["own_accuracy"] and curves["own_accuracy"].lines == ("local", "fedprox")
    found = figure_of({"kind": "by-setting", "setting": "mu"}).collect(expanded, records, store)
    assert [*found] == LAYOUT["metrics"]
    assert [(point.x, point.mean) for point in found["ipr"].points.itertuples()] == [("0.1", 50), ("1", 100)]
    units = [line.y_label.partition(",")[0].rpartition(" ")[2] for line in found.values()]
    assert units == ["(%)", "(%)", "(points)"]
    assert curves["own_accuracy"].y_label == "Test accuracy on own data (%)"


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"reference": {}}, "The report shows own_accuracy, ipr, rsd, but names no reference."),
        ({"compared": ["seed"]}, "The report compares along seed, which its table does not show."),
    ],
)
def test_stored_layouts_that_cannot_be_are_refused(table, layout, sentence):
    table.report |= layout
    with pytest.raises(ValueError, match=sentence):
        table.build()


@pytest.mark.parametrize("metrics", [["own_accuracy", "ipr"], ["rsd"]])
def test_of_the_reference_alone_there_is_its_accuracy(grid, metrics):
    grid.report |= {"metrics": metrics, "metric": metrics[0]}
    add(grid, "fmnist label-shift", "local", LOCAL, None)
    shown = grid.build().combined
    assert shown.columns == ("own accuracy",) and shown.rows[0].cells[0].measured == "52.5"


def test_one_relative_metric_has_a_table_beside_that_of_accuracy(table):
    del table.report["metrics"]
    table.report |= {"metric": "rsd", "figures": [{"kind": "curves", "x": "rounds"}]}
    report = table.build()
    assert [shown.metric for shown in report.tables] == ["rsd", "own_accuracy"] and report.combined is None
    page = table.render(format="html")
    assert f"<h2>RSD <small>{METRICS['rsd'].about}</small></h2>" in page
    with pytest.raises(ValueError, match="rsd are known of the last round only; report the value last, not best"):
        table.build(value="best")
