"""Runs on data of users: one id wherever the files lie, names of files without paths, and stored runs of paths."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from bench.cli import pipeline
from bench.config.resolve import resolve
from bench.config.schema import run_id, settings_of
from bench.errors import ConfigError
from bench.execution.driver import inputs_of
from bench.execution.job import Job
from bench.execution.worker import Worker, inspect_machine
from bench.experiments import runs_of_paths
from bench.experiments.cells import is_laid_out_as, select, to_json
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, make_grid, single
from bench.experiments.importing import merge_results
from bench.experiments.spec import ExperimentSpec
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from bench.tuning.search import Search
from datasets import load, own_data, partition_files, resized
from tests.support.processes import call_bench
from tests.support.small_datasets import random_images, write_folders, write_png
from tests.support.stores import finish

PARTS = {"train": [[0, 5], [3, 1, 2], [4]]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, with a folder of images and a partition of six of them."""
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "leaves", ["a", "b"], random_images(6, 3, 8), per_class=3)
    (tmp_path / "parts.json").write_text(json.dumps(PARTS))
    return tmp_path


def settings(dataset: str, partition: str = "file:parts.json", **others) -> dict:
    usual = {"algorithm": "fedavg", "model": "mlp", "rounds": 2, "local_epochs": 1}
    return {**usual, "dataset": dataset, "partition": partition, **others}


def cells_of(grid, **others):
    own = {"model": "mlp", "rounds": 2, "local_epochs": 1}
    return expand(grid, "paper", overrides=own, facts=None, **others)


def test_a_run_has_one_id_wherever_its_files_lie_and_whatever_they_are_called(here):
    shutil.copytree(here / "leaves", here / "far" / "blades")
    shutil.copy(here / "parts.json", here / "far" / "other.json")
    places = [
        ("imagefolder:leaves", "file:parts.json"),
        (f"imagefolder:{here}/leaves", f"file:{here}/parts.json"),
        ("imagefolder:far/blades", "file:far/other.json"),
    ]
    configs = [resolve(settings(*place), None) for place in places]
    assert len({run_id(config) for config in configs}) == 1
    assert configs[0] == configs[1] and configs[0].clients == 3
    assert str(here) not in json.dumps(configs[2].canonical()) and "blades" in configs[2].dataset
    again = settings_of(configs[0])
    assert resolve(again, None) == configs[0], "a stored config names the same run"
    (here / "parts.json").write_text(json.dumps({"train": [[0], [5], [3, 1, 2, 4]]}))
    write_png(here / "far" / "blades" / "train" / "a" / "9.png", np.zeros((3, 8, 8), np.uint8))
    others = [resolve(settings("imagefolder:leaves"), None), resolve(settings("imagefolder:far/blades", "iid"), None)]
    assert run_id(others[0]) != run_id(configs[0])
    assert run_id(others[1]) != run_id(resolve(settings("imagefolder:leaves", "iid"), None))


def test_names_of_files_have_no_paths_and_are_short(here):
    long = here / ("a-very-long-name-of-a-folder-" * 4)
    shutil.copytree(here / "leaves", long)
    shutil.copy(here / "parts.json", here / f"{'p' * 90}.json")
    for dataset in (f"imagefolder:{here}/leaves", f"imagefolder:{long}"):
        named = {"algorithm": "fedavg", "dataset": dataset, "partition": f"file:{'p' * 90}.json"}
        (cell,) = cells_of(grid := single(named, [0]))
        longest = single(named | {"algorithm": "random-clusters"}, [0])
        search = Search({0: cell.config}, {}, "grid", "none", "accuracy", None)
        for name in (f"{ExperimentSpec(longest, 'smoke').label}.json", f"{search.name}.journal.lock"):
            assert len(name) < 80 and not re.search(r"imagefolder|file:|/|:|_home|tmp", name), name
    spec = ExperimentSpec(grid, overrides={"partition": f"file:{here}/parts.json"}, only={"dataset": [dataset]})
    assert len(f"{spec.label}-standalone.tex") <= 80
    assert re.search(r"@full\+partition=parts-[0-9a-f]{8}$", spec.earlier_labels[0])
    assert re.search(r"@paper\+partition=parts-[0-9a-f]{8}$", spec.earlier_labels[1])
    assert str(here) not in json.dumps([spec.overrides, spec.only])


@pytest.mark.parametrize("name", ["mine", "m" * 90])
def test_a_label_that_is_cut_still_begins_with_its_budget_and_differs_from_others(name):
    grid = make_grid(name, {"title": "t", "axes": {"algorithm": ["fedavg"], "dataset": ["digits"], "seed": [0]}})
    many = {"batch_size": 128, "local_epochs": 10, "lr": 0.0123456789, "momentum": 0.123456789}
    specs = [ExperimentSpec(grid, "smoke", overrides=many | {"weight_decay": n}) for n in range(20)]
    labels = {spec.budget_label for spec in specs}
    assert len(labels) == 20 and {label.partition("+")[0] for label in labels} == {"smoke"}
    assert all("~" in label for label in labels)


def test_cells_of_a_grid_have_references_and_are_selected_by_paths(here):
    axes = {
        "dataset": ["imagefolder:leaves", "digits"],
        "partition": ["file:parts.json", "iid"],
        "algorithm": ["fedavg"],
    }
    cells = cells_of(make_grid("mine", {"title": "mine", "axes": axes}))
    assert len(cells) == 4 and {cell.config.clients for cell in cells if "parts" in cell.config.partition} == {3}
    assert str(here) not in json.dumps([cell.to_json() for cell in cells])
    spec = ExperimentSpec(
        make_grid("mine", {"title": "mine", "axes": axes}),
        only={"dataset": [f"imagefolder:{here}/leaves"], "partition": ["file:./parts.json"]},
    )
    assert len(select(cells, spec.only)) == 1


def test_names_notes_and_comparisons_of_a_grid_are_of_the_references_that_its_cells_have(here):
    leaves, parts = "imagefolder:leaves", "file:parts.json"
    layout = {
        "rows": ["dataset", "partition"],
        "columns": "algorithm",
        "names": {"dataset": {leaves: "Leaves of Kew"}, "partition": {parts: "Sites"}, "axes": {"dataset": "Images"}},
        "notes": [{"when": {"dataset": leaves}, "say": "Photographed in Kew."}],
        "against": {"partition": "iid"},
        "printed": {"without": {"dataset": [leaves]}},
    }
    axes = {"dataset": [leaves, "digits"], "partition": [parts, "iid"], "algorithm": ["fedavg"]}
    file = make_grid("mine", {"title": "mine", "axes": axes, "report": layout})
    grid = ExperimentSpec(file).grid
    stored = to_json(grid, "full", {}, cells_of(grid))
    named = {cell["dataset"] for cell in stored["cells"]} - {"digits"}
    report = stored["report"]
    assert {*report["names"]["dataset"]} == named == {*report["printed"]["without"]["dataset"]}
    assert {*report["names"]["partition"]} < {cell["partition"] for cell in stored["cells"]}
    assert report["names"]["axes"] == {"dataset": "Images"} and report["against"] == {"partition": "iid"}
    ((note,),) = ([*one["when"].values()] for one in report["notes"])
    assert note == [*named] and is_laid_out_as(grid, stored) and is_laid_out_as(file, stored)
    shutil.move(here / "leaves", here / "elsewhere")
    (here / "parts.json").unlink()
    assert is_laid_out_as(file, stored), "by their names, wherever the files are"
    other = make_grid("mine", {"title": "mine", "axes": axes, "report": layout | {"notes": []}})
    assert not is_laid_out_as(other, stored)


def test_budgets_leave_the_clients_and_examples_of_a_file_as_they_are(here):
    (cell,) = expand(single({"algorithm": "fedavg", "dataset": "digits", "partition": "file:parts.json"}, [0]), "smoke")
    assert (cell.config.clients, cell.config.train_examples, cell.config.rounds) == (3, None, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 7}, "The partition parts has 3 clients: set clients to 3 or leave it out, but got 7."),
        (
            {"train_examples": 100},
            "train_examples must be left out: the indices of the partition parts count through all",
        ),
        ({"partition": "file:nowhere.json"}, "There is no partition file .*nowhere.json"),
        ({"dataset": "imagefolder:leaves?test=0.2", "model": "mlp"}, "leaves has a folder train of its own"),
        ({"dataset": "imagefolder:leaves?test=2", "model": "mlp"}, "takes .test=SHARE, .* but got .test=2"),
    ],
)
def test_what_does_not_fit_is_said_before_images_are_read(here, changes, said):
    with pytest.raises(ConfigError, match=said):
        resolve({**settings("digits"), **changes})


def test_another_machine_gets_paths_and_indices_with_the_job(here, monkeypatch):
    (here / "own.json").write_text(json.dumps(PARTS | {"test": [[0], [1], [4, 0]]}))
    config = resolve(settings("imagefolder:leaves", "file:own.json"), None)
    job = Job(run_id(config), config, str(here / "run"), StateRetention(final="none"), inputs=inputs_of(config, None))
    (here / "own.json").unlink()
    for place, name in (
        (own_data, "_PATHS"),
        (own_data, "_KNOWN"),
        (partition_files, "_CONTENTS"),
        (partition_files, "_READ"),
    ):
        monkeypatch.setattr(place, name, {})
    resized._load.cache_clear()
    unknown = Worker(replace(job, inputs=replace(job.inputs, own_data=own_data.DataOfUser())), None, "cpu").step()
    assert "is not known" in unknown.machine_error
    worker, last = Worker(job, None, "cpu"), None
    while last is None or not last.is_last:
        last = worker.step()
    assert last.result["status"] == "done", last
    assert last.result["summary"]["last"].keys() == {"accuracy", "own_accuracy", "weighted_accuracy"}
    assert len(last.result["client_accuracies"]) == 3
    assert inspect_machine([(config, job.inputs)], None, "cpu") == ""


def stored_by_path(store: Store, cell, path: str, **record):
    """A cell with a finished run as it was stored when configs had paths."""
    before = cell.config.model_copy(update={"dataset": path})
    old = replace(cell, dataset=path, config=before, id=run_id(before))
    finish(store, old, 0.5, **record)
    return old


def test_a_stored_run_of_a_path_is_found_again_by_the_digest_of_its_images(here):
    path = "imagefolder:/home/me/once/leaves"
    grid = make_grid(
        "mine",
        {"title": "mine", "axes": {"dataset": ["imagefolder:leaves"], "partition": ["iid"], "algorithm": ["fedavg"]}},
    )
    cells = cells_of(grid, seeds=[0, 1, 2])
    images = resized.load(cells[0].config.dataset, "fedconcat", None)
    spec, options, store = ExperimentSpec(grid, "paper"), ExecutionOptions(), Store(here / "results")
    with store.locked():
        same = stored_by_path(store, cells[0], path, data={"kind": "image folders", "digest": images.digest})
        other = stored_by_path(store, cells[1], path, data={"kind": "image folders", "digest": "0badcafe"})
        before = cells[2].config.model_copy(update={"dataset": path})
        old_cells = [same, other, replace(cells[2], dataset=path, config=before, id=run_id(before))]
        store.write_grid(spec.label, to_json(grid, "paper", {}, old_cells))
        assert runs_of_paths.find(cells, None, store) == {same.id: cells[0].config}
        pipeline._prepare_data_of_users(cells, spec, options, store, dry_run=True)
        assert store.record(cells[0].id) is None, "a dry run writes nothing"
        pipeline._prepare_data_of_users(cells, spec, options, store, dry_run=False)
        store.validate_all()
        assert not store.damaged
        assert store.record(cells[0].id)["summary"] == store.record(same.id)["summary"]
        assert store.rows(cells[0].id) == store.rows(same.id) and store.states(cells[0].id) == ["final.pt"]
        assert store.config(cells[0].id) == cells[0].config.canonical()
        assert store.record(cells[1].id) is None, "its images are others"
        shown = {cell["seed"]: (cell["dataset"], cell["run"]) for cell in store.grid(spec.label)["cells"]}
        assert shown == {0: (cells[0].dataset, cells[0].id), 1: (path, other.id), 2: (cells[2].dataset, cells[2].id)}
        assert runs_of_paths.find(cells, None, store) == {}


def test_a_results_directory_keeps_partition_files_and_another_one_takes_them(here):
    grid = single({"algorithm": "fedavg", "dataset": "digits", "partition": f"file:{here}/parts.json"}, [0])
    cells, there, other = cells_of(grid), Store(here / "there"), Store(here / "other")
    with there.locked():
        pipeline._prepare_data_of_users(cells, ExperimentSpec(grid), ExecutionOptions(), there, dry_run=False)
    (here / "parts.json").unlink()
    (kept,) = (there.folder / "partitions").iterdir()
    assert partition_files.parse(f"file:{kept}").name == cells[0].config.partition
    (there.folder / "partitions" / "odd.npz").write_text("nothing")
    merge_results(there, other)
    assert [path.name for path in (other.folder / "partitions").iterdir()] == [kept.name]
    assert there.damaged[there.folder / "partitions" / "odd.npz"].startswith("is no .npz file")


def test_a_dry_run_says_what_a_partition_leaves_out_and_shows_the_run(here):
    setting = "--algorithm fedavg --dataset digits --partition file:parts.json".split()
    code, text = call_bench("run", *setting, "--dry-run", "--results-dir", here / "results")
    assert code == 0, text
    assert "The partition parts leaves 1,431 of 1,437 training examples out." in text and "1 to run" in text
    assert str(here / "parts.json") not in text and not (here / "results").exists()


def test_models_are_scored_on_own_tests_and_on_all_of_them_together(here):
    from bench.simulation.run import Run

    digits = load("digits", None)
    pooled = {
        "train": [list(range(60)), list(range(60, 160))],
        "test": [[200, 1500], list(range(300, 340))],
        "pooled": True,
    }
    (here / "pooled.json").write_text(json.dumps(pooled))
    labels = np.concatenate([digits.train.labels, digits.test.labels])
    for algorithm, metric in (("fedavg", "accuracy"), ("local", "global_accuracy")):
        run = Run(resolve(settings("digits", "file:pooled.json", algorithm=algorithm, rounds=1)), digits)
        run.step()
        assert {key for key in run.rows[-1] if key.endswith("accuracy")} == {
            metric,
            "own_accuracy",
            "weighted_accuracy",
        }
        federation = run.task.federation
        assert federation.test_labels.tolist() == labels[[200, 1500, *range(300, 340)]].tolist()
        assert [len(rows) for rows in federation.clients] == [60, 100]
        own = run.result()["client_accuracies"]
        assert run.rows[-1]["own_accuracy"] == pytest.approx(np.mean(own))
        assert run.rows[-1]["weighted_accuracy"] == pytest.approx((own[0] * 2 + own[1] * 40) / 42)
        if algorithm == "fedavg":
            assert run.rows[-1]["accuracy"] == pytest.approx(run.rows[-1]["weighted_accuracy"])
    validated = Run(resolve(settings("digits", "file:pooled.json", split="validation", rounds=1)), digits)
    assert len(validated.task.federation.test_labels) < 40, (
        "clients test on what they set aside of their training examples"
    )
    without = Run(resolve(settings("digits", rounds=1)), digits)
    assert without.task.federation.test_clients is None and len(without.task.federation.test_labels) == 360


def test_a_grid_with_another_mistake_is_not_said_to_lack_its_model(here):
    grid = {"axes": {"dataset": ["imagefolder:leaves"], "partition": ["iid"], "algorithm": ["fedavg"], "seed": [0]}}
    grid |= {"settings": {"model": "mlp"}, "report": {"metrics": ["acuracy"]}}
    (here / "wrong.yaml").write_text(json.dumps(grid))
    with pytest.raises(ConfigError) as raised:
        load_grid("wrong.yaml")
    mistakes = raised.value.mistakes
    assert any("acuracy" in one for one in mistakes) and not any("model is missing" in one for one in mistakes), (
        mistakes
    )
