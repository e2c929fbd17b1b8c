"""What runs have cost, in all or until a target: small curves by hand, and cells that do not reach it."""

import csv
import json
import math
import re
from io import StringIO

import pandas as pd
import pytest

from bench.experiments.report_schema import Layout
from bench.measurements.specs import figure_of
from bench.results.metrics import METRICS
from bench.results.store import Store as ResultStore
from reports import api
from reports.figures import lines
from reports.tables import costs, report

ROWS = ("cifar10 label-2", "cifar10 dir-0.1")
# Of four rounds with a quarter of the score more in each, 0.8 reaches 0.4 in the second and 0.5 in the last; a round is 3 MB.
FAST, SLOW, NEVER = 0.8, 0.5, 0.3


@pytest.fixture
def grid(store):
    store.reproduces = store.verdict = None
    store.report |= {"metrics": ["rounds_to_0.4", "mb_to_0.4"], "metric": "rounds_to_0.4"}
    return store


def cell(found: report.Report, algorithm: str, metric: str = "rounds_to_0.4", partition: str = "label-2"):
    (table,) = (table for table in found.tables if table.metric == metric)
    (row,) = (row for row in table.rows if row.labels[-1] == partition)
    return row.cells[table.columns.index(algorithm)]


def csv_lines(store) -> dict[tuple, dict]:
    lines = csv.DictReader(StringIO(store.render(format="csv")))
    return {(line["partition"], line["algorithm"], line["metric"]): line for line in lines}


def change(store, kind: str, number: int, edit) -> None:
    """Writes a file of the run of a cell anew."""
    path = store.folder / "runs" / store.cells[number]["run"] / kind
    if kind == "record.json":
        path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    else:
        path.write_text("".join(json.dumps(edit(json.loads(line))) + "\n" for line in path.read_text().splitlines()))


def test_rounds_and_traffic_until_a_target(grid):
    grid.add(ROWS[0], "fedavg", [FAST, SLOW]).add(ROWS[0], "moon", [SLOW, SLOW])
    found = grid.build()
    assert [cell(found, "fedavg", metric).measured for metric in grid.report["metrics"]] == ["3±1", "9±3"]
    assert [cell(found, "moon", metric).measured for metric in grid.report["metrics"]] == ["4", "12"]
    assert [title.plain for title in found.combined.titles] == [
        "FedAvg rounds to 40 %",
        "FedAvg MB to 40 %",
        "MOON rounds to 40 %",
        "MOON MB to 40 %",
    ]
    text = grid.render()
    assert (
        "| **3±1** " in text and "| **9±3** " in text and "- rounds to 40 %: the first evaluated round with an" in text
    )
    assert not any("of 2 seeds" in row for row in text.splitlines() if row.startswith("|"))


def test_a_target_is_reached_where_an_accuracy_is_as_large_however_it_was_divided(grid):
    grid.add(ROWS[0], "fedavg", [0.4 * 2 * (1 - 1e-12)])
    assert cell(grid.build(), "fedavg").mean == 2


def test_only_evaluated_rounds_count(grid):
    grid.add(ROWS[0], "fedavg", [FAST])
    change(grid, "rounds.jsonl", 0, lambda row: {**row, "accuracy": 0.0} if row["round"] < 3 else row)
    assert cell(grid.build(), "fedavg").mean == 3
    alone = {"round": 1, "accuracy": 0.5}  # of a run of one round
    assert costs._first([alone], 0.4, {"rounds": 1}) == alone
    early = [{"round": number} for number in range(1, 12)] + [{"round": 12, "accuracy": 0.5}]
    every = {"rounds": 60, "evaluate_every": 12}
    assert costs._first(early, 0.4, every) == early[-1], "a callback stopped it where it first reached its target"
    for otherwise in (
        {"rounds": 12},
        {"rounds": 60},
        {"rounds": 60, "evaluate_every": 7},
        {"rounds": 12, "evaluate_every": 12},
    ):
        assert costs._first(early, 0.4, otherwise) == costs.EVALUATED_ONCE, "it was evaluated because it ended"
    for evaluated, found in (((2, 4), (4, ())), ((4,), (None, (costs.EVALUATED_ONCE,)))):
        change(
            grid,
            "rounds.jsonl",
            0,
            lambda row: {key: row[key] for key in row if key != "accuracy" or row["round"] in evaluated},  # noqa: B023
        )
        shown = cell(grid.build(), "fedavg")
        assert (shown.mean, shown.caveats) == found, "one evaluation does not say when the target was reached"


def test_seeds_that_do_not_reach_the_target_are_counted(grid):
    grid.add(ROWS[0], "fedavg", [FAST, NEVER, SLOW]).add(ROWS[0], "moon", [NEVER] * 3)
    grid.add(ROWS[0], "fedprox", [FAST, NEVER, None]).add(ROWS[0], "scaffold", [FAST, NEVER, NEVER])
    found = grid.build()
    assert (cell(found, "fedavg").measured, cell(found, "fedavg").caveats) == ("3±1 (2 of 3 seeds)", ())
    assert (cell(found, "moon").measured, cell(found, "moon").mean) == ("not reached", None)
    assert (cell(found, "fedprox").measured, cell(found, "fedprox").caveats) == ("2 (1 of 2 seeds)", ("2/3 seeds",))
    assert cell(found, "scaffold").measured == "2 (1 of 3 seeds)", "one number has no std"
    line = csv_lines(grid)["label-2", "moon", "mb_to_0.4"]
    assert (line["mean"], line["done"], line["missed"]) == ("", "3", "3")


def test_a_cell_of_which_more_seeds_reach_the_target_is_better_whatever_the_means(grid):
    for row, slowest in zip(ROWS, ([SLOW] * 3, [FAST] * 3), strict=True):
        grid.add(row, "fedavg", slowest).add(row, "moon", [FAST, FAST, NEVER])
        grid.add(row, "scaffold", [SLOW, NEVER, SLOW]).add(row, "fedprox", [NEVER] * 3).add(row, "fednova", [NEVER] * 3)
    grid.report["standings"] = True
    found = grid.build()
    for partition in ("label-2", "dir-0.1"):
        best = [name for name in found.tables[0].columns if cell(found, name, partition=partition).best]
        assert best == ["fedavg"]
        assert not any(cell(found, name, partition=partition).not_significant for name in found.tables[0].columns)
    ranks = found.standings_data.query("measure == 'mean_rank' and metric == 'mb_to_0.4'")
    assert dict(zip(ranks["column"], ranks["value"], strict=True)) == {
        "fedavg": 1,
        "moon": 2,
        "scaffold": 3,
        "fedprox": 4.5,
        "fednova": 4.5,
    }
    wins = found.standings_data.query("measure == 'wins' and metric == 'mb_to_0.4' and over == 'moon'")
    assert wins.set_index("column")["value"].to_dict() == {"fedavg": 100, "scaffold": 0, "fedprox": 0, "fednova": 0}


def test_nothing_is_the_best_where_no_seed_reaches_the_target(grid):
    grid.add(ROWS[0], "fedavg", [NEVER] * 2).add(ROWS[0], "moon", [NEVER] * 2)
    found = grid.build()
    assert [cell(found, name).measured for name in ("fedavg", "moon")] == ["not reached"] * 2
    assert not found.cells["best"].any() and found.cells["p_value"].isna().all()


def test_selected_seeds_are_not_tested(grid):
    grid.add(ROWS[0], "fedavg", [SLOW] * 4).add(ROWS[0], "moon", [SLOW, SLOW, SLOW, NEVER])
    grid.add(ROWS[0], "fedprox", [SLOW] * 4)
    found = grid.build().cells.query("metric == 'rounds_to_0.4'").set_index("algorithm")
    assert math.isnan(found["p_value"]["moon"]) and pd.isna(found["pairs"]["moon"])
    assert found["p_value"]["fedprox"] == 1 and found["best"].to_dict() == {
        "fedavg": True,
        "moon": False,
        "fedprox": True,
    }


def test_points_of_a_tuning_set_are_chosen_by_the_seeds_that_reach_the_target_then_by_the_mean(grid):
    grid.add(ROWS[0], "moon", [FAST, NEVER], choice={"mu": 1}).add(ROWS[0], "moon", [SLOW, SLOW], choice={"mu": 5})
    grid.add(ROWS[0], "moon", [FAST, SLOW], choice={"mu": 10}).add(ROWS[0], "moon", [NEVER, NEVER], choice={"mu": 20})
    found = grid.build().cells
    assert found["choice"].tolist() == ["mu=10"] * 2 and found["mean"].tolist() == [3, 9]


def test_a_diverged_run_has_no_cost_and_is_not_one_that_does_not_reach_the_target(grid):
    grid.add(ROWS[0], "fedavg", [FAST, "diverged"])
    found = cell(grid.build(), "fedavg")
    assert (found.measured, found.caveats) == ("2", ("1/2 seeds", "1 diverged"))


def test_runs_without_a_shared_model_say_so_and_own_test_data_count(grid):
    grid.add(ROWS[0], "ditto", [FAST], personal=True).add(ROWS[0], "local", [FAST], own=[[0.7, 0.9]])
    found = grid.build()
    assert (cell(found, "ditto").measured, cell(found, "ditto").caveats) == ("", (costs.NO_ACCURACY,))
    assert cell(found, "local").measured == "2"
    assert csv_lines(grid)["label-2", "ditto", "mb_to_0.4"]["lacking"] == costs.NO_ACCURACY


def test_times_passes_and_traffic_of_whole_runs(grid):
    grid.report |= {"metrics": ["accuracy", "minutes", "core_minutes", "gradient_passes", "mb"], "metric": "accuracy"}
    grid.add(ROWS[0], "fedavg", [FAST, FAST]).add(ROWS[0], "moon", [SLOW, SLOW])
    for number, seconds in enumerate((60, 180, 3, 3)):
        spent = {"seconds": seconds, "cpu_seconds": seconds / 2, "bytes_per_client": 123456789.0}
        change(grid, "record.json", number, lambda record, spent=spent: record | spent)
    found = grid.build()
    shown = {metric: cell(found, "fedavg", metric).measured for metric in grid.report["metrics"]}
    costs_shown = {"minutes": "2±1", "core_minutes": "1.0±0.5", "gradient_passes": "0.004", "mb": "123"}
    assert shown == {"accuracy": "80.0±0.0"} | costs_shown
    assert cell(found, "moon", "minutes").measured == "0.05" and not cell(found, "moon", "minutes").best, (
        "of no machine"
    )
    assert cell(found, "moon", "gradient_passes").best
    assert cell(found, "fedavg", "mb").best and cell(found, "moon", "mb").best, "they print alike"
    assert cell(found, "fedavg", "accuracy").best


def test_minutes_of_a_run_from_the_end_of_another_are_those_of_both(grid):
    grid.report |= {"metrics": ["accuracy", "minutes", "core_minutes"], "metric": "accuracy"}
    grid.add(ROWS[0], "fedavg", [FAST]).add(ROWS[0], "moon", [SLOW])
    known = {"seconds": 6, "cpu_seconds": 3, "base_summary": {}}
    change(grid, "record.json", 0, lambda record: record | known | {"base_seconds": 120, "base_cpu_seconds": 60})
    change(grid, "record.json", 1, lambda record: record | known)
    found = grid.build()
    assert (cell(found, "fedavg", "minutes").measured, cell(found, "fedavg", "core_minutes").measured) == (
        "2.1",
        "1.05",
    )
    assert cell(found, "moon", "minutes").caveats == (costs.NOT_RECORDED,)
    assert not any(note.startswith("n/m seeds") for note in found.notes), "that is another reason"


def test_times_of_several_machines_are_said_not_to_be_comparable(grid):
    grid.report |= {"metrics": ["accuracy", "core_minutes"], "metric": "accuracy"}
    grid.add(ROWS[0], "fedavg", [FAST]).add(ROWS[0], "moon", [SLOW])
    change(grid, "record.json", 0, lambda record: record | {"host": "one"})
    change(grid, "record.json", 1, lambda record: record | {"host": "one"})
    assert not any("machines: " in note for note in grid.build().notes)
    change(grid, "record.json", 1, lambda record: record | {"host": "two", "device": "H100"})
    note = "core-minutes: not comparable across rows, for they are of several machines: one (1 run), two with H100 (1 run)."
    assert note in grid.build().notes


def test_on_the_page_a_first_click_sorts_the_best_to_the_top(grid):
    grid.report |= {"metrics": ["accuracy", "rounds_to_0.4"], "metric": "accuracy"}
    grid.add(ROWS[0], "fedavg", [FAST]).add(ROWS[0], "moon", [SLOW])
    page = grid.render(format="html")
    heads = re.findall(r'data-type="(\w+)"><button type="button">(?:FedAvg|MOON) ?(accuracy|rounds to 40 %)<', page)
    assert heads == [("number", "accuracy"), ("cost", "rounds to 40 %")] * 2


def test_what_records_do_not_say_is_lacking(grid):
    grid.report |= {"metrics": ["mb", "minutes", "mb_to_0.4"], "metric": "mb"}
    grid.add(ROWS[0], "fedavg", [FAST])
    change(grid, "rounds.jsonl", 0, lambda row: {key: row[key] for key in row if key != "bytes_up"})
    found = grid.build()
    assert [cell(found, "fedavg", metric).caveats for metric in grid.report["metrics"]] == [("not recorded",)] * 3


def test_a_cost_alone_has_a_table_before_those_of_accuracies_whatever_the_value(grid):
    del grid.report["metrics"]
    grid.report["also"] = ["best"]
    grid.add(ROWS[0], "fedavg", [FAST]).add(ROWS[0], "ditto", [SLOW], personal=True)
    found = grid.build()
    metrics = ["rounds_to_0.4", "accuracy", "global_accuracy", "local_accuracy"]
    assert [table.metric for table in found.tables] == metrics
    assert found.tables[0].columns == ("fedavg", "ditto")
    assert [table.metric for table in found.further] == metrics[1:], "costs have no other rounds"
    assert cell(grid.build(value="best"), "fedavg").mean == cell(found, "fedavg").mean == 2


def test_a_gain_is_a_decrease(grid):
    grid.report["gains_over"] = {"algorithm": "fedavg"}
    grid.add(ROWS[0], "fedavg", [SLOW, SLOW]).add(ROWS[0], "moon", [FAST, SLOW])
    found = grid.build()
    assert cell(found, "moon", "mb_to_0.4").gain == "+3±3"
    assert "A positive difference in rounds to 40 %, MB to 40 % is a decrease." in found.notes


def test_all_formats_show_a_target_that_is_not_reached(grid):
    grid.add(ROWS[0], "fedavg", [FAST, NEVER]).add(ROWS[0], "moon", [NEVER, NEVER])
    for format in (*api.FORMATS, api.STANDALONE):
        if format != "csv":
            text = grid.render(format=format)
            assert "not reached" in text and "2 (1 of 2 seeds)" in text, format
    page = grid.render(format="html")
    assert '<td data-value="2">2</td><td data-value="6">6</td>' in page
    assert page.count("<td>not reached</td>") == 6, "three runs, two metrics"
    assert "rounds_to_0.4 (last)" not in page


def test_figures_over_a_setting_show_costs(grid):
    for clients, scores in ((20, [FAST, FAST]), (40, [SLOW, NEVER]), (80, [NEVER, NEVER])):
        grid.add(ROWS[0], "fedavg", scores, clients=clients, config={"clients": clients})
    grid.report["rows"] = ["dataset", "partition", "clients"]
    saved = ResultStore(grid.save())
    expanded = saved.grid("small_table@paper")
    records = costs.with_reached(expanded, saved.records_of(expanded), saved)
    found = figure_of({"kind": "by-setting", "setting": "clients"}).collect(expanded, records, saved)["rounds_to_0.4"]
    assert found.points[["x", "mean"]].to_numpy().tolist() == [["20", 2.0], ["40", 4.0]]
    assert found.y_label == "Rounds to 40 %"
    assert found.caveats == {"CIFAR-10, #C = 2": ["FedAvg at 40: 4 (1 of 2 seeds)", "FedAvg at 80: not reached"]}
    assert [text.get_text() for text in lines.draw(found).axes[0].get_xticklabels()] == ["20", "40"]


@pytest.mark.parametrize(
    "name", ["rounds_to_80", "rounds_to_1.0", "rounds_to_0", "rounds_to_0.0", "mb_to_", "mb_to_0.8 ", "minutes_to_0.8"]
)
def test_a_target_outside_the_range_is_refused_in_one_sentence(name):
    assert name not in METRICS
    with pytest.raises(ValueError, match=f"Unknown metric '{name}'.* Known: accuracy, .*, rounds_to_0.8, mb_to_0.8"):
        Layout(metrics=["accuracy", name])


def test_any_target_inside_the_range_is_known():
    layout = Layout(metrics=["rounds_to_0.05", "mb_to_.925", "minutes", "mb"])
    assert layout.metric == "rounds_to_0.05" and METRICS["mb_to_.925"].title == "MB to 92.5 %"
    assert all(METRICS[name].less_is_better for name in layout.metrics)
