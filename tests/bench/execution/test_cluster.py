"""Grids and searches on a Ray cluster of several nodes, one of which dies."""

import os
import subprocess
import sys

import pytest

from tests.support.alone import train_alone
from tests.support.grid_runs import GRID, LONG, metrics, records, wait_for_rounds, write_grid
from tests.support.processes import ROOT, Driver, in_this_process

pytestmark = pytest.mark.slow
TWO_RUNS = {"axes": GRID["axes"] | {"seed": [0]}, "settings": GRID["settings"] | LONG}


@pytest.fixture(scope="module")
def cluster():
    """A running cluster of two nodes with a core each: (address, function that kills the node without the driver, for the
    last test)."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster", "2"],
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


def test_a_search_on_a_cluster_ends_as_on_one_machine(cluster, tmp_path, monkeypatch):
    """Its configurations start from the states of finished runs, which lie in the storage meanwhile."""
    address, _ = cluster
    setting = ("--algorithm", "ccvr", "--dataset", "digits", "--partition", "label-2", "--seeds", "0,1")
    small = ("--set", "clients=12,rounds=3,local_epochs=1,model=mlp,lr=0.1", "--searcher", "random", "--samples", 2)
    remote, local, shared = tmp_path / "remote", tmp_path / "local", tmp_path / "shared"
    where = ("--results-dir", remote, "--address", address, "--storage", shared)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-this-user")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    driver = Driver(*setting, *small, *where, command="tune")
    output = driver.ended()
    assert driver.returncode == 2 and f"error: The Ray cluster at {address} has no authentication, but this" in output
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    driver = Driver(*setting, *small, *where, command="tune")
    output = driver.ended()
    assert driver.returncode == 0, output
    assert output.count(f"The Ray cluster at {address} has no authentication") == 1
    alone = ("--max-concurrent", 1)  # a second worker takes longer to import torch than these runs take
    code, output = in_this_process(*setting, *small, *alone, "--results-dir", local, command="tune")
    assert code == 0, output
    assert metrics(remote) == metrics(local) and len(metrics(local)) == 10, "six of the search, four after it"
    assert not list(shared.glob("*/*")), "nothing is left in the storage"


def test_a_grid_on_a_cluster_is_complete_and_identical_after_a_node_has_died(cluster, tmp_path, monkeypatch):
    address, kill_a_node = cluster
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    results, shared = tmp_path / "results", tmp_path / "shared"
    options = ("--address", address, "--storage", shared, "--checkpoint-seconds", 0)
    grid = write_grid(tmp_path, **TWO_RUNS)
    driver = Driver("--grid", grid, "--results-dir", results, *options)
    wait_for_rounds(results, 5, driver, runs=2)
    assert list(shared.glob("*/*/checkpoint/checkpoint.pt")) and not list(results.glob("runs/*/checkpoint"))
    kill_a_node()
    output = driver.ended()
    assert driver.returncode == 0, output
    assert "continues after round" in output, "one run was on the node that died"
    assert output.count(f"The Ray cluster at {address} has no authentication") == 1
    assert metrics(results) == metrics(train_alone(grid, tmp_path / "alone"))
    for run_id_, record in records(results).items():
        assert record["status"] == "done"
        assert (results / "runs" / run_id_ / "final.pt").exists(), "states came back"
    assert not list(shared.glob("*/*")), "nothing is left in the storage"
