"""The interface for notebooks: what it reads is what is stored, what it plays is what the command line trains."""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bench import api
from bench.config.schema import RunConfig, run_id, settings_of
from bench.errors import ConfigError, StoreError
from bench.results.ids import hash_of
from bench.results.metrics import ACCURACIES
from bench.results.store import Store
from bench.simulation.evaluation import evaluate
from datasets import DataError
from reports import api as reports
from reports.tables.layout import percent
from tests.support import stores
from tests.support.alone import train_alone
from tests.support.grid_runs import write_grid
from tests.support.processes import call_bench, imported_after

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SETTINGS = {
    "dataset": "digits",
    "partition": "label-2",
    "clients": 10,
    "rounds": 3,
    "local_epochs": 1,
    "batch_size": 16,
}
AXES = {
    "dataset": ["digits"],
    "partition": ["label-2"],
    "wrapper": ["none", "ccvr"],
    "algorithm": ["fedavg", "fedprox"],
    "seed": [0, 1],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Eight runs: two methods with and without a wrapper, two seeds."""
    folder = tmp_path_factory.mktemp("api")
    own = {key: value for key, value in SETTINGS.items() if key not in AXES}
    report = {"rows": ["dataset", "partition", "wrapper"]}
    grid = write_grid(folder, axes=AXES, settings=own | {"mu": 0.1}, report=report)
    return train_alone(grid, folder / "results")


def one(frame: pd.DataFrame, **wanted) -> pd.Series:
    """The only row with these values."""
    for key, value in wanted.items():
        frame = frame[frame[key] == value]
    assert len(frame) == 1
    return frame.iloc[0]


# Runs and rounds


@pytest.mark.slow
def test_a_row_of_runs_is_what_its_files_say(results):
    runs, store = api.load_runs(results), Store(results)
    assert set(runs["run"]) == set(store.records()) and len(runs) == 8
    assert runs.columns.is_unique
    assert list(runs.columns[:5]) == ["run", "dataset", "partition", "algorithm", "base"]
    for row in runs.to_dict("records"):
        config, record = store.config(row["run"]), store.record(row["run"])
        settings = {key: value for key, value in config.items() if key not in ("algorithm", "versions")}
        assert {key: row[key] for key in settings} == settings
        assert row["status"] == "done" and row["rounds_trained"] == 3
        for value in ("last", "best", "last10"):
            assert row[f"accuracy_{value}"] == record["summary"][value]["accuracy"]
        assert {key: row[key] for key in record["skew"]} == record["skew"]
        assert (row["seconds"], row["bytes_per_client"]) == (record["seconds"], record["bytes_per_client"])
        assert row["grids"] == ["six@paper"]
        assert row["versions"].startswith("algorithm 1, ") and row["started"].year > 2000
    assert "own_accuracy_last" not in runs and "base_seconds" not in runs, "no run has one"


@pytest.mark.slow
def test_options_are_columns_that_name_their_method(results):
    runs = api.load_runs(results)
    assert one(runs, algorithm="fedprox", seed=0)["fedprox.mu"] == 0.1
    assert np.isnan(one(runs, algorithm="fedavg", seed=0)["fedprox.mu"])
    assert set(runs["base"][runs["algorithm"] != "ccvr"]) == {"none"}
    calibrated = one(runs, algorithm="ccvr", base="fedprox", seed=1)
    assert calibrated["fedprox.mu"] == 0.1 and calibrated["ccvr.virtual_per_class"] == 100 and "mu" not in runs


def test_an_option_that_is_called_as_a_column_is_another_one_and_a_list_is_text(tmp_path):
    store, config = Store(tmp_path), stores.cells()[0].config.canonical()
    config["algorithm"] = {"name": "mine", "seconds": 7, "loss": "l1", "sizes": [1, 2], "own": True}
    with store.locked():
        store.start(hash_of(config), config)
        rows = [{"round": 1, "seconds": 0.5, "accuracy": 0.25, "loss": 2.0}]
        summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.25})
        record = {"id": hash_of(config), "schema": 2, "status": "done", "summary": summary, "seconds": 0.5}
        store.finish(hash_of(config), rows, record)
    for frame, loss in ((api.load_runs(tmp_path), None), (api.load_rounds(tmp_path), 2.0)):
        assert frame.columns.is_unique
        row = frame.iloc[0]
        assert (row["seconds"], row["mine.seconds"], row["mine.loss"]) == (0.5, 7, "l1")
        assert (row["mine.sizes"], row["mine.own"], row.get("loss")) == ("[1, 2]", True, loss)


def test_a_run_whose_participation_is_no_number_is_damaged_and_costs_no_other(tmp_path):
    good, odd = (cell.config.canonical() for cell in stores.cells()[:2])
    store, summary = Store(tmp_path), dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.25})
    odd["participation"] = [1, 2]
    with store.locked():
        for config in (good, odd):
            store.start(hash_of(config), config)
            record = {"id": hash_of(config), "schema": 2, "status": "done", "summary": summary}
            store.finish(hash_of(config), [{"round": 1, "accuracy": 0.25}], record)
    said = f"runs/{hash_of(odd)}/config.json does not hold what it should: participation is not a number"
    for read in (api.load_runs, api.load_rounds):
        with pytest.warns(UserWarning, match=said):
            assert list(read(tmp_path)["run"]) == [hash_of(good)]


def test_a_row_of_rounds_is_a_line_of_the_rounds_with_what_was_run(results):
    rounds, runs, store = api.load_rounds(results), api.load_runs(results), Store(results)
    assert rounds.columns.is_unique and len(rounds) == 8 * 3
    assert list(dict.fromkeys(rounds["run"])) == list(runs["run"]), "in the same order"
    for run, of_run in rounds.groupby("run"):
        rows = store.rows(run)
        measured = of_run[list(dict.fromkeys(key for row in rows for key in row))]
        assert [row.dropna().to_dict() for _, row in measured.iterrows()] == rows
        about = one(runs, run=run)
        assert all((of_run[key] == about[key]).all() for key in ("algorithm", "base", "seed", "lr", "status"))
    assert list(rounds[rounds["algorithm"] == "ccvr"].groupby("round")["accuracy"].count()) == [0, 0, 4]
    curves = rounds[rounds["algorithm"] == "fedavg"].pivot(index="round", columns="seed", values="accuracy")
    assert curves.shape == (3, 2) and curves.notna().all(axis=None)


def test_rounds_of_several_budgets_are_told_apart_before_they_are_averaged():
    """15 runs of FedAvg under label-2 are of three budgets and three datasets; 3 seeds belong into a mean."""
    folder = EXAMPLES / "paper_table1"
    with pytest.warns(
        UserWarning, match="paper_table1@medium, paper_table1@paper, paper_table1@small, .* before you"
    ) as told:
        rounds = api.load_rounds(folder)
    assert told[0].filename == __file__, "where it was called"
    fedavg = rounds.query("algorithm == 'fedavg' and partition == 'label-2'")
    assert fedavg["run"].nunique() == 15
    assert set(fedavg.groupby(["grid", "budget", "dataset", "round"])["run"].nunique()) == {3}
    for of_budget in (api.load_rounds(folder, budget="small"), api.load_rounds(folder, "paper_table1@small")):
        mine = of_budget.query("algorithm == 'fedavg' and partition == 'label-2'")
        assert set(mine.groupby("round")["run"].nunique()) == {3} and set(mine["budget"]) == {"small"}
        ends = 100 * mine.groupby("round")["accuracy"].mean().iloc[-1]
        cell = one(api.table("paper_table1@small", folder), partition="label-2", algorithm="fedavg")
        assert ends == pytest.approx(cell["mean"]), "as in the table"


def test_a_run_of_several_grids_has_its_rounds_for_each(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    store = Store(tmp_path / "results")
    store.write_grid("seven@paper", store.grid("six@paper") | {"grid": "seven"})
    with pytest.warns(UserWarning, match="are of seven@paper, six@paper, and a run of several"):
        rounds = api.load_rounds(store.folder)
    assert len(rounds) == 2 * 8 * 3 and not rounds.duplicated(["grid", "budget", "run", "round"]).any()
    alone = api.load_rounds(store.folder, grid="seven")
    pd.testing.assert_frame_equal(alone.drop(columns="grid"), api.load_rounds(results).drop(columns="grid"))
    with pytest.raises(ConfigError, match="Unknown grid 'sevn'. Did you mean 'seven'?"):
        api.load_rounds(store.folder, grid="sevn")
    with pytest.raises(StoreError, match="holds no seven@small, only: seven@paper, six@paper."):
        api.load_rounds(store.folder, grid="seven", budget="small")


def test_rounds_of_searches_are_of_no_grid_and_beside_others_that_is_said():
    with pytest.warns(UserWarning, match="The rounds are of .*@small.*, no grid"):
        rounds = api.load_rounds(EXAMPLES / "search-asha")
    assert set(rounds["split"][rounds["grid"].isna()]) == {"validation"}
    assert set(rounds["split"][rounds["grid"].notna()]) == {"test"}


@pytest.mark.parametrize(
    ("partition", "numbers"),
    [
        ("label-2", {"partition_kind": "label", "labels_per_client": 2}),
        ("dir-0.1", {"partition_kind": "dir", "concentration": 0.1}),
        ("region-4-0.5", {"partition_kind": "region", "concentration": 0.5}),
        ("shards-2", {"partition_kind": "shards", "shards_per_client": 2}),
        ("label-shift", {"partition_kind": "label-shift"}),
        ("file:parts@0123456789abcdef", {"partition_kind": "file"}),
        ("hospital-0.7", {"partition_kind": "hospital"}),  # of a lab that is not here
    ],
)
def test_what_the_name_of_a_partition_says_stands_in_columns_of_its_own(tmp_path, partition, numbers):
    store, config = Store(tmp_path), stores.cells()[0].config.canonical() | {"partition": partition}
    with store.locked():
        store.start(hash_of(config), config)
        record = {"id": hash_of(config), "schema": 2, "status": "failed", "summary": {}}
        store.finish(hash_of(config), [{"round": 1}], record)
    columns = ("partition_kind", "labels_per_client", "shards_per_client", "concentration")
    for read in (api.load_runs, api.load_rounds):
        frame = read(tmp_path)
        assert {key: frame[key].iloc[0] for key in columns if key in frame} == numbers


def test_accuracies_of_clients_are_a_list_per_run():
    runs = api.load_runs(EXAMPLES / "fedcollab")
    done = runs[runs["client_accuracies"].notna()]
    assert len(done) > 10 and {"own_accuracy_last", "base", "ditto.proximal_weight"} <= {*runs}
    assert done["client_accuracies"].map(np.mean).to_numpy() == pytest.approx(done["own_accuracy_last"])


def test_runs_that_have_failed_or_not_ended(tmp_path):
    failed, unfinished, diverged, done = stores.cells("label-2", "fedavg") + stores.cells("label-2", "moon")[:1]
    store = stores.results(tmp_path, (failed, unfinished), {unfinished.id: None})
    with store.locked():
        stores.finish(store, done, 0.5)
        stores.finish(store, failed, 0.2, status="failed", reason="no disk")
        stores.finish(store, diverged, 0.3, status="diverged")
    runs = api.load_runs(tmp_path).set_index("run")
    assert dict(runs["status"]) == {done.id: "done", failed.id: "failed", diverged.id: "diverged"}
    assert runs.loc[failed.id, "reason"] == "no disk" and np.isnan(runs.loc[failed.id, "accuracy_last"])
    assert dict(runs["grids"]) == {done.id: [], failed.id: [stores.LABEL], diverged.id: []}
    assert len(api.load_rounds(tmp_path)) == 3 * 2


@pytest.mark.parametrize("read", [api.load_runs, api.load_rounds, lambda folder: api.table("quickstart", folder)])
def test_a_directory_that_is_not_there(read, tmp_path):
    with pytest.raises(StoreError, match=f"There is no results directory {tmp_path}/nothing; "):
        read(tmp_path / "nothing")


@pytest.mark.parametrize("read", [api.load_runs, api.load_rounds])
def test_a_directory_without_a_run_that_has_ended(read, tmp_path):
    stores.results(tmp_path, stores.cells("label-2", "fedavg")[:1], {})
    with pytest.raises(StoreError, match=f"No run has ended in {tmp_path}; "):
        read(tmp_path)


@pytest.mark.parametrize("read", [api.load_runs, api.load_rounds])
def test_damaged_runs_are_left_out_and_named(read, tmp_path):
    good, bad = stores.cells("label-2", "fedavg")[:2]
    stores.results(tmp_path, (good, bad), {good.id: 0.5, bad.id: 0.5})
    (tmp_path / "runs" / bad.id / "record.json").write_text("{")
    with pytest.warns(UserWarning, match=f"runs/{bad.id}/record.json is not readable JSON") as warned:
        assert set(read(tmp_path)["run"]) == {good.id}
    assert warned[0].filename == __file__, "where it was called"


@pytest.mark.slow
def test_hundreds_of_runs_are_read_at_once(tmp_path):
    store, cells = Store(tmp_path), stores.cells()
    with store.locked():
        for number in range(200):
            config = cells[number % len(cells)].config.canonical() | {"seed": 1000 + number}
            rows = [{"round": row, "accuracy": row / 100, "loss": 1.0, "seconds": 0.1 * row} for row in range(1, 51)]
            summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5})
            record = {"id": hash_of(config), "schema": 2, "status": "done", "summary": summary, "rounds": 50}
            store.start(record["id"], config)
            store.finish(record["id"], rows, record)
    for read, count in ((api.load_runs, 200), (api.load_rounds, 10_000)):
        begin = os.times().user
        assert len(read(tmp_path)) == count
        assert os.times().user - begin < 2, "a few times what it takes"


# Tables


def test_the_cells_of_a_table_are_those_of_the_report(results):
    cells, runs = api.table("six", results), api.load_runs(results)
    assert list(cells.columns[:4]) == ["dataset", "partition", "wrapper", "algorithm"] and len(cells) == 4
    for row in cells.to_dict("records"):
        own = runs[runs["run"].isin(row["run_ids"])]
        assert len(own) == row["seeds"] == row["done"] == 2
        assert row["mean"] == pytest.approx(100 * own["accuracy_last"].mean())
        assert row["std"] == pytest.approx(100 * own["accuracy_last"].std(ddof=0))
    wide = cells.pivot(index="wrapper", columns="algorithm", values="mean")
    text = reports.GridReport(results, "six", "paper").render()
    assert all(f"{percent(mean)}±" in text for mean in wide.to_numpy().flat)
    best = api.table("six", results, value="best")
    assert set(best["value"]) == {"best"} and (best["mean"] >= cells["mean"]).all()


def test_published_numbers_stand_beside_measured_ones():
    cells = api.table("paper_table1", EXAMPLES / "paper_table1", "small")
    fedavg = one(cells, partition="label-2", algorithm="fedavg")
    assert (fedavg["published_mean"], fedavg["published_std"]) == (53.6, 0.8)
    assert fedavg["difference"] == pytest.approx(fedavg["mean"] - 53.6)
    assert api.table("paper_table1@small", EXAMPLES / "paper_table1").equals(cells)


def test_what_a_search_has_tried_is_counted_as_in_the_file():
    store, label = Store(EXAMPLES / "search-random"), "fedprox-cifar10-dir-0.5@small+searcher=random+tuned=validation"
    cells = api.table(label, store.folder)
    chosen = [cell["tuned"] for cell in store.grid(label)["cells"] if cell.get("tuned")]
    assert {*cells["tried"]} == {*cells["settings"]} == {one["tried"] for one in chosen} != {1}
    assert {*cells["chosen_on"]} == {"validation"}


def test_axes_that_are_numbers_are_numbers():
    cells = api.table("ccvr_figure4", EXAMPLES / "ccvr", "small")
    assert cells["fraction"].dtype == float and cells["clients"].dtype == int
    assert sorted(cells["fraction"].unique())[0] == 0


def test_of_several_stored_grids_of_a_name_one_has_to_be_named(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    store = Store(tmp_path / "results")
    store.write_grid("six@small", store.grid("six@paper") | {"budget": "small"})
    assert api.table("six", store.folder).equals(api.table("six", results)), "paper is the usual one"
    (store.folder / "grids" / "six@paper.json").unlink()
    assert len(api.table("six", store.folder)), "the only one that is left"
    store.write_grid("six@smoke", store.grid("six@small") | {"budget": "smoke"})
    with pytest.raises(ConfigError, match="holds six@small, six@smoke; name one of them"):
        api.table("six", store.folder)


def test_a_grid_that_is_not_there(results):
    with pytest.raises(ConfigError, match="Unknown grid 'sx'. Did you mean 'six'?"):
        api.table("sx", results)
    with pytest.raises(StoreError, match="holds no six@small, only: six@paper"):
        api.table("six", results, "small")
    for read in (api.table, lambda grid, folder, budget: api.load_rounds(folder, grid, budget)):
        with pytest.raises(
            ConfigError, match="six@paper names the budget paper, but budget is small; leave one of them out"
        ):
            read("six@paper", results, "small")
    with pytest.raises(ValueError, match="Unknown value 'lst'. Did you mean 'last'?"):
        api.table("six", results, value="lst")


# One run


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """What must be equal; times are not."""
    return rows.drop(columns=["seconds", "examples_per_second"]).reset_index(drop=True)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox"])
@pytest.mark.parametrize("wrapper", ["none", "ccvr"])
def test_a_played_run_has_the_id_and_the_numbers_of_the_stored_one(results, wrapper, algorithm):
    options = {"mu": 0.1} if algorithm == "fedprox" else {}
    result = api.run(SETTINGS | options | {"algorithm": algorithm, "wrapper": wrapper, "seed": 1})
    own, stored = result.record["id"], Store(results).record(result.record["id"])
    assert own == run_id(result.config) and stored, "the same run"
    rounds = api.load_rounds(results)
    of_run = rounds[rounds["run"] == own][[*result.rounds]]
    pd.testing.assert_frame_equal(measured(result.rounds), measured(of_run), check_exact=True)
    same = ("status", "summary", "rounds", "bytes_per_client", "skew", "data", "diagnostics", "engine", "threads")
    assert {key: result.record[key] for key in same} == {key: stored[key] for key in same}


def test_a_complete_config_is_played_as_it_is(results):
    (run, *_), store = Store(results).records(), Store(results)
    stored = store.config(run)
    config = api.run(stored).config
    assert run_id(config) == run
    assert api.run(RunConfig(**stored)).record["id"] == run
    assert api.run(settings_of(stored)).record["id"] == run
    with pytest.raises(ConfigError, match="is of the versions .*'model': 99.* leave versions out"):
        api.run(stored | {"versions": stored["versions"] | {"model": 99}})


def test_every_round_is_passed_on_and_threads_are_given_back():
    seen, before = [], torch.get_num_threads()

    def on_round(row):
        seen.append((row["round"], row["accuracy"], torch.get_num_threads()))
        row.clear()

    torch.set_num_threads(2)
    try:
        result = api.run(SETTINGS | {"algorithm": "fedavg"}, on_round=on_round)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [
        (number, accuracy, 1) for number, accuracy in zip((1, 2, 3), result.rounds["accuracy"], strict=True)
    ]


def test_a_callback_that_raises_ends_the_run():
    before = torch.get_num_threads()

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run(SETTINGS | {"algorithm": "fedavg"}, on_round=stop, threads=2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_the_model_that_clients_use_has_the_accuracies_of_the_last_round(algorithm):
    result = api.run(SETTINGS | {"algorithm": algorithm})
    scores = evaluate(result.run.task, result.run.deployed)
    last = result.rounds.iloc[-1]
    assert {key: last[key] for key in scores} == scores and scores.keys() & ACCURACIES.keys()
    assert result.run.deployed.per_client == (algorithm == "ditto")


def test_a_run_that_diverges_has_no_model():
    result = api.run(SETTINGS | {"algorithm": "fedavg", "lr": 1e30})
    assert result.record["status"] == "diverged" and result.run.deployed is None


def test_engines_are_those_that_are_named():
    loop, vectorised = (api.run(SETTINGS | {"algorithm": "fedavg"}, engine=name) for name in ("loop", "vectorised"))
    assert (loop.record["engine"], vectorised.record["engine"]) == ("loop", "vectorised")
    assert loop.rounds["loss"].to_numpy() == pytest.approx(vectorised.rounds["loss"], rel=1e-4)


def test_all_mistakes_are_in_one_message(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrong = {"dataset": "digit", "partition": "label-2", "algorithm": "fedprox", "mu": -1, "rounds": 0, "nu": 1}
    with pytest.raises(ConfigError) as error:
        api.run(wrong, device="cuda", engine="fast", threads=True, on_round="print")
    assert len(error.value.mistakes) == 8
    said = ("Unknown engine 'fast'", "no GPU", "threads must be", "on_round must be")
    for part in (*said, "'digit'", "mu must", "rounds must", "'nu'"):
        assert part in str(error.value), part
    with pytest.raises(ConfigError) as error:
        api.run({"algorithm": "fedavg", "rounds": 0})
    assert error.value.mistakes == [
        "dataset is missing.",
        "partition is missing.",
        "rounds must be greater than 0, but got 0.",
    ]
    with pytest.raises(ConfigError, match="a mapping of settings, but got 'fedavg'"):
        api.run("fedavg")


def test_a_dataset_is_looked_for_where_it_is_said(tmp_path, monkeypatch):
    settings = SETTINGS | {"dataset": "mnist", "algorithm": "fedavg"}
    monkeypatch.delenv("SKEWBENCH_DATA", raising=False)
    with pytest.raises(DataError, match="mnist needs a data directory"):
        api.run(settings)
    with pytest.raises(DataError, match=str(tmp_path)):
        api.run(settings, data_dir=str(tmp_path))
    monkeypatch.setenv("SKEWBENCH_DATA", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path)):
        api.run(settings)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_played_run_has_the_numbers_of_the_command_line(tmp_path):
    named = "--algorithm moon --dataset digits --partition dir-0.5 --seeds 3"
    changed = "--set mu=0.5,rounds=4,clients=10,local_epochs=1,batch_size=16"
    code, text = call_bench(*f"run {named} {changed} --results-dir {tmp_path}".split())
    assert code == 0, text
    result = api.run(
        SETTINGS | {"partition": "dir-0.5", "algorithm": "moon", "seed": 3, "mu": 0.5, "rounds": 4},
    )
    rounds = api.load_rounds(tmp_path)
    assert set(rounds["run"]) == {result.record["id"]}
    pd.testing.assert_frame_equal(measured(result.rounds), measured(rounds[[*result.rounds]]), check_exact=True)


# Imports


@pytest.mark.slow
def test_reading_results_imports_no_torch_and_playing_a_run_no_scheduler():
    heavy = {"torch", "ray", "optuna", "pydantic", "matplotlib", "pandas"}
    assert not imported_after("from bench import api") & heavy
    read = (
        "from bench import api; api.load_runs({0!r}); api.load_rounds({0!r}); api.table('paper_table1', {0!r}, 'small')"
    )
    assert imported_after(read.format(str(EXAMPLES / "paper_table1"))) & heavy == {"pandas"}
    loaded = imported_after(f"from bench import api; api.run({SETTINGS | {'algorithm': 'fedavg'}!r})")
    assert "torch" in loaded and not loaded & {"ray", "optuna", "matplotlib", "torchvision", "typer"}
