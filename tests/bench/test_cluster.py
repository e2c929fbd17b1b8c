"""Grids on a Ray cluster of several nodes, one of which dies."""

import os
import subprocess
import sys

import pytest
import torch

import datasets
from bench.config import resolve, run_id
from bench.run import Run
from tests.bench.test_grid_runs import (  # noqa: F401
    GRID,
    ROOT,
    Driver,
    metrics,
    no_driver_outlives_its_test,
    records,
    wait_for_rounds,
    write_grid,
)

pytestmark = pytest.mark.slow
LONG = {"axes": GRID["axes"] | {"seed": [0]}, "settings": GRID["settings"] | {"rounds": 60, "local_epochs": 5}}


@pytest.fixture
def cluster():
    """A running cluster of two nodes with a core each: (address, function that kills the node without the driver)."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.ray_cluster", "2"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def hear(what: str) -> str:
        said = next((line for line in process.stdout if line.startswith(what)), None)
        assert said, f"the cluster has ended without saying: {what}"
        return said.removeprefix(what).strip()

    def kill_a_node():
        process.stdin.write("\n")
        process.stdin.flush()
        hear("killed")

    yield hear("address "), kill_a_node
    process.stdin.close()
    process.wait(timeout=60)


@pytest.fixture
def one_thread():
    """As workers have: the number of threads changes how sums are rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def expected() -> dict[str, list]:
    """What the runs of the grid measure, played one after another in this process."""
    found, images = {}, datasets.load("digits", None)
    for algorithm in LONG["axes"]["algorithm"]:
        config = resolve(
            {**LONG["settings"], "dataset": "digits", "partition": "label-2", "algorithm": algorithm, "seed": 0}
        )
        one = Run(config, images)
        while not one.finished:
            one.step()
        found[run_id(config)] = [{key: v for key, v in row.items() if "second" not in key} for row in one.rows]
    return found


def test_a_grid_on_a_cluster_is_complete_and_identical_after_a_node_has_died(
    cluster, one_thread, tmp_path, monkeypatch
):
    address, kill_a_node = cluster
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    results, shared = tmp_path / "results", tmp_path / "shared"
    options = ("--address", address, "--storage", shared, "--checkpoint-seconds", 0)
    command = ("--grid", write_grid(tmp_path, **LONG), "--results-dir", results, *options)
    driver = Driver(*command)
    wait_for_rounds(results, 5, driver, runs=2)
    assert list(shared.glob("*/*/checkpoint/checkpoint.pt")) and not list(results.glob("runs/*/checkpoint"))
    kill_a_node()
    output = driver.ended()
    assert driver.returncode == 0, output
    assert "goes on after round" in output, "one run was on the node that died"
    assert metrics(results) == expected()
    for run_id_, record in records(results).items():
        assert record["status"] == "done"
        assert (results / "runs" / run_id_ / "final.pt").exists(), "states came back"
    assert not list(shared.glob("*/*")), "nothing is left in the storage"
