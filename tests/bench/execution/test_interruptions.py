"""Whole grids on digits that are killed, stopped, or run out of disk, and go on."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.alone import train_alone
from tests.support.grid_runs import (
    GRID,
    LONG,
    STAGES,
    metrics,
    records,
    wait_for_records,
    wait_for_rounds,
    workers_of,
    write_grid,
)
from tests.support.processes import Driver, call_bench, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]  # for commands that nothing interrupts


@pytest.mark.parametrize(
    ("kills", "methods", "seeds", "stop"),
    [
        (1, ["scaffold", "fedconcat"], 1, signal.SIGTERM),
        pytest.param(10, ["moon", "scaffold", "fedconcat"], 4, signal.SIGINT, marks=pytest.mark.torture),
    ],
    ids=["one-kill", "ten-kills"],
)
def test_however_a_grid_is_interrupted_it_goes_on_and_nothing_is_repeated_or_lost(
    tmp_path, kills, methods, seeds, stop
):
    """Drivers killed at moments drawn from a fixed seed, dead workers, Ctrl-C or SIGTERM, most in the middle of runs."""
    axes = {**GRID["axes"], "algorithm": methods, "seed": list(range(seeds))}
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
    wait_for_rounds(results, 5, driver)
    noted = driver.printed().count("continues after round")
    for worker in workers_of(driver):  # the second may not have begun
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: driver.printed().count("continues after round") > noted, driver)
    if stop == signal.SIGINT:
        os.killpg(driver.pid, stop)  # as a terminal does; batch systems tell the driver alone
    else:
        driver.send_signal(stop)
    stopped = driver.ended()
    assert driver.returncode == 128 + stop
    assert "the same command continues with the rest" in stopped and "Traceback" not in stopped
    assert "Worker exit" not in stopped, "what Ray says of dead workers is not for the terminal"
    continued += stopped.count("continues after round")
    before = unchanged(before, results)

    code, output = call_bench("run", *command)
    assert code == 0, output
    continued += output.count("continues after round")
    assert continued >= kills + 2
    unchanged(before, results)
    assert not list(results.glob("runs/*/checkpoint")), "nothing is left of them"
    whole = train_alone(grid, tmp_path / "whole", "full")
    assert metrics(results) == metrics(whole)
    for name in ("six@full.md", "six@full.csv", "six@full.tex"):
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


@pytest.mark.parametrize("executor", ["ray", "local"])
def test_a_full_disk_stops_the_grid_with_one_sentence_and_nothing_is_lost(tmp_path, small_disk, executor):
    results, grid = small_disk / "results", write_grid(tmp_path)
    command = ("--grid", grid, "--results-dir", results, "--checkpoint-seconds", 0, "--executor", executor)
    driver = Driver(*command)
    wait_for_records(results, 2, driver)
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    output = driver.ended()
    assert driver.returncode == 2
    assert "No space left on device. Finished runs are kept; mend this, and the same command continues." in output
    assert "Traceback" not in output
    before = records(results)
    assert 2 <= len(before) < 6

    (small_disk / "ballast").unlink()
    code, output = call_bench("run", *command, "--max-concurrent", 1)
    assert code == 0, output
    assert {run_id: records(results)[run_id] for run_id in before} == before
    assert metrics(results) == metrics(train_alone(grid, tmp_path / "alone"))
