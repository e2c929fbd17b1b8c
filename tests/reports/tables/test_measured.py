"""Tables 6, 7 and 8 of FedConcat: measured values in the paper's layout beside the published ones."""

import re

import pytest

from tests.support.heads import COUNTS, EXCHANGE, POOLED, SEVEN, SIX, write_probe


@pytest.fixture
def heads(store):
    """Adds a run of two clients with the losses of its heads, None for those without any; returns the store."""

    def add(table: int, *losses, row="fmnist label-2", status=0.5, **options):
        store.reproduces, store.verdict = {"paper": "fedconcat", "table": table}, None
        measured = EXCHANGE if table == 6 else POOLED
        store.report = {"rows": ["dataset", "partition"], "columns": "algorithm", "metric": "local_accuracy"}
        store.report |= {"measured": measured, "notes": ["A note."]}
        first = len(store.cells)
        store.add(row, "local", [status] * len(losses), personal=True, **options)
        for cell, of_run in zip(store.cells[first:], losses, strict=True):
            if of_run and cell["run"]:
                values = {name: dict(zip(("cls_loss", "rec_loss"), both, strict=True)) for name, both in of_run.items()}
                result = {
                    "values": values,
                    "clients": [0, 1],
                    "classes": ["coat", "bag"],
                    "label_counts": [[3, 0], [1, 4]],
                }
                write_probe(store, cell, f"encoder-heads-{measured['examples']}-256-0004", result)
        return store

    return add


def lines(store, format: str = "md") -> list[list[str]]:
    """Cells of the Markdown table, row by row."""
    text = store.render(format=format)
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_table_6_shows_each_loss_beside_the_published_one_and_the_smaller_one_of_a_client_in_bold(heads):
    """Row f_e1 is of client 0, with exchange through the encoder of client 1."""
    head, _, *rows = lines(heads(6, SIX))
    assert head == ["Dataset", "Partition", "Encoder", "Exchange", "Classification loss", "Reconstruction loss"]
    assert [row[2:] for row in rows] == [
        ["f_e1", "no", "**0.0235** (0.0235, +0.0000)", "0.0700 (0.0646, +0.0054)"],
        ["f_e1", "yes", "0.2000 (0.2345, -0.0345)", "**0.0600** (0.0657, -0.0057)"],
        ["f_e2", "no", "**0.0007** (0.0007, +0.0000)", "**0.0796** (0.0796, +0.0000)"],
        ["f_e2", "yes", "0.0300 (0.0292, +0.0008)", "0.0900 (0.0816, +0.0084)"],
    ]


def test_table_7_compares_the_four_encoders(heads):
    store = heads(7, SEVEN)
    head, _, *rows = lines(store)
    assert head[2:] == ["Encoder", "Classification loss", "Reconstruction loss"]
    assert [row[2:] for row in rows] == [
        ["f_e1", "0.1000 (0.0810, +0.0190)", "**0.0800** (0.0817, -0.0017)"],
        ["f_e2", "0.2000 (0.2456, -0.0456)", "0.0900 (0.0823, +0.0077)"],
        ["f_avg", "0.3000 (0.1072, +0.1928)", "**0.0800** (0.0850, -0.0050)"],
        ["f_e", "**0.0500** (0.0493, +0.0007)", "0.1000 (0.0819, +0.0181)"],
    ]
    text = store.render()
    assert (
        "- A note.\n- FMNIST, #C = 2, 40 clients, seed 0: client 0: 3 examples (coat); client 1: 5 examples (coat, bag)."
        in text
    )
    assert (
        "- Bold: the smaller loss, as in the paper.\n- In parentheses: published value (FedConcat, Table 7) and" in text
    )


@pytest.mark.parametrize("change", [{"substitute": "mnist"}, {"data_note": "half of it"}, {"row": "mnist label-2"}])
def test_what_was_measured_on_something_else_has_no_published_counterpart(heads, change):
    text = heads(6, SIX, **change).render()
    assert "0.2345" not in text and "In parentheses" not in text


def test_information_about_labels_stands_beside_what_the_labels_have(store):
    store.reproduces, store.verdict = None, None
    store.report = {"rows": ["dataset", "partition"], "columns": "algorithm", "metric": "local_accuracy"}
    store.report |= {"measured": {"kind": "encoder-information", "examples": "pooled"}}
    store.add("fmnist label-2", "local", [0.5], personal=True)
    bounds = {"fe1": 0.7, "fe2": -0.1, "favg": None, "fe": 1.2}
    values = {name: {"information": bound, "entropy": 1.3863} for name, bound in bounds.items()}
    about = {"clients": [0, 1], "classes": ["coat", "bag"], "label_counts": [[3, 0], [1, 4]]}
    write_probe(store, store.cells[0], "encoder-information-pooled-0004", {"values": values, **about})
    head, _, *rows = lines(store)
    assert head[2:] == ["Encoder", "I(Z; Y) is at least", "H(Y)"]
    assert [row[2:] for row in rows] == [
        ["f_e1", "0.7000", "1.3863"],
        ["f_e2", "-0.1000", "1.3863"],
        ["f_avg", "diverged", "1.3863"],
        ["f_e", "1.2000", "1.3863"],
    ]
    text = store.render()
    assert "- In nats. The mutual information of features Z and labels Y is at least H(Y) minus" in text
    assert "Bold" not in text and "client 1: 5 examples (coat, bag)" in text
    assert r"I(Z; Y) is at least" in store.render(format="tex")
    assert "with exchange, the classifier" not in text


def test_a_row_of_exchanged_encoders_says_whose_examples_it_is_of(store):
    store.reproduces, store.verdict = None, None
    store.report = {"rows": ["dataset", "partition"], "columns": "algorithm", "metric": "local_accuracy"}
    store.report |= {"measured": {"kind": "encoder-information", "examples": "exchange"}}
    store.add("fmnist label-2", "local", [0.5], personal=True)
    names = ("fe1-own", "fe1-exchange", "fe2-own", "fe2-exchange")
    values = {name: {"information": number / 10, "entropy": 1.0} for number, name in enumerate(names)}
    about = {"clients": [0, 1], "classes": ["coat", "bag"], "label_counts": [[3, 0], [1, 4]]}
    write_probe(store, store.cells[0], "encoder-information-exchange-0004", {"values": values, **about})
    assert "with exchange, the classifier sees them through the encoder of the other client" in store.render()


def test_a_stand_in_is_named_in_every_cell_and_nothing_is_best(heads):
    store = heads(6, SIX, substitute="mnist")
    assert lines(store)[2][2:] == ["f_e1", "no", "0.0235, on MNIST", "0.0700, on MNIST"]
    assert "**" not in store.render()


@pytest.mark.slow
def test_a_head_that_diverged_has_no_number(heads):
    store = heads(6, SIX | {"fe1-own": (None, 0.07)})
    assert lines(store)[2][4] == "diverged (0.0235)"
    assert lines(store)[3][4].startswith("0.2000"), "nothing is compared with it"
    assert "nan" not in store.render() and "nan" not in store.render(format="tex")


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("options", "losses", "shown"),
    [
        ({"status": "diverged"}, None, "diverged (0.0235)"),
        ({"missing": "no data: fmnist"}, None, "no data: FMNIST (0.0235)"),
        ({}, None, "0/1 seeds (0.0235)"),
    ],
)
def test_a_run_that_has_no_losses_says_why(heads, options, losses, shown):
    store = heads(6, losses, **options)
    assert lines(store)[2][4] == shown
    for format in ("csv", "html"):
        store.render(format=format)


def test_several_seeds_are_averaged(heads):
    store = heads(7, SEVEN, SEVEN | {"fe": (0.07, 0.1)})
    assert lines(store)[5][3] == "**0.0600±0.0100** (0.0493, +0.0107)"


def test_the_page_lists_the_runs_with_the_axes_of_the_grid(heads):
    page = heads(7, SEVEN).render(format="html")
    assert "Classification loss" in page and "local_accuracy (last)" in page


def test_the_csv_has_a_line_per_row_and_metric(heads):
    head, *rows = (line.split(",") for line in heads(6, SIX).render(format="csv").splitlines())
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert len(found) == 8
    (one,) = (
        line for line in found if (line["encoder"], line["exchange"], line["metric"]) == ("f_e1", "yes", "cls_loss")
    )
    assert (one["mean"], one["published_mean"], one["difference"]) == ("0.2", "0.2345", "-0.0345")


def test_table_8_counts_what_is_here_beside_what_is_published(store):
    store.reproduces, store.verdict = {"paper": "fedconcat", "table": 8}, None
    store.report = {"rows": ["dataset"], "columns": "algorithm", "metric": "accuracy"}
    store.report |= {"measured": {"kind": "dataset-sizes"}}
    store.add("cifar10 none", "centralized", [0.1], data_note="9,000 test images")
    store.add("svhn none", "centralized", [None], missing="no data: svhn")
    write_probe(store, store.cells[0], "dataset-sizes", {"values": {"": COUNTS}})
    assert lines(store)[2:] == [
        ["CIFAR-10", "50,000 (50,000, +0)", "9,000 (10,000, -1,000)", "10 (10, +0)"],
        ["SVHN", *(f"no data: SVHN ({count})" for count in ("73,257", "26,032", "10"))],
    ]
    text = store.render()
    assert "- Incomplete data: CIFAR-10: 9,000 test images." in text and "no published counterpart" not in text
    csv = store.render(format="csv")
    assert ",9000," in csv and "9000.0" not in csv


@pytest.mark.slow_but_first
@pytest.mark.parametrize("mirrored", [True, False])
def test_in_the_style_of_the_paper_names_and_numbers_stand_alone(heads, mirrored):
    store = heads(6, SIX, SIX)
    heads(6, SIX, None, row="svhn label-2")
    if not mirrored:
        store.reproduces = None
    text, tex, page = (store.render(format=format, style="paper") for format in ("md", "tex", "html"))
    rows = [re.sub(" +", " ", line) for line in text.splitlines() if line.startswith("| ")]
    heading, partition = ("", "") if mirrored else (" Partition |", " #C = 2 |")  # a paper's has no axis of one value
    assert rows[:3] == [
        f"| Dataset |{heading} Encoder | Exchange | Classification loss | Reconstruction loss |",
        f"| FMNIST |{partition} f_e1 | no | **0.0235±0.0000** | 0.0700±0.0000 |",
        f"| |{' |' * (not mirrored)} | yes | 0.2000±0.0000 | **0.0600±0.0000** |",
    ]
    assert rows[5] == f"| SVHN |{partition} f_e1 | no | 0.0235† | 0.0700† |"
    what = "#C = 2; mean" if mirrored else "Simple CNN, 40 clients, 4 rounds; mean"
    below = f"{what}±std (population) over 1 to 2 seeds (of 0, 1).\n\n- †: 1/2 seeds.\n"
    assert text.endswith(below) and "0.2345" not in text and "A note" not in text
    where = "FMNIST & " if mirrored else r"FMNIST & $\#C=2$ & "
    assert where + r"$f_{e1}$ & no & \textbf{0.0235$\pm$0.0000} & " in tex and "0.2345" not in tex
    assert "0.0235±0.0000" in page and "0.2345" not in page and 'id="curves"' not in page


def test_dataset_sizes_in_the_style_of_the_paper_have_no_seeds(store):
    store.reproduces = store.verdict = None
    store.report = {"rows": ["dataset"], "columns": "algorithm", "metric": "accuracy"}
    store.report |= {"measured": {"kind": "dataset-sizes"}}
    store.add("cifar10 none", "centralized", [0.1]).add("svhn none", "centralized", [None], missing="no data: svhn")
    write_probe(store, store.cells[0], "dataset-sizes", {"values": {"": COUNTS}})
    text = store.render(style="paper")
    assert re.sub(" +", " ", text).splitlines()[4:] == [
        "| CIFAR-10 | 50,000 | 9,000 | 10 |",
        "| SVHN | – | – | – |",
        "",
        "- –: no data: SVHN.",
    ]


def test_losses_of_another_model_are_not_compared_with_the_published_ones(heads):
    text = heads(6, SIX, model="mlp").render()
    assert "0.0235" in text and "0.2345" not in text and "In parentheses" not in text
