"""How a report tells by which protocol hyper-parameters were chosen, and which."""

from io import StringIO

import pandas as pd
import pytest

from bench.results.store import Store as ResultStore
from reports.exports import frames
from tests.support.chosen import choice


@pytest.fixture
def searched(store):
    store.budget = "paper+tuned=validation"
    for row, mu in (("cifar10 label-2", 0.012345678), ("cifar10 dir-0.1", 3.0)):
        store.add(row, "fedprox", [0.5, 0.6], tuned=choice(mu), config=with_mu("fedprox", mu))
        store.add(row, "fednova", [0.55, 0.6])
    return store


def with_mu(name: str, mu: float) -> dict:
    return {"algorithm": {"name": name, "mu": mu}}


def test_a_table_tuned_on_validation_data_says_so_and_what_was_chosen(searched):
    text = searched.render()
    section = text.split("## Chosen hyper-parameters\n\n")[1].split("\n\n")[0]
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in section.splitlines()]
    assert rows[0] == ["Dataset", "Partition", "Method", "Chosen"]
    assert rows[2:] == [
        ["CIFAR-10", "#C = 2", "FedProx", "μ=0.01235"],
        ["CIFAR-10", "Dir(0.1)", "FedProx", "μ=3"],
    ], "methods without a choice have no row"
    assert (
        "- Hyper-parameters were chosen on validation data (15% of each class of each client; no test image was read), and "
        "then trained on all training data. Best of 4 configurations per cell by mean validation accuracy in the last "
        "round of seeds 0, 1; searcher random.\n"
    ) in text
    assert "- Searched: μ of FedProx in 0.001 to 10 (log).\n" in text
    assert "- Nothing was searched in some cells of FedNova.\n" in text
    assert "not tuned" not in text and "as published" not in text
    assert "differences carry no verdict" in text, "the published protocol is another one"
    facts = "over 2 seeds (0, 1); hyper-parameters chosen on the validation split (4 configurations, seeds 0, 1).\n"
    assert facts in searched.render(style="paper")
    searched.add("cifar10 label-2", "moon", [0.5, 0.6], tuned=choice(1.0, tried=5), config=with_mu("moon", 1.0))
    unequal = "(4 to 5 configurations, not equally many for all methods, seeds 0, 1)"
    assert unequal in searched.render(style="paper")


def test_what_was_chosen_at_an_end_of_its_range_is_named(store):
    for row, mu, more in (("cifar10 label-2", 10.0, {"at_end": ["mu"]}), ("cifar10 dir-0.1", 1.0, {})):
        store.add(row, "fedprox", [0.5, 0.6], tuned=choice(mu, **more), config=with_mu("fedprox", mu))
        store.add(row, "moon", [0.5, 0.6], tuned=choice(mu, search="t", **more), config=with_mu("moon", mu))
    assert (
        "- Chosen at an end of its range, beyond which other values may be better (method, searches): μ of FedProx in 1 of 2, "
        "MOON in 1 of 2.\n"
    ) in store.render()


def test_a_search_of_one_seed_says_which(store):
    store.add("cifar10 label-2", "moon", [0.5], tuned=choice(1.0, seeds=[2]), config=with_mu("moon", 1.0))
    assert "by mean validation accuracy in the last round of seed 2; searcher random.\n" in store.render()


@pytest.mark.parametrize(("defaults", "said"), [([True, True], ""), ([True, False], " in 1 of 2 searches")])
def test_defaults_among_the_configurations_are_named(store, defaults, said):
    store.budget = "paper+tuned=validation"
    for row, mu, with_defaults in zip(("cifar10 label-2", "cifar10 dir-0.1"), (1.0, 3.0), defaults, strict=True):
        store.add(row, "fedprox", [0.5, 0.6], tuned=choice(mu, defaults=with_defaults), config=with_mu("fedprox", mu))
    assert f"- The defaults were among the configurations{said}, and count as one.\n" in store.render()


def test_searches_of_earlier_versions_do_not_say_whether_they_tried_the_defaults(searched):
    assert "defaults" not in searched.render()


def test_a_choice_among_what_prints_alike_is_said_to_mean_little(searched):
    searched.add("cifar10 label-2", "moon", [0.5, 0.5], tuned=choice(1.0, alike=3), config=with_mu("moon", 1.0))
    assert "- In 1 of 3 searches the best configurations print alike on validation data;" in searched.render()


def test_unequal_trial_budgets_are_named(searched):
    searched.add("cifar10 label-2", "moon", [0.5, 0.5], tuned=choice(1.0, tried=3), config=with_mu("moon", 1.0))
    searched.add("cifar10 dir-0.1", "moon", [0.5, 0.5], tuned=choice(1.0, tried=5), config=with_mu("moon", 1.0))
    text = searched.render()
    assert "Best of N configurations per cell" in text
    assert "- The methods did not get equally many configurations: N is 4 for FedProx, 3 to 5 for MOON.\n" in text


@pytest.mark.parametrize(("tuned", "expected"), [(True, ["validation", ""]), (False, ["test", ""])])
def test_the_csv_says_on_which_split_each_cell_was_tuned(store, tuned, expected):
    if tuned:
        store.add("cifar10 label-2", "moon", [0.5], tuned=choice(1.0), config=with_mu("moon", 1.0))
    else:
        store.add("cifar10 label-2", "moon", [0.5], choice={"mu": 1.0}).add(
            "cifar10 label-2", "moon", [0.4], choice={"mu": 2.0}
        )
    store.add("cifar10 label-2", "fedavg", [0.5])
    lines = pd.read_csv(StringIO(store.render(format="csv")), keep_default_na=False)
    assert lines["chosen_on"].tolist() == expected and lines["choice"].tolist() == ["mu=1.0", ""]


def test_choices_stand_in_latex_too(searched):
    text = searched.render(format="tex")
    assert r"\caption{Chosen hyper-parameters}" in text and r"$\mu$=0.01235" in text


def test_all_rounds_of_a_tuned_grid_have_a_column_for_what_was_chosen(searched):
    store = ResultStore(searched.save())
    columns = frames.rounds_frame(store, ["small_table@paper+tuned=validation"])
    assert "fedprox.mu" in columns


def test_where_nothing_was_chosen_there_is_no_table_of_choices(store):
    store.add("cifar10 label-2", "fedrs", [0.5], choice={"alpha": 0.5})
    assert "Chosen hyper-parameters" not in store.render()


def test_methods_without_the_first_metric_choose_by_the_next_one_and_show_their_choice(store):
    """A method with a model per client has no `accuracy`."""
    store.reproduces = store.verdict = None
    store.report = {**store.report, "metrics": ["accuracy", "local_accuracy", "global_accuracy"]}
    for mu, score in ((0.1, 0.3), (1.0, 0.6)):
        store.add("cifar10 label-2", "fedprox", [score, score], choice={"mu": mu})
        store.add("cifar10 label-2", "ditto", [score, score], choice={"proximal_weight": mu}, personal=True)
    report = store.build()
    cells = report.cells.set_index(["metric", "algorithm"])
    for metric, mean in (("local_accuracy", 70), ("global_accuracy", 60)):
        found = cells.loc[metric, "ditto"]
        assert (found["mean"], found["choice"]) == (pytest.approx(mean), "proximal_weight=1.0")
        assert found["complete"] and found["tried"] == 2
    assert cells.loc["accuracy", "fedprox"]["choice"] == "mu=1.0"
    assert [(table.metric, [row.labels[-1] for row in table.rows]) for table in report.choices] == [
        ("accuracy", ["fedprox"]),
        ("local_accuracy", ["ditto"]),
    ]
