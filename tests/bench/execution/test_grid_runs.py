"""Whole grids on digits, through the command line: failing, repeated, contested."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from algorithms.shared import tree
from bench.results.store import Store
from tests.support.alone import train_alone
from tests.support.grid_runs import GRID, configs, metrics, records, write_grid
from tests.support.processes import call_bench

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def uninterrupted(ray_session, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, output = call_bench("run", "--grid", write_grid(folder), "--results-dir", folder / "results")
    assert code == 0, output
    return folder / "results"


def test_a_grid_ends_with_a_record_and_a_state_for_every_run_and_a_table(uninterrupted):
    found = records(uninterrupted)
    assert len(found) == 6
    assert {record["status"] for record in found.values()} == {"done"}
    assert {record["rounds"] for record in found.values()} == {12}
    for run_id, record in found.items():
        folder = Store(uninterrupted).run_folder(run_id)
        assert len(Store(uninterrupted).rows(run_id)) == 12
        assert (folder / "final.pt").exists()
        assert record["id"] == run_id and record["versions"]["ray"]
        assert record["started"] <= record["finished"]
    assert "| Digits" in (uninterrupted / "reports" / "six@full.md").read_text()
    page = (uninterrupted / "reports" / "six@full.html").read_text()
    assert all(run_id in page for run_id in found)
    partitions = {record["partition"] for record in configs(uninterrupted)}
    assert len(list(uninterrupted.glob("runs/*/probe-label-counts.json"))) == len(partitions)


def test_several_trials_at_once_give_the_same_numbers_as_one_after_another(uninterrupted, tmp_path):
    alone = train_alone(write_grid(tmp_path), tmp_path / "alone")
    assert metrics(uninterrupted) == metrics(alone)
    for run_id in records(alone):
        states = [torch.load(Store(one).run_folder(run_id) / "final.pt") for one in (alone, uninterrupted)]
        assert all(torch.equal(*pair) for pair in zip(*(tree.leaves(state["params"]) for state in states), strict=True))


def test_failing_and_diverging_runs_are_recorded_and_the_others_go_on(tmp_path):
    axes = GRID["axes"] | {"partition": ["dir-0.001", "iid"], "algorithm": ["fedavg"], "seed": [0]}
    lasting = GRID["settings"] | {"local_epochs": 2}  # until not even the params are finite
    grid = write_grid(tmp_path, axes=axes | {"lr": [0.1, 1e30]}, settings=lasting, report={"rows": ["partition", "lr"]})
    results = tmp_path / "results"
    code, output = call_bench(
        "run", "--grid", grid, "--results-dir", results, "--set", "clients=100,rounds=2", "--max-concurrent", 1
    )
    assert code == 1
    assert "1 done, 1 diverged, 2 failed." in output
    assert len(re.findall(r"fedavg lr=\S+ seed 0: failed: ValueError: dir-0.001 found no split ", output)) == 1
    assert len(re.findall(r"fedavg lr=\S+ seed 0: failed for the same reason as digits dir-0.001 ", output)) == 1
    assert "What failed is tried again by: python -m bench run --grid " in output
    by_status = {record["status"]: record for record in records(results).values()}
    assert sorted(record["status"] for record in records(results).values()) == ["diverged", "done", "failed", "failed"]
    assert "dir-0.001" in by_status["failed"]["reason"] and "Traceback" in by_status["failed"]["traceback"]
    assert "not all params were finite" in by_status["diverged"]["reason"]
    assert "failed" in (results / "reports" / "six@full+clients=100+rounds=2.md").read_text()


def test_a_finished_run_is_played_again_only_for_a_reason(uninterrupted, tmp_path):
    results = tmp_path / "results"
    subprocess.run(["cp", "-r", uninterrupted, results], check=True)
    one = ("--results-dir", results, "--only", "algorithm=fedavg,seed=0")

    code, output = call_bench("run", "--grid", write_grid(tmp_path), *one)
    assert (code, "1 finished, 0 to run" in output) == (0, True)

    code, output = call_bench("run", "--grid", write_grid(tmp_path, save_rounds=[5], save_local_models=[5]), *one)
    assert code == 0
    assert "runs again: the stored run lacks round-0005.pt, local-models-0005.pt" in output
    assert metrics(results) == metrics(uninterrupted)

    code, output = call_bench("run", "--grid", write_grid(tmp_path), *one, "--rerun", "--keep-state", "none")
    assert code == 0
    assert "runs again: --rerun; its earlier results will be in superseded/" in output
    aside = sorted((results / "superseded").iterdir())[-1]
    assert aside.name.endswith("-2"), "the first was set aside for the missing files"
    assert not any((results / "repeating").iterdir())
    assert (aside / "round-0005.pt").exists() and (aside / "record.json").exists()
    assert not (Store(results).run_folder(aside.name.removesuffix("-2")) / "final.pt").exists()
    assert metrics(results) == metrics(uninterrupted)


@pytest.fixture(scope="module")
def calibrated(ray_session, tmp_path_factory) -> tuple[Path, tuple, str]:
    """Three calibrations of one base on images that stand in for others: folder, where it was finished, what was said."""
    folder = tmp_path_factory.mktemp("calibrated")
    axes = GRID["axes"] | {"dataset": ["svhn"], "algorithm": ["ccvr"], "virtual_per_class": [0, 20, 40], "seed": [0]}
    report = {"rows": ["dataset", "partition"], "columns": "virtual_per_class"}
    grid = write_grid(folder, axes=axes, settings=GRID["settings"] | {"model": "mlp"}, report=report)
    where = ("--grid", grid, "--results-dir", folder / "results", "--data-dir", folder, "--storage", folder / "shared")
    code, output = call_bench("run", *where, "--substitute", "svhn=digits", "--max-concurrent", 1)
    assert code == 0, output
    return folder, where, output


def test_calibrations_of_one_base_are_played_after_its_only_training(calibrated):
    folder, _, output = calibrated
    results = folder / "results"
    assert "0 finished, 4 to run" in output and re.search(r"\[1/4\] digits .*label-2 fedavg seed 0: accuracy", output)
    by_method = {}
    for run_id, record in records(results).items():
        config = json.loads((results / "runs" / run_id / "config.json").read_text())
        by_method.setdefault(config["algorithm"]["name"], []).append((record, Store(results).rows(run_id)))
    ((base, trained),) = by_method["fedavg"]
    assert len(trained) == 12 and [len(rows) for _, rows in by_method["ccvr"]] == [1, 1, 1]
    found = {record["summary"]["last"]["accuracy"] for record, _ in by_method["ccvr"]}
    assert base["summary"]["last"]["accuracy"] in found, "without virtual features nothing changes"
    assert not list((folder / "shared").glob("*/*/")), "what was there for others is gone"


def test_a_substitute_is_played_and_named_in_the_table(calibrated):
    _, where, output = calibrated
    assert re.search(r"\[4/4\] digits \(as svhn\) label-2 ccvr ", output)
    assert "on Digits" in output
    assert "SVHN was replaced by Digits: these cells check the mechanics, not SVHN." in output
    code, output = call_bench("run", *where)
    assert (code, "No svhn in" in output) == (2, True), "nothing stands in silently"
