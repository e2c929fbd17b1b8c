"""What a process does with memory."""

import ctypes
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

# Prints how many pages the system has filled for ten tensors of 64 MB each, one after another, and how many MB are given back
# when another run begins.
COUNT = """
import resource, sys
import torch
from bench.profiling import keep_freed_memory, reset_peak_memory, unique_memory_mb

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
reset_peak_memory(torch.device("cpu"))
print(kept - unique_memory_mb())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs the malloc of glibc")
def test_memory_that_a_tensor_has_left_is_kept_for_the_next_until_another_run_begins():
    found = {}
    for how in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", COUNT, how], cwd=ROOT, capture_output=True, text=True, check=True)
        found[how] = [float(line) for line in done.stdout.split()]
    (few, left), (many, nothing) = found["kept"], found["given back"]
    assert few < 1000 < 100_000 < many, "64 MB are 15,625 pages"
    assert left > 60 > 10 > nothing
