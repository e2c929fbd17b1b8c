"""Tables 6, 7 and 8: the paper's layout, its values beside the measured ones, and what may not be compared."""

from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest

from reports.exports.encoder_tables import LOSSES, Subject, loss_report, size_report, write
from reports.formats import latex, markdown

ABOUT = Subject("paper_table6@paper", "fmnist", "label-2", "simple-cnn", "", True, ("A note.",))
SIX = ("fe1-own", "fe1-exchange", "fe2-own", "fe2-exchange")
SEVEN = ("fe1", "fe2", "favg", "fe")


def losses(rows, cls, rec):
    return {
        (row, metric): value
        for row, *both in zip(rows, cls, rec, strict=True)
        for metric, value in zip(LOSSES, both, strict=True)
    }


@pytest.fixture
def table6():
    return losses(SIX, [0.0235, 0.2, 0.0007, 0.03], [0.07, 0.06, 0.0796, 0.09])


def lines(report):
    """Cells of the Markdown table, row by row."""
    table = [line for line in markdown.render(report).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_table_6_shows_each_loss_beside_the_published_one_and_the_smaller_one_of_an_encoder_in_bold(table6):
    head, _, *rows = lines(loss_report(6, table6, ABOUT))
    assert head == ["Encoder", "Exchange", "Classification loss", "Reconstruction loss"]
    assert rows == [
        ["f_e1", "no", "**0.0235** (0.0235, +0.0000)", "0.0700 (0.0646, +0.0054)"],
        ["f_e1", "yes", "0.2000 (0.2345, -0.0345)", "**0.0600** (0.0657, -0.0057)"],
        ["f_e2", "no", "**0.0007** (0.0007, +0.0000)", "**0.0796** (0.0796, +0.0000)"],
        ["f_e2", "yes", "0.0300 (0.0292, +0.0008)", "0.0900 (0.0816, +0.0084)"],
    ]


def test_table_7_compares_the_four_encoders():
    report = loss_report(7, losses(SEVEN, [0.1, 0.2, 0.3, 0.05], [0.08, 0.09, 0.08, 0.1]), ABOUT)
    head, _, *rows = lines(report)
    assert head == ["Encoder", "Classification loss", "Reconstruction loss"]
    assert rows == [
        ["f_e1", "0.1000 (0.0810, +0.0190)", "**0.0800** (0.0817, -0.0017)"],
        ["f_e2", "0.2000 (0.2456, -0.0456)", "0.0900 (0.0823, +0.0077)"],
        ["f_avg", "0.3000 (0.1072, +0.1928)", "**0.0800** (0.0850, -0.0050)"],
        ["f_e", "**0.0500** (0.0493, +0.0007)", "0.1000 (0.0819, +0.0181)"],
    ]
    assert report.notes[-1] == "A note."


@pytest.mark.parametrize(
    "change", [{"substitute": "mnist"}, {"complete": False}, {"model": "mlp"}, {"dataset": "mnist"}]
)
def test_what_was_measured_on_something_else_has_no_published_counterpart(table6, change):
    report = loss_report(6, table6, replace(ABOUT, **change))
    assert "0.2345" not in markdown.render(report) and "In parentheses" not in markdown.render(report)


def test_a_stand_in_is_named_in_every_cell_and_nothing_is_best(table6):
    report = loss_report(6, table6, replace(ABOUT, substitute="mnist"))
    assert lines(report)[2] == ["f_e1", "no", "0.0235, on mnist", "0.0700, on mnist"]
    assert "**" not in markdown.render(report)


def test_a_head_that_diverged_has_no_number(table6):
    report = loss_report(6, table6 | {("fe1-own", "cls_loss"): None}, ABOUT)
    assert lines(report)[2][2] == "diverged, published 0.0235"
    assert lines(report)[3][2].startswith("**0.2000**")
    assert "()" not in latex.render(report) and "nan" not in latex.render(report)


def test_table_8_counts_what_is_here_beside_what_is_published():
    here = {"n_train": 50_000, "n_test": 9_000, "n_classes": 10}
    report = size_report("paper_table8@paper", {"cifar10": here, "svhn": None}, ("Data: cifar10.",))
    assert lines(report)[2:] == [
        ["cifar10", "50,000 (50,000, +0)", "9,000 (10,000, -1,000)", "10 (10, +0)"],
        ["svhn", *(f"no data: svhn, published {count}" for count in ("73,257", "26,032", "10"))],
    ]


def test_files_are_written_in_every_format_and_the_csv_reads_back(table6, tmp_path):
    paths = write(loss_report(6, table6, ABOUT), tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths.values()] == [
        f"reports/paper_table6@paper.{format}" for format in ("md", "tex", "csv")
    ]
    assert r"f\_e1 & no & \textbf{0.0235}" in paths["tex"].read_text()
    cells = pd.read_csv(StringIO(paths["csv"].read_text()), dtype={"published": str}).set_index(["variant", "metric"])
    assert cells.loc[("fe1-exchange", "cls_loss"), ["value", "published", "difference"]].tolist() == [
        0.2,
        "0.2345",
        -0.0345,
    ]
