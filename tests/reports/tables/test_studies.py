"""Boards by the ruleset tuned: medians over studies, studies that missed, ranks of studies."""

import io
import shutil

import pandas as pd
import pytest

from bench.results.store import Store
from reports.exports import results_diff
from tests.support.chosen import choice

ROWS = ("cifar10 label-2", "cifar10 dir-0.1")
STUDIES = [[0, 1], [2, 3], [4, 5]]


@pytest.fixture
def board(store):
    """Two methods, three studies of two seeds; of FedAvg's second study under dir-0.1 one run has diverged."""
    store.reproduces = None
    store.report = {"rows": ["algorithm"], "columns": "partition", "metric": "accuracy", "metrics": ["accuracy"]}
    store.report |= {"compared": ["algorithm"], "standings": "seeds", "improvement_over": {"algorithm": "fedavg"}}
    store.ruleset = {"name": "tuned", "studies": STUDIES, "samples": 4}
    scores = {
        "fedavg": ([0.50, 0.60, 0.70, 0.70, 0.40, 0.40], [0.60, 0.60, 0.70, "diverged", 0.50, 0.50]),
        "fedprox": ([0.60, 0.60, 0.60, 0.60, 0.60, 0.60], [0.50, 0.50, 0.50, 0.50, 0.40, 0.40]),
    }
    for algorithm, columns in scores.items():
        for row, of_seeds in zip(ROWS, columns, strict=True):
            store.add(row, algorithm, of_seeds)
    for cell in store.cells:
        study = next(number for number, seeds in enumerate(STUDIES) if cell["seed"] in seeds)
        cell["tuned"] = choice(0.1 * (study + 1), search=f"{cell['algorithm']}-{cell['partition']}-{study}")
    store.row_order = [[name] for name in scores]
    return store


def test_a_cell_is_the_median_over_studies_in_which_a_miss_is_the_worst(board):
    (table,) = board.build().tables
    shown = {row.labels[0]: [(cell.measured, cell.caveats) for cell in row.cells] for row in table.rows}
    assert shown == {
        "fedprox": [("60.0", ()), ("50.0 [40.0, 50.0]", ())],
        "fedavg": [("55.0 [40.0, 70.0]", ()), ("50.0 [50.0, 60.0]", ("1 of 3 studies missed",))],
    }


def test_the_style_of_papers_has_the_median_too_and_says_that_it_is_one(board):
    printed = board.build(style="paper")
    (table,) = printed.tables
    shown = {row.labels[0]: [cell.measured for cell in row.cells] for row in table.rows}
    assert shown == {"fedprox": ["60.0", "50.0 [40.0, 50.0]"], "fedavg": ["55.0 [40.0, 70.0]", "50.0 [50.0, 60.0]†"]}
    over = "median [lowest, highest] over 3 studies, a study is the mean over its seeds (0, 1; 2, 3; 4, 5)"
    assert over in printed.facts and "mean±std" not in printed.facts


def test_two_misses_of_three_leave_no_median(board):
    board.cells.clear()
    board.add("cifar10 label-3", "fedavg", [0.5, 0.5, "diverged", 0.6, "failed", 0.6])
    board.add("cifar10 label-3", "fedprox", [0.5, 0.5, 0.5, None, None, None])
    (table,) = board.build().tables
    cells = {row.labels[0]: row.cells[0] for row in table.rows}
    assert (cells["fedavg"].measured, cells["fedavg"].caveats) == ("", ("2 of 3 studies missed",))
    assert (cells["fedprox"].measured, cells["fedprox"].caveats) == ("50.0", ("2 of 3 studies to end",))


def test_two_studies_of_three_that_miss_a_target_are_said_and_are_never_the_best(board):
    board.report["metrics"] = ["accuracy", "rounds_to_0.65"]
    board.cells.clear()
    board.add("cifar10 label-3", "fedavg", [0.7, 0.7, 0.5, 0.5, 0.5, 0.5])
    board.add("cifar10 label-3", "fedprox", [0.5, 0.5, 0.5, 0.5, 0.7, 0.7])
    _, table = board.build().tables
    cells = {row.labels[0]: row.cells[0] for row in table.rows}
    assert {(cell.measured, cell.best) for cell in cells.values()} == {("not reached by 2 of 3 studies", False)}


def test_a_lost_study_has_not_missed_a_target_too(board):
    board.report["metrics"] = ["accuracy", "rounds_to_0.65"]
    board.cells.clear()
    board.add("cifar10 label-3", "fedavg", [0.5, "diverged", 0.5, "diverged", 0.5, 0.5])
    board.add("cifar10 label-3", "fedprox", [0.5, None, 0.5, 0.5, 0.7, 0.7])
    _, table = board.build().tables
    shown = {row.labels[0]: (row.cells[0].measured, row.cells[0].caveats) for row in table.rows}
    assert shown["fedavg"] == ("not reached", ("2 of 3 studies missed",))
    assert shown["fedprox"] == ("not reached by 1 of 2 studies", ("1 of 3 studies to end",))


def test_two_directories_are_compared_study_by_study(board, tmp_path):
    board.reproduces = None
    one = Store(board.save())
    shutil.copytree(one.folder, tmp_path / "other")
    other = Store(tmp_path / "other")
    with other.locked():
        grid = other.grid("small_table@paper")
        for cell in grid["cells"]:
            if cell["seed"] in STUDIES[0]:
                cell["tuned"]["hparams"] = {"mu": 7.0}
        other.write_grid("small_table@paper", grid)
    found = results_diff.compare("small_table@paper", one, other)
    assert found.tables["accuracy"]["numbers"].tolist() == ["identical"] * 4
    assert found.tables["accuracy"]["A"].tolist()[:2] == ["55.0±12.2", "55.0±5.0"]
    assert {*found.choices} == {f"{method}, {row.split()[1]}" for method in ("fedavg", "fedprox") for row in ROWS}, (
        "the choice of one study of three is another one"
    )


def test_a_csv_has_the_range_of_studies(board):
    lines = pd.read_csv(io.StringIO(board.render(format="csv")))
    (line,) = lines[(lines["algorithm"] == "fedavg") & (lines["partition"] == "label-2")].to_dict("records")
    assert (line["mean"], line["low"], line["high"], line["studies"]) == (55.0, 40.0, 70.0, 3)


def test_one_study_is_one_study(board):
    board.ruleset["studies"] = STUDIES[:1]
    board.cells[:] = [cell for cell in board.cells if cell["seed"] in STUDIES[0]]
    board.add("cifar10 label-3", "fedavg", [0.5, "diverged"])
    board.add("cifar10 label-3", "fedprox", [0.5, None])
    text = board.render()
    assert "1 of 1 study missed" in text and "1 of 1 study to end" in text
    assert "over 1 study, a study is" in text and "1 study per cell" in text


def test_studies_are_ranked_and_one_that_missed_is_behind(board):
    found = board.build().standings_data.set_index(["column", "measure"])
    # Of label-2 the studies are 55 70 40 and 60 60 60, of dir-0.1 60 - 50 and 50 50 40.
    assert found.loc[("fedavg", "mean_rank"), "value"] == (2 + 1 + 2 + 1 + 2 + 1) / 6
    assert found.loc[("fedavg", "within_1"), "value"] == 50 and set(found["rows"]) == {6}
    assert found.loc[("fedprox", "better_than"), "value"] == pytest.approx(100 * (6 / 9 + (2 * 1.5 + 1) / 9) / 2)
    assert found.loc[("fedavg", "iqm"), "value"] == pytest.approx((40 + 50 + 55 + 60) / 4), "a miss is 0, and cut off"


def test_a_board_of_one_study_says_what_a_comparison_needs(board):
    board.ruleset["studies"] = [[0, 1, 2, 3, 4, 5]]
    assert board.build().first.endswith("that needs two studies of each partition.")


def test_the_ruleset_its_cost_and_all_choices_are_said(board):
    text = board.render()
    assert text.startswith("# Small table, ruleset tuned\n") and "chosen by one search seed" not in text
    assert "median [lowest, highest] over 3 studies, a study is the mean over its seeds (0, 1; 2, 3; 4, 5)" in text
    assert "Ruleset tuned: 3 studies per cell. Each draws 4 configurations" in text
    assert "Cost: 18 runs per cell, 72 in all." in text and "pairs of partition and study" in text
    assert "1: μ=0.1; 2: μ=0.2; 3: μ=0.3" in text and "| FedProx  | μ in 0.001 to 10 (log) |" in text
    assert "- Searched: " not in text and "over the same 3 studies" in text
    assert "search space was tried" not in text


def test_what_a_method_chose_that_missed_and_that_several_spaces_were_tried_is_said(board):
    board.cells = [cell for cell in board.cells if cell["algorithm"] == "fedavg"]
    tuned = choice(7.0, spaces=2)
    board.add(ROWS[0], "fedprox", ["diverged"] * 6, tuned=tuned).add(ROWS[1], "fedprox", [0.5] * 6, tuned=tuned)
    text = board.render()
    assert "| FedProx  | #C = 2      | 1: μ=7; 2: μ=7; 3: μ=7       |" in text
    assert "- More than one search space was tried, and the last one counts: 2 for FedProx." in text


def test_gains_are_said_to_be_over_studies(board):
    board.report["gains_over"] = {"algorithm": "fedavg"}
    assert "mean±std over the same studies, in points." in board.render()


def test_one_study_of_one_configuration_is_no_plural(board):
    board.ruleset = {"name": "tuned", "studies": [[0, 1, 2, 3, 4, 5]], "samples": 1}
    text = board.render()
    assert "over 1 study, a study is" in text and "1 study per cell. Each draws 1 configuration at random" in text


@pytest.mark.slow_but_first
@pytest.mark.parametrize("of_paper", [False, True])
@pytest.mark.parametrize("is_board", [True, False])
def test_a_table_of_one_s_own_names_the_methods_whose_paper_was_not_at_hand(board, is_board, of_paper):
    if not is_board:
        board.ruleset, board.report["standings"] = {}, False
    if of_paper:
        board.reproduces = {"paper": "fedconcat", "table": 1}
    assert "not at hand" not in board.render()
    for method in ("feddc", "fedamp", "scaffold"):
        board.add("cifar10 label-2", method, [0.5] * 6)
    said = "as the text of the paper was not at hand: FedDC, FedAMP.\n"
    assert (said in board.render()) is not of_paper


def test_a_board_of_one_search_seed_says_so_in_its_title(board):
    board.ruleset = {}
    board.cells = [cell | {"tuned": choice(0.1, seeds=[0])} for cell in board.cells]
    assert board.render().startswith("# Small table (chosen by one search seed)\n")


def test_the_ruleset_defaults_is_said(board):
    board.ruleset = {"name": "defaults", "studies": [], "samples": 0}
    for cell in board.cells:
        del cell["tuned"]
    text = board.render()
    assert text.startswith("# Small table, ruleset defaults\n") and "6 runs per cell, 24 in all." in text
