import math

import pytest

from bench.published.lookup import Published
from bench.published.tolerances import RULES, rule


def number(mean, std="", table="1", dataset="cifar10", metric="test_accuracy"):
    return Published(table, dataset, metric, mean, std, same_setting=True)


def verdict(name, published, mean, std, seeds):
    found, band = rule(name).judge(published, mean, std, seeds)
    assert (found == "") == math.isnan(band)
    return found


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (53.6, "inside"),
        # s = 0.8 and 0.6: 3 sqrt((0.64 + 0.36) / 3) = 3 sqrt(1 / 3) = 1.732
        (55.33, "inside"),
        (55.34, "outside"),
        (51.87, "inside"),
        (51.86, "outside"),
    ],
)
def test_fedconcat_three_seeds(mean, expected):
    assert verdict("fedconcat", number("53.6", "0.8"), mean, 0.6, 3) == expected


def test_fedconcat_band_is_at_least_one_point():
    # 3 sqrt((0.01 + 0.01) / 3) = 0.245
    assert verdict("fedconcat", number("53.6", "0.1"), 54.6, 0.1, 3) == "inside"
    assert verdict("fedconcat", number("53.6", "0.1"), 54.61, 0.1, 3) == "outside"


@pytest.mark.parametrize(("std", "seeds"), [(0.6, 2), (0.6, 5), (None, 1)])
def test_fedconcat_says_nothing_about_other_numbers_of_seeds(std, seeds):
    assert verdict("fedconcat", number("53.6", "0.8"), 53.6, std, seeds) == ""


@pytest.mark.parametrize("table", ["2", "13"])
def test_fedconcat_single_runs_have_three_points(table):
    assert verdict("fedconcat", number("50.0", table=table), 53.0, None, 1) == "inside"
    assert verdict("fedconcat", number("50.0", table=table), 53.1, None, 1) == "outside"


@pytest.mark.parametrize("table", ["3", "12"])
def test_fedconcat_last_ten_rounds_have_two_points_or_three_std(table):
    assert verdict("fedconcat", number("8.4", "0.1", table), 10.4, None, 1) == "inside"
    assert verdict("fedconcat", number("8.4", "0.1", table), 10.5, None, 1) == "outside"
    assert verdict("fedconcat", number("8.4", "1.2", table), 12.0, None, 1) == "inside"  # 3.6 points
    assert verdict("fedconcat", number("8.4", "1.2", table), 12.1, None, 1) == "outside"


@pytest.mark.parametrize(
    ("mean", "expected"),
    # s = 0.77 and 0.64: 2 sqrt((0.5929 + 0.4096) / 3) = 1.156; twice that is 2.312
    [(69.77, "inside"), (69.78, "near"), (70.93, "near"), (70.94, "outside")],
)
def test_ccvr_agrees_is_near_or_differs(mean, expected):
    assert verdict("ccvr", number("68.62", "0.77"), mean, 0.64, 3) == expected


@pytest.mark.parametrize(
    ("dataset", "band"), [("mnist", 0.3), ("femnist", 1.5), ("cifar10", 2), ("cifar100-coarse", 2)]
)
def test_fedcat_band_depends_on_the_dataset(dataset, band):
    assert verdict("fedcat", number("50.00", dataset=dataset), 50 - band, 0.1, 3) == "inside"
    assert verdict("fedcat", number("50.00", dataset=dataset), 50 - band - 0.01, 0.1, 3) == "outside"
    assert verdict("fedcat", number("50.00", dataset=dataset), 50, None, 1) == ""


def test_fedcat_says_nothing_about_other_datasets():
    assert verdict("fedcat", number("50.00", dataset="svhn"), 50, 0.1, 3) == ""


@pytest.mark.parametrize(
    ("metric", "std", "band"),
    [
        ("local_accuracy", "0.28", 0.5),  # 1.5 x 0.28 = 0.42
        ("local_accuracy", "0.56", 0.84),
        ("ipr", "0.00", 1.0),
        ("ipr", "2.24", 3.36),
        ("rsd", "0.30", 0.45),
    ],
)
def test_fedcollab_band_is_one_and_a_half_std_with_a_floor(metric, std, band):
    assert verdict("fedcollab", number("50.00", std, metric=metric), 50 + band, 0.1, 5) == "inside"
    assert verdict("fedcollab", number("50.00", std, metric=metric), 50 + band + 0.01, 0.1, 5) == "outside"


@pytest.mark.parametrize("paper", RULES)
def test_every_rule_copes_with_every_published_accuracy_of_its_paper(paper, read_published):
    for line in read_published(paper):
        if line["unit"] == "percent":
            printed = number(line["mean"], line["std"], line["table"], line["dataset"], line["metric"])
            for std, seeds in [(None, 1), (0.5, 3), (0.5, 5)]:
                assert verdict(paper, printed, float(line["mean"]), std, seeds) in ("inside", "")


def test_an_unknown_rule_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="Unknown verdict rule 'fedconcad'. Did you mean 'fedconcat'"):
        rule("fedconcad")
