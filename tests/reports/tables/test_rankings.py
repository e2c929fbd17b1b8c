"""Mean ranks and wins over rows and over seeds, by hand; their intervals, against scipy and all possible resamples."""

import csv
import itertools
from io import StringIO

import markupsafe
import numpy as np
import pytest
from scipy import stats

from reports import api
from reports.html.board import collect as charts_of_board

# Ranks: 1 2 3; 1.5 1.5 3, since 60.04 prints as 60.0 does; 3 1 2; 1 3 2.
SCORES = {
    "fedavg": [0.60, 0.60, 0.50, 0.70],
    "moon": [0.50, 0.6004, 0.60, 0.60],
    "fedrs": [0.40, 0.40, 0.55, 0.65],
}
ROWS = ("cifar10 label-2", "cifar10 label-3", "svhn label-2", "svhn label-3")


@pytest.fixture
def grid(store):
    store.reproduces = None
    store.report |= {"standings": True}
    store.column_order = list(SCORES)
    for algorithm, scores in SCORES.items():
        for row, score in zip(ROWS, scores, strict=True):
            store.add(row, algorithm, [score])
    return store


def numbers(report):
    return {(line.column, line.over): line for line in report.standings_data.itertuples()}


def test_ranks_and_wins_are_those_counted_by_hand(grid):
    found = {key: line.value for key, line in numbers(grid.build()).items()}
    assert found == {
        ("fedavg", ""): (1 + 1.5 + 3 + 1) / 4,
        ("moon", ""): (2 + 1.5 + 1 + 3) / 4,
        ("fedrs", ""): (3 + 3 + 2 + 2) / 4,
        ("fedavg", "moon"): 100 * (1 + 0.5 + 0 + 1) / 4,
        ("moon", "fedavg"): 100 * (0 + 0.5 + 1 + 0) / 4,
        ("fedavg", "fedrs"): 75.0,
        ("fedrs", "fedavg"): 25.0,
        ("moon", "fedrs"): 75.0,
        ("fedrs", "moon"): 25.0,
    }


def test_a_method_is_last_in_a_row_of_which_it_has_lost_a_run(grid):
    """A method that wins wherever it does not diverge is not the best."""
    found = [cell for cell in grid.cells if (cell["algorithm"], cell["dataset"]) == ("fedavg", "cifar10")]
    for cell in found:
        grid.cells.remove(cell)
    grid.add(ROWS[0], "fedavg", ["diverged"]).add(ROWS[1], "fedavg", ["failed"])
    found = grid.build()
    ranks = {key: line.value for key, line in numbers(found).items() if not key[1]}
    assert ranks == {("fedavg", ""): (3 + 3 + 3 + 1) / 4, ("moon", ""): 1.5, ("fedrs", ""): 2.0}
    said = "these columns are complete or have lost a run, which puts them behind all others, of means as printed"
    assert any(said in note for note in found.notes)


def test_intervals_are_those_of_scipy_and_of_all_resamples(grid):
    for key, values in {("fedavg", ""): [1, 1.5, 3, 1], ("fedavg", "moon"): [100, 50, 0, 100]}.items():
        line = numbers(grid.build())[key]
        alone = stats.bootstrap(
            (np.array(values, float),), np.mean, n_resamples=9999, method="percentile", rng=np.random.default_rng(0)
        )
        assert (line.low, line.high) == pytest.approx(tuple(alone.confidence_interval))
        means = [np.mean(resample) for resample in itertools.product(values, repeat=4)]  # each of the 256 as likely
        assert (line.low, line.high) == pytest.approx(np.quantile(means, [0.025, 0.975], method="inverted_cdf"))


def test_intervals_are_the_same_every_time_and_mirror_each_other(grid):
    first, again = (numbers(grid.build()) for _ in range(2))
    assert [(a.low, a.high) for a in first.values()] == [(b.low, b.high) for b in again.values()]
    for (own, over), line in first.items():
        if over:
            assert line.low == pytest.approx(100 - first[over, own].high)


def test_only_rows_count_in_which_every_ranked_column_is_complete(grid):
    grid.add("cifar10 none", "centralized", [0.7])
    grid.add("fmnist label-2", "fedavg", [0.9]).add("fmnist label-2", "moon", [0.1])
    grid.add("fmnist label-2", "fedrs", [None])
    grid.add("fmnist label-3", "fedavg", [0.9]).add("fmnist label-3", "moon", [0.1])
    grid.add("fmnist label-3", "fedrs", [0.2], substitute="svhn")
    found = numbers(grid.build())
    assert {name for name, _ in found} == set(SCORES)
    assert {line.rows for line in found.values()} == {4} and found["fedavg", ""].value == 1.625


def test_standings_stand_below_the_table_in_every_format(grid):
    paths = grid.grid_report().write()
    text = paths["md"].read_text()
    assert "## Mean ranks and wins over 4 rows\n" in text
    assert "| FedAvg | 1.63 [1.00, 2.50] | | 63 [25, 100] | 75 [25, 100] |" in " ".join(text.split())
    assert "95% percentile intervals of 9,999 bootstrap samples" in text and "of 4 rows they are too narrow" in text
    latex = paths["tex"].read_text()
    assert latex.count(r"\begin{\tablefloat}") == 2 and r"\caption{Mean ranks and wins over 4 rows}" in latex
    lines = list(csv.DictReader(StringIO(paths["standings"].read_text())))
    assert paths["standings"].name == "small_table@paper-standings.csv"
    assert lines[0] | {"low": "", "high": ""} == {
        "metric": "accuracy",
        "column": "fedavg",
        "over": "",
        "measure": "mean_rank",
        "value": "1.625",
        "low": "",
        "high": "",
        "rows": "4",
    }


def test_every_metric_has_standings_of_its_own(grid):
    for algorithm, scores in {"local": [0.3, 0.3], "ifca": [0.4, 0.4]}.items():
        for row, score in zip(ROWS, scores, strict=False):
            grid.add(row, algorithm, [score], personal=True)
    text = grid.render()
    assert "## Mean ranks and wins over 2 rows (local accuracy)" in text
    assert "## Mean ranks and wins over 4 rows (accuracy)" in text


def test_without_two_complete_rows_a_footnote_says_what_is_missing(store):
    store.report |= {"standings": True}
    store.add("cifar10 label-2", "fedavg", [0.5]).add("cifar10 label-2", "moon", [0.6])
    assert "No mean ranks" not in store.render(), "one row was never to be ranked"
    store.add("svhn label-2", "fedavg", [0.5]).add("svhn label-2", "moon", [None])
    text = store.render()
    assert "No mean ranks and wins yet: they need two rows" in text and "## " not in text
    assert set(store.grid_report().write()) == set(api.FORMATS)


def test_there_are_none_where_the_grid_does_not_ask(grid):
    del grid.report["standings"]
    assert grid.build().standings == ()


@pytest.fixture
def board(store):
    """A leaderboard of two columns and two seeds; of its last seed, moon has diverged and fedprox stands alike with fedavg."""
    store.reproduces = None
    metrics = ["accuracy", "rounds_to_0.5"]
    store.report = {"rows": ["algorithm"], "columns": "partition", "metric": "accuracy", "metrics": metrics}
    store.report |= {"compared": ["algorithm"], "standings": "seeds"}
    scores = {
        "fedavg": ([0.60, 0.40], [0.70, 0.60]),
        "moon": ([0.50, 0.60], [0.80, "diverged"]),
        "fedprox": ([0.70, 0.70], [0.90, 0.6001]),
    }
    for algorithm, columns in scores.items():
        for row, of_seeds in zip(ROWS, columns, strict=False):
            store.add(row, algorithm, of_seeds)
    store.row_order = [[name] for name in scores]
    return store


def test_by_seed_runs_are_ranked_and_those_that_diverged_come_last(board, tmp_path):
    text = board.render()
    found = api.GridReport(tmp_path, "small_table", "paper").build().standings_data
    assert set(found["rows"]) == {4}
    found = found[found["measure"] == "mean_rank"]
    of = {metric: lines.set_index("column") for metric, lines in found.groupby("metric")}
    # Ranks in the seeds of the first column, then of the second: fedavg 2 3 3 1.5, moon 3 2 2 3, fedprox 1 1 1 1.5.
    assert of["accuracy"]["value"].to_dict() == {"fedavg": 2.375, "moon": 2.5, "fedprox": 1.125}
    # 50 % of a last round are reached in round 4, 60 % in 4, 70 % and 80 % in 3; 40 % never, before a run that has diverged.
    assert of["rounds_to_0.5"]["value"].to_dict() == {"fedavg": 2.25, "moon": 2.375, "fedprox": 1.375}
    means = [np.mean([1, 1, *seeds]) for seeds in itertools.product([1, 1.5], repeat=2)]  # within each column
    line = of["accuracy"].loc["fedprox"]
    assert (line["low"], line["high"]) == pytest.approx(np.quantile(means, [0.025, 0.975], method="inverted_cdf"))
    assert "a run that has diverged or failed is behind all others" in text and "Not in the ranks" not in text


def test_a_run_that_has_failed_is_behind_all_others(board):
    for row in ROWS[:2]:
        board.add(row, "scaffold", [0.9, "failed"])
        board.add(row, "fedrs", [0.1, 0.1])
    board.row_order += [["scaffold"], ["fedrs"]]
    ranks, lines = ranks_of(board)
    assert ranks["scaffold"] == (1 + 5 + 1.5 + 4.5) / 4 and ranks["fedrs"] == (5 + 4 + 5 + 3) / 4
    assert set(lines["rows"]) == {4}


def ranks_of(board):
    """Ranks by accuracy, and all their lines."""
    found = board.build().standings_data
    found = found[(found["measure"] == "mean_rank") & (found["metric"] == "accuracy")]
    return found.set_index("column")["value"].to_dict(), found


@pytest.mark.parametrize("scores", [None, [0.9, None]])
def test_a_method_that_lacks_a_setting_is_not_ranked_and_takes_it_from_nobody(board, scores):
    before, _ = ranks_of(board)
    board.add(ROWS[0], "scaffold", [0.9, 0.9])
    if scores:
        board.add(ROWS[1], "scaffold", scores)
    board.row_order += [["scaffold"]]
    assert ranks_of(board)[0] == before
    text = board.render()
    assert "- Not ranked, as runs in #C = 3 are missing or have not ended: SCAFFOLD." in text
    assert "Not in the ranks" not in text


def test_a_setting_that_few_methods_have_is_in_no_rank_and_named(board):
    before, _ = ranks_of(board)
    for row in (ROWS[2], ROWS[3]):
        board.add(row.replace("svhn", "cifar10").replace("label-", "dir-0."), "moon", [0.9, 0.9])
    assert ranks_of(board)[0] == before
    text = board.render()
    for name in ("Dir(0.2)", "Dir(0.3)"):
        assert f"- Not in the ranks: {name}, where only these have ended: MOON." in text
    assert "Not ranked" not in text


def test_by_seed_all_metrics_stand_in_one_table_with_the_best_at_the_top(board):
    text = board.render()
    assert (
        text.count("## Mean ranks") == 1
        and "## Mean ranks over 4 pairs of partition and seed (accuracy, rounds to 50 %)" in text
    )
    below = text[text.index("## Mean ranks") :]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in below.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["Method", "FedProx", "FedAvg", "MOON"]
    assert rows[0][1:3] == ["by accuracy", "by rounds to 50 %"] and rows[1][1] == "1.1 [1.0, 1.3]"
    assert rows[0][3:] == ["interquartile mean", "the best, %", "within 1 point, %", "within 5 points, %"]
    # Behind the best of each pair: fedprox 0, 0, 0, 0; fedavg 10, 30, 20, 0; moon 20, 10, 10, and once diverged.
    assert [row[4].split()[0] for row in rows[1:]] == ["100", "25", "0"]
    assert [row[5].split()[0] for row in rows[1:]] == ["100", "25", "0"]
    assert [row[3].split()[0] for row in rows[1:]] == ["70.0", "60.0", "55.0"], "without the lowest and the highest"
    first = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:4]
    assert first == ["FedProx", "FedAvg", "MOON"], "the main table has the same order"


def test_a_board_of_one_seed_has_ranks_and_no_intervals(board):
    board.cells = [cell for cell in board.cells if cell["seed"] == 0]
    text = board.render()
    assert "- Mean ranks (1 is the best)" in text and "In brackets, here" not in text
    assert "Nothing says whether others differ from it: that needs two seeds of each partition." in text.splitlines()[2]
    assert "No intervals where a partition has one seed alone: how far seeds move a number is not known then." in text
    assert "not ranked" not in text.splitlines()[2]
    below = text[text.index("## Mean ranks") :]
    assert not [line for line in below.splitlines() if line.startswith("| FedProx") and "[" in line]
    report = api.GridReport(board.folder, "small_table", "paper")
    ranks, _ = charts_of_board(report.build(), report.expanded)
    assert "intervals" not in ranks["note"] and len(ranks["spec"]["layer"]) == 1 and "low" not in ranks["points"][0]


@pytest.mark.parametrize(
    "of_fedavg, said",
    [
        (
            [0.60, 0.40],
            "Not significantly different from FedProx in any partition, which does not mean equal (paired t-test over 2 seeds, "
            "level 0.05, Holm's correction over all 3 tests, of which the largest difference must exceed 27 times its "
            "sample std): FedAvg.",
        ),
        ([0.60, 0.60], "Each of the others differs from it significantly in a partition, or has lost a run."),
    ],
)
def test_a_board_begins_with_who_is_first_and_who_is_not_told_apart_from_it(board, of_fedavg, said):
    """MOON has lost a run; FedAvg is ten points behind with both seeds of a partition, or with one."""
    for cell in [cell for cell in board.cells if (cell["partition"], cell["algorithm"]) == ("label-2", "fedavg")]:
        board.cells.remove(cell)
    board.add(ROWS[0], "fedavg", of_fedavg)
    first = board.render().splitlines()[2]
    assert first.startswith(
        "First by mean rank of accuracy: FedProx (1.1 [1.0, 1.3], too narrow, over 4 pairs of partition"
    )
    assert first.endswith(said)
    report = api.GridReport(board.folder, "small_table", "paper")
    assert f"<p>{markupsafe.escape(first)}</p>" in report.render(format="html")
    assert (
        "lines are 95 % intervals, too narrow, of few seeds; "
        in charts_of_board(report.build(), report.expanded)[0]["note"]
    )


def test_a_board_of_a_smoke_budget_says_that_who_is_first_means_nothing(board):
    board.budget = "smoke"
    first = api.GridReport(board.save(), "small_table", "smoke").render().splitlines()[2]
    assert "and seed). Accuracies of a smoke budget mean nothing." in first


def test_a_board_says_how_likely_each_method_is_better_than_another(board):
    board.report["improvement_over"] = {"algorithm": "fedavg"}
    lines = board.build().standings_data.query("metric == 'accuracy'")
    found = {(line.column, line.over): line for line in lines.itertuples()}
    # fedprox is above fedavg in all four combinations of the first column's seeds; in the second in two, and once alike.
    assert found["fedprox", "fedavg"].value == 100 * (4 + 2.5) / 8 and ("fedavg", "fedavg") not in found
    assert found["moon", "fedavg"].value == 100 * (2.5 + 2) / 8


def test_a_board_of_one_pair_says_why_it_has_no_ranks(board):
    board.cells = [cell for cell in board.cells if cell["partition"] == "label-2" and cell["seed"] == 0]
    text = board.render()
    assert "- No mean ranks yet: they need two pairs of" in text and "Rows stand in the order of the grid." in text


def test_by_seed_methods_that_have_not_been_played_are_left_out(board):
    for row in ROWS[:2]:
        board.add(row, "scaffold", [0.9, None])
    text = board.render()
    below = text[text.index("## Mean ranks") :]
    assert "over 4 pairs" in below and "| SCAFFOLD" not in below
    assert "and seed). 1 of 4 methods is not ranked, for lack of runs." in text.splitlines()[2]


def test_a_board_says_where_who_is_first_has_lost_runs(board):
    for cell in [cell for cell in board.cells if (cell["partition"], cell["algorithm"]) == ("label-3", "fedprox")]:
        board.cells.remove(cell)
    board.add(ROWS[1], "fedprox", [0.90, "diverged"])
    first = board.render().splitlines()[2]
    assert first.startswith("First by mean rank of accuracy: FedProx")
    assert "FedProx has lost runs in 1 of 2 partitions, in which nothing is compared with it." in first


def test_who_is_told_apart_from_the_first_is_corrected_for_the_tests_of_all_settings(store):
    store.reproduces = None
    store.report = {"rows": ["algorithm"], "columns": "partition", "metric": "accuracy"}
    store.report |= {"compared": ["algorithm"], "standings": "seeds"}
    for row, behind in ((ROWS[0], [0.09, 0.13, 0.17]), (ROWS[1], [0.10, -0.05, 0.02])):
        store.add(row, "fedprox", [0.7] * 3).add(row, "fedavg", [0.7 - points for points in behind])
    assert 0.025 < stats.ttest_1samp([0.09, 0.13, 0.17], 0).pvalue < 0.05, "apart within its setting alone"
    needed = f"{stats.t.ppf(1 - 0.05 / 2 / 2, 2) / 3**0.5:.1f}"
    said = f"over all 2 tests, of which the largest difference must exceed {needed} times its sample std): all others."
    assert said in store.render()
