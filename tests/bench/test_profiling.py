"""What a process does with memory."""

import ctypes
import os
import subprocess
import sys

import pytest

from bench.config.resolve import resolve
from bench.execution import verification, worker
from bench.execution.job import Job
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from tests.support.processes import ROOT
from tests.support.trained import keep, trained

# Prints how many pages the system has filled for ten tensors of 64 MB each, one after another, and how many MB are given back.
COUNT = """
import ctypes, resource, sys
import torch
from bench.profiling import give_back_memory, keep_freed_memory, unique_memory_mb

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would be few in any case

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def fill():
    torch.ones(16_000_000)

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(20):  # until the heap has room for one between smaller blocks
    fill()
before = pages()
for _ in range(10):
    fill()
print(pages() - before)
kept = unique_memory_mb()
give_back_memory()
print(kept - unique_memory_mb())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs the malloc of glibc")
def test_memory_of_a_freed_tensor_is_kept_for_the_next_until_it_is_given_back():
    others = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # variables that choose or set an allocator
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    found = {}
    for how in ("kept", "given back"):
        words = [sys.executable, "-c", COUNT, how]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found[how] = [float(line) for line in done.stdout.split()]
    (few, left), (many, nothing) = found["kept"], found["given back"]
    assert 20 * few < many
    assert left > 60 > 10 > nothing


def test_workers_and_verify_keep_it_and_give_it_back_before_each_run(tmp_path, monkeypatch):
    done = []
    for module in (worker, verification):
        for name in ("keep_freed_memory", "give_back_memory"):
            monkeypatch.setattr(module, name, lambda name=name: done.append(name))
    settings = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 4, "rounds": 1}
    job = Job("a1", resolve(settings), str(tmp_path), StateRetention(final="none"))
    worker.Worker(job, None, "cpu").step()
    assert done == ["keep_freed_memory", "give_back_memory"]
    store = Store(tmp_path / "results")
    run = keep(store, trained(algorithm="fedavg"))
    verification.Verifier([store], None, verification.Limits(), 0.0).verify(store, run, {})
    assert done == ["keep_freed_memory", "give_back_memory"] * 2
