"""`export`, `import` and `compare` on the command line: what they print, write and return."""

import io
import json
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import algorithms
from bench.api import load_rounds
from bench.cli.app import app
from bench.cli.options import stored_name
from bench.config.code_version import code_version
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.importing import Merged
from bench.results.store import Store
from tests.support.earlier_code import earlier
from tests.support.processes import call_bench, imported_by
from tests.support.stores import LABEL, cells, finish, results

RUNS = cells("label-2", "fedavg")


@pytest.fixture
def bench(tmp_path):
    """Runs a command; {a}, {b} and {tmp} are two results directories and a folder. Returns exit code and output."""

    def call(command: str) -> tuple[int, str]:
        return call_bench(*command.format(a=tmp_path / "a", b=tmp_path / "b", tmp=tmp_path).split())

    return call


@pytest.fixture
def both(tmp_path):
    """Two results directories, A with seeds 0 and 1 of a cell, B with all three, of which seed 1 has another accuracy."""
    for side, accuracies in (("a", (0.5, 0.6)), ("b", (0.5, 0.7, 0.8))):
        scores = {cell.id: score for cell, score in zip(RUNS, accuracies, strict=False)}
        results(tmp_path / side, RUNS, scores)


def test_export_writes_a_table_and_says_what_is_not_in_it(both, bench, tmp_path):
    code, text = bench("export --grid quickstart --to {tmp}/rounds.csv --results-dir {a}")
    assert code == 0 and "rounds.csv (4 rounds of 2 runs)" in text and "1 run has not ended and is not in it." in text
    assert list(pd.read_csv(tmp_path / "rounds.csv")["accuracy"]) == [0.4, 0.5, 0.5, 0.6]
    assert bench("export --grid quickstart --to {tmp}/rounds.parquet --results-dir {a}")[0] == 0
    assert len(pd.read_parquet(tmp_path / "rounds.parquet")) == 4


def test_export_has_the_columns_of_notebooks_and_goes_into_a_pipe(both, bench, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = load_rounds(tmp_path / "a")
    bench("export --grid quickstart --to {tmp}/rounds.csv --results-dir {a}")
    command = f"export --grid quickstart --to - --results-dir {tmp_path / 'a'}"
    text = CliRunner().invoke(app, command.split()).stdout
    assert text == (tmp_path / "rounds.csv").read_text()
    read = pd.read_csv(io.StringIO(text))
    pd.testing.assert_frame_equal(read, wanted, check_dtype=False)
    assert {"grid", "budget", "lr", "rounds", "local_epochs", "batch_size", "momentum", "weight_decay", "split"} <= {
        *read
    }


@pytest.mark.parametrize("option", ["--to {tmp}/new/{name}", "--tensorboard {tmp}/{name}"])
def test_export_makes_one_folder_but_none_above_it(both, bench, tmp_path, option):
    command = f"export --grid quickstart --results-dir {{a}} {option}"
    code, text = bench(command.replace("{name}", "rounds.csv"))
    assert code == 0 and list(tmp_path.rglob("rounds.csv"))
    code, text = bench(command.replace("{tmp}/", "{tmp}/typo/").replace("{name}", "board.csv"))
    assert code == 2 and f"error: There is no folder {tmp_path}/typo, in which " in text and text.count("\n") == 1
    assert not (tmp_path / "typo").exists()


def test_export_for_tensorboard_names_a_folder_per_run(both, bench, tmp_path):
    code, text = bench("export --grid quickstart --tensorboard {tmp}/board --results-dir {b}")
    assert code == 0 and "tensorboard --logdir" in text
    names = [f"digits label-2 fedavg seed {seed}" for seed in (0, 1, 2)]
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == names
    assert all(len(list(path.glob("events.out.tfevents.*"))) == 1 for path in (tmp_path / "board").iterdir())


def test_import_takes_what_is_missing_and_names_what_disagrees(both, bench, tmp_path):
    code, text = bench("import {b} --results-dir {a} --dry-run")
    assert code == 1 and "1 run would be taken, 2 were here already and stay, 0 have" in text
    assert len(Store(tmp_path / "a").records()) == 2
    code, text = bench("import {b} --results-dir {a}")
    assert code == 1 and "1 run taken, 2 were here already and stay" in text
    assert f"{RUNS[1].id} has other numbers there (accuracy of round 1: " in text
    assert len(Store(tmp_path / "a").records()) == 3
    assert f"Grid {LABEL}: cells would be merged." in bench("import {b} --results-dir {tmp}/c --dry-run")[1]
    code, text = bench("import {b} --results-dir {tmp}/c")
    assert code == 0 and "3 runs taken, 0 were here already" in text and f"Grid {LABEL}: cells merged." in text


def test_export_and_import_of_one_bundle_say_what_failed_and_count_in_english(bench, tmp_path):
    store = results(tmp_path / "a", RUNS, {RUNS[0].id: 0.5})
    with store.locked():
        finish(store, RUNS[1], 0.1, status="failed")
    code, text = bench("export --bundle {tmp}/a.zip --author Ann --results-dir {a}")
    assert code == 0 and "a.zip (2 runs of 1 grid, 0.0 MB)" in text
    assert "also needs" not in text and "not committed" not in text
    code, text = bench("import {tmp}/a.zip --results-dir {b} --dry-run")
    assert code == 0 and "1 run that failed there would be taken, too; the next `run` repeats it." in text
    code, text = bench("import {tmp}/a.zip --results-dir {b}")
    assert code == 0 and "1 run that failed there is taken, too; the next `run` repeats it." in text
    code, text = bench("import {tmp}/a.zip --results-dir {b}")
    assert code == 0 and "0 runs taken, 1 was here already and stays" in text and "failed" not in text


def test_a_bundle_says_what_others_need_besides(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((48, 8, 8), np.uint8), np.arange(48) % 3
    np.savez("own.npz", x_train=images, y_train=labels, x_test=images[:12], y_test=labels[:12])
    axes = "axes: {dataset: ['npz:own.npz'], partition: [iid], algorithm: [fedavg], seed: [0]}\n"
    Path("mine.yaml").write_text(f"title: mine\n{axes}settings: {{model: mlp, clients: 3, rounds: 2}}\n")
    grid = load_grid("mine.yaml")
    cells = expand(grid, "full")
    store = Store(tmp_path / "a")
    with store.locked():
        store.write_grid("mine@full", to_json(grid, "full", {}, cells))
        finish(store, cells[0], 0.5, commit=f"{'a' * 40}", commits={"lab": f"{'b' * 40}-dirty"})
    code, text = bench("export --bundle {tmp}/a.zip --author Ann --results-dir {a}")
    text = re.sub(r"\s+", " ", text)
    assert (
        code == 0
        and "needs what is not in it: the grid's file mine.yaml (--grid); the images of own (--dataset)." in text
    )
    assert "1 run of code that had changes which were not committed" in text
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert json.loads(packed.read("manifest.json"))["commits"] == {"a" * 40: 1, f"lab {'b' * 40}-dirty": 1}


def test_a_bundle_of_runs_of_earlier_code_says_what_has_changed_since(bench, tmp_path):
    store = results(tmp_path / "a", RUNS, {})
    with store.locked():
        digest = earlier(store, "algorithm fedavg", "algorithms/fedavg.py", "FedAvg")
        finish(store, RUNS[0], 0.5, code=code_version(RUNS[0].config) | {"algorithm fedavg": digest})
        finish(store, RUNS[1], 0.5, code=code_version(RUNS[1].config))
    code, text = bench("export --bundle {tmp}/a.zip --author Ann --results-dir {a}")
    said = "1 finished run is stale, because the code has changed since (algorithms/fedavg.py: FedAvg)"
    assert code == 0 and said in re.sub(r"\s+", " ", text) and "a.zip (2 runs" in text


def test_a_bundle_of_runs_of_an_earlier_version_says_so(bench, tmp_path, monkeypatch):
    results(tmp_path / "a", RUNS, {RUNS[0].id: 0.5, RUNS[1].id: 0.6})
    said = "2 runs of a version that the method has left behind: who has its file as it is now cannot verify them"
    assert said not in bench("export --bundle {tmp}/a.zip --author Ann --results-dir {a}")[1]
    monkeypatch.setattr(algorithms, "version_of", lambda name: (2, "1 did something else"))
    code, text = bench("export --bundle {tmp}/b.zip --author Ann --results-dir {a}")
    assert code == 0 and said in re.sub(r"\s+", " ", text)


def test_compare_says_by_its_exit_status_whether_numbers_are_the_same(both, bench, tmp_path):
    code, text = bench("compare {a} {b}")
    assert code == 1 and "1 of 2 differ" in text and "+5.0±5.0" in text
    bench("import {b} --results-dir {tmp}/c")
    code, text = bench("compare {b} {tmp}/c --grid quickstart")
    assert code == 0 and "3 runs are in both, with identical numbers." in text
    bench("export --bundle {tmp}/c.zip --author Ann --results-dir {b}")
    code, text = bench("compare {tmp}/c.zip {tmp}/c")
    assert code == 0 and "3 runs are in both, with identical numbers." in text and "c.zip" in text
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    code, text = bench("compare {tmp}/c.zip {tmp}/empty")
    assert code == 2 and f"{tmp_path}/c.zip holds {LABEL}; {tmp_path}/empty holds none." in text


def test_compare_names_a_grid_that_one_side_lacks_and_does_not_count_it(both, bench, tmp_path):
    bench("import {b} --results-dir {tmp}/c")
    store = Store(tmp_path / "b")
    with store.locked():
        store.write_grid("quickstart@small", {**store.grid("quickstart@paper"), "budget": "small"})
    code, text = bench("compare {b} {tmp}/c")
    assert code == 0 and "Only in A: quickstart@small" in text


def test_compare_confirms_nothing_where_no_run_is_in_both(bench, tmp_path):
    for side, run in (("a", RUNS[0]), ("b", RUNS[1])):
        results(tmp_path / side, RUNS, {run.id: 0.5})
    code, text = bench("compare {a} {b}")
    assert code == 1 and "No run has ended on both sides." in text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("export --grid quickstart --results-dir {a}", "Name either a table by --to FILE.csv or FILE.parquet, or a"),
        ("export --grid quickstart --to {tmp}/x.cvs --results-dir {a}", "Unknown kind of file '.cvs'. Did you mean"),
        (
            "export --grid other --to {tmp}/x.csv --results-dir {a}",
            "holds no results of other, only: quickstart@paper.",
        ),
        (
            "export --grid quickstart --budget small --to {tmp}/x.csv --results-dir {a}",
            "no results of quickstart@small",
        ),
        ("import {tmp}/none --results-dir {a}", "There is no results directory"),
        ("import {a} --results-dir {a}", "is the results directory itself"),
        ("compare {a} {tmp}/none", "There is no results directory"),
        ("compare {a} {b} --grid other", "A and B do not both hold results of other: "),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(both, bench, command, said):
    code, text = bench(command)
    assert code == 2 and said in text and "Traceback" not in text


def test_of_several_budgets_one_must_be_chosen(both, bench, tmp_path):
    store = Store(tmp_path / "a")
    store.write_grid("quickstart@small", store.grid(LABEL) | {"budget": "small"})
    code, text = bench("export --grid quickstart --to {tmp}/x.csv --results-dir {a}")
    assert code == 2 and "holds quickstart@paper, quickstart@small; choose one with --budget." in text
    code, text = bench("export --grid quickstart@small --to {tmp}/x.csv --results-dir {a}")
    assert code == 0 and (tmp_path / "x.csv").exists()


def test_of_several_versions_each_can_be_chosen(both, bench, tmp_path):
    store = Store(tmp_path / "a")
    store.write_grid("quickstart v2@paper", store.grid(LABEL) | {"grid": "quickstart v2"})
    code, text = bench("export --grid quickstart --budget paper --to {tmp}/x.csv --results-dir {a}")
    assert code == 2 and "choose one with --grid 'quickstart" in text
    code, text = bench("export --grid quickstart@paper --to {tmp}/x.csv --results-dir {a}")
    assert code == 0 and set(pd.read_csv(tmp_path / "x.csv")["grid"]) == {"quickstart"}


@pytest.mark.slow
def test_stored_results_are_read_without_torch_and_ray(both, tmp_path):
    a, b, table = (str(tmp_path / name) for name in ("a", "b", "rounds.csv"))
    assert not imported_by("compare", a, b) & {"torch", "ray"}
    assert not imported_by("export", "--grid", "quickstart", "--to", table, "--results-dir", a) & {"torch", "ray"}


def test_a_cell_with_other_settings_there_is_named_and_counts_in_the_exit_status(both, bench, monkeypatch):
    found = Merged(taken=[RUNS[2].id], replaced={"quickstart: digits label-2 fedavg": "lr 0.1 there and 0.3 here"})
    monkeypatch.setattr("bench.experiments.importing.merge_results", lambda *about: found)
    code, text = bench("import {b} --results-dir {a}")
    assert code == 1 and "digits label-2 fedavg has other settings there (lr 0.1 there and 0.3 here); the cell" in text


def test_a_stored_grid_is_named_by_either_suffix_of_its_file():
    assert [stored_name(f"mine.{suffix}", None)[0] for suffix in ("yaml", "yml")] == ["mine", "mine"]
    assert stored_name("a@b/mine.yaml", None) == ("mine", None)
    assert stored_name("a@b/mine.yaml@small", None) == stored_name("mine@small", None) == ("mine", "small")
    assert stored_name("mine@half@a", None) == ("mine", "half@a"), "as it is stored"
    assert stored_name("mine v2@half", "half") == ("mine v2", "half"), "said twice"
