import json
import math
import re

import pytest

from bench.errors import StoreError
from bench.results.store import Store as ResultStore
from reports import api
from reports.tables import layout
from reports.tables.footnotes import without_paths


def table(store, **options):
    """The first table as (row labels, column) -> text, in the order of the page."""
    text = store.render(**options)
    lines = text[text.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, _, *body = rows
    width = len(store.report["rows"])
    return {(*row[:width], column): row[i] for row in body for i, column in enumerate(header) if i >= width}


def notes(store, **options):
    text = store.render(**options)
    return [line[2:] for line in text.splitlines() if line.startswith("- ")]


def test_rows_and_columns_stand_in_the_order_of_the_grid(store):
    for algorithm in ("moon", "extra", "fedavg"):
        for row in ("svhn dir-0.1", "svhn label-2", "cifar10 label-2"):
            store.add(row, algorithm, [0.5])
    store.row_order = [["cifar10", "label-2"], ["svhn", "label-2"], ["svhn", "dir-0.1"]]
    store.column_order = ["fedavg", "fedprox", "moon"]
    rows = [("CIFAR-10", "#C = 2"), ("SVHN", "#C = 2"), ("SVHN", "Dir(0.1)")]
    assert list(table(store)) == [(*row, column) for row in rows for column in ("FedAvg", "MOON", "extra")]


def test_centralized_stands_once_in_the_first_row_of_its_dataset(store):
    store.verdict = None
    store.reproduces = None
    store.add("cifar10 none", "centralized", [0.7]).add("svhn none", "centralized", [0.8])
    for row in ("cifar10 label-2", "cifar10 dir-0.1", "svhn label-2"):
        store.add(row, "fedavg", [0.5])
    assert table(store) == {
        ("CIFAR-10", "#C = 2", "Centralized"): "70.0",
        ("CIFAR-10", "#C = 2", "FedAvg"): "50.0",
        ("CIFAR-10", "Dir(0.1)", "Centralized"): "",
        ("CIFAR-10", "Dir(0.1)", "FedAvg"): "50.0",
        ("SVHN", "#C = 2", "Centralized"): "80.0",
        ("SVHN", "#C = 2", "FedAvg"): "50.0",
    }
    assert any(note.startswith("Centralized: trained once per dataset") for note in notes(store))


def test_centralized_alone_keeps_a_row_of_its_own(store):
    store.reproduces = None
    assert table(store.add("cifar10 none", "centralized", [0.7])) == {("CIFAR-10", "pooled", "Centralized"): "70.0"}


def test_the_best_of_a_row_is_bold_and_so_is_what_prints_alike(store):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", [0.5303]).add("cifar10 label-2", "fedprox", [0.5296])
    store.add("cifar10 label-2", "moon", [0.5294]).add("cifar10 none", "centralized", [0.7])
    assert list(table(store).values()) == ["**53.0**", "**53.0**", "52.9", "70.0"]


def test_incomplete_substituted_and_lonely_cells_are_never_bold(store):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", [0.9, None]).add("cifar10 label-2", "moon", [0.5, 0.5])
    store.add("svhn label-2", "fedavg", [0.6, 0.6], substitute="cifar10")
    store.add("svhn label-2", "moon", [0.5, 0.5], substitute="cifar10")
    assert list(table(store).values()) == [
        "90.0, 1/2 seeds",
        "50.0±0.0",
        "60.0±0.0, on CIFAR-10",
        "50.0±0.0, on CIFAR-10",
    ]


def test_a_table_says_which_files_its_images_came_from_and_whether_they_were_the_same(store):
    store.add("cifar10 label-2", "fedavg", [0.5])
    store.add("svhn label-2", "fedavg", [0.5]).add("svhn label-2", "moon", [0.5], data="1")
    text = store.render()
    assert "Data: CIFAR-10 from pickles (0badcafe)." in text
    assert "Mixed data: SVHN from pickles (0badcafe) and pickles (1)." in text


def test_femnist_of_another_draw_has_its_published_counterpart(store):
    store.reproduces = {"paper": "fedcat", "table": 1, "variants": []}
    setting = {"clients": 178, "participation": 0.1, "model": "mcmahan2017-mnist-cnn"}
    store.add("femnist natural", "fedavg", [0.8232], **setting).save()
    text = store.render()
    assert "82.3" in text.partition("FedAvg")[2] and "(82.32" in text and "No verdict where" not in text


def test_a_partition_that_a_grid_takes_for_the_published_one_stands_beside_its_numbers(store):
    store.reproduces = {"paper": "fedcat", "table": 1, "variants": [], "partitions": {"dirichlet-equal-0.1": "dir-0.1"}}
    setting = {"clients": 100, "participation": 0.1, "model": "mcmahan2017-mnist-cnn"}
    store.add("mnist dirichlet-equal-0.1", "fedavg", [0.99], **setting)
    store.add("mnist dirichlet-equal-0.2", "fedavg", [0.99], **setting)
    assert "99.0 (99.04" in table(store)["MNIST", "Dir(0.1), equal sizes", "FedAvg"]
    assert "(" not in table(store)["MNIST", "Dir(0.2), equal sizes", "FedAvg"]
    said = "Dir(0.1), equal sizes is taken for the partition of the published numbers of Dir(0.1)."
    assert [note for note in notes(store) if "is taken for" in note] == [said]


def test_cells_on_incomplete_data_have_no_published_counterpart(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5, 0.5], data_note="5 of 10 classes")
    store.add("cifar10 label-3", "fedavg", [0.5, 0.5, 0.5])
    text = store.render()
    lines = {name: next(line for line in text.splitlines() if f"| {name} " in line) for name in ("#C = 2", "#C = 3")}
    assert "(" not in lines["#C = 2"] and "(" in lines["#C = 3"]
    assert "CIFAR-10 was incomplete (5 of 10 classes): these cells have no published counterpart." in text


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.54, None], "52.0±2.0, 2/3 seeds"),
        ([None, None, None], "0/3 seeds"),
        (["diverged"] * 3, "diverged"),
        (["failed"] * 3, "failed"),
        ([0.5, 0.54, "diverged"], "52.0±2.0, 2/3 seeds, 1 diverged"),
        ([0.5, "failed", "diverged"], "50.0, 1/3 seeds, 1 diverged, 1 failed"),
    ],
)
def test_what_is_missing_is_named(store, scores, expected):
    store.reproduces = None
    assert table(store.add("cifar10 label-2", "fedavg", scores)) == {("CIFAR-10", "#C = 2", "FedAvg"): expected}


def test_a_cell_whose_runs_have_no_such_metric_says_so_and_not_that_they_are_missing(store):
    store.reproduces = None
    store.report["metric"] = "method/drift"
    store.add("cifar10 label-2", "fedavg", [0.5, 0.54]).add("cifar10 label-2", "moon", [0.5, 0.54])
    for cell in store.cells[:2]:
        path = store.folder / "runs" / cell["run"] / "record.json"
        rounds = path.with_name("rounds.jsonl")
        rounds.write_text(rounds.read_text().replace("}\n", ', "metrics": {"method/drift": 2.0}}\n'))
        record = json.loads(path.read_text())
        for value in ("last", "best", "last10"):
            record["summary"][value]["method/drift"] = 2.0
        path.write_text(json.dumps(record))
    assert list(table(store).values()) == ["2.00±0.00", "–"]
    assert "–: the runs have ended without such a metric, or with none that is finite." in notes(store)
    assert not any("planned" in note for note in notes(store))
    store.add("cifar10 iid", "fedavg", [None, None])
    assert [*table(store).values()][-2:] == ["0/2 seeds", ""]


def test_a_cell_of_fewer_seeds_than_others_says_so(store):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", [0.5, 0.54]).add("cifar10 label-2", "moon", [0.53])
    assert list(table(store).values()) == ["52.0±2.0", "53.0, 1 seed"], "its clients are not those of both seeds"
    store.add("cifar10 label-2", "fedrs", [0.5, 0.5])
    assert list(table(store).values()) == ["**52.0±2.0**", "53.0, 1 seed", "_50.0±0.0_"]
    assert "Cells with fewer seeds than others of their row, or that lack some, are neither bold nor tested." in notes(
        store
    )


@pytest.mark.parametrize("scores", [["failed"] * 3, [None] * 3], ids=["failed", "not run"])
def test_seeds_of_a_rival_without_a_number_take_nothing_from_others(store, scores):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", [0.5, 0.54]).add("cifar10 label-2", "moon", [0.5, 0.5])
    store.add("cifar10 label-2", "fedrs", scores)
    assert list(table(store).values())[:2] == ["**52.0±2.0**", "_50.0±0.0_"]


def test_settings_that_have_not_ended_are_named(store):
    store.reproduces = None
    store.add("cifar10 label-2", "moon", [0.5], choice={"mu": 1}).add(
        "cifar10 label-2", "moon", [None], choice={"mu": 5}
    )
    assert list(table(store).values()) == ["50.0, 1/2 settings"]
    assert any(note.startswith("n/m seeds, n/m settings") for note in notes(store))


def test_absent_data_is_named_beside_the_published_value(store):
    store.add("svhn label-2", "fedavg", [None] * 3, missing="no data: svhn")
    assert list(table(store).values()) == ["no data: SVHN (82.8±0.5)"]
    assert [note for note in notes(store) if "ublished" in note] == [
        "In parentheses: published value (FedConcat, Table 1) and difference, measured minus published, in points."
    ]


def test_substitutes_are_named_and_have_no_published_value(store):
    store.add("svhn label-2", "fedavg", [0.828] * 3, substitute="cifar10")
    store.add("cifar10 label-2", "fedavg", [0.536] * 3)
    assert list(table(store).values()) == ["82.8±0.0, on CIFAR-10", "53.6±0.0 (53.6±0.8, +0.0, inside)"]
    assert any(note.startswith("SVHN was replaced by CIFAR-10") for note in notes(store))


def test_published_value_difference_and_verdict_stand_beside_the_measured_value(store):
    store.add("cifar10 label-2", "fedavg", [0.53, 0.53, 0.536])  # mean 53.2: 0.4 below the published 53.6
    store.add("cifar10 label-2", "moon", [0.60, 0.60, 0.60])  # 53.4±1.3: band 3 sqrt(1.69 / 3) = 2.3
    assert list(table(store).values()) == [
        "53.2±0.3 (53.6±0.8, -0.4, inside)",
        "**60.0±0.0** (53.4±1.3, +6.6, outside)",
    ]
    assert any("Inside are 1 of 2 judged cells" in note for note in notes(store))


@pytest.mark.parametrize(
    ("reached", "shown"),
    [
        ([441, 440, 442, 440], "441±1 (439, +2)"),  # +1.75 with three digits
        ([1162, 1162, 1161], "1162 (439, +723)"),
        ([None] * 3, "not reached (439)"),
    ],
)
def test_a_difference_of_rounds_has_the_decimals_of_the_published_number_or_is_absent(store, reached, shown):
    store.reproduces, store.verdict = {"paper": "fedlab", "table": "rounds"}, None
    store.report |= {"rows": ["participation"], "metric": "rounds_to_0.97"}
    about = {"clients": 100, "participation": 0.1, "model": "2nn", "variant": "E=5"}
    store.add("mnist shards-2", "fedavg", [0.97 if last else 0.5 for last in reached], **about)
    for cell, last in zip(store.cells, reached, strict=True):
        if last:
            rows = [store._round(number, {"accuracy": share}) for number, share in ((last - 1, 0.5), (last, 0.97))]
            path = store.folder / "runs" / cell["run"] / "rounds.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(table(store).values()) == [shown]


def test_other_budgets_compare_but_do_not_judge(store):
    store.budget = "small"
    store.add("cifar10 label-2", "fedavg", [0.39] * 3, clients=10)
    assert list(table(store).values()) == ["39.0±0.0 (53.6±0.8, -14.6)"]
    assert any("Budget small is not the paper's" in note for note in notes(store))


def test_other_rounds_than_the_papers_compare_but_do_not_judge(store):
    store.add("cifar10 label-2", "fedavg", [0.536] * 3)
    assert list(table(store, value="best").values()) == ["55.6±0.0 (53.6±0.8, +2.0)"]
    assert any("Published: at the last round" in note for note in notes(store, value="best"))


def test_other_settings_than_the_papers_compare_but_do_not_judge(store):
    store.add("cifar10 label-2", "fedavg", [0.536] * 3, clients=20)
    assert list(table(store).values()) == ["53.6±0.0 (53.6±0.8, +0.0)"]
    assert any(note.startswith("No verdict where clients") for note in notes(store))


def test_settings_changed_on_the_command_line_compare_but_do_not_judge(store):
    store.budget = "paper+lr=0.1"
    store.add("cifar10 label-2", "fedavg", [0.536] * 3)
    assert list(table(store).values()) == ["53.6±0.0 (53.6±0.8, +0.0)"]
    assert any(note.startswith("Budget paper+lr=0.1 is not the paper's") for note in notes(store))


def test_incomplete_cells_compare_but_are_not_judged(store):
    store.add("cifar10 label-2", "fedavg", [0.536, 0.536, None])
    assert list(table(store).values()) == ["53.6±0.0, 2/3 seeds (53.6±0.8, +0.0)"]


def test_a_grid_may_report_the_last_ten_rounds_as_its_paper_does(store):
    store.reproduces = {"paper": "fedconcat", "table": 3}
    store.report |= {"value": "last10"}
    setting = {"clients": 200, "participation": 0.2, "model": "resnet50"}
    store.add("cifar100 label-2", "fedavg", [0.094], **setting)  # the helper's last10 is one point below
    assert list(table(store).values()) == ["8.4±0.4 (8.4±1.2, +0.0, inside)"]
    assert notes(store)[0].startswith(
        "Accuracy in percent on the test split, mean of the last 10 evaluated rounds; 1 seed (0), std (population) "
        "of these rounds"
    )
    store.add("cifar100 label-3", "fedavg", [0.094, 0.094], **setting)
    assert [cell for cell in table(store).values()][0].startswith("8.4, 1 seed"), "others have a std over seeds"


def test_tuning_is_named_with_the_number_of_settings(store):
    for row, values in {"cifar10 label-2": [1, 5], "svhn label-2": [0.1, 1, 5]}.items():
        for mu in values:
            store.add(row, "moon", [0.5], choice={"mu": mu})
    store.add("cifar10 label-2", "fedrs", [0.5], choice={"alpha": 0.5})
    tuned, fixed = (note for note in notes(store) if "setting" in note and "tuned" in note.lower())
    assert tuned == (
        "Tuned: best of N settings per cell, chosen on the test split by the mean over seeds, as published; "
        "N is 2 to 3 for MOON."
    )
    assert fixed == "One setting, not tuned: FedRS α=0.5."


def test_an_option_is_named_with_its_owner_and_its_datasets_where_they_differ(store):
    for row, mu in {"cifar10 label-2": 5, "svhn label-2": 1, "mnist label-2": 1}.items():
        store.add(row, "moon", [0.5], choice={"mu": mu})
    around = {"algorithm": {"name": "ccvr", "virtual_per_class": 100, "base": {"name": "fedprox", "mu": 0.1}}}
    choice = {"mu": 0.1, "virtual_per_class": 100}
    store.add("cifar10 label-2", "fedprox", [0.5], choice=choice, config=around)
    (fixed,) = (note for note in notes(store) if "not tuned" in note)
    assert fixed == (
        "One setting, not tuned: MOON μ=5 on CIFAR-10, MOON μ=1 on SVHN and MNIST, FedProx μ=0.1, CCVR M_c=100."
    )


@pytest.mark.slow
def test_a_gain_is_of_the_same_seeds_and_over_the_cell_that_the_grid_names(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.6, 0.7])
    store.add("cifar10 label-2", "moon", [0.52, 0.66, None])
    store.add("svhn label-2", "moon", [0.5])
    store.report |= {"gains_over": {"algorithm": "fedavg"}, "notes": ["The author says this."]}
    about = {"fedcat": ["fedcat", "clusamp"], "moon": ["clusamp", "moon"]}
    store.report["notes"] += [{"when": {"algorithm": those}, "say": f"About {name}."} for name, those in about.items()]
    shown = table(store)
    assert shown["CIFAR-10", "#C = 2", "MOON"].startswith("59.0±7.0 [+4.0±2.0], 2/3 seeds")
    assert "[" not in shown["CIFAR-10", "#C = 2", "FedAvg"] + shown["SVHN", "#C = 2", "MOON"]
    assert {"The author says this.", "About moon."} <= {*notes(store)} and "About fedcat." not in notes(store)
    assert "In brackets: difference to FedAvg, mean±std over the same seeds, in points." in notes(store)
    store.std = "sample"
    assert table(store)["CIFAR-10", "#C = 2", "MOON"].startswith("59.0±9.9 [+4.0±2.8]")
    csv = store.render(format="csv").splitlines()
    assert csv[0].endswith(",run_ids,gain,gain_std") and any(line.endswith(",4.0,2.828427") for line in csv)
    assert r"{\scriptsize [+4.0$\pm$2.8]}" in store.render(format="tex")


def test_a_run_that_stands_in_several_cells_counts_once_in_each(store):
    for dataset in ("svhn", "mnist"):
        store.add(f"{dataset} label-2", "fedavg", [0.5, 0.6, 0.7], substitute="cifar10")
        store.add(f"{dataset} label-2", "moon", [0.52, 0.66, 0.75], substitute="cifar10")
    half = len(store.cells) // 2
    for twin, cell in zip(store.cells[half:], store.cells[:half], strict=True):
        twin |= {"run": cell["run"], "config": cell["config"]}
    store.report |= {"gains_over": {"algorithm": "fedavg"}}
    store.std = "sample"
    assert "[+4.3±2.1]" in table(store)["SVHN", "#C = 2", "MOON"]
    assert "[+4.3±2.1]" in table(store)["MNIST", "#C = 2", "MOON"]


def test_a_gain_may_be_over_a_cell_of_another_row(store):
    for algorithm, scores in {"fedavg": [0.5, 0.4], "clsprox": [0.6, 0.3]}.items():
        store.add("cifar10 dir-0.1", algorithm, [scores[0]], wrapper="none")
        around = {"algorithm": {"name": "clsnorm", "base": {"name": algorithm}}}
        store.add("cifar10 dir-0.1", algorithm, [scores[1]], wrapper="clsnorm", config=around)
    store.report |= {"rows": ["dataset", "algorithm"], "columns": "wrapper"}
    store.report |= {"gains_over": {"algorithm": "fedavg", "wrapper": "none"}}
    found = {where[1:]: re.findall(r"\[(.*)\]", text) for where, text in table(store).items()}
    assert found == {
        ("FedAvg", "base"): [],
        ("FedAvg", "+ clsnorm"): ["-10.0"],
        ("clsprox", "base"): ["+10.0"],
        ("clsprox", "+ clsnorm"): ["-20.0"],
    }


def test_mixed_versions_are_named_with_their_runs(store):
    newer = {"versions": {"algorithm": 2, "partition": 1, "transform": 1, "model": 1}}
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5])
    store.add("cifar10 dir-0.1", "fedavg", [0.5], config=newer)
    store.add("cifar10 label-2", "moon", [0.5], config=newer, versions={"torch": "2.16.0"})
    assert [note for note in notes(store) if note.startswith("Mixed")] == [
        "Mixed versions: algorithm fedavg 1 (2 runs), 2 (1 run).",
        "Mixed versions: torch 2.15.0 (3 runs), 2.16.0 (1 run).",
    ]


def test_runs_of_a_version_that_a_method_has_left_behind_are_named(store):
    versions = lambda **of: {"versions": {"partition": 1, "transform": 1, "model": 1, **of}}  # noqa: E731
    around = {"name": "ccvr", "base": {"name": "fedgen"}}
    store.add("cifar10 label-2", "fedgen", [0.5, 0.5], config=versions(algorithm=1))
    store.add("cifar10 dir-0.1", "fedgen", [0.5], config=versions(algorithm=2))
    store.add("svhn label-2", "moon", [0.5], config=versions(algorithm=1))
    store.add(
        "svhn dir-0.1", "ccvr", [0.5], config={"algorithm": around, **versions(**{"algorithm": 1, "algorithm.base": 1})}
    )
    store.add(
        "svhn dir-0.5", "a stranger", [0.5], config={"algorithm": {"name": "a stranger"}, **versions(algorithm=1)}
    )
    assert [note for note in notes(store) if " has version " in note] == [
        "FedGen: 3 runs of version 1 of the method, which multiplied the cross-entropy of generated features by their number "
        "over batch_size; it has version 2 now."
    ]


def test_mixed_devices_are_named(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5], device="NVIDIA H200")
    store.add("cifar10 label-3", "fedavg", [0.5])
    assert notes(store)[-1] == "Mixed versions: device NVIDIA H200 (2 runs), cpu (1 run)."


@pytest.mark.parametrize(
    ("other", "coalitions", "said"),
    [
        ({}, [0, 1, 1], True),
        ({}, [0, 0, 1], False),
        ({"capacity": 2.0}, [0, 1, 1], False),
        ({"train_examples": 100}, [0, 1, 1], False),
        ({"seed": 1}, [0, 1, 1], False),
    ],
    ids=str,
)
def test_different_coalitions_of_one_seed_are_named(store, other, coalitions, said):
    usual = {"capacity": 10.0, "train_examples": None, "seed": 0}
    for base, about in {"fedavg": usual, "ditto": usual | other}.items():
        method = {"name": "fedcollab", "base": {"name": base}, "capacity": about["capacity"]}
        settings = {key: about[key] for key in ("train_examples", "seed")}
        store.add("cifar10 label-shift", base, [0.5], seed=about["seed"], config={"algorithm": method, **settings})
    for cell, found in zip(store.cells, ([0, 0, 1], coalitions), strict=True):
        path = store.folder / "runs" / cell["run"] / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"diagnostics": {"coalitions": found}}))
    assert any("different coalitions" in note for note in notes(store)) == said


def test_what_was_sent_is_told_for_each_method_with_its_wrapper(store):
    store.report |= {"rows": ["dataset", "wrapper"]}
    for algorithm, wrapper, exchanged in (("fedavg", "none", 1e6), ("fedavg", "ccvr", 2e6), ("moon", "ccvr", 3e6)):
        around = {} if wrapper == "none" else {"algorithm": {"name": wrapper, "base": {"name": algorithm}}}
        store.add("svhn label-2", algorithm, [0.5], config=around)
        store.cells[-1]["wrapper"] = wrapper
        with_facts(store, -1, bytes_per_client=exchanged)
    sentence = "Sent and received, MB (10^6 bytes) per client on SVHN: FedAvg 1, FedAvg + CCVR 2, MOON + CCVR 3."
    assert sentence in notes(store)


def test_a_grid_without_a_title_goes_by_its_name(store):
    store.title = ""
    text = store.add("cifar10 label-2", "fedavg", [0.5]).render()
    assert text.startswith("# small_table\n")


def test_one_version_of_everything_needs_no_footnote(store):
    store.add("cifar10 label-2", "fedavg", [0.5]).add("svhn label-2", "moon", [0.5])
    assert not any("Mixed" in note for note in notes(store))


def test_reasons_of_diverged_and_failed_runs_are_footnotes(store):
    store.add("cifar10 label-2", "fedavg", [0.5, "diverged", "diverged", "failed"])
    assert [note for note in notes(store) if "first" in note][-2:] == [
        f"2 runs diverged (first {store.cells[1]['run']}): The loss is not finite in round 3.",
        f"1 run failed (first {store.cells[3]['run']}): The loss is not finite in round 3.",
    ]


def test_a_grid_that_was_not_run_is_answered_with_those_that_were(store):
    folder = store.add("cifar10 label-2", "fedavg", [0.5]).save()
    with pytest.raises(StoreError, match=r"holds no other@paper, only: small_table@paper\. Run it first"):
        api.GridReport(folder, "other", "paper").render()
    with pytest.raises(
        StoreError, match=r"holds no small_table@papr, only: small_table@paper\. Did you mean 'paper'\?"
    ):
        api.GridReport(folder, "small_table", "papr").render()


def test_an_unknown_value_metric_or_format_is_answered_with_those_known(store):
    folder = store.add("cifar10 label-2", "fedavg", [0.5]).save()
    with pytest.raises(ValueError, match="Unknown value 'last1'. Did you mean 'last10'"):
        api.GridReport(folder, "small_table", "paper").render(value="last1")
    with pytest.raises(ValueError, match="Unknown report format 'pdf'"):
        api.GridReport(folder, "small_table", "paper").render(format="pdf")
    store.report |= {"metric": "acuracy"}
    with pytest.raises(ValueError, match="Unknown metric 'acuracy'. Did you mean 'accuracy'"):
        store.render()


def test_a_truncated_record_is_named(store):
    folder = store.add("cifar10 label-2", "fedavg", [0.5]).save()
    path = folder / "runs" / store.cells[0]["run"] / "record.json"
    path.write_text(json.dumps({"status": "done"})[:5])
    results = ResultStore(folder)
    assert "0/1 seeds" in api.GridReport(results, "small_table", "paper").render()
    assert results.damaged == {path: "is not readable JSON"}


def with_facts(store, run: int, **facts):
    """Adds facts to a stored record."""
    path = store.folder / "runs" / store.cells[run]["run"] / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_tables_end_with_what_clients_sent_and_received(store):
    store.add("cifar10 label-2", "fedavg", [0.5]).add("cifar10 label-3", "fedavg", [0.5]).add(
        "svhn label-2", "moon", [0.5]
    )
    assert not any("Sent and received" in note for note in notes(store))
    for run, exchanged in enumerate((3_083_000_000, 12_401_200, 5_000)):
        with_facts(store, run, bytes_per_client=exchanged)
    store.add("fmnist label-2", "fedavg", [0.5], substitute="mnist").save()
    with_facts(store, 3, bytes_per_client=2_000_000)
    assert [note for note in notes(store) if "Sent and received" in note] == [
        "Sent and received, MB (10^6 bytes) per client on CIFAR-10: FedAvg 12.4 to 3080.",
        "Sent and received, MB (10^6 bytes) per client on SVHN: MOON 0.005.",
        "Sent and received, MB (10^6 bytes) per client on MNIST: FedAvg 2.",
    ]


def test_what_methods_say_about_their_runs_names_their_columns(store):
    for algorithm in ("fedconcat", "fedconcat-id", "fedavg"):
        store.add("cifar10 label-2", algorithm, [0.5])
    store.save()
    for run in range(2):
        with_facts(store, run, caveats=["Features were cached."])
    assert "FedConcat, FedConcat-ID: Features were cached." in notes(store)
    with_facts(store, 2, caveats=["fedavg: features were cached."])
    assert "FedAvg: features were cached." in notes(store), "its name once"
    with_facts(store, 2, caveats=["fedprox: features were cached."])
    assert "FedAvg: FedProx: features were cached." in notes(store), "of a method inside it"
    with_facts(store, 2, caveats=["fedprox: features were cached.", "moon: features were cached."])
    assert "FedAvg: FedProx, MOON: features were cached." in notes(store), "what several say once"


def test_an_image_folder_is_named_after_its_last_folder(store):
    folder = "imagefolder:/home/me/private/leaves"
    store.add(f"{folder} label-2", "fedavg", [0.5]).add(
        f"{folder} label-3", "fedavg", [None], missing=f"no data: {folder}"
    )
    for format in ("md", "tex"):
        text = store.render(format=format)
        assert "leaves & " in text or "| leaves " in text
        assert "Data: leaves from pickles" in text and "private" not in text


def test_data_of_users_have_their_names_and_a_split_of_their_own_is_told(store):
    leaves, other = (f"imagefolder:leaves?test=0.2@{digit * 16}" for digit in "ab")
    note = "0.2 of each class, drawn by file names, are the test images"
    for dataset in (leaves, other, f"npz:arrays@{'c' * 16}"):
        store.add(f"{dataset} file:parts@{'d' * 16}", "fedavg", [0.5], data_note=note if "leaves" in dataset else "")
    text = store.render()
    rows = [re.sub(" +", " ", line) for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| leaves?test=0.2 (1) | parts | 50.0 |",
        "| leaves?test=0.2 (2) | parts | 50.0 |",
        "| arrays | parts | 50.0 |",
    ]
    assert f"leaves?test=0.2 (1): {note}." in text and "incomplete" not in text


def test_image_folders_of_one_name_have_rows_and_footnotes_of_their_own(store):
    spring, autumn = (f"imagefolder:/home/me/{season}/train" for season in ("spring", "autumn"))
    store.title = spring
    store.add(f"{spring} label-2", "fedavg", [0.5]).add(f"{autumn} label-2", "fedavg", [0.6])
    store.add(f"{spring} label-3", "fedavg", [None], missing=f"no data: {spring}")
    store.add(f"{autumn} label-3", "fedavg", [0.4], substitute=spring)
    text = store.render()
    rows = [re.sub(" +", " ", line) for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| train (spring) | #C = 2 | 50.0 |",
        "| train (autumn) | #C = 2 | 60.0 |",
        "| train (spring) | #C = 3 | no data: train (spring) |",
        "| train (autumn) | #C = 3 | 40.0, on train (spring) |",
    ]
    assert text.startswith("# train (spring)\n") and "Data: train (autumn) from pickles" in text
    assert "/me" not in text and "/me" not in store.render(format="tex")


@pytest.mark.parametrize(
    ("folder", "text", "shown"),
    [
        ("/home/me/leaves", "Cannot read '/home/me/leaves/train/oak/1.png'.", "Cannot read 'leaves/train/oak/1.png'."),
        ("mine/leaves/", "imagefolder:mine/leaves/ (/home/me/mine/leaves): empty", "leaves (leaves): empty"),
        ("leaves", "imagefolder:leaves holds no leaves", "leaves holds no leaves"),
        ("/home/me/leaves", "fedavg-imagefolder:_home_me_leaves-iid", "fedavg-leaves-iid"),
    ],
)
def test_a_text_has_the_name_of_an_image_folder_instead_of_its_path(store, folder, text, shown):
    store.add(f"imagefolder:{folder} label-2", "fedavg", [0.5])
    assert without_paths({"report": store.report, "cells": store.cells})(text) == shown


@pytest.mark.parametrize(
    ("value", "std", "shown"),
    [
        (7.108, 0.0, ("7.11", "")),
        (0.4542, 0.007039, ("0.454", "0.007")),
        (0.5, 0.007, ("0.500", "0.007")),
        (12.345, 15.123, ("12.3", "15.1")),
        (12.0, 3.0, ("12", "3")),
        (123456.0, 1234.4, ("123000", "1230")),
        (1162.0, 0.0, ("1162", "")),
        (1234.6, 56.74, ("1235", "57")),
        (100000.0, math.nan, ("100000", "")),
        (0.0, 0.5, ("0.0", "0.5")),
        (math.nan, math.nan, ("nan", "")),
        (math.inf, math.nan, ("inf", "")),
    ],
)
def test_a_cost_and_its_std_have_three_digits_or_four_before_the_point_and_the_same_decimals(value, std, shown):
    assert layout.with_std("minutes", value, std) == shown


def test_percentages_have_the_decimals_of_a_paper_and_differences_a_sign():
    assert layout.with_std("accuracy", 53.25, 0.04, sign="+") == ("+53.3", "0.0")
    assert layout.with_std("accuracy", 53.254, 0.04, digits=2) == ("53.25", "0.04")
    assert layout.with_std("mb", 3.25, 0.04, sign="+") == ("+3.25", "0.04") and layout.printed("mb", -0.001) == "-0.001"


def test_what_rounds_to_zero_has_no_sign():
    assert layout.with_std("method/drift", -0.0, math.nan) == ("0.000", "")
    assert layout.with_std("method/drift", -0.04, 0.5, sign="+")[0] == "-0.0400"
    assert layout.with_std("accuracy", -0.04, 0.0) == ("0.0", "0.0")


def test_footnotes_name_partition_files_and_what_they_leave_out(store):
    store.add(f"cifar10 file:parts@{'d' * 16}", "fedavg", [0.5, 0.6]).add("cifar10 label-2", "fedavg", [0.5, 0.6])
    unused = "The partition parts leaves 10 of 1,437 training examples out."
    for record in store.folder.glob("runs/*/record.json"):
        if "file:parts" in (record.parent / "config.json").read_text():
            record.write_text(json.dumps(json.loads(record.read_text()) | {"unused": unused}))
    text = store.render()
    assert f"- parts: read from a file; the same for all seeds.\n- {unused}\n" in text and text.count(unused) == 1
    assert "read from a file" not in text.replace("- parts: read from a file", "")
