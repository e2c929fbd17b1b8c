"""Grids and searches on a Ray cluster of several nodes: what each trains with, which of them are left out, and what dies."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bench.execution.ray_environment import PACKAGES
from tests.support.alone import train_alone
from tests.support.grid_runs import GRID, LONG, SHORT, metrics, records, wait_for_records, wait_for_rounds, write_grid
from tests.support.lab_files import HOSPITAL, POLLEN
from tests.support.method_files import RUNNABLE
from tests.support.processes import ROOT, Driver, call_bench, wait_until
from tests.support.ray_cluster import RunningCluster, running_cluster

pytestmark = pytest.mark.slow
TWO_RUNS = {"axes": GRID["axes"] | {"seed": [0]}, "settings": GRID["settings"] | LONG}
BLIND = {"SKEWBENCH_CACHE": "/dev/null/nothing"}  # of a machine that cannot decode images


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Three nodes with a core each; one of them cannot decode images. The last test kills another one."""
    with running_cluster([{"CPU": 1}, {"CPU": 1, "env": BLIND}, {"CPU": 1}]) as cluster:
        yield cluster


def test_a_search_on_a_cluster_ends_as_on_one_machine(cluster, tmp_path, monkeypatch):
    """Its configurations start from the states of finished runs, which lie in the storage meanwhile."""
    setting = ("--algorithm", "ccvr", "--dataset", "digits", "--partition", "label-2", "--seeds", "0,1")
    small = ("--set", "clients=12,rounds=3,local_epochs=1,model=mlp,lr=0.1", "--searcher", "random", "--samples", 2)
    remote, local, shared = tmp_path / "remote", tmp_path / "local", tmp_path / "shared"
    where = ("--results-dir", remote, "--storage", shared)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-this-user")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    driver = Driver(*setting, *small, *where, "--address", cluster.address, command="tune")
    output = driver.ended()
    assert driver.returncode == 2, output
    assert f"error: The Ray cluster at {cluster.address} has no authentication, but this" in output
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    driver = Driver(*setting, *small, *where, command="tune")
    output = driver.ended()
    assert driver.returncode == 0, output
    assert output.count(f"The Ray cluster at {cluster.address} has no authentication") == 1
    described = f"The Ray cluster at {cluster.address} (RAY_ADDRESS): 3 machines, 3 of 3 CPUs free, 0 of 0 GPUs free."
    assert output.count(described) == 1 and output.index(described) < output.index("[1/2]")
    monkeypatch.delenv("RAY_ADDRESS")
    alone = ("--max-concurrent", 1)  # a second worker takes longer to import torch than these runs take
    code, output = call_bench("tune", *setting, *small, *alone, "--results-dir", local)
    assert code == 0, output
    assert metrics(remote) == metrics(local) and len(metrics(local)) == 10, "six of the search, four after it"
    assert not list(shared.glob("*/*")), "nothing is left in the storage"


def test_workers_train_with_the_code_that_is_sent_not_with_a_checkout_that_lies_at_the_same_path(
    cluster, tmp_path, monkeypatch
):
    """The checkout at the driver's path is another one as soon as the driver has sent its own."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    here, earlier = tmp_path / "checkout", tmp_path / "earlier"
    for folder in (here, earlier):
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    fedavg = earlier / "algorithms" / "fedavg.py"
    fedavg.write_text(fedavg.read_text() + "\nraise ImportError('an earlier checkout was imported')\n")
    grid = write_grid(tmp_path, axes=GRID["axes"] | {"algorithm": ["fedavg"]}, settings=GRID["settings"] | SHORT)
    where = ("--results-dir", tmp_path / "results", "--address", cluster.address, "--storage", tmp_path / "shared")
    driver = Driver("--grid", grid, *where, root=here)
    wait_until(lambda: "3 of 3 CPUs free" in driver.printed(), driver)
    here.rename(tmp_path / "moved")
    earlier.rename(here)
    wait_for_records(tmp_path / "results", 3, driver)
    driver.kill()
    driver.wait()
    assert {(one["status"], one["reason"]) for one in records(tmp_path / "results").values()} == {("done", "")}
    assert all(one["host"] for one in records(tmp_path / "results").values())


def test_workers_get_the_folder_of_a_lab_which_is_not_named_to_them(cluster, tmp_path, monkeypatch):
    """Its dataset is made by the sent function there: what the driver has decoded lies elsewhere."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    lab = tmp_path / "mylab"
    files = {"algorithms/fedmine.py": RUNNABLE, "datasets/pollen.py": POLLEN, "partitions/hospital.py": HOSPITAL}
    for name, content in files.items():
        (lab / name).parent.mkdir(parents=True)
        (lab / name).write_text(content)
    own = {"algorithm": ["fedmine"], "dataset": ["pollen"], "partition": ["hospital"]}
    grid = write_grid(tmp_path, axes=GRID["axes"] | own, settings=GRID["settings"] | SHORT)
    where = ("--results-dir", tmp_path / "results", "--address", cluster.address, "--storage", tmp_path / "shared")
    driver = Driver("--grid", grid, *where, "--plugins", lab)
    output = driver.ended()
    assert driver.returncode == 0 and f"Uses {lab}: 1 algorithm, 1 dataset, 1 partition." in output, output
    assert {(one["status"], one["reason"]) for one in records(tmp_path / "results").values()} == {("done", "")}


def test_a_machine_that_cannot_read_images_is_left_out_and_its_runs_go_to_the_others(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    grid = write_grid(tmp_path, settings=GRID["settings"] | SHORT)
    where = ("--address", cluster.address, "--storage", tmp_path / "shared", "--results-dir", tmp_path / "results")
    driver = Driver("--grid", grid, *where, "--record-host", "none")
    output = driver.ended()
    assert driver.returncode == 0, output
    assert output.count(" takes no more runs: Cannot write decoded images to /dev/null/nothing") == 1, output
    assert "6 done, 0 diverged, 0 failed" in output
    ended = records(tmp_path / "results").values()
    assert [one["status"] for one in ended] == ["done"] * 6 and not any("host" in one for one in ended)


def test_a_cluster_with_another_ray_is_refused_with_both_versions(cluster, tmp_path):
    other = "import sys, ray; ray.__version__ = '9.9.9'; sys.argv[0] = 'bench'; from bench.cli.app import app; app()"
    words = ["run", "--grid", "quickstart", "--results-dir", tmp_path, "--address", cluster.address]
    done = subprocess.run(
        [sys.executable, "-c", other, *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    python = ".".join(map(str, sys.version_info[:3]))
    assert done.returncode == 2
    assert f"on Python {python}, this command Ray 9.9.9 on Python {python}. Both must be the same" in done.stderr


def test_more_than_a_machine_has_is_refused_after_the_time_to_wait(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    where = ("--results-dir", tmp_path, "--address", cluster.address, "--storage", tmp_path / "shared")
    driver = Driver("--grid", "quickstart", *where, "--cpus-per-trial", 2, "--wait-for-machines", 2)
    output = driver.ended()
    assert driver.returncode == 2, output
    assert "No machine has 2 CPUs for a trial yet; waits 2 s for one." in output
    assert (
        "of one machine of the cluster, but none of the 3 machines has them after 2 s; ask for less, or wait longer"
        in output
    )


def test_a_grid_on_a_cluster_is_complete_and_identical_after_a_node_has_died(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    results, shared = tmp_path / "results", tmp_path / "shared"
    options = ("--address", cluster.address, "--storage", shared, "--checkpoint-seconds", 0)
    longer = TWO_RUNS["settings"] | {"rounds": 200}  # Ray may need seconds to see that a machine has gone
    grid = write_grid(tmp_path, **TWO_RUNS | {"settings": longer})
    driver = Driver("--grid", grid, "--results-dir", results, *options)
    wait_for_rounds(results, 5, driver, runs=2)
    assert list(shared.glob("*/*/checkpoint/checkpoint.pt")) and not list(results.glob("runs/*/checkpoint"))
    _, status = call_bench("status", "--results-dir", results)
    assert len([line for line in status.splitlines() if ": round " in line and " of 200 on " in line]) == 2, status
    cluster.kill()
    output = driver.ended()
    assert driver.returncode == 0, output
    assert " has gone" in output, output
    assert "continues after round" in output, "one run was on the node that died"
    assert output.count(f"The Ray cluster at {cluster.address} has no authentication") == 1
    assert metrics(results) == metrics(train_alone(grid, tmp_path / "alone"))
    for run_id_, record in records(results).items():
        assert record["status"] == "done" and record["host"]
        assert (results / "runs" / run_id_ / "final.pt").exists(), "states came back"
    assert not list(shared.glob("*/*")), "nothing is left in the storage"


def test_a_head_that_has_gone_ends_a_command_with_a_sentence_and_other_machines_continue(
    cluster, tmp_path, monkeypatch
):
    """Last: it leaves no cluster."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    grid = write_grid(tmp_path, **TWO_RUNS)
    where = ("--results-dir", tmp_path / "results", "--storage", tmp_path / "shared", "--checkpoint-seconds", 0)
    impatient = "from bench.execution import cluster; cluster.LOST_SECONDS = 2"
    driver = Driver("--grid", grid, *where, "--address", cluster.address, before=impatient)
    wait_for_rounds(tmp_path / "results", 5, driver)
    cluster.kill("head")
    killed = time.monotonic()
    output = driver.ended()
    assert driver.returncode == 1 and time.monotonic() < killed + 30
    last = output.strip().splitlines()[-1]
    assert last.startswith(f"error: The head of the Ray cluster at {cluster.address} has gone. Nothing is lost: "), (
        output
    )
    assert f"then continue by: python -m bench run --grid {grid}" in last
    assert "does not answer; waits 2 s for it." in output, output
    code, output = call_bench("run", "--grid", grid, *where)
    assert code == 0 and "continues after round" in output, output
    assert "did not end by itself" not in output, "it has said itself why it ended"
