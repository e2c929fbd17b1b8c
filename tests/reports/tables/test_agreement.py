"""Shares of rows in which a measured table says what the published one says, counted by hand."""

import pytest


def said(report):
    return [note for note in report.notes if note.startswith("Agreement")]


@pytest.fixture
def table_1(store):
    """Published: fedconcat wins on cifar10, 56.9 over 53.6 and 62.0 over 58.6; on svhn dir-0.1 fedavg does, 84.0 over 83.2."""
    store.reproduces = {"paper": "fedconcat", "table": 1, "own": ["fedconcat"], "baselines": []}
    scores = {
        "cifar10 label-2": {"fedavg": [0.50], "moon": [0.49], "fedconcat": [0.55]},  # winner and sign as published
        "cifar10 label-3": {"fedavg": [0.50], "moon": [0.60], "fedconcat": [0.55]},  # neither
        "svhn dir-0.1": {"fedavg": [0.56], "moon": [0.60], "fedconcat": [0.55]},  # the sign
        "svhn label-2": {"fedavg": [0.56], "moon": [None], "fedconcat": [0.55]},  # incomplete
    }
    for row, cells in scores.items():
        for algorithm, values in cells.items():
            store.add(row, algorithm, values)
    store.add("cifar10 none", "centralized", [0.7])
    return store


def test_winners_and_signs_are_counted_over_complete_rows(table_1):
    assert said(table_1.build()) == [
        "Agreement with the published table over the complete rows, 3 of 4: same winner in 1 of 3; "
        "same sign of (method - best of FedAvg, MOON) in 2 of 3 for FedConcat."
    ]


@pytest.mark.parametrize("budget", ["smoke", "paper+rounds=2"])
def test_a_budget_that_is_not_the_papers_is_named(table_1, budget):
    table_1.budget = budget
    (sentence,) = said(table_1.build())
    assert sentence.startswith(
        f"Agreement with the published table, measured at budget {budget} and not at the paper's, over the complete rows"
    )


def test_baselines_may_be_named_and_what_is_neither_is_left_out(table_1):
    table_1.reproduces |= {"baselines": ["fedavg"]}
    assert said(table_1.build()) == [
        "Agreement with the published table over the complete rows, 4 of 4: same winner in 3 of 4; "
        "same sign of (method - best of FedAvg) in 3 of 4 for FedConcat."
    ]


def test_what_prints_alike_wins_together_and_has_no_sign(store):
    store.reproduces = {"paper": "fedconcat", "table": 1, "own": ["fedconcat"], "baselines": []}
    store.add("cifar10 label-2", "fedavg", [0.5503]).add("cifar10 label-2", "fedconcat", [0.5499])
    assert "same winner in 0 of 1" in said(store.build())[0], "where all are alike, nobody wins"
    store.add("cifar10 label-2", "fedrs", [0.4])
    assert said(store.build()) == [
        "Agreement with the published table over the complete rows, 1 of 1: same winner in 1 of 1; "
        "same sign of (method - best of FedAvg, FedRS) in 0 of 1 for FedConcat."
    ]


def test_nothing_is_said_before_a_row_is_complete(store):
    store.reproduces = {"paper": "fedconcat", "table": 1, "own": ["fedconcat"], "baselines": []}
    store.add("cifar10 label-2", "fedavg", [0.5, None, None]).add("cifar10 label-2", "fedconcat", [0.6] * 3)
    assert said(store.build()) == []


def test_means_count_with_the_decimals_of_the_paper(store):
    """FedCat on mnist, dir-0.5, Table 1: 99.42 against 99.41 of FedGen, which one decimal cannot tell apart."""
    store.reproduces, store.verdict = {"paper": "fedcat", "table": 1, "own": ["fedcat"], "baselines": []}, None
    setting = {"clients": 100, "participation": 0.1, "model": "mcmahan2017-mnist-cnn"}
    store.add("mnist dir-0.5", "fedgen", [0.9941], **setting).add("mnist dir-0.5", "fedcat", [0.9942], **setting)
    (sentence,) = said(store.build())
    assert "1 of 1: same winner in 1 of 1; same sign of (method - best of FedGen) in 1 of 1 for FedCat." in sentence


def test_a_row_whose_published_means_are_equal_has_a_sign_and_no_winner(store):
    """Table 5 of FedConcat, svhn, dir-0.1: 84.0 both."""
    store.reproduces = {"paper": "fedconcat", "table": 5, "own": ["dp-fedconcat"], "baselines": []}
    store.add("svhn dir-0.1", "fedavg", [0.84]).add("svhn dir-0.1", "dp-fedconcat", [0.84], variant="eps-2.5")
    (sentence,) = said(store.build())
    assert sentence.endswith("1 of 1: same sign of (method - best of FedAvg) in 1 of 1 for DP-FedConcat.")


def test_a_wrapper_may_be_the_papers_own_method(store):
    """Table 2 of CCVR: calibration gains 2.41 points on dir-0.5 and 4.13 on dir-0.1 for fedavg; the oracle is no rival."""
    store.reproduces = {"paper": "ccvr", "table": 2, "own": ["ccvr"], "baselines": ["none"]}
    store.verdict = None
    store.report |= {"rows": ["dataset", "partition", "algorithm"], "columns": "wrapper"}
    scores = {
        "dir-0.5": {"none": 0.6, "ccvr": 0.65, "oracle": 0.7},
        "dir-0.1": {"none": 0.6, "ccvr": 0.59, "oracle": 0.7},
    }
    for partition, cells in scores.items():
        for wrapper, score in cells.items():
            setting = {"wrapper": wrapper, "variant": "" if wrapper == "none" else f"+{wrapper}", "clients": 10}
            method = {"algorithm": {"name": wrapper, "base": {"name": "fedavg"}}} if wrapper != "none" else {}
            store.add(f"cifar10 {partition}", "fedavg", [score], model="moon-cnn", config=method, **setting)
    assert said(store.build()) == [
        "Agreement with the published table over the complete rows, 2 of 2: same winner in 1 of 2; "
        "same sign of (method - best of base) in 1 of 2 for + CCVR."
    ]


def test_a_grid_that_mirrors_nothing_or_has_no_complete_row_says_nothing(store):
    store.add("cifar10 label-2", "fedavg", [0.5]).add("cifar10 label-2", "moon", [None])
    assert said(store.build()) == []
    store.reproduces = None
    assert said(store.build()) == []


@pytest.mark.parametrize("style", ["check", "paper"])
def test_published_numbers_of_a_folder_that_is_not_in_use_are_left_out_and_said(table_1, style):
    table_1.reproduces = {"paper": "of-somebody", "table": 1}
    text = table_1.render(style=style)
    said = "Without published values: those of of-somebody are in no folder that is in use (--plugins DIR)."
    assert (said in text) == (style == "check") and "(53.6" not in text
