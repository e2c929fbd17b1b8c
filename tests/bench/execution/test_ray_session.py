"""Sessions of Ray, without starting any."""

import signal
import sys
from pathlib import Path

import pytest

from bench.errors import exit_code_when_stopped, terminate
from bench.execution import cluster, ray_session
from bench.execution.resources import Machines, Resources
from bench.execution.workspace import Workspace
from bench.results.store import Store
from tests.support.processes import Driver

import ray  # isort: skip
from ray._private import node  # isort: skip


def test_the_handler_of_sigterm_is_restored_afterwards(tmp_path, monkeypatch):
    during = []

    def stop(*arguments, **options):
        during.append(signal.getsignal(signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_session, "_start_local", stop)
    before = signal.getsignal(signal.SIGTERM)
    with Store(tmp_path).locked() as store, pytest.raises(KeyboardInterrupt):
        with ray_session.session(Workspace(store, Machines(Resources())), print):
            pass
    assert during == [terminate]
    assert signal.getsignal(signal.SIGTERM) == before != during[0]


def test_sigterm_stops_as_ctrl_c_does_also_while_ray_starts_which_has_a_handler_of_its_own(tmp_path, monkeypatch):
    def start_and_hear(*arguments, **options):
        ray._private.utils.set_sigterm_handler(lambda number, frame: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray_session, "_start_local", start_and_hear)
    with Store(tmp_path).locked() as store, pytest.raises(KeyboardInterrupt):
        with ray_session.session(Workspace(store, Machines(Resources())), print):
            pass
    assert (exit_code_when_stopped(), exit_code_when_stopped()) == (143, 130), "of this one, and of Ctrl-C"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["node.Node.start_head_processes", "worker.connect"])
def test_sigterm_while_ray_starts_ends_with_143_and_the_usual_sentence(tmp_path, step):
    owner, name = step.rsplit(".", 1)
    before = f"""
import os, signal, time
import ray
from ray._private import node, worker
own = {step}
shut_down = ray.shutdown
ray.shutdown = lambda: (time.sleep(4), shut_down())  # on a busy machine; Ray's own handler would abort after three seconds
def late(*arguments, **options):
    found = own(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return found
{owner}.{name} = late
"""
    setting = ["--algorithm", "fedavg", "--dataset", "digits", "--partition", "iid", "--budget", "smoke"]
    driver = Driver(*setting, "--results-dir", tmp_path, before=before)
    said = driver.ended()
    assert driver.returncode == 143, said
    assert said.endswith("Stopped. Finished runs are kept; the same command continues with the rest.\n")
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError])  # the second is an OSError
@pytest.mark.parametrize("failures", [1, 2])
def test_ray_that_does_not_start_is_started_once_more_and_then_with_all_of_its_processes(failures, kind, monkeypatch):
    tried, shut_down, is_whole = [], [], []
    own = {name: getattr(node.Node, name) for name in ray_session._UNUSED}

    def init(**options):
        tried.append(options["address"])
        is_whole.append([getattr(node.Node, name) is method for name, method in own.items()])
        if len(tried) <= failures:
            raise kind("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(ray_session.ray_environment, "prepare_local", lambda threads: None)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: shut_down.append(len(tried)))
    if failures == 1:
        ray_session._start_local(1, Path("nowhere"))
    else:
        with pytest.raises(
            ValueError, match=r"^Ray did not start \(The current node timed out during startup\.\); the machine"
        ):
            ray_session._start_local(1, Path("nowhere"))
    assert tried == ["local", "local"] and shut_down == [*range(1, failures + 1)]
    assert is_whole == [[False] * 3, [True] * 3]
    assert all(getattr(node.Node, name) is method for name, method in own.items())


@pytest.mark.parametrize(("may_use", "counted", "given"), [({3, 7}, 64, 2), ({*range(64)}, 4, 4)])
def test_ray_gets_the_cores_that_this_process_may_use_or_fewer_in_a_container(may_use, counted, given, monkeypatch):
    started = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: may_use, raising=False)
    monkeypatch.setattr(ray._private.utils, "get_num_cpus", lambda: counted)
    monkeypatch.setattr(ray_session.ray_environment, "prepare_local", lambda threads: None)
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options["num_cpus"]))
    ray_session._start_local(1, Path("nowhere"))
    assert started == [given]


def test_what_ray_no_longer_has_is_not_left_out(monkeypatch):
    monkeypatch.delattr(node.Node, "start_monitor")
    with ray_session._without(ray_session._UNUSED):
        assert not hasattr(node.Node, "start_monitor")


def test_ray_that_cannot_start_is_not_started_again(monkeypatch):
    tried = []

    def init(**options):
        tried.append(options["address"])
        raise OSError("No space left on device")

    monkeypatch.setattr(ray_session.ray_environment, "prepare_local", lambda threads: None)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match=r"^Ray did not start \(No space left on device\); the machine may be"):
        ray_session._start_local(1, Path("nowhere"))
    assert tried == ["local"]


def test_what_ray_says_of_dead_processes_goes_to_the_log_and_not_to_the_terminal(tmp_path, capsys):
    def say(text):
        data = {"lines": [text], "pid": "raylet", "is_err": False}
        ray._private.worker.print_to_stdstream(data, ignore_prefix=False)

    store = Store(tmp_path)
    with ray_session._logged(store):
        say("A worker died.")
        say("Another worker died.")
    said = [line.partition(" ")[2] for line in (tmp_path / "ray.log").read_text().splitlines()]
    assert said == ["A worker died.", "Another worker died."] and capsys.readouterr().out == ""
    say("This is Ray's own way.")
    assert "This is Ray's own way." in capsys.readouterr().out


def refused(*, how: str) -> Exception:
    """What Ray raises where a cluster asks for a token, and this machine has none or another one."""
    if how == "none":
        return ray.exceptions.AuthenticationError("Token authentication is enabled but no token was found")
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError(
        "Last connection error: ... InvalidAuthToken: Authentication token is missing or incorrect"
    )
    return error


@pytest.mark.parametrize("how", ["none", "another"])
def test_a_cluster_that_asks_for_its_token_is_told_from_one_that_does_not_answer(how):
    sentence = cluster._refusal(refused(how=how), "10.0.0.1:6379")
    assert "at --address 10.0.0.1:6379 asks for its token, which this machine does not give" in sentence
