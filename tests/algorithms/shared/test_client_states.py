"""Client states: rows for those that have taken part, written and read for the cohort only, large ones in files."""

import errno
import os

import pytest
import torch

from algorithms.moon import Moon
from algorithms.shared import row_files, tree
from algorithms.shared.client_states import no_rows, read_rows, write_rows
from bench.execution.worker import storage_trouble
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import on_host
from tests.support.toy import toy_task, train

FRESH = {"a": torch.zeros(3), "b": {"c": torch.ones((), dtype=torch.long)}}


def new(*values: float) -> dict:
    """Rows of as many clients, told apart by their values."""
    stacked = torch.tensor(values, dtype=torch.float32)
    return {"a": stacked[:, None].expand(-1, 3).clone(), "b": {"c": stacked.long()}}


@pytest.fixture(params=["memory", "files"])
def limit(request, monkeypatch):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 2**30 if request.param == "memory" else 0)
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


def mappings(folder) -> list[str]:
    """Lines on the files of a folder that this process has outputs."""
    return [line for line in open("/proc/self/maps") if str(folder) in line]


linux = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")


@linux
def test_rows_in_files_share_them_and_the_files_go_with_their_last_row(monkeypatch, tmp_path):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    state = write_rows(no_rows(FRESH), torch.arange(4), new(1, 2, 3, 4))
    assert len(mappings(tmp_path)) == 1, "the number of mappings is limited"
    assert not list(tmp_path.iterdir()), "nothing is left behind, however the process ends"
    leaf = state["rows"].pop(2)["a"]
    del state
    assert mappings(tmp_path) and leaf.tolist() == [3] * 3, "a leaf may outlive its row"
    del leaf
    assert not mappings(tmp_path)


@linux
def test_a_full_disk_is_told_by_its_own_folder_which_is_not_that_of_the_run(monkeypatch, tmp_path):
    def fill(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", fill)
    with pytest.raises(OSError) as error:
        write_rows(no_rows(FRESH), torch.arange(4), new(1, 2, 3, 4))
    assert storage_trouble(error.value, "results/runs/x").startswith(f"Cannot use {tmp_path}: No space left on device.")


def test_rows_lie_in_memory_up_to_a_sum_and_in_files_beyond(monkeypatch, tmp_path):
    """Each of the four rows takes 2 x 64 bytes, as every leaf begins at a multiple of 64."""
    monkeypatch.setattr(row_files, "MEMORY_BYTES", row_files._in_memory + 3 * 128 - 1)
    places, take = [], row_files._File.take
    monkeypatch.setattr(row_files._File, "take", lambda self: places.append(self.size) or take(self))
    state = write_rows(no_rows(FRESH), torch.arange(4), new(1, 2, 3, 4))
    assert places == [128] * 2
    state["rows"].pop(0)
    write_rows(state, torch.tensor([5]), new(5))
    assert places == [128] * 2, "what is freed is used again"
    assert read_rows(state, torch.arange(4))["b"]["c"].tolist() == [1, 2, 3, 4]


def test_the_place_of_a_row_that_is_gone_is_used_again(monkeypatch):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    state = write_rows(no_rows(FRESH), torch.arange(2), new(1, 2))
    kept, gone = (state["rows"][client]["a"].data_ptr() for client in range(2))
    after = write_rows(state, torch.tensor([0]), new(7))
    assert after["rows"][0]["a"].data_ptr() not in (kept, gone), "the row before is still there"
    state = None
    last = write_rows(after, torch.tensor([1]), new(8))
    assert last["rows"][1]["a"].data_ptr() == kept
    assert [row["a"][0].item() for row in last["rows"].values()] == [7, 8]
    assert after["rows"][1]["a"][0] == 2


@linux
def test_pages_of_files_leave_the_memory_of_the_process_and_keep_what_was_written(monkeypatch, tmp_path):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    large = {"a": torch.arange(2.0)[:, None] + torch.zeros(3 * 2**20)}  # rows of 12 MB

    def resident() -> int:
        lines = open("/proc/self/smaps").read().split(str(tmp_path), 1)[1].splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    state = write_rows(no_rows(tree.row(large, 0)), torch.arange(2), large)
    written = resident()
    monkeypatch.setattr(row_files, "_PAGES_BYTES", 1)
    assert torch.equal(read_rows(state, torch.arange(2))["a"], large["a"])
    assert (written >= 2 * 3 * 2**12, resident()) == (True, 0)
    assert torch.equal(read_rows(state, torch.arange(2))["a"], large["a"])


def test_a_run_with_rows_in_files_equals_one_in_memory_and_can_be_saved(monkeypatch, tmp_path):
    task = toy_task(participation=0.6, rounds=4)
    expected = train(Moon(), task)
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    Folder(tmp_path).save("state.pt", on_host(train(Moon(), task, rounds=2)))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for _ in range(2):
        state = Moon().step(task, state)
    for one, other in zip(tree.leaves(state["params"]), tree.leaves(expected["params"]), strict=True):
        assert torch.equal(one, other)
    assert state["clients"]["rows"].keys() == expected["clients"]["rows"].keys()


def test_large_leaves_keep_their_values_types_and_shapes(monkeypatch, tmp_path):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
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
