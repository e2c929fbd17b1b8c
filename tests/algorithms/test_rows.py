"""Client states: rows for those that have taken part, written and read for the cohort only, large ones in files."""

import os

import pytest
import torch

from algorithms import rows, tree
from algorithms.moon import Moon
from algorithms.rows import no_rows, read_rows, write_rows
from bench.results.artifacts import Folder, on_host
from tests.support.toy import toy_task, train

FRESH = {"a": torch.zeros(3), "b": {"c": torch.ones((), dtype=torch.long)}}


def new(*values: float) -> dict:
    """Rows of as many clients, told apart by their values."""
    stacked = torch.tensor(values, dtype=torch.float32)
    return {"a": stacked[:, None].expand(-1, 3).clone(), "b": {"c": stacked.long()}}


@pytest.fixture(params=["memory", "files"])
def limit(request, monkeypatch):
    monkeypatch.setattr(rows, "MAPPED_BYTES", 2**30 if request.param == "memory" else 0)
    return request.param


def test_clients_that_have_not_taken_part_are_as_new(limit):
    state = write_rows(no_rows(FRESH), torch.tensor([1, 4]), new(5, 6))
    read = read_rows(state, torch.tensor([4, 0, 1]))
    assert read["a"].tolist() == [[6] * 3, [0] * 3, [5] * 3]
    assert read["b"]["c"].tolist() == [6, 1, 5] and read["b"]["c"].dtype == torch.long
    assert read_rows(no_rows(FRESH), torch.tensor([2]))["a"].tolist() == [[0] * 3]


def test_only_the_rows_of_the_cohort_are_written_and_the_earlier_state_stays(limit):
    before = write_rows(no_rows(FRESH), torch.tensor([0, 1]), new(1, 2))
    written = new(7, 8)
    after = write_rows(before, torch.tensor([1, 2]), written)
    assert list(after["rows"]) == [0, 1, 2]
    assert after["rows"][0] is before["rows"][0]
    written["a"].zero_()  # rows are private copies
    assert [after["rows"][client]["a"][0].item() for client in range(3)] == [1, 7, 8]
    assert before["rows"][1]["a"][0] == 2 and 2 not in before["rows"]


def test_large_rows_lie_in_files_that_go_with_them(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "MAPPED_BYTES", 0)
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    state = write_rows(no_rows(FRESH), torch.arange(4), new(1, 2, 3, 4))
    mapped = [line for line in open("/proc/self/maps") if str(tmp_path) in line] if os.path.exists("/proc") else None
    assert mapped is None or len(mapped) == 4 * 2  # one for each type of numbers
    assert not list(tmp_path.iterdir())  # nothing is left behind, however the process ends
    del state
    assert mapped is None or not any(str(tmp_path) in line for line in open("/proc/self/maps"))


def test_a_run_with_rows_in_files_equals_one_in_memory_and_can_be_saved(monkeypatch, tmp_path):
    task = toy_task(participation=0.6, rounds=4)
    expected = train(Moon(), task)
    monkeypatch.setattr(rows, "MAPPED_BYTES", 0)
    Folder(tmp_path).save("state.pt", on_host(train(Moon(), task, rounds=2)))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for _ in range(2):
        state = Moon().step(task, state)
    for one, other in zip(tree.leaves(state["params"]), tree.leaves(expected["params"]), strict=True):
        assert torch.equal(one, other)
    assert state["clients"]["rows"].keys() == expected["clients"]["rows"].keys()


def test_large_leaves_keep_their_values_types_and_shapes(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "MAPPED_BYTES", 0)
    leaves = {
        "x": torch.rand(2, 3, 5, dtype=torch.float64),
        "y": torch.tensor([[True], [False]]),
        "z": torch.zeros(2, 0),
    }
    state = write_rows(no_rows(tree.row(leaves, 0)), torch.tensor([0, 1]), leaves)
    Folder(tmp_path).save("state.pt", on_host(state))
    for found in (state, torch.load(tmp_path / "state.pt", weights_only=True)):
        read = read_rows(found, torch.tensor([0, 1]))
        assert all(torch.equal(read[key], leaf) and read[key].dtype == leaf.dtype for key, leaf in leaves.items())
