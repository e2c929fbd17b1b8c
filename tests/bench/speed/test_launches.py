"""The case `launches` counts what the steps of clients ask for, apart from what a round does."""

import re
from types import SimpleNamespace

from bench.contract import pretended_gpu
from bench.simulation.engines import ENGINES
from bench.speed import launches
from tests.support.pretended import MOST_KERNELS, MOST_WAITS, require_pretended_gpu

require_pretended_gpu()


def test_steps_and_rounds_are_counted_apart():
    rows = launches.launches(SimpleNamespace(methods=("fedavg",)))
    assert [row.case for row in rows] == [f"kernels of a local step, fedavg, {engine}" for engine in ENGINES]
    for engine, row in zip(ENGINES, rows, strict=True):
        assert MOST_KERNELS[engine] / 2 < row.value <= MOST_KERNELS[engine]
        waits, copies, *first = map(int, re.search(r"(\d+) waits \((\d+) .* first (\d+) \((\d+)\)", row.note).groups())
        assert (waits, copies) == tuple(first), "FedAvg does in its first round what it does in all"
        assert 0 < copies <= waits <= MOST_WAITS[engine]


def test_without_the_interface_of_torch_the_rows_say_why(monkeypatch):
    def missing():
        raise ImportError("no backends in Python")

    monkeypatch.setattr(pretended_gpu, "_register", missing)
    rows = launches.launches(SimpleNamespace(methods=("fedavg",)))
    assert {(row.value, row.note) for row in rows} == {(None, "not measured (no backends in Python)")}
