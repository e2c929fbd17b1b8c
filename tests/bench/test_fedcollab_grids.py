"""The grids of FedCollab: their cells, and a command that plays the reference of the only cells that it names."""

import csv
import functools
from collections import Counter

import pytest

import algorithms
from bench.config.resolve import weights_files
from bench.experiments.cells import select, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.published.lookup import PAPERS
from reports.tables import report
from tests.support.processes import call_bench

METHODS = ("fedavg", "fedprox", "fednova", "finetune", "per-fedavg", "pfedme", "ditto")
RIVALS = ("ifca", "fedcluster", "fesem", "kmeans")
SETTINGS = {  # sections 1 and 6 of the digest: dataset, model, rounds, lr; C and lr of the discriminators
    "label-shift": ("fmnist", "fedcollab-mlp", 200, 0.1, 10, 0.01),
    "feature-shift": ("cifar10", "fedcollab-cnn", 500, 0.01, 10, 0.01),
    "concept-shift": ("cifar100-coarse", "resnet18", 200, 0.001, 8, 0.05),
}
LOCAL, WHOLE, DIVIDED = ("local", "none"), "none", "fedcollab"
ROWS = {
    "fedcollab_table1": [LOCAL, *((method, wrapper) for method in METHODS for wrapper in (WHOLE, DIVIDED))],
    "fedcollab_table2": [LOCAL, *((method, WHOLE) for method in RIVALS), ("fedavg", DIVIDED)],
    "fedcollab_readme": [LOCAL, ("fedavg", WHOLE), ("fedavg", DIVIDED)],
}
TABLES = {"1": "fedcollab_table1", "2": "fedcollab_table2", "readme-seed0": "fedcollab_readme"}


@functools.cache
def cells_of(name):
    return expand(load_grid(name), "paper")


def of_one_seed(name, budget="paper", **given):
    return expand(load_grid(name), budget, seeds=[0], **given)


def rows_of(cells):
    return list(dict.fromkeys((cell.setting("algorithm"), cell.wrapper) for cell in cells))


@pytest.fixture(scope="module")
def published():
    with PAPERS["fedcollab"].path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def reports():
    """Grid -> its report at the paper's budget, as if every client of every run were right on half of its images."""
    done = {"status": "done", "summary": {"last": {"own_accuracy": 0.5}}, "client_accuracies": [0.5] * 20}
    found = {}
    for name in ROWS:
        stored = to_json(load_grid(name), "paper", {}, cells_of(name))
        found[name] = report.build(stored, {cell["run"]: done for cell in stored["cells"]})
    return found


@pytest.mark.parametrize(
    ("name", "trials"), [("fedcollab_table1", 225), ("fedcollab_table2", 60 + 15 + 15), ("fedcollab_readme", 9)]
)
def test_every_row_is_played_under_every_setting_with_every_seed(name, trials):
    cells = cells_of(name)
    assert rows_of(cells) == ROWS[name]
    assert len(cells) == len({cell.id for cell in cells}) == trials
    assert {*Counter((cell.config.partition, cell.config.seed) for cell in cells).values()} == {len(ROWS[name])}


def test_tables_share_the_runs_that_they_both_show():
    first, second, readme = ({cell.id: cell for cell in cells_of(name)} for name in ROWS)
    assert len(second.keys() - first.keys()) == 60
    assert {cell.setting("algorithm") for run, cell in second.items() if run not in first} == {*RIVALS}
    assert {cell.wrapper for run, cell in readme.items() if run not in first} == {DIVIDED}


@pytest.mark.parametrize("name", ROWS)
def test_cells_have_the_settings_of_the_paper(name):
    for cell in cells_of(name):
        config, options = cell.config, cell.config.algorithm
        *setting, capacity, discriminator_lr = SETTINGS[config.partition]
        assert [cell.dataset, config.model, config.rounds, config.lr] == setting
        assert (config.clients, config.participation, config.local_epochs, config.batch_size) == (20, 1, 1, 32)
        assert (config.momentum, config.weight_decay, config.transform) == (0, 0, "fedcollab")
        if cell.wrapper == DIVIDED:
            assert (options["capacity"], options["restarts"]) == (capacity, 100)
            assert options["divergence"] == ("published" if name == "fedcollab_readme" else "estimated")
            assert options["discriminator_lr"] == discriminator_lr or options["divergence"] == "published"


def test_networks_with_imagenet_weights_are_those_of_the_paper_and_what_is_missing_without_the_file():
    file = "resnet18-f37072fd.pth"
    read = {
        (cell.config.partition, cell.wrapper, cell.config.weights, cell.config.algorithm.get("features", "pixels"))
        for cell in cells_of("fedcollab_table1")
    }
    assert read == {
        ("label-shift", WHOLE, "none", "pixels"),
        ("label-shift", DIVIDED, "none", "pixels"),
        ("feature-shift", WHOLE, "none", "pixels"),
        ("feature-shift", DIVIDED, "none", file),
        ("concept-shift", WHOLE, file, "pixels"),
        ("concept-shift", DIVIDED, file, file),
    }

    def lacking(name, **given):
        cells = of_one_seed(name, missing_weights=[file], overrides=given)
        return {(cell.config.partition, cell.wrapper) for cell in cells if cell.missing == f"no data: {file}"}

    concept = {("concept-shift", WHOLE), ("concept-shift", DIVIDED)}
    assert lacking("fedcollab_table1") == {("feature-shift", DIVIDED), *concept} == lacking("fedcollab_table2")
    assert lacking("fedcollab_table1", features="pixels") == concept == lacking("fedcollab_readme")
    assert lacking("fedcollab_table1", divergence="published") == concept
    assert not lacking("fedcollab_table1", features="pixels", weights="none")


def test_methods_have_the_defaults_of_the_authors_alone_and_in_coalitions():
    options = {
        "fedprox": {"mu": 0.1},
        "fednova": {"momentum_mode": "steps"},
        "finetune": {"finetune_length": 2, "finetune_unit": "steps"},
        "per-fedavg": {"inner_lr": None},
        "pfedme": {"proximal_weight": 1.0, "inner_steps": 5, "personal_lr": 0.1},
        "ditto": {"proximal_weight": 1.0},
    }
    for cell in cells_of("fedcollab_table1"):
        method = cell.config.algorithm["base"] if cell.is_wrapped else cell.config.algorithm
        assert options.get(method["name"], {}).items() <= method.items(), method


def test_what_is_set_by_hand_wins_over_the_settings_of_a_dataset():
    cells = of_one_seed("fedcollab_table1", overrides={"rounds": 100, "lr": 0.5, "capacity": 3})
    assert {(cell.config.rounds, cell.config.lr) for cell in cells} == {(100, 0.5)}
    assert {cell.config.algorithm["capacity"] for cell in cells if cell.wrapper == DIVIDED} == {3}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("budget", ["short", "small", "smoke"])
def test_smaller_budgets_leave_every_client_its_examples(name, budget):
    cells = of_one_seed(name, budget)
    assert {(cell.config.partition, cell.config.model) for cell in cells} == {
        (partition, model) for partition, (_, model, *_) in SETTINGS.items()
    }
    most = {"short": 100, "small": 20, "smoke": 2}[budget]
    assert all(cell.config.train_examples is None and cell.config.rounds <= most for cell in cells)
    assert any(weights_files(cell.config) for cell in cells) == (budget == "short")
    assert rows_of(cells) == ROWS[name]


def test_short_is_the_first_rounds_of_the_paper():
    only = {"partition": ["label-shift"], "seed": [0, 1, 2]}
    cells = select(expand(load_grid("fedcollab_table1"), "short"), only)
    assert len(cells) == 15 * 3 and {cell.config.rounds for cell in cells} == {50}
    cells = select(of_one_seed("fedcollab_readme", "short"), {"dataset": ["cifar10"]})
    assert [(cell.config.rounds, cell.config.evaluate_every) for cell in cells] == [(100, 10)] * 3
    assert {cell.config.lr for cell in cells} == {0.01} and {cell.config.local_epochs for cell in cells} == {1}


def test_every_published_number_has_its_cell(published, reports):
    shown = [
        (table, cell.partition, cell.algorithm, cell.variant, cell.metric, cell.published.mean, cell.published.std)
        for table, name in TABLES.items()
        for cell in reports[name].cells.itertuples()
        if cell.published and cell.published.same_setting
    ]
    own = {"local_accuracy": "own_accuracy"}
    assert sorted(shown) == sorted(
        (
            *(line[key] for key in ("table", "partition", "algorithm")),
            line["variant"] or "-",
            own.get(line["metric"], line["metric"]),
            line["mean"],
            line["std"],
        )
        for line in published
    )
    assert len(shown) == 195


def test_cells_of_five_seeds_have_a_verdict_and_single_runs_have_none(reports):
    for name, built in reports.items():
        cells = built.cells[built.cells["published"].notna()]
        assert {*cells["verdict"]} == ({""} if name == "fedcollab_readme" else {"inside", "outside"})
    cells = reports["fedcollab_table1"].cells.set_index(["partition", "algorithm", "wrapper", "metric"])
    # No client is above the reference here, and all gain the same.
    assert cells.loc["label-shift", "pfedme", "none", "ipr"]["verdict"] == "outside"
    assert cells.loc["feature-shift", "fedavg", "fedcollab", "own_accuracy"]["verdict"] == "outside"
    notes = "\n".join(reports["fedcollab_readme"].notes)
    assert "published value (FedCollab, readme-seed0)" in notes


def test_the_second_table_says_whose_settings_are_not_published(reports):
    (note,) = (note for note in reports["fedcollab_table2"].notes if "not published" in note)
    for cell in cells_of("fedcollab_table2"):
        if (method := cell.config.algorithm)["name"] not in RIVALS:
            continue
        assert algorithms.title_of(method["name"]) in note and f"{method['num_clusters']} clusters" in note
        said = {"eps1": "eps1 {}", "eps2": "eps2 {}", "warm_up_rounds": "{} rounds", "cluster_init": "from a {} model"}
        assert all(said[key].format(method[key]) in note for key in method.keys() & said.keys()), method


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_the_reference_is_played_beside_the_only_method_that_is_asked_for(tmp_path):
    grid = tmp_path / "gains.yaml"
    grid.write_text(
        """
axes: {partition: [feature-shift], algorithm: [local, fedavg, fedprox], seed: [0, 1]}
settings: {dataset: digits, model: mlp, clients: 4, rounds: 2, local_epochs: 1, test_examples: null}
report: {rows: [algorithm], columns: partition, metrics: [own_accuracy, ipr, rsd], compared: [algorithm],
         reference: {algorithm: local}, also: [best]}
"""
    )
    code, text = call_bench("run", "--grid", grid, "--only", "algorithm=fedavg", "--results-dir", tmp_path / "results")
    assert code == 0 and "4 done, 0 diverged, 0 failed" in text, text
    rows = [line for line in text.splitlines() if line.startswith(("| Local", "| FedAvg"))]
    local, fedavg, *best = (line.split("|")[1:-1] for line in rows)
    assert [bool(cell.strip()) for cell in local] == [True, True, False, False]
    assert all("±" in cell for cell in fedavg[1:]) and "no reference" not in text and len(best) == 2
