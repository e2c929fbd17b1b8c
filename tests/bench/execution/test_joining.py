"""Running clusters that cannot be joined: what is said, and how soon. Nothing here starts Ray."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from bench.execution import cluster, ray_session
from bench.execution.fleet import Fleet
from bench.execution.gpus import NO_GPU, mps_runs, trials_on_each
from bench.execution.resources import Resources
from bench.files import stderr_to
from tests.support.processes import ROOT

import ray  # isort: skip

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.59.0
    Python: 3.12.3
This process on node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


def refused_at(address: str) -> str:
    """The sentence for an address, which comes within seconds."""
    begin = time.monotonic()
    with pytest.raises(ValueError) as error, tempfile.TemporaryFile() as log:
        cluster.join(address, 1, log, print)
    assert time.monotonic() < begin + 2
    return str(error.value)


@pytest.fixture
def server(monkeypatch):
    """A server that answers each connection with the same bytes: (address, function that sets the bytes)."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.5)
    answer = [b""]
    with closing(socket.create_server(("", 0))) as listener:  # Ray replaces 127.0.0.1 by the address of this machine

        def serve() -> None:
            held = []
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                held.append(connection)
                if answer[0]:
                    connection.sendall(answer[0])

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", lambda content: answer.__setitem__(0, content)


def test_nobody_at_the_address_is_said_at_once():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    sentence = refused_at(address)
    assert sentence.startswith(f"No Ray cluster answers at --address {address}")
    assert "connection refused. Is its head running (`ray start --head`)" in sentence


def test_a_server_that_is_silent_or_not_ray_is_told_from_a_cluster(server):
    address, answer = server
    assert "nothing came back within 0.5 s" in refused_at(address)
    answer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "something else than Ray answers" in refused_at(address)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:port"])
def test_what_is_no_address_is_refused(address):
    assert f"--address must be HOST:PORT of a running cluster, or auto, but got {address}" in refused_at(address)


def test_a_machine_without_a_cluster_is_told_so(monkeypatch):
    def find(address):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(cluster.services, "canonicalize_bootstrap_address_or_die", find)
    assert "No Ray cluster runs on this machine (--address auto): start one by `ray start --head`" in refused_at("auto")


def test_another_ray_or_python_is_named_with_both_versions():
    sentence = cluster._refusal(RuntimeError(MISMATCH), "head:6379")
    assert (
        "has Ray 2.59.0 on Python 3.12.3, this command Ray 2.60.0 on Python 3.11.7. Both must be the same" in sentence
    )


def test_what_libraries_print_while_a_cluster_is_joined_goes_to_the_log(capfd):
    with tempfile.TemporaryFile() as log:
        with stderr_to(log):
            os.write(2, b"[gcs_client.cc:210] a raw line\n")
        log.seek(0)
        assert log.read() == b"[gcs_client.cc:210] a raw line\n" and capfd.readouterr().err == ""


ASKED = """
import sys, tempfile
from bench.execution import cluster
cluster._find = lambda address: address
try:
    cluster.join(sys.argv[1], 1, tempfile.TemporaryFile(), print)
except ValueError as error:
    print(error)
"""


def test_a_token_that_this_machine_does_not_have_is_asked_for_before_ray_ends_the_process(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_AUTH_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-c", ASKED, "127.0.0.1:1"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "asks for its token, which this machine does not give: set RAY_AUTH_MODE=token, and have the" in done.stdout


def test_a_head_that_dies_is_seen_also_where_ray_never_answers(monkeypatch, capfd):
    """Nobody listens at its port, and Ray waits for ever."""
    ended, asked = threading.Event(), threading.Event()
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 0.1)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:1"))
    monkeypatch.setattr(ray, "nodes", lambda: asked.set() or ended.wait(10) or [])
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(sys, "argv", ["bench", "run", "--grid", "mine.yaml", "--rerun"])
    said = []
    with cluster.Watch(said.append, lambda: None):
        assert ended.wait(10) and asked.is_set()
    assert said == ["The head of the Ray cluster at 127.0.0.1:1 does not answer; waits 0.1 s for it."]
    last = capfd.readouterr().err.splitlines()[0]
    assert last.endswith("continue by: python -m bench run --grid mine.yaml --address 127.0.0.1:1")


def node(number: int, alive: bool = True, **resources: float) -> dict:
    """What Ray says of a machine; all of these have one host name."""
    return {"NodeID": f"{number:056x}", "NodeManagerHostname": "vm", "Alive": alive, "Resources": resources}


@pytest.fixture
def fleet(monkeypatch):
    """(a fleet, the list of its nodes, what it has said)"""
    nodes, said = [], []
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr("bench.execution.fleet.has_autoscaler", lambda: False)
    return Fleet("head:6379", said.append, wait_seconds=60), nodes, said


def test_a_cluster_waits_for_a_machine_that_joins_and_counts_only_those_that_are_there(fleet, monkeypatch):
    machines, nodes, said = fleet
    nodes += [node(1, CPU=1.0), node(2, alive=False, CPU=8.0)]
    monkeypatch.setattr(time, "sleep", lambda seconds: nodes.append(node(3, CPU=4.0, GPU=1.0)))
    with pytest.raises(ValueError, match="but the only machine does not have them; ask for less, or wait for one by"):
        Fleet("head:6379", said.append).wait_for(Resources(4.0), storage=None)
    machines.wait_for(Resources(4.0, 0.5, "cuda"), storage="/shared")
    assert said == ["No machine has 4 CPUs and 0.5 GPUs for a trial yet; waits 60 s for one."]
    with pytest.raises(ValueError, match="The cluster has 2 machines: name by --storage where all of them can write"):
        machines.wait_for(Resources(1.0), storage=None)


def test_machines_are_taken_out_once_until_none_is_left_that_has_what_a_trial_needs(fleet):
    machines, nodes, said = fleet
    nodes += [node(1 << 200, CPU=3.0, GPU=2.0), node(2 << 200, CPU=1.0)]
    first, second = (one["NodeID"] for one in nodes)
    impatient = Fleet("head:6379", said.append)
    assert (impatient.gpus, impatient.cores_per_gpu) == (2, 1.5)
    assert impatient.request(Resources()).bundles == [{"CPU": 1.0}] and impatient.selector() is None
    for _ in range(2):
        impatient.take_out(first, "no images.")
    impatient.wait_for(Resources(), storage="/shared")
    impatient.wait_for(Resources(1.0, 1.0, "cuda", auto=True), storage="/shared")
    assert impatient.gpus == 0 and not impatient.has_room(Resources(1.0, 0.5, "cuda"))
    with pytest.raises(ValueError, match="is left that takes runs and has 1 CPU and 0.5 GPUs for a trial"):
        impatient.wait_for(Resources(1.0, 0.5, "cuda"), storage="/shared")
    assert said == [f"The machine vm ({first[:8]}) takes no more runs: no images."]
    assert impatient.selector() == {"ray.io/node-id": f"!in({first})"}
    impatient.take_out(second, "no images")
    with pytest.raises(ValueError, match=rf"\(see above: vm \({first[:8]}\), vm \({second[:8]}\)\). Nothing is lost"):
        impatient.wait_for(Resources(), storage="/shared")


@pytest.mark.parametrize(
    ("trials", "gpus", "each"),
    [(1, 1, 1), (8, 1, 8), (4, 2, 2), (3, 2, 2), (2, 2, 1), (1, 2, 1), (5, 4, 1), (7, 4, 2), (9, 4, 2), (14, 8, 1)],
)
def test_trials_are_dealt_to_gpus_so_that_none_is_idle_while_another_has_two(trials, gpus, each):
    assert trials_on_each(trials, gpus) == each
    placed = min(trials, each * gpus)
    assert each == 1 or placed > each * (gpus - 1), "Ray fills one after the other"


@pytest.mark.parametrize(
    ("machines", "asked", "trials", "share"),
    [
        ([(16, 2)], 0.25, 4, 0.5),
        ([(16, 2)], 0.25, 100, 0.25),
        ([(16, 2)], 0.25, 1, 1.0),
        ([(4, 2)], 0.125, 100, 0.5),
        ([(16, 1), (16, 1), (64, 0)], 0.25, 4, 0.5),
        ([(16, 1), (1, 1)], 0.125, 100, 0.125),  # nine at once, eight of them on the machine with many cores
        ([(16, 1), (1, 1)], 0.125, 4, 0.3333),
        ([(64, 2)], 1 / 6, 100, 0.1666),  # of 0.1667, to which Ray rounds 1 / 6, five fit
        ([(16, 2)], 0.3, 100, 0.3333),
        ([(16, 2)], 2.0, 1, 2.0),
        ([(16, 0)], 0.25, 4, 0.25),
    ],
)
def test_a_share_is_raised_to_what_leaves_no_gpu_idle(machines, asked, trials, share, fleet):
    found, nodes, _ = fleet
    nodes += [node(number, CPU=cores, GPU=gpus) for number, (cores, gpus) in enumerate(machines)]
    assert found.spread(Resources(1.0, asked, "cuda"), trials).gpus == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize(
    ("works", "left", "said"),
    [
        (
            [False, True, True],
            2,
            f"Of the 3 GPUs of the machine vm, 1 gets no more runs: {NO_GPU}.",
        ),
        ([True] * 3, 3, f"The GPUs of the machine vm work again, so runs go on there, after this: {NO_GPU}."),
        ([False] * 3, 0, f"The machine vm takes no more runs: {NO_GPU}."),
        ([None] * 3, 0, f"The machine vm takes no more runs: {NO_GPU}."),
        ([True, None, True], 2, f"Of the 3 GPUs of the machine vm, 1 gets no more runs: {NO_GPU}."),
        ([True, "died", True], 2, f"Of the 3 GPUs of the machine vm, 1 gets no more runs: {NO_GPU}."),
    ],
    ids=["one", "none", "all", "no-answer", "one-hangs", "one-dies"],
)
def test_a_lost_gpu_is_held_and_a_machine_without_any_or_with_many_false_alarms_is_taken_out(
    works, left, said, fleet, monkeypatch
):
    class Actor:
        def __init__(self, number):
            self.works = SimpleNamespace(remote=lambda: number)

    def wait(asked, num_returns, timeout):
        return [number for number in asked if works[number] is not None], ...

    def get(number):
        if works[number] == "died":
            raise ray.exceptions.RayActorError
        return works[number]

    found, nodes, heard = fleet
    nodes.append(node(1, CPU=8.0, GPU=3.0))
    numbers, killed = iter(range(100)), []
    monkeypatch.setattr(
        ray,
        "remote",
        lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: Actor(next(numbers) % 3))),
    )
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", killed.append)
    found.blame(nodes[0]["NodeID"], f"{NO_GPU}.")
    found.blame("a" * 56, NO_GPU)
    found._look_at_gpus()
    assert (found.gpus, heard, len(killed)) == (left, [said], max(left, 3 * (not left)))
    assert found.has_room(Resources(1.0, 3.0, "cuda")) is (left == 3)
    if left == 3:
        for _ in range(2):
            found.blame(nodes[0]["NodeID"], f"{NO_GPU}.")
            found._look_at_gpus()
        assert heard == [said, said, f"The machine vm takes no more runs: {NO_GPU}."] and found.gpus == 0


def test_mps_is_asked_whether_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not mps_runs()
    control = tmp_path / "nvidia-cuda-mps-control"
    for status in (1, 0):
        control.write_text(f"#!/bin/sh\nread asked && [ $asked = get_server_list ] && exit {status}\nexit 2\n")
        control.chmod(0o755)
        assert mps_runs() is (status == 0)


@pytest.mark.parametrize(("on_gpus", "asked"), [(True, [(1, "cuda", 0.001)]), (False, [(1, "cpu", 0), (2, "cpu", 0)])])
def test_only_machines_that_may_train_are_asked_once_whether_they_can(fleet, monkeypatch, on_gpus, asked):
    machines, nodes, said = fleet
    nodes += [node(1, CPU=4.0, GPU=1.0), node(2, CPU=8.0)]
    heard = []

    class Look:
        def options(self, num_gpus, scheduling_strategy, **others):
            self.given = int(scheduling_strategy.node_id, 16), num_gpus
            return self

        def remote(self, device):
            heard.append((self.given[0], device, self.given[1]))
            return self.given[0]

    monkeypatch.setattr(ray, "remote", lambda look: Look())
    monkeypatch.setattr(ray, "wait", lambda tasks, **others: (tasks, []))
    monkeypatch.setattr(ray, "get", lambda task: "no images" if task == 1 else "")
    for _ in range(2):
        machines.inspect(str, on_gpus)
    assert heard == asked and [*machines.unfit] == [nodes[0]["NodeID"]] and len(said) == 1


def test_a_single_machine_that_cannot_go_on_ends_with_its_sentence(monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [node(1, CPU=4.0)])
    said = []
    alone = Fleet(None, said.append)
    alone.take_out(node(1)["NodeID"], "No mnist in /data: get it.")
    with pytest.raises(
        ValueError, match="^This machine cannot go on: No mnist in /data: get it. Nothing is lost: the same"
    ):
        alone.wait_for(Resources(), None)
    assert said == []


@pytest.mark.parametrize(
    ("address", "share", "sees", "said"),
    [
        (None, Resources(), True, ["This machine has 2 GPUs, of which none is used, as --gpus-per-trial 0 says."]),
        (
            None,
            Resources(),
            False,
            ["This machine has 2 GPUs, of which none is used, because torch sees none of them."],
        ),
        (None, Resources(1, 1, "cuda", auto=True), True, ["This machine, 3 of 4 CPUs free, 2 of 2 GPUs free."]),
        (
            "head:6379",
            Resources(),
            False,
            [
                "The Ray cluster at head:6379 (RAY_ADDRESS): 1 machine, 3 of 4 CPUs free, 2 of 2 GPUs free.",
                "The cluster has 2 GPUs, of which none is used, as --gpus-per-trial 0 says.",
            ],
        ),
    ],
    ids=["not-wanted", "not-seen", "used", "cluster"],
)
def test_what_becomes_of_gpus_is_said(address, share, sees, said, monkeypatch):
    heard = []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(ray, "nodes", lambda: [node(1, CPU=4.0, GPU=2.0), node(2, alive=False)])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 2.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 3.0, "GPU": 2.0})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="head:6379"))
    monkeypatch.setattr(ray_session, "sees_gpu", lambda: sees)
    ray_session._describe(Fleet(address, heard.append), share, heard.append)
    assert heard == said
