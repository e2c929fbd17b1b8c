"""How much of the machine a trial may ask for."""

import pytest
import torch

from bench.execution.resources import Machines, Resources, choose


def test_a_trial_gets_a_core_and_no_gpu_unless_asked_otherwise():
    assert choose(1, "0") == Resources(1, 0)
    assert Resources(1, 0).device == "cpu"
    assert [Resources(cpus).threads for cpus in (0.5, 1, 2, 3.5)] == [1, 1, 2, 3]


@pytest.mark.parametrize("asked", ["lots", "-1", "1.5", "nan", "inf"])
def test_shares_that_make_no_sense_are_refused(asked):
    with pytest.raises(ValueError, match=f"--gpus-per-trial must be auto, .* but got {asked}"):
        choose(1, asked)


def test_gpus_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="torch finds 0 GPUs on this machine; leave the option out"):
        choose(1, "0.5")
    assert choose(1, "auto") == Resources(1, 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="torch finds 2 GPUs on this machine; name at most 2, or 0 to train"):
        choose(1, "4")


def test_gpus_of_a_cluster_are_not_looked_for_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose(1, "0.5", "10.0.0.1:6379") == Resources(1, 0.5, "cuda")
    assert choose(1, "auto", "10.0.0.1:6379") == Resources(1, 1.0, "cuda", auto=True)


def test_auto_is_found_out_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose(1, "auto") == Resources(1, 1.0, "cuda", auto=True)
    assert choose(1, "0.25") == Resources(1, 0.25, "cuda")


def test_only_cores_that_the_process_may_use_count(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 7}, raising=False)
    assert Machines(Resources()).at_once == 2
    with pytest.raises(ValueError, match="at most 2 here, but got 4"):
        choose(4, "0")


@pytest.mark.parametrize("cpus", [0, -1, 10_000])
def test_more_cores_than_there_are_are_refused(cpus):
    with pytest.raises(ValueError, match=f"--cpus-per-trial must be above 0 and at most .* but got {cpus}"):
        choose(cpus, "0")


def test_the_cores_of_this_machine_bound_no_trial_of_a_cluster():
    assert choose(10_000, "0", "head:6379").cpus == 10_000
    with pytest.raises(ValueError, match=r"^--cpus-per-trial must be above 0, but got 0\.$"):
        choose(0, "0", "head:6379")
