"""What a command says when Ray dies on the machine on which both are."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from bench.execution import local_watch
from tests.support.grid_runs import wait_for_rounds, write_grid
from tests.support.processes import Driver, call_bench, family


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_process_of_ray_that_dies_is_named_and_others_may_end(name, monkeypatch):
    said: list[str] = []
    processes = {each: subprocess.Popen(["sleep", "60"]) for each in ("gcs_server", "raylet", "log_monitor")}
    started = {each: [SimpleNamespace(process=process)] for each, process in processes.items()}
    monkeypatch.setattr(local_watch.ray._private.worker, "_global_node", SimpleNamespace(all_processes=started))
    monkeypatch.setattr(local_watch, "_LOOK_SECONDS", 0.01)

    def end(what: str, do: str) -> None:
        said.append(what)
        raise SystemExit  # ends the thread as the process would end

    monkeypatch.setattr(local_watch, "end_process", end)
    try:
        with local_watch.LocalWatch(lambda: said.append("before")) as watch:
            processes["log_monitor"].kill()
            processes["log_monitor"].wait()
            watch.join(0.1)
            assert watch.is_alive() and not said, "Ray goes on without it"
            processes[name].kill()
            watch.join(10)
        assert said[0] == "before" and said[1].startswith(
            f"A process of Ray on this machine ({name}) has died: it was killed"
        )
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def test_what_ends_after_the_session_says_nothing(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as process:
        started = {"raylet": [SimpleNamespace(process=process)]}
        monkeypatch.setattr(local_watch.ray._private.worker, "_global_node", SimpleNamespace(all_processes=started))
        monkeypatch.setattr(local_watch, "_LOOK_SECONDS", 0.01)
        monkeypatch.setattr(local_watch, "end_process", lambda *_: pytest.fail("the session had ended"))
        with local_watch.LocalWatch(lambda: None) as watch:
            pass
        process.kill()
        watch.join(10)
        assert not watch.is_alive()


@pytest.mark.slow
def test_a_command_whose_ray_is_killed_ends_with_a_sentence_and_the_same_command_continues(tmp_path):
    """Without the watch, Ray ends the command after a quarter of a minute, and says nothing that a user understands."""
    axes = {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg"], "seed": [0]}
    command = (
        "--grid",
        write_grid(tmp_path, axes=axes),
        "--results-dir",
        tmp_path / "results",
        "--checkpoint-seconds",
        0,
    )
    driver = Driver(*command, "--set", "rounds=300")
    wait_for_rounds(tmp_path / "results", 5, driver)
    processes = family(driver.pid)
    [raylet] = [pid for pid, words in processes.items() if "raylet/raylet" in words.split(" ")[0]]
    unused = ("dashboard.py", "monitor.py", "ray::IDLE")  # of `ray_session._UNUSED`, and a worker without a trial
    assert not [words for words in processes.values() if any(name in words for name in unused)]
    os.kill(raylet, signal.SIGKILL)
    killed = time.monotonic()
    last = driver.ended().strip().splitlines()[-1]
    assert driver.returncode == 1 and time.monotonic() < killed + 10, driver.printed()
    assert last.startswith("error: A process of Ray on this machine (raylet) has died: it was killed"), driver.printed()
    assert "Nothing is lost" in last and "Continue by: python -m bench run --grid" in last
    code, output = call_bench("run", *command, "--set", "rounds=300")
    assert code == 0 and "continues after round" in output, output
    assert "did not end by itself" not in output, "it has said itself why it ended"
