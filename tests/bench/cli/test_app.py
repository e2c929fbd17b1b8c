"""The command line: quick where it can be, and one sentence for every mistake."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console

import algorithms
import datasets
from bench import __version__
from bench.api import load_runs
from bench.cli import options
from bench.cli.console import Output
from bench.cli.costs import cost_table, costs
from bench.cli.listing import KINDS, listing, listing_table
from bench.config.resolve import resolve, trained_by
from bench.config.schema import run_id
from bench.experiments.cells import Cell, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, single
from bench.experiments.spec import TuningOptions
from bench.results.store import Store
from bench.simulation.build import build_algorithm, build_task
from bench.tuning.build import make_searches
from reports.tables.footnotes import in_common
from tests.support.leaf import write_femnist
from tests.support.processes import call_bench, imported_by

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ALGORITHM = ["--algorithm", "fedavg", "--dataset", "digits", "--partition", "label-2"]


@pytest.fixture
def bench(tmp_path):
    """Runs a command against a results directory of its own; returns exit code and everything printed."""

    def call(*arguments: str) -> tuple[int, str]:
        own = ["--results-dir", str(tmp_path / "results")] if arguments[0] in ("run", "report", "describe") else []
        return call_bench(*arguments, *own, SKEWBENCH_DATA="")

    return call


@pytest.mark.slow_but_first
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list"], ["list", "algorithms"]])
def test_help_and_list_import_neither_torch_nor_ray_nor_pandas(arguments):
    assert not imported_by(*arguments) & {"torch", "ray", "pandas", "sklearn", "matplotlib"}


def program(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """`python -m bench` as a process of its own, with these environment variables."""
    words = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"} | variables)


def test_without_a_word_the_program_says_what_there_is():
    done = program()
    assert done.returncode == 0 and "Usage: python -m bench" in done.stdout and not done.stderr


def test_the_version_is_that_of_the_package(bench):
    assert bench("--version") == (0, f"skewbench {__version__}\n")


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("skewbench stat", ["status"]),
        ("skewbench report --grid quick", ["quickstart"]),
        ("skewbench run --algorithm fedpro", ["fedproto", "fedprox"]),
        ("skewbench describe --dataset svh", ["svhn"]),
    ],
)
def test_a_shell_completes_commands_and_names(typed, completed):
    asked = {"_SKEWBENCH_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "from bench.cli.app import app; app(prog_name='skewbench')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked)
    assert sorted(done.stdout.split()) == completed and not done.stderr


def test_lists_and_costs_are_there_for_programs(bench):
    listed = json.loads(bench("list", "--json")[1])
    assert list(listed) == list(KINDS)
    assert {"name": "fedprox", "description": algorithms.describe("fedprox")} in listed["algorithms"]
    assert list(json.loads(bench("list", "spaces", "--json")[1])) == ["spaces"]
    told = json.loads(bench("describe", "--grid", "quickstart", "--json")[1])
    total = told["costs"][-1]
    assert told["grid"] == "quickstart@paper" and total["trials"] == sum(row["trials"] for row in told["costs"][:-1])
    table = bench("describe", "--grid", "quickstart")[1]
    assert f"{total['examples'] / 1e6:,.1f}" in table
    assert f"{told['costs'][0]['bytes_per_client'][0]['bytes'] / 1e6:.2f}" in table
    assert [row["keep_state"] for row in told["disk"]] == ["deployed", "all", "none"]
    assert all(row["together"] == row["kept"] + row["checkpoints"] + row["scratch"] for row in told["disk"])


def test_the_results_directory_may_be_named_by_a_variable(tmp_path, monkeypatch):
    named = {"SKEWBENCH_RESULTS": str(EXAMPLES / "paper_figure12")}
    told = json.loads(program("status", "--json", **named).stdout)
    assert told["results_dir"] == named["SKEWBENCH_RESULTS"] and told["grids"]
    monkeypatch.setenv("SKEWBENCH_RESULTS", named["SKEWBENCH_RESULTS"])
    assert len(load_runs()) == sum(row["finished"] for row in told["grids"])
    other = ["--results-dir", str(EXAMPLES / "encoders")]
    assert json.loads(program("status", "--json", *other, **named).stdout)["results_dir"] == other[1]


def test_tables_are_printed_to_the_output_and_all_else_beside_it(stored):
    done = program("report", "--results-dir", str(stored))
    assert done.returncode == 0 and "| Digits" in done.stdout and "Saved" not in done.stdout
    assert done.stderr.startswith("Saved: ")


def test_status_imports_neither_torch_nor_ray_nor_pandas(tmp_path):
    grid = load_grid("quickstart")
    with Store(tmp_path).locked() as store:
        store.write_grid("quickstart@paper", to_json(grid, "paper", {}, expand(grid, "paper")))
    imported = imported_by("status", "--results-dir", str(tmp_path))
    assert "rich" in imported
    assert not imported & {"torch", "ray", "pandas", "numpy", "sklearn", "matplotlib", "optuna"}


def test_report_imports_neither_torch_nor_ray(tmp_path):
    grid = load_grid("quickstart")
    with Store(tmp_path).locked() as store:
        store.write_grid("quickstart@paper", to_json(grid, "paper", {}, expand(grid, "paper")))
    assert not imported_by("report", "--results-dir", str(tmp_path)) & {"torch", "ray"}
    assert (tmp_path / "reports" / "quickstart@paper.md").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tuned", "validaton"], "Unknown value of --tuned 'validaton'. Did you mean 'validation'?"),
        (["--samples", "3"], "--samples: only searches read that; use it with --tuned validation."),
        (["--tuned", "validation", "--searcher", "grid"], "take --searcher random or optuna, or"),
        (["--tuned", "validation", "--samples", "0"], "--samples must be at least 1, but got 0."),
        (["--tuned", "validation", "--space", "onw"], "Unknown space 'onw'. Did you mean 'own'?"),
        (
            ["--tuned", "validation", "--validation-share", "nan"],
            "--validation-share must lie between 0 and 1, but got nan.",
        ),
        (["--tuned", "validation", "--set", "split=validation"], "--set split cannot be used here"),
        (["--tuned", "validation", "--search-seeds", "0,0"], "--search-seeds needs each seed once, but got '0,0'."),
        (["--search-seeds", "0"], "--search-seeds: only searches read that; use it with --tuned validation."),
    ],
)
def test_what_a_tuned_grid_cannot_do_is_told_before_anything_runs(bench, tmp_path, options, said):
    code, text = bench("run", *ALGORITHM, *options)
    assert code == 2 and said in " ".join(text.split()) and not list(tmp_path.glob("results/runs/*"))


def test_a_dry_run_of_a_tuned_grid_names_its_searches(bench):
    code, text = bench("run", *ALGORITHM, "--tuned", "validation", "--samples", "5", "--dry-run")
    assert code == 0 and "digits label-2 fedavg: weight_decay, lr; 5 configurations, seeds 0" in text
    code, text = bench("run", *ALGORITHM, "--tuned", "validation", "--search-seeds", "7,3", "--dry-run")
    assert code == 0 and "digits label-2 fedavg: weight_decay, lr; 8 configurations, seeds 3, 7" in text


def test_the_seeds_of_searches_are_those_that_the_grid_names_unless_others_are_given(bench, tmp_path):
    board = tmp_path / "mine.yaml"
    board.write_text(
        "axes: {dataset: [digits], partition: [label-2], algorithm: [fedavg], seed: [0, 1, 2, 3, 4]}\n"
        "search_seeds: [0, 1, 2]\n"
    )
    for own, seeds in ((), "0, 1, 2"), (("--search-seeds", "4"), "4"):
        code, text = bench("run", "--grid", str(board), "--tuned", "validation", *own, "--dry-run")
        assert code == 0 and f"8 configurations, seeds {seeds}" in text
    board.write_text(board.read_text().replace("0, 1, 2]\n", "1, 1]\n"))
    code, text = bench("run", "--grid", str(board), "--tuned", "validation", "--dry-run")
    assert code == 2 and "search_seeds needs each seed once, but got [1, 1]." in " ".join(text.split())


@pytest.mark.parametrize("command", ["run", "tune"])
def test_an_engine_that_there_is_not_is_told(bench, command):
    code, text = bench(command, *ALGORITHM, "--engine", "vectorized")
    assert code == 2 and "Unknown value of --engine 'vectorized'. Did you mean 'vectorised'?" in " ".join(text.split())


def test_methods_are_listed_by_either_name_in_order(bench):
    (code, text), (_, same) = bench("list", "methods"), bench("list", "algorithms")
    names = [line.split()[0] for line in text.splitlines()[1:] if line and not line.startswith(" ")]
    assert code == 0 and text == same and names == sorted(algorithms.REGISTRY)


def test_list_names_everything_with_a_line_each(bench):
    code, text = bench("list")
    assert code == 0
    for name in ("paper_table1", "quickstart", "fedprox", "cifar10", "simple-cnn", "label-k", "imagefolder:PATH"):
        assert re.search(rf"^{re.escape(name)} +\S", text, re.MULTILINE), name


def test_describe_counts_trials_examples_and_bytes(bench):
    code, text = bench("describe", "--grid", "paper_table1", "--only", "dataset=cifar10|fmnist")
    lines = {tuple(re.findall(r"[^\s│]+", line)) for line in text.splitlines()}
    assert code == 0
    assert ("cifar10", "fedprox", "24", "12", "24", "0", "600.0", "24.80") in lines
    assert ("fmnist", "moon", "60", "12", "60", "0", "1,800.0", "17.77") in lines, (
        "bytes as in section 12 of the digest"
    )
    assert ("cifar10", "centralized", "3", "3", "3", "0", "30.0", "0.00") in lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "smoke"], "Budget smoke: seed 0 alone; the grid has 0, 1, 2, 3, 4."),
        (["--budget", "smoke", "--seeds", "0,1"], ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("command", [["describe"], ["run", "--dry-run"]])
def test_seeds_that_a_budget_leaves_out_are_said(bench, command, options, said):
    cells = ("--grid", "leaderboard_fmnist", "--only", "algorithm=fedavg,partition=label-2")
    text = bench(*command, *cells, *options)[1]
    assert said in text if said else "the grid has" not in text


def test_a_seed_that_is_no_number_is_told(bench, tmp_path):
    axes = "{algorithm: [fedavg], dataset: [digits], partition: [iid], seed: [[0, 1]]}"
    (tmp_path / "mine.yaml").write_text(f"axes: {axes}\n")
    code, text = bench("describe", "--grid", str(tmp_path / "mine.yaml"))
    assert code == 2 and "seed must be a valid integer, but got [0, 1]." in text


def test_describe_marks_upper_bounds_and_shows_digits_of_few_examples(bench):
    arguments = ("describe", "--grid", "fedcollab_table1", "--only", "dataset=fmnist,algorithm=local|fedavg")
    code, text = bench(*arguments, "--budget", "smoke")
    rows = [re.findall(r"[^│]+", line) for line in text.splitlines() if "fmnist" in line]
    found = {name: last for _, name, *_, last in ([cell.strip() for cell in row] for row in rows)}
    assert (
        code == 0
        and "0.0018" in text
        and [*found] == ["local", "fedavg", "fedavg fedcollab"]
        and found["local"] == "0.00"
    )
    assert re.fullmatch(r"[\d.]+", found["fedavg"])
    assert re.fullmatch(r"≤ [\d.]+", found["fedavg fedcollab"]), "of discriminators, which may stop early"
    _, published = bench(*arguments, "--set", "divergence=published", "--budget", "paper")
    assert "≤ " not in published.partition("trials:")[0]


def test_describe_of_images_that_cannot_be_used_says_how_to_see_why(bench, tmp_path):
    images, labels = np.zeros((12, 28, 28), np.uint8), np.arange(12) % 2 + 1
    np.savez(tmp_path / "two.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    of = ("--algorithm", "fedavg", "--dataset", f"npz:{tmp_path / 'two.npz'}", "--partition", "label-2")
    asked = ["describe", *of, "--set", "model=mlp,clients=2"]
    code, text = bench(*asked)
    assert "?: not known before the images are read, as --data-dir DIR does" in text and code == 0
    code, text = bench(*asked, "--data-dir", str(tmp_path))
    assert "labels count from 0 without gaps." in text and code == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_data_elbow_prints_the_curve_and_the_number_of_clusters_that_fedconcat_has(seed):
    asked = ["data", "elbow", "digits", "label-2", "--clients", "12", "--seed", str(seed)]
    _, text = call_bench(*asked)
    curve = re.findall(r"^(\d+) +(\d+\.\d{4})", text, re.MULTILINE)
    losses = [float(loss) for _, loss in curve]
    assert [int(number) for number, _ in curve] == [*range(1, 13)] and losses == sorted(losses, reverse=True)
    (number,) = re.findall(r"^K = (\d+):", text, re.MULTILINE)
    assert re.search(rf"^{number} .*<- elbow$", text, re.MULTILINE)
    setting = {"dataset": "digits", "partition": "label-2", "clients": 12, "seed": seed, "model": "mlp"}
    config = resolve(setting | {"algorithm": "fedconcat", "num_clusters": "elbow"})
    started = build_algorithm(config.algorithm).init(build_task(config, datasets.load("digits", None)))
    assert len(started["first"]["models"]) == int(number)


def test_data_elbow_has_the_clients_that_a_run_has_if_none_are_named():
    text, named = (
        call_bench("data", "elbow", "digits", "feature-shift", *more)[1] for more in ([], ["--clients", "20"])
    )
    assert text == named and "K from 1 to" in text


@pytest.mark.parametrize(("grid", "millions"), [("paper_table6", "0.6"), ("paper_table7", "1.2")])
def test_describe_counts_the_heads_that_are_trained_on_encoders(bench, grid, millions):
    """Of 50 epochs: Table 6 has 4 classifiers and 4 decoders on 1,500 images each, Table 7 as many on 3,000."""
    code, text = bench("describe", "--grid", grid)
    said = f"8 heads on frozen encoders, trained once the runs are done (0 done), {millions} M examples."
    assert code == 0 and said in text
    assert "heads on" not in bench("describe", "--grid", "paper_table8")[1]


def test_what_is_no_terminal_has_no_width():
    commands = ["list"], ["describe", "--grid", "quickstart", "--set", f"lr=0.{'1' * 80}"]
    listed, described = (call_bench(*command, COLUMNS="40")[1] for command in commands)
    assert re.search(r"^quantity-b +Sizes in .* smaller b is more skewed\.$", listed, re.MULTILINE)
    assert described.splitlines()[0] == "quickstart@paper+lr=0.1111111111111111"
    assert re.search(r"^trials: .* train or send less$", described, re.MULTILINE)
    assert not [line for line in (listed + described).splitlines() if "…" in line or line.endswith(" ")]


def test_an_error_that_quotes_a_long_text_is_cut_in_its_middle(bench):
    code, output = bench("run", *ALGORITHM, "--set", f"lr={'x' * 5000}")
    assert code == 2 and "lr must be a valid number" in output and " [...] " in output
    assert len(output) < 2100 and output.rstrip().endswith("xxx'.")


def test_a_terminal_has_a_width():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    Output(file=terminal, width=60, height=10, color_system=None).print(listing_table("grids"))
    assert max(map(len, terminal.getvalue().splitlines())) <= 60


def test_describe_says_how_much_disk_each_way_to_keep_states_takes(bench):
    code, text = bench("describe", "--grid", "quickstart", "--only", "algorithm=fedavg|scaffold,seed=0")
    sizes = {
        line[0]: float(line[1]) for line in (re.findall(r"[^\s│]+", row) for row in text.splitlines()) if "MB" in line
    }
    assert code == 0 and 0 == sizes["none"] < sizes["deployed"] < sizes["all"] / 3


def test_run_says_before_it_starts_that_the_disk_is_too_small(bench, monkeypatch):
    monkeypatch.setattr("bench.execution.driver.run_plan", lambda *_: {"done": 0, "failed": 0})
    warned = "MB are free there."
    assert warned not in bench("run", *ALGORITHM)[1]
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 100, 100))
    text = " ".join(bench("run", *ALGORITHM, "--max-concurrent", "1")[1].split())
    assert re.search(r"need about 0\.\d MB on the disk of \S+ \(kept states 0\.\d MB, checkpoints of 1 at once", text)
    assert f"but 0.0 {warned}" in text


def test_dry_run_says_what_would_run_and_writes_nothing(bench, tmp_path):
    code, text = bench("run", "--grid", "quickstart", "--only", "algorithm=fedavg,seed=0", "--dry-run")
    assert code == 0
    assert "0 finished, 2 to run" in text
    assert "digits label-2 fedavg seed 0" in text and "digits dir-0.1 fedavg seed 0" in text
    (tmp_path / "empty").mkdir()
    only = ["--only", "dataset=svhn,algorithm=fedavg", "--data-dir", str(tmp_path / "empty")]
    code, text = bench("run", "--grid", "paper_table1", *only, "--dry-run")
    assert code == 0 and "no data: svhn" in text and f"No svhn in {tmp_path}/empty: expected " in text
    assert not (tmp_path / "results").exists()


def test_a_dry_run_of_searches_without_images_says_why_it_names_none(bench, tmp_path):
    (tmp_path / "empty").mkdir()
    only = ["--only", "dataset=svhn,algorithm=fedavg", "--data-dir", str(tmp_path / "empty"), "--dry-run"]
    code, text = bench("run", "--grid", "paper_table1", *only, "--tuned", "validation", "--samples", "4")
    assert code == 0 and "No search is named, because the images of all cells are missing." in text
    assert "No search" not in bench("run", "--grid", "paper_table1", *only)[1]


def test_a_model_that_a_method_cannot_have_is_refused_before_anything_starts(bench, tmp_path):
    why = "fedetf needs a vector for each class in as many dimensions: width must be at least 10, the number of classes, but "
    why += "got 4."
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "title: mine\naxes: {dataset: [digits], partition: [label-2], algorithm: [fedavg, fedetf, fedlmd], seed: [0, 1]}\n"
        "settings: {clients: 12, rounds: 9, model: mlp}\ntuning:\n  - {when: {algorithm: fedetf}, options: {width: [4, 5]}}\n"
    )
    for dry in ([], ["--dry-run"]):
        code, text = bench("run", "--algorithm", "fedetf", *ALGORITHM[2:], "--set", "width=4", *dry)
        assert code == 2 and why in text
        code, text = bench("run", "--grid", str(grid), *dry)
        assert code == 2 and "2 mistakes:" in text and why in text and why.replace("got 4", "got 5") in text
    assert bench("describe", "--grid", str(grid)) == (code, text)
    results = str(tmp_path / "results")
    code, text = bench("tune", "--algorithm", "fedetf", *ALGORITHM[2:], "--set", "width=4", "--results-dir", results)
    assert code == 2 and text.count(why) == 1
    assert not list((tmp_path / "results").rglob("*.json"))


def test_a_method_of_which_a_board_would_have_no_accuracy_is_refused_before_anything_starts(bench, tmp_path):
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "title: mine\naxes: {dataset: [digits], partition: [label-2], algorithm: [fedavg, ditto], seed: [0]}\n"
        "settings: {clients: 12, rounds: 2, model: mlp}\nreport: {metrics: [accuracy, mb]}\n"
    )
    for dry in ([], ["--dry-run"]):
        code, text = bench("run", "--grid", str(grid), *dry)
        assert code == 2 and "ditto deploys one model per client, so a table of accuracy has no accuracy of it" in text
    assert bench("describe", "--grid", str(grid)) == (code, text)
    assert bench("run", "--grid", str(grid), "--only", "algorithm=fedavg", "--dry-run")[0] == 0


def test_a_cell_that_is_not_searched_is_refused_before_others_are(bench, tmp_path):
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "title: mine\naxes: {dataset: [digits], partition: [label-2], algorithm: [fedprox, fedetf], seed: [0]}\n"
        "settings: {clients: 12, rounds: 9, model: mlp}\nconditions: [{when: {algorithm: fedetf}, set: {width: 4}}]\n"
        "tuning: [{when: {algorithm: fedprox}, options: {mu: [0.1, 1]}}]\n"
    )
    for dry in ([], ["--dry-run"]):
        code, text = bench("run", "--grid", str(grid), "--tuned", "validation", "--space", "sets", *dry)
        assert code == 2 and "width must be at least 10" in text
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.parametrize(
    ("algorithm", "around", "name"),
    [
        ("ditto", "wrapper=fedcollab", "ditto with fedcollab seed 0"),
        ("fedcollab", "base=ditto", "fedcollab base=ditto proximal_weight=1.0 seed 0"),
    ],
)
def test_a_single_setting_is_called_by_its_wrapper_and_its_base(bench, algorithm, around, name):
    of = [
        "--algorithm",
        algorithm,
        *ALGORITHM[2:],
        "--budget",
        "smoke",
        "--seeds",
        "0",
        "--set",
        f"{around},capacity=8",
    ]
    code, text = bench("run", *of, "--dry-run")
    assert code == 0 and f"digits label-2 {name}\n" in text
    assert f"{algorithm}-digits-label-2@smoke+" in text and "capacity=8" in text


def test_data_show_prints_the_clients_and_draws_them(bench, tmp_path):
    plot = tmp_path / "bubbles.png"
    code, text = bench("data", "show", "digits", "label-2", "--clients", "10", "--plot", str(plot))
    assert code == 0
    totals = [int(line.split()[-1]) for line in text.splitlines() if re.match(r"\d+ ", line)]
    assert len(totals) == 10 and sum(totals) == 1437
    assert re.search(r"mean over clients: Hellinger distance 0\.\d{3}, .* 2\.0 classes per client", text)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_data_show_of_natural_has_a_client_for_each_writer(bench, tmp_path):
    write_femnist(tmp_path)
    code, text = bench("data", "show", "femnist", "natural", "--data-dir", str(tmp_path))
    totals = [int(line.split()[-1]) for line in text.splitlines() if re.match(r"\d+ ", line)]
    assert (code, totals) == (0, [20, 22, 21, 23])
    code, text = bench("data", "show", "digits", "natural")
    assert code == 2 and "Partition natural needs a dataset that names its writers, such as femnist." in text


def test_data_show_of_a_shift_counts_what_clients_train_and_test_on_as_they_name_it(bench, tmp_path):
    plot = tmp_path / "bubbles.png"
    code, text = bench("data", "show", "digits", "feature-shift", "--clients", "4", "--plot", str(plot))
    assert code == 0 and plot.read_bytes().startswith(b"\x89PNG")
    totals = [int(line.split()[-1]) for line in text.splitlines() if re.match(r"\d+ ", line)]
    assert text.index("training:") < text.index("testing:") and len(totals) == 8
    rich, tested = totals[0], totals[4]
    assert totals[:2] == [rich, totals[1]] and totals[2] < rich / 5 and abs(rich + tested - 1797 / 4) <= 10
    code, text = bench("data", "show", "digits", "label-shift")
    assert code == 2 and "label-shift of 1797 examples leaves client 10 of 20 without examples" in text


def test_data_check_says_what_to_do_about_missing_data(bench, tmp_path):
    code, text = bench("data", "check", "digits", "svhn", "--data-dir", str(tmp_path))
    assert code == 0
    assert "digits: found." in text
    assert re.search(r"svhn: missing\. .*data prepare svhn", text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--grid", "quickstrat"], "Unknown grid 'quickstrat'. Did you mean 'quickstart'?"),
        (["run", "--grid", "quickstart", "--budget", "smal"], "Did you mean 'small'?"),
        (["run", "--grid", "quickstart", "--set", "mue=1"], "Did you mean 'mu'?"),
        (
            ["run", "--grid", "quickstart", "--set", "rounds"],
            "--set needs KEY=VALUE, but got 'rounds'; values of a list are joined by '+'",
        ),
        (
            ["run", "--grid", "leaderboard_mnist v2"],
            "names stored results; the grid that is run or described is 'leaderboard_mnist'",
        ),
        (["run", "--grid", "quickstart", "--only", "algorithm=fedporx"], "Did you mean 'fedprox'?"),
        (["run", "--grid", "quickstart", "--seeds", "a"], "--seeds needs whole numbers such as 0,1,2, but got 'a'."),
        (
            ["run", "--grid", "quickstart", "--keep-state", "final"],
            "Unknown value of --keep-state 'final'. Did you mean 'all'? Known: deployed, all, none.",
        ),
        (["run", "--grid", "quickstart", "--substitute", "svhn=cifar10"], "no selected cell uses svhn"),
        (["run", "--grid", "quickstart", *ALGORITHM], "Use either --grid or --algorithm, --dataset, --partition"),
        (["run", "--algorithm", "fedavg"], "Name a --grid, or one setting: --dataset, --partition missing."),
        (["run", *ALGORITHM, "--set", "clients=4"], "at least 5 clients to hold all 10 classes"),
        (["run", *ALGORITHM, "--set", "rounds=0"], "rounds must be greater than 0, but got 0."),
        (["run", *ALGORITHM, "--cpus-per-trial", "1000"], "--cpus-per-trial must be above 0 and at most"),
        (["run", "--grid", "quickstart", "--only", "dataset=*"], "'*' is not a value that YAML can read"),
        (["run", "--grid", "quickstart", "--set", "mu=[1"], "'[1' is not a value that YAML can read"),
        (["run", *ALGORITHM, "--set", "rounds=010"], "or write a number without zeros in front and colons."),
        (["run", *ALGORITHM, "--set", "rounds=true"], "rounds must be a valid integer, but got True."),
        (["run", *ALGORITHM, "--set", "rounds=1.5"], "rounds must be a valid integer, but got 1.5."),
        (
            ["run", *ALGORITHM, "--set", "lr=1", "--set", "lr=2"],
            "--set takes one value for each key, but got lr=1, lr=2.",
        ),
        (["run", *ALGORITHM, "--seeds", "0,1,0"], "--seeds needs each seed once, but got '0,1,0'."),
        (
            ["run", *ALGORITHM, "--substitute", "a=b,a=c"],
            "--substitute takes one value for each key, but got a=b, a=c.",
        ),
        (["run", *ALGORITHM, "--gpus-per-trial", "1"], "--gpus-per-trial 1 is too many: torch finds 0 GPUs"),
        (
            ["run", *ALGORITHM, "--address", "ray://head:10001"],
            "--address (or RAY_ADDRESS) must be HOST:PORT of a running cluster",
        ),
        (["run", "--grid", "paper_table1"], "needs a data directory; name it with --data-dir, or set SKEWBENCH_DATA."),
        (["run", "--grid", "paper_table1", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["list", "algoritms"], "Did you mean 'algorithms'?"),
        (["report", "--grid", "quickstart"], "There is no results directory"),
        (
            ["run", "--grid", "quickstart", "--checkpoint-seconds", "-1"],
            "--checkpoint-seconds must be at least 0, but got -1.",
        ),
        (["run", "--grid", "quickstart", "--max-concurrent", "-2"], "--max-concurrent must be at least 0, but got -2."),
        (
            ["run", "--grid", "quickstart", "--storage", "foo://x"],
            "name a folder that can be written, or a URI as s3://",
        ),
        (
            ["run", "--grid", "quickstart", "--storage", "memory://x::2"],
            "--storage: memory://x::2 is no place to write to: it has ::, which chains file systems; leave that out;",
        ),
        (["data", "show", "digits", "lable-2"], "Did you mean 'label-2'?"),
        (["data", "show", "digits", "iid", "--image-size", "big"], "image_size must be a number of pixels"),
        (["data", "check", "digits", "--image-size", "0"], "from 1 to 1024, or height and width as 24x32"),
        (["data", "check", "cifer10"], "Did you mean 'cifar10'?"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(bench, arguments, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, text = bench(*arguments)
    assert code == 2
    assert said in text
    assert "Traceback" not in text


def one_setting(algorithm="fedavg", dataset="digits", partition="iid"):
    return ["run", "--algorithm", algorithm, "--dataset", dataset, "--partition", partition, "--dry-run"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (one_setting(dataset="MNIST"), "Unknown dataset 'MNIST'. Did you mean 'mnist'?"),
        (one_setting(dataset="CIFAR-10"), "Did you mean 'cifar10'?"),
        (one_setting(algorithm="FedAvg"), "Did you mean 'fedavg'?"),
        (one_setting(partition="dirichlet-0.5"), "Unknown partition 'dirichlet-0.5'. Did you mean 'dir-0.5'? Known: "),
        (one_setting(partition="Dir(0.5)"), "Did you mean 'dir-0.5'?"),
        (one_setting(partition="noniid-#label2"), "Did you mean 'label-2'?"),
        ([*one_setting(), "--set", "learning_rate=0.1"], "Unknown setting 'learning_rate'. Did you mean 'lr'?"),
        (
            [*one_setting(), "--set", "engine=loop"],
            "Unknown setting 'engine': it is an option of the command, --engine.",
        ),
        ([*one_setting(), "--set", "num-clients=3"], "Did you mean 'clients'?"),
        (
            [*one_setting(), "--set", "mu=0.1"],
            "'mu': options of fedavg: none; mu is of clsprox, feddbe, fedprox, moon.",
        ),
        ([*one_setting(), "--rounds", "5"], "There is no option --rounds; set it by --set rounds=5."),
        ([*one_setting(), "--learning-rate=0.1"], "There is no option --learning-rate; set it by --set lr=0.1."),
        ([*one_setting("fedprox"), "--mu", "1"], "There is no option --mu; set it by --set mu=1."),
        (["describe", *one_setting()[1:-1], "--seed", "1"], "There is no option --seed; name seeds by --seeds 1."),
        ([*one_setting(), "--seeds", "0-2"], "but got '0-2'. Did you mean 0,1,2?"),
        (
            one_setting("fedavg,fedprox"),
            "--algorithm names one algorithm, but got 'fedavg,fedprox'; repeat the command",
        ),
        (["tune", *one_setting("fedavg,fedprox")[1:]], "axes: {algorithm: [fedavg, fedprox]}"),
        (["run", "--grid", "quickstart", "--only", "validation_share=0.1"], "No cell has a validation_share, which"),
    ],
)
def test_names_of_other_frameworks_are_answered_with_the_right_spelling(bench, arguments, said):
    code, text = bench(*arguments)
    assert code == 2 and said in text and "Traceback" not in text
    assert len(text.strip().splitlines()) == 1


def test_what_stands_behind_two_hyphens_is_no_option(bench):
    assert "There is no option" not in bench("describe", "--grid", "quickstart", "--", "--rounds")[1]


def test_a_missing_model_is_answered_with_those_that_fit(bench, tmp_path):
    arrays = {f"{kind}_{split}": [0] * 4 for kind in "y" for split in ("train", "test")}
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, x_test=images, **arrays)
    code, text = bench(*one_setting(dataset=f"npz:{tmp_path}/own.npz"))
    assert code == 2 and "model is missing" in text
    fitting = text.partition("Images of 1x8x8 fit: ")[2]
    assert "mlp" in fitting and "simple-cnn" not in fitting


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        ("mu=-1,bogus=3", ["fedprox: mu must be at least 0, but got -1.", "Unknown setting 'bogus'."], "setting 'mu'"),
        ("mu=-1,rounds=3", ["fedprox: mu must be at least 0, but got -1."], "rounds"),
        ("lr=-1,rounds=3,nu=3", ["lr must be greater than 0", "Unknown setting 'nu'. Did you mean 'mu'?"], "rounds is"),
    ],
)
def test_wrong_values_and_wrong_names_of_settings_are_told_together(bench, options, said, unsaid):
    code, text = bench("run", "--grid", "quickstart", "--set", options)
    assert code == 2 and all(sentence in text for sentence in said) and unsaid not in text.partition("Known:")[0]


OF_FEDCAT = "concatenation, count_rule, greedy_share, grouping, regroup_every"


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("epsilon", f"Unknown setting 'epsilon': options of fedcat: {OF_FEDCAT}; epsilon is of dp-fedconcat."),
        ("lambda", f"Known: method options {OF_FEDCAT}; settings algorithm, batch_size,"),
    ],
)
def test_a_symbol_of_the_paper_is_answered_with_the_options_of_the_method(bench, symbol, said):
    code, text = bench("run", "--algorithm", "fedcat", *ALGORITHM[2:], "--set", f"participation=0.1,{symbol}=1")
    assert code == 2 and f"Unknown setting '{symbol}'" in text and said in text


def test_options_of_an_unknown_method_are_no_mistake_of_their_own(bench):
    code, text = bench("run", "--algorithm", "fedporx", *ALGORITHM[2:], "--set", "mu=1")
    assert (code, "Did you mean 'fedprox'?" in text, "setting 'mu'" in text) == (2, True, False)


@pytest.mark.parametrize("part", ["runs", "reports"])
def test_a_part_of_the_results_that_cannot_be_written_is_named_before_anything_runs(bench, tmp_path, part):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / part).touch()
    code, text = bench("run", *ALGORITHM)
    assert code == 2
    assert f"error: {tmp_path}/results/{part} is a file, not a folder; move it away" in text


@pytest.fixture
def stored(tmp_path):
    """A results directory with a grid of which nothing was run."""
    grid = load_grid("quickstart")
    with Store(tmp_path / "results").locked() as store:
        store.write_grid("quickstart@paper", to_json(grid, "paper", {}, expand(grid, "paper")))
    return store.folder


def test_results_that_cannot_be_written_to_are_reported_elsewhere_or_only_printed(bench, stored, tmp_path):
    (stored / "reports").rmdir()
    (stored / "reports").touch()
    code, text = bench("report")
    assert code == 2 and text.count("\n") == 1, "nothing is printed before"
    assert f"error: Cannot write reports to {stored}/reports (File exists); name another folder by `report --to" in text
    assert "`report --print`" in text
    code, table = bench("report", "--print")
    assert code == 0 and "| Digits" in table and "Saved" not in table
    code, text = bench("report", "--to", str(tmp_path / "elsewhere"))
    assert code == 0 and table in text
    assert sorted(path.suffix for path in (tmp_path / "elsewhere").iterdir()) == [".csv", ".html", ".md", ".tex"]


def test_a_printed_report_has_the_format_that_is_asked_for_and_makes_no_file(bench, stored):
    before = sorted(stored.rglob("*"))
    assert bench("report", "--print", "--format", "csv")[1].startswith("grid,budget,dataset,partition,")
    code, text = bench("report", "--print", "--to", "x", "--figure", "time")
    assert code == 2 and "error: --print saves nothing; leave out --to and --figure." in text
    for unread in (["--width", "5in"], ["--template", "acl"], ["--notes", "below"]):
        code, text = bench("report", "--print", *unread)
        assert code == 2 and "add tex to --format" in text, "the Markdown that is printed has neither"
    assert sorted(stored.rglob("*")) == before


def test_a_printed_csv_of_several_budgets_has_numbers_below_one_header():
    words = [sys.executable, "-m", "bench", "report", "--format", "csv", "--print", "--results-dir"]
    read = "import sys, pandas; print(pandas.read_csv(sys.stdin).to_json(orient='split'))"
    report = subprocess.Popen([*words, str(EXAMPLES / "paper_table1")], stdout=subprocess.PIPE)
    piped = subprocess.run(
        [sys.executable, "-c", read], stdin=report.stdout, capture_output=True, text=True, check=True
    )
    assert report.wait() == 0
    made = pd.read_json(io.StringIO(piped.stdout), orient="split")
    assert list(made["budget"].unique()) == ["medium", "paper", "small"] and set(made["grid"]) == {"paper_table1"}
    numbers = ["mean", "std", "done", "seeds", "p_value", "published_mean", "published_std", "difference"]
    assert all(pd.api.types.is_numeric_dtype(made[key]) for key in numbers)
    means = (
        made.query("algorithm == 'fedavg' and partition == 'label-2'").groupby(["budget", "dataset"])["mean"].count()
    )
    assert set(means) == {1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--figure", "foo"],
            "Unknown figure 'foo'. Known: rounds, communication, time, examples. Other kinds have options of their own",
        ),
        (["--value", "lats"], "Unknown value 'lats'. Did you mean 'last'?"),
        (["--to", "{folder}/a/b"], "There is no folder {folder}/a, in which b would be made; make it first."),
    ],
)
def test_a_mistake_in_a_report_is_told_before_its_table(bench, stored, arguments, said):
    code, text = bench("report", *(word.format(folder=stored) for word in arguments))
    assert code == 2 and text.startswith("error: " + said.format(folder=stored)) and text.count("\n") == 1
    assert not list((stored / "reports").iterdir())


def test_a_disk_that_is_full_while_a_report_is_written_is_named_and_keeps_no_part(bench, stored, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    path = stored / "reports" / "quickstart@paper.md"
    assert bench("report") == (2, f"error: Cannot use {path}: No space left on device.\n")
    assert not list(path.parent.iterdir())


def test_a_full_disk_is_one_sentence(bench, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bench.experiments.planning.make_plan", full)
    assert bench("run", *ALGORITHM) == (2, "error: [Errno 28] No space left on device.\n")


def test_smoke_fits_a_dataset_that_is_smaller_than_its_subsets(bench):
    code, text = bench("run", "--grid", "quickstart", "--budget", "smoke", "--dry-run")
    assert (code, "0 finished, 16 to run" in text) == (0, True)


def test_only_takes_several_values_in_both_spellings():
    several = {"partition": ["label-2", "dir-0.1"], "dataset": ["cifar10"]}
    assert options.read_only(["partition=label-2|dir-0.1,dataset=cifar10"]) == several
    assert options.read_only(["partition=label-2", "dataset=cifar10,partition=dir-0.1"]) == several


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("0.5", 0.5), ("1e-3", 0.001), ("true", True), ("iid", "iid")])
def test_values_on_the_command_line_are_read_like_yaml(text, value):
    assert options.scalar(text) == value and type(options.scalar(text)) is type(value)


def test_seeds_of_one_setting_win_over_those_of_the_budget(bench):
    code, text = bench("run", *ALGORITHM, "--budget", "smoke", "--seeds", "0,1,2", "--dry-run")
    assert (code, "0 finished, 3 to run" in text) == (0, True)


def test_a_report_names_a_grid_by_its_file_as_well(bench, tmp_path):
    grid = load_grid("quickstart")
    with Store(tmp_path / "results").locked() as store:
        store.write_grid("mine@paper", to_json(grid, "paper", {}, expand(grid, "paper")) | {"grid": "mine"})
    assert bench("report", "--grid", "elsewhere/mine.yaml")[0] == 0
    assert not list(tmp_path.rglob("*-standalone.tex"))
    assert bench("report", "--grid", "mine", "--standalone")[0] == 0
    assert (tmp_path / "results" / "reports" / "mine@paper-standalone.tex").exists()


@pytest.mark.parametrize(("condition", "is_told"), [({}, True), ({"encoder_rounds": 2, "classifier_rounds": 4}, False)])
def test_rounds_of_stages_that_nobody_has_set_are_told_beside_those_of_others(bench, tmp_path, condition, is_told):
    content = {
        "axes": {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg", "fedconcat"], "seed": [0]},
        "settings": {"rounds": 6, "model": "mlp", "clients": 10},
        "conditions": [{"when": {"algorithm": "fedconcat"}, "set": {"num_clusters": 2, **condition}}],
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(content))
    for command in (["describe"], ["run", "--dry-run"]):
        code, text = bench(*command, "--grid", str(tmp_path / "mine.yaml"))
        told = "fedconcat trains 231 rounds of its own, and others at most 6. For equal terms, set encoder_rounds and "
        assert code == 0 and (told in " ".join(text.split())) is is_told
    grid = load_grid(str(tmp_path / "mine.yaml"))
    stored = to_json(grid, "full", {}, expand(grid, "full"))
    assert in_common(stored) == f"MLP, 10 clients, 6 rounds{' (FedConcat 231)' * is_told}, 10 local epochs"


def test_a_report_of_a_file_says_that_it_has_changed_since_the_runs(bench, tmp_path):
    path = tmp_path / "mine.yaml"
    content = "title: mine\naxes: {dataset: [digits], partition: [iid], algorithm: [fedavg], seed: [0]}\n"
    path.write_text(content + "report: {rounds_shown: best}\n")
    grid = load_grid(str(path))
    with Store(tmp_path / "results").locked() as store:
        store.write_grid("mine@paper", to_json(grid, "paper", {}, expand(grid, "paper")))
    changed = f"{path} has another title or layout than at the last run of mine@paper, which is shown as it was."
    code, text = bench("report", "--grid", str(path), "--print")
    assert code == 0 and changed not in text
    earlier = to_json(grid, "paper", {}, expand(grid, "paper"))
    layout = {key: value for key, value in earlier["report"].items() if key not in ("names", "also", "metrics")}
    with Store(tmp_path / "results").locked() as store:
        store.write_grid("mine@paper", earlier | {"report": layout})  # of a time in which these keys did not exist
    code, text = bench("report", "--grid", str(path), "--print")
    assert code == 0 and changed not in text
    for later in (content, content.replace("title: mine", "title: yours")):
        path.write_text(later)
        code, text = bench("report", "--grid", str(path), "--print")
        assert code == 0 and changed in text
        assert changed in bench("report", "--grid", "mine", "--print")[1] and changed in bench("report", "--print")[1]
    (elsewhere := tmp_path / "elsewhere" / "mine.yaml").parent.mkdir()
    elsewhere.write_text(content)
    code, text = bench("report", "--grid", str(elsewhere), "--print")
    assert code == 0 and "has another title" not in text, "it is another grid"
    with Store(tmp_path / "results").locked() as store:  # of a time in which grids did not say where their file is
        store.write_grid("mine@paper", {key: value for key, value in earlier.items() if key != "source"})
    code, text = bench("report", "--grid", str(path), "--print")
    assert code == 0 and changed not in text
    path.write_text("title: [")
    for named in (str(path), "mine"):
        code, text = bench("report", "--grid", named, "--print")
        assert code == 0 and (f"{path} cannot be read, so that nobody knows" in text) == (named != "mine"), (
            "no file is stored"
        )
    with Store(tmp_path / "results").locked() as store:
        store.write_grid("mine@paper", earlier)
    os.utime(path, (2e9, 2e9))  # after the last run
    code, text = bench("report", "--grid", "mine", "--print")
    assert code == 0 and f"{path} cannot be read, so that nobody knows" in text


def test_no_two_methods_are_described_alike():
    described = dict(listing("algorithms"))
    assert len({*described.values()}) == len(described)
    assert described["fedcat-dc"].startswith("FedCat's chains of clients alone")


def test_models_are_listed_with_their_other_names():
    listed = dict(listing("models"))
    assert listed["fedmr-mnist-cnn"].startswith("FedMR's CNN for MNIST")
    assert listed["lenet-cifar"] == "Another name of simple-cnn."


@pytest.mark.parametrize("command", [["report"], ["list"], ["status"]])
def test_sigterm_ends_every_command_as_ctrl_c_does(bench, monkeypatch, command):
    def hear(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("bench.cli.app.listing_table", hear)
    monkeypatch.setattr(Store, "__init__", hear)
    before = signal.getsignal(signal.SIGTERM)
    assert bench(*command) == (143, "Stopped.\n")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_describe_imports_neither_a_compiler_nor_sklearn_nor_ray(tmp_path):
    """Each takes seconds to import; what a method sends and keeps is known from shapes."""
    modules = imported_by("describe", "--grid", "quickstart", "--results-dir", str(tmp_path))
    assert "torch" in modules and not modules & {"torch._dynamo", "sklearn", "ray", "pandas"}


def test_describe_counts_what_is_in_the_data_directory(bench, tmp_path):
    setting = ["--algorithm", "fedavg", "--dataset", "femnist", "--partition", "natural"]
    assert "There is no option" not in bench("describe", *setting, "--data-dir", str(tmp_path))[1]
    code, text = bench("describe", *setting, "--data-dir", str(tmp_path / "nowhere"))
    assert code == 2 and "name another with --data-dir" in text
    write_femnist(tmp_path)
    code, text = bench("describe", *setting, "--data-dir", str(tmp_path), "--set", "clients=179")
    assert code == 2 and "clients" in text and "179" in text, "there are not so many writers"


def test_prepare_ends_where_check_has_nothing_to_say(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "prepare", lambda *_: pytest.fail("it is there"))
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "0.png")
    code, text = bench("data", "prepare", f"imagefolder:{tmp_path}", "digits")
    assert code == 0 and text.splitlines() == [
        f"imagefolder:{tmp_path}: found. image folders in {tmp_path}; there is nothing to prepare.",
        "digits: found. images that come with scikit-learn; there is nothing to prepare.",
    ]


def test_callbacks_are_named_with_commas_or_given_with_options_as_yaml():
    assert options.read_callbacks(None) == {}
    assert options.read_callbacks("per-class-accuracy,server-ema") == {"callbacks": "per-class-accuracy,server-ema"}
    with_options = [{"name": "server-ema", "decay": 0.9}]
    assert options.read_callbacks("[{name: server-ema, decay: 0.9}]") == {"callbacks": with_options}
    flat = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2"}
    found = resolve(flat | options.read_callbacks("per-class-accuracy,server-ema")).callbacks
    assert found == [{"name": "per-class-accuracy"}, {"name": "server-ema", "decay": 0.99}]


def test_a_training_that_several_methods_share_is_counted_in_one_row(tmp_path):
    calibrated = resolve({"algorithm": "ccvr", "dataset": "digits", "partition": "label-2"})
    configs = [trained_by(calibrated), calibrated]
    *rows, total = costs([Cell("digits", {}, config, run_id(config)) for config in configs], Store(tmp_path))
    assert len(rows) == 2 and sum(row["trainings"] for row in rows) == total["trainings"] == 1


def test_points_of_a_tuning_set_are_one_trial_that_is_chosen_also_of_a_method_within(tmp_path):
    flat = {"dataset": "digits", "partition": "label-2"}
    configs = {mu: resolve(flat | {"algorithm": "ccvr", "base": {"name": "fedprox", "mu": mu}}) for mu in (0.1, 1.0)}
    cells = [Cell("digits", {"mu": mu}, config, run_id(config)) for mu, config in configs.items()]
    *_, total = costs(cells, Store(tmp_path))
    assert (total["trials"], total["chosen"]) == (2, 1)


def test_examples_that_a_method_may_not_need_are_a_bound(tmp_path):
    """ALA of FedALA stops when its losses are steady."""
    configs = [
        resolve({"algorithm": name, "dataset": "digits", "partition": "label-2"}) for name in ("fedavg", "fedala")
    ]
    rows = costs([Cell("digits", {}, config, run_id(config)) for config in configs], Store(tmp_path))
    assert [row["examples_at_most"] for row in rows] == [False, True, True]
    console = Console(width=200, file=io.StringIO())
    console.print(cost_table("own", rows))
    fedavg, fedala, total = (line for line in console.file.getvalue().splitlines() if line.startswith("│"))
    assert "≤" not in fedavg and "≤ " in fedala and "≤ " in total


@pytest.mark.parametrize(("searched", "trainings"), [("lr", [1, 1]), ("virtual_per_class", [1, 0])])
def test_a_base_whose_settings_are_searched_is_trained_for_each_choice(searched, trainings, tmp_path):
    """A search of options of what is around it leaves the base as it is."""
    (tmp_path / "own.yaml").write_text(f"{searched}: {{grid: [1, 2]}}")
    grid = single({"algorithm": "ccvr", "dataset": "digits", "partition": "label-2"}, [0])
    (cell,) = expand(grid, grid.usual_budget)
    tuning = TuningOptions("random", samples=2, space=str(tmp_path / "own.yaml"))
    (search,) = make_searches([cell], grid.report.model_dump(), tuning).values()
    config = trained_by(cell.config)
    cells = [Cell("digits", {}, config, run_id(config)), cell]
    rows = costs(cells, Store(tmp_path), {cell.id: search})
    assert [row["trainings"] for row in rows] == [*trainings, sum(trainings)]
