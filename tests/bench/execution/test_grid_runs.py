"""Whole grids on digits, through the command line: killed, failing, repeated, contested."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml

from algorithms import tree
from bench.results.store import Store
from tests.support.alone import play_alone
from tests.support.processes import Driver, family, in_this_process, wait_until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
GRID = {
    "title": "Six short runs",
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg", "scaffold"], "seed": [0, 1, 2]},
    "settings": {"clients": 10, "rounds": 12, "local_epochs": 1, "batch_size": 16},
}
LONG = {"rounds": 25, "local_epochs": 5}  # long enough to be interrupted
STAGES = {"num_clusters": 2, "encoder_rounds": 20, "classifier_rounds": 5}


def write_grid(folder: Path, **changes) -> Path:
    path = folder / "six.yaml"
    path.write_text(yaml.safe_dump(GRID | changes))
    return path


@pytest.fixture(autouse=True)
def no_driver_outlives_its_test():
    yield
    for driver in Driver.running:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    Driver.running.clear()


def run(*arguments: object) -> tuple[int, str]:
    driver = Driver(*arguments)
    return driver.wait(timeout=400), driver.printed()


def records(results: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in results.glob("runs/*/record.json")}


def configs(results: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in results.glob("runs/*/config.json")]


def metrics(results: Path) -> dict[str, list]:
    """Everything a run measured that is not a time."""
    timed = ("seconds", "examples_per_second")
    rows = {run_id: Store(results).rows(run_id) for run_id in records(results)}
    return {run_id: [{k: v for k, v in row.items() if k not in timed} for row in run] for run_id, run in rows.items()}


def wait_for_records(results: Path, count: int, driver: Driver) -> None:
    wait_until(lambda: len(records(results)) >= count, driver)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, output = run("--grid", write_grid(folder), "--results-dir", folder / "results")
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
    assert "| digits" in (uninterrupted / "reports" / "six@paper.md").read_text()
    page = (uninterrupted / "reports" / "six@paper.html").read_text()
    assert all(run_id in page for run_id in found)
    partitions = {record["partition"] for record in configs(uninterrupted)}
    assert len(list(uninterrupted.glob("runs/*/probe-label-counts.json"))) == len(partitions)


def test_several_trials_at_once_give_the_same_numbers_as_one_after_another(uninterrupted, tmp_path):
    alone = play_alone(write_grid(tmp_path), tmp_path / "alone")
    assert metrics(uninterrupted) == metrics(alone)
    for run_id in records(alone):
        states = [torch.load(Store(one).run_folder(run_id) / "final.pt") for one in (alone, uninterrupted)]
        assert all(torch.equal(*pair) for pair in zip(*(tree.leaves(state["params"]) for state in states), strict=True))


def workers_of(driver: Driver) -> list[int]:
    """Ids of the processes that play the driver's runs."""
    return [pid for pid, command in family(driver.pid).items() if command.startswith("ray::ResourceTrainable")]


def wait_for_rounds(results: Path, count: int, driver: Driver, runs: int = 1) -> None:
    """Until so many runs that have not ended have so many rounds, and this driver has written them, not one before it."""

    def far_enough() -> bool:
        return sum(_rounds(path, driver) >= count for path in results.glob("runs/*/rounds.jsonl")) >= runs

    wait_until(far_enough, driver)


def _rounds(path: Path, driver: Driver) -> int:
    try:
        fresh = path.stat().st_mtime >= driver.started and not path.with_name("record.json").exists()
        return len(path.read_text().splitlines()) if fresh else 0
    except FileNotFoundError:  # the driver has just started the run anew
        return 0


@pytest.mark.parametrize(
    ("kills", "seeds"), [(1, 1), pytest.param(10, 4, marks=pytest.mark.torture)], ids=["one-kill", "ten-kills"]
)
def test_however_a_grid_is_interrupted_it_goes_on_and_nothing_is_repeated_or_lost(tmp_path, kills, seeds):
    """Drivers killed at moments drawn from a fixed seed, a dead worker, and Ctrl-C, most of them in the middle of runs."""
    axes = {**GRID["axes"], "algorithm": ["moon", "scaffold", "fedconcat"], "seed": list(range(seeds))}
    grid = write_grid(tmp_path, axes=axes, settings=GRID["settings"] | LONG | STAGES)
    results = tmp_path / "results"
    command = ("--grid", grid, "--results-dir", results, "--checkpoint-seconds", 0)
    moments, before, continued = random.Random(0), {}, 0
    for _ in range(kills):
        driver = Driver(*command)
        wait_for_rounds(results, 1, driver)
        time.sleep(moments.uniform(0, 1))
        assert driver.poll() is None, "there must be something left to kill: " + driver.printed()
        os.kill(driver.pid, signal.SIGKILL)
        continued += driver.ended().count("continues after round")
        before = unchanged(before, results)

    driver = Driver(*command)
    wait_for_rounds(results, 5, driver, runs=2)
    noted = driver.printed().count("continues after round")
    os.kill(workers_of(driver)[0], signal.SIGKILL)
    wait_until(lambda: driver.printed().count("continues after round") > noted, driver)
    os.killpg(driver.pid, signal.SIGINT)
    stopped = driver.ended()
    assert driver.returncode == 130
    assert "the same command continues with the rest" in stopped and "Traceback" not in stopped
    assert "Worker exit" not in stopped, "what Ray says of the dead worker is not for the terminal"
    continued += stopped.count("continues after round")
    before = unchanged(before, results)

    driver = Driver(*command)
    continued += driver.ended().count("continues after round")
    assert driver.returncode == 0, driver.printed()
    assert continued >= kills + 2
    unchanged(before, results)
    assert not list(results.glob("runs/*/checkpoint")), "nothing is left of them"
    whole = play_alone(grid, tmp_path / "whole")
    assert metrics(results) == metrics(whole)
    for name in ("six@paper.md", "six@paper.csv", "six@paper.tex"):
        assert (results / "reports" / name).read_bytes() == (whole / "reports" / name).read_bytes()


def unchanged(before: dict[str, dict], results: Path) -> dict[str, dict]:
    """The records of now, among which those of before are as they were."""
    now = records(results)
    assert {run_id: now[run_id] for run_id in before} == before, "what was finished stays as it was"
    return now


@pytest.mark.torture
def test_a_worker_that_dies_again_and_again_is_recorded(tmp_path):
    results = tmp_path / "results"
    only = ("--only", "algorithm=fedavg,seed=0")
    driver = Driver("--grid", write_grid(tmp_path), "--results-dir", results, "--set", "rounds=5000", *only)
    killed = set()
    deadline = time.monotonic() + 400
    while not records(results):
        assert driver.poll() is None or records(results), driver.printed()
        assert time.monotonic() < deadline
        for worker in set(workers_of(driver)) - killed if list(results.glob("runs/*/rounds.jsonl")) else ():
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
        time.sleep(0.1)
    output = driver.ended()
    (record,) = records(results).values()
    assert driver.returncode == 1 and "Traceback" not in output
    died = "the worker process died 3 times (killed, or out of memory); see ray.log in the results directory"
    assert (record["status"], record["reason"]) == ("failed", died)
    assert f"failed: {died}" in output and "Worker exit" not in output
    assert (results / "ray.log").read_text().count("Failure # ") == 3
    assert len(killed) == 3, "the run was tried three times"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here: only root may")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_stops_the_grid_with_one_sentence_and_nothing_is_lost(uninterrupted, tmp_path, small_disk):
    results = small_disk / "results"
    command = ("--grid", write_grid(tmp_path), "--results-dir", results, "--checkpoint-seconds", 0)
    driver = Driver(*command)
    wait_for_records(results, 2, driver)
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    output = driver.ended()
    assert driver.returncode == 2
    assert "No space left on device. What was finished is kept; mend this, and the same command goes on." in output
    assert "Traceback" not in output
    before = records(results)
    assert 2 <= len(before) < 6

    (small_disk / "ballast").unlink()
    code, output = run(*command, "--max-concurrent", 1)
    assert code == 0, output
    assert {run_id: records(results)[run_id] for run_id in before} == before
    assert metrics(results) == metrics(uninterrupted)


def test_failing_and_diverging_runs_are_recorded_and_the_others_go_on(tmp_path):
    axes = GRID["axes"] | {"partition": ["dir-0.001", "iid"], "algorithm": ["fedavg"], "seed": [0]}
    lasting = GRID["settings"] | {"local_epochs": 2}  # until not even the params are finite
    grid = write_grid(tmp_path, axes=axes | {"lr": [0.1, 1e30]}, settings=lasting, report={"rows": ["partition", "lr"]})
    results = tmp_path / "results"
    code, output = run("--grid", grid, "--results-dir", results, "--set", "clients=100,rounds=2")
    assert code == 1
    assert "1 done, 1 diverged, 2 failed." in output
    assert re.search(
        r"failed: ValueError: dir-0.001 found no split .* \(2 runs: digits dir-0.001 fedavg lr=0.1 seed 0; ", output
    )
    assert "What failed is tried again by: python -m bench run --grid " in output
    by_status = {record["status"]: record for record in records(results).values()}
    assert sorted(record["status"] for record in records(results).values()) == ["diverged", "done", "failed", "failed"]
    assert "dir-0.001" in by_status["failed"]["reason"] and "Traceback" in by_status["failed"]["traceback"]
    assert "not all params were finite" in by_status["diverged"]["reason"]
    assert "failed" in (results / "reports" / "six@paper+clients=100+rounds=2.md").read_text()


def test_a_finished_run_is_played_again_only_for_a_reason(uninterrupted, tmp_path):
    results = tmp_path / "results"
    subprocess.run(["cp", "-r", uninterrupted, results], check=True)
    one = ("--results-dir", results, "--only", "algorithm=fedavg,seed=0")

    code, output = in_this_process("--grid", write_grid(tmp_path), *one)
    assert (code, "1 finished, 0 to run" in output) == (0, True)

    code, output = in_this_process("--grid", write_grid(tmp_path, save_rounds=[5], save_local_models=[5]), *one)
    assert code == 0
    assert "runs again: the stored run lacks round-0005.pt, local-models-0005.pt" in output
    assert metrics(results) == metrics(uninterrupted)

    code, output = in_this_process("--grid", write_grid(tmp_path), *one, "--rerun", "--keep-state", "none")
    assert code == 0
    assert "runs again: --rerun; its earlier results will be in superseded/" in output
    aside = sorted((results / "superseded").iterdir())[-1]
    assert aside.name.endswith("-2"), "the first was set aside for the missing files"
    assert not any((results / "repeating").iterdir())
    assert (aside / "round-0005.pt").exists() and (aside / "record.json").exists()
    assert not (Store(results).run_folder(aside.name.removesuffix("-2")) / "final.pt").exists()
    assert metrics(results) == metrics(uninterrupted)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> tuple[Path, tuple, str]:
    """Three calibrations of one base on images that stand in for others: folder, where it was played, what was said."""
    folder = tmp_path_factory.mktemp("calibrated")
    axes = GRID["axes"] | {"dataset": ["svhn"], "algorithm": ["ccvr"], "virtual_per_class": [0, 20, 40], "seed": [0]}
    report = {"rows": ["dataset", "partition"], "columns": "virtual_per_class"}
    grid = write_grid(folder, axes=axes, settings=GRID["settings"] | {"model": "mlp"}, report=report)
    where = ("--grid", grid, "--results-dir", folder / "results", "--data-dir", folder, "--storage", folder / "shared")
    code, output = in_this_process(*where, "--substitute", "svhn=digits")
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
    assert "on digits" in output
    assert "svhn was replaced by digits: these cells check the mechanics, not svhn." in output
    code, output = in_this_process(*where)
    assert (code, "No svhn in" in output) == (2, True), "nothing stands in silently"


def test_a_second_driver_is_told_to_wait(tmp_path):
    results = tmp_path / "results"
    with Store(results).locked():
        code, output = in_this_process("--grid", write_grid(tmp_path), "--results-dir", results)
    assert code == 2
    assert f"error: Another run is writing to {results}" in output


def test_a_results_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "results").touch()
    code, output = in_this_process("--grid", write_grid(tmp_path), "--results-dir", tmp_path / "results")
    assert code == 2
    assert "error: Cannot write to the results directory" in output


def test_what_was_asked_for_earlier_stays_in_the_stored_grid(uninterrupted, tmp_path):
    results = tmp_path / "results"
    subprocess.run(["cp", "-r", uninterrupted, results], check=True)
    code, _ = in_this_process(
        "--grid", write_grid(tmp_path), "--results-dir", results, "--only", "algorithm=fedavg", "--seeds", "0"
    )
    assert code == 0
    assert Store(results).grid("six@paper")["cells"] == Store(uninterrupted).grid("six@paper")["cells"]
