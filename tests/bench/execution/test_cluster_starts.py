"""Clusters that are started in other ways: with a token, with an autoscaler, by the Slurm script of the manual."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.execution.ray_environment import PACKAGES
from tests.support import tools
from tests.support.grid_runs import GRID, SHORT, records, write_grid
from tests.support.processes import ROOT, Driver, family
from tests.support.ray_cluster import running_cluster

slow = pytest.mark.slow
ONE_RUN = {"axes": GRID["axes"] | {"algorithm": ["fedavg"], "seed": [0]}, "settings": GRID["settings"] | SHORT}
BIN = str(Path(sys.executable).parent)
SCRIPT = re.search(
    r"```bash title=\"needs Slurm\"\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL
).group(1)
SRUN = """# Starts the words that follow the options as a local process; Slurm's own would start them on another machine.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def free_port() -> int:
    """A free one of the ports that the script for Slurm chooses from."""
    for port in range(10000 + os.getpid() % 19000, 30000):
        try:
            with closing(socket.create_server(("", port))):
                return port
        except OSError:
            continue
    raise AssertionError("no port is free")


@slow
def test_a_cluster_asks_for_its_token_in_one_sentence_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_cluster([{"CPU": 1}], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64) as cluster:
        begin = time.monotonic()
        driver = Driver("--grid", write_grid(tmp_path), "--results-dir", tmp_path, "--address", cluster.address)
        output = driver.ended()
    assert driver.returncode == 2 and time.monotonic() < begin + 60
    *_, last = output.strip().splitlines()
    assert last.startswith(f"error: The Ray cluster at --address {cluster.address} asks for its token"), output
    assert "gcs_client" not in output and "InvalidAuthToken" in (tmp_path / "ray.log").read_text()


@pytest.fixture
def autoscaling(tmp_path) -> Iterator[str]:
    """The address of a cluster whose head takes no trials; Ray's own pretended cloud starts machines of one core."""
    no_commands = dict.fromkeys(
        [
            *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
            *(
                "head_start_ray_commands",
                "worker_start_ray_commands",
                "cluster_synced_files",
                "rsync_exclude",
                "rsync_filter",
            ),
        ],
        [],
    )
    config = {
        "cluster_name": "pretended",
        "max_workers": 2,
        "provider": {"type": "fake_multinode", "disable_launch_config_check": True, "disable_node_updaters": True},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "trials": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "file_mounts_sync_continuously": False,
        **dict.fromkeys(["auth", "file_mounts", "docker"], {}),
        **no_commands,
    }
    (tmp_path / "cluster.json").write_text(json.dumps(config))
    variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_AUTH_MODE": "disabled"}
    port = 6379  # Ray's pretended cloud knows no other
    with closing(socket.socket()) as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            pytest.skip("port 6379 is in use")
    words = ["--head", f"--port={port}", "--num-cpus=0", f"--autoscaling-config={tmp_path / 'cluster.json'}", "--block"]
    head = subprocess.Popen(
        [
            f"{BIN}/ray",
            "start",
            *words,
            "--include-dashboard=false",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--object-store-memory={100 * 2**20}",
        ],
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"127.0.0.1:{port}"
    started = family(head.pid)
    head.terminate()
    head.wait(timeout=60)
    for pid in started:
        subprocess.run(["kill", "-9", str(pid)], stderr=subprocess.DEVNULL)


@slow
def test_a_cluster_without_machines_is_waited_for_and_its_autoscaler_starts_one(autoscaling, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    where = ("--results-dir", tmp_path / "results", "--address", autoscaling, "--wait-for-machines", 60)
    grid = write_grid(tmp_path, **ONE_RUN)
    without_storage = Driver("--grid", grid, *where)
    assert "The cluster has an autoscaler, which starts machines: name by --storage" in without_storage.ended()
    driver = Driver("--grid", grid, *where, "--storage", tmp_path / "shared")
    output = driver.ended()
    assert driver.returncode == 0, output
    assert output.count("No machine has 1 CPU for a trial yet: the cluster's autoscaler is asked for one.") == 1
    assert [one["status"] for one in records(tmp_path / "results").values()] == ["done"]


def test_the_script_for_slurm_has_no_mistake_that_bash_or_shellcheck_finds(tmp_path):
    (tmp_path / "skewbench.sh").write_text(SCRIPT)
    subprocess.run(["bash", "-n", tmp_path / "skewbench.sh"], check=True)
    found = subprocess.run([tools.path_of("shellcheck"), tmp_path / "skewbench.sh"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def stand_ins(folder: Path, **programs: str) -> dict[str, str]:
    """Variables of a job on two nodes, with programs in place of Slurm's that start everything on this machine."""
    (folder / "bin").mkdir()
    for name, text in ({"srun": SRUN} | programs).items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (folder / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(free_port() - 10000), "SLURM_JOB_NODELIST": "any", "SLURM_CPUS_PER_TASK": "1"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    return clean | job | {"SLURM_SUBMIT_DIR": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_script_for_slurm_starts_one_head_and_a_node_on_each_other_machine(nodes, tmp_path):
    machines = "".join(f"echo node{number}\n" for number in range(nodes))
    log = f'echo "$(basename "$0") $*" >> {tmp_path}/log\n'
    variables = stand_ins(
        tmp_path, scontrol=machines, ray=f"{log}exec sleep 60", python=f"{log}sleep 2", srun=f"{log}{SRUN}"
    )
    done = subprocess.run(["bash", "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    port = int(variables["SLURM_JOB_ID"]) + 10000
    started = [line for line in lines if line.startswith("ray start --block --num-cpus=1 --num-gpus=0 ")]
    assert len(started) == nodes and [f"--head --port={port} " in line for line in started].count(True) == 1
    assert sum(f"--address=node0:{port}" in line for line in started) == nodes - 1
    assert {re.search(r"--nodelist=(\w+)", line).group(1) for line in lines if line.startswith("srun")} == {
        f"node{number}" for number in range(nodes)
    }
    command = f"python -m bench run --grid paper_table1 --address node0:{port} --wait-for-machines 300 --data-dir"
    assert sum(line.startswith(command) for line in lines) == 1


@slow
def test_the_script_for_slurm_trains_on_its_nodes(tmp_path):
    for name in PACKAGES:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    grid = write_grid(tmp_path, axes=GRID["axes"] | {"algorithm": ["fedavg"]}, settings=GRID["settings"] | SHORT)
    script = SCRIPT.replace("--grid paper_table1", f"--grid {grid}").replace("/shared", str(tmp_path / "shared"))
    assert str(grid) in script
    done = subprocess.run(
        ["bash", "-c", script],
        env=stand_ins(tmp_path, scontrol="echo 127.0.0.1\necho 127.0.0.1\n"),
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no authentication" not in done.stdout + done.stderr
    assert "3 done, 0 diverged, 0 failed." in done.stderr
