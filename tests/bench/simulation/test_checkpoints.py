"""Checkpoints of unfinished runs: complete, small, and never misread."""

import re

import pytest
import torch

import algorithms
from algorithms.shared import tree
from algorithms.shared.client_states import no_rows, write_rows
from bench.config.methods import options_of
from bench.config.resolve import resolve
from bench.errors import StoreError
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import LARGEST_SHARE, Checkpoints, UnusableCheckpoint
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from tests.support.kinds import others_slow
from tests.support.toy import SMALL, toy
from tests.support.trained import to_end, without_times

DIGITS = {
    "dataset": "digits",
    "partition": "label-2",
    "clients": 10,
    "train_examples": 400,
    "local_epochs": 1,
    "batch_size": 16,
}
OPTIONS = SMALL | {"encoder_rounds": 3, "classifier_rounds": 3}
CPU = torch.device("cpu")


def config(name: str, **more):
    own = {key: value for key, value in OPTIONS.items() if key in options_of(name)}
    flat = {"algorithm": name, **DIGITS, "rounds": 5, "participation": 0.4, **own, **more}
    if toy(name).in_cycles:
        # Cycles of 3 rounds, so that a run that goes on after 1 or 4 rounds does so within one.
        flat |= {"participation": 0.3, "rounds": 6}
    if toy(name).alone:
        flat |= {"partition": "none", "clients": 1, "participation": 1.0}
    return resolve(flat)


def names(folder) -> list[str]:
    """Files of a checkpoint, without the tokens that tell those of different processes apart."""
    return sorted(re.sub(r"row-\w+-", "row-", path.name) for path in folder.iterdir())


# Of the others the contract tests say that a state, saved and read again, goes on as the one in memory.
@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", others_slow(algorithms.REGISTRY))
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_if_nothing_had_happened(name, digits, tmp_path):
    settings = config(name)
    whole, stops = Run(settings, digits), (1, 4)
    files = {stop: Checkpoints(Folder(tmp_path / str(stop)), {"run": "a"}, seconds=0) for stop in stops}
    while not whole.finished:
        whole.step()
        for stop, saved in files.items():
            if whole.round <= stop:
                saved.save(whole.checkpoint())
    for stop in stops:
        folder = tmp_path / str(stop)
        second = Run(settings, digits)
        second.restore(Checkpoints(Folder(folder), {"run": "a"}).load(CPU))
        assert second.round == stop
        to_end(second)
        assert without_times(second.rows) == without_times(whole.rows)
        assert all(
            torch.equal(one, other)
            for one, other in zip(
                tree.leaves(second.algorithm.finite_check(second.state)),
                tree.leaves(whole.algorithm.finite_check(whole.state)),
                strict=True,
            )
        )
        assert second.result()["summary"] == whole.result()["summary"]
        assert second.result()["seconds"] > whole.rows[0]["seconds"] > 0
        assert second.result()["cpu_seconds"] > second._cpu_seconds - whole._cpu_seconds


def test_every_file_is_read_by_torch_with_weights_only(digits, tmp_path):
    run = Run(config("scaffold"), digits)
    run.step()
    Checkpoints(Folder(tmp_path), {"run": "a"}).save(run.checkpoint())
    assert names(tmp_path) == ["checkpoint.pt", *(f"row-{number}.pt" for number in range(4))]
    assert all(torch.load(path, weights_only=True) for path in tmp_path.iterdir())


def test_only_rows_that_changed_are_written_and_rows_that_nothing_names_are_removed(tmp_path):
    def row(value: float):
        return {"model": torch.full((1, 1000), value)}

    clients = no_rows({"model": torch.zeros(1000)})
    saved = Checkpoints(Folder(tmp_path), {})
    clients = write_rows(clients, torch.tensor([0, 1, 2]), tree.map(lambda leaf: leaf.repeat(3, 1), row(1.0)))
    saved.save({"clients": clients})
    all_of_them = saved.written_bytes
    clients = write_rows(clients, torch.tensor([1]), row(2.0))
    saved.save({"clients": clients})
    assert saved.written_bytes < all_of_them - 4000
    assert names(tmp_path) == ["checkpoint.pt", "row-0.pt", "row-2.pt", "row-3.pt"]
    again = Checkpoints(Folder(tmp_path), {})
    read = again.load(CPU)["clients"]
    assert [read["rows"][client]["model"][0].item() for client in range(3)] == [1, 2, 1]
    again.save({"clients": write_rows(read, torch.tensor([0]), row(3.0))})
    assert names(tmp_path) == ["checkpoint.pt", "row-0.pt", "row-2.pt", "row-3.pt"], (
        "one of the second, two of the first"
    )


def test_rows_of_another_process_that_is_still_at_work_are_left_alone(tmp_path):
    clients = write_rows(no_rows({"model": torch.zeros(9)}), torch.tensor([4]), {"model": torch.ones(1, 9)})
    (tmp_path / "row-other-9.pt").touch()
    saved = Checkpoints(Folder(tmp_path), {})
    for _ in range(2):
        saved.save({"clients": clients})
        clients = write_rows(clients, torch.tensor([4]), {"model": torch.ones(1, 9)})
    assert (tmp_path / "row-other-9.pt").exists() and len(list(tmp_path.iterdir())) == 3


def test_moon_with_200_clients_writes_the_models_of_its_cohort_only(digits, tmp_path):
    settings = config("moon", clients=200, participation=0.025, partition="iid", rounds=100)
    run, saved = Run(settings, digits), Checkpoints(Folder(tmp_path), {})
    model = tree.num_bytes(run.state["params"])
    for _ in range(4):
        run.step()
        saved.save(run.checkpoint())
    overhead = 3000  # of a file with a handful of tensors, and of a row of metrics
    assert 5 * model < saved.written_bytes < (5 + 2) * (model + overhead)


def test_checkpoints_are_as_far_apart_as_asked_for_and_become_rarer_where_they_take_long(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("bench.simulation.checkpoints.time.monotonic", lambda: now[0])
    saved = Checkpoints(Folder(tmp_path), {}, seconds=60)
    assert not saved.due
    now[0] += 60
    assert saved.due
    write = saved._folder.save

    def slowly(name, content):
        now[0] += 3
        return write(name, content)

    monkeypatch.setattr(saved._folder, "save", slowly)
    saved.save({"state": 1})
    now[0] += 3 / LARGEST_SHARE - 0.01
    assert not saved.due
    now[0] += 0.02
    assert saved.due
    always = Checkpoints(Folder(tmp_path), {}, seconds=0)
    always.save({"state": 1})
    assert always.due


def test_a_checkpoint_that_does_not_belong_to_the_run_is_never_read(tmp_path, monkeypatch):
    Checkpoints(Folder(tmp_path), {"run": "a", "engine": "loop"}).save({"state": 1})
    assert Checkpoints(Folder(tmp_path), {"run": "a", "engine": "loop"}).load(CPU) == {"state": 1}
    with pytest.raises(
        UnusableCheckpoint, match="its checkpoint was written with engine 'loop' instead of 'vectorised'"
    ):
        Checkpoints(Folder(tmp_path), {"run": "a", "engine": "vectorised"}).load(CPU)
    monkeypatch.setattr("bench.simulation.checkpoints.FORMAT", 0)
    with pytest.raises(UnusableCheckpoint, match="written with format 1 instead of 0"):
        Checkpoints(Folder(tmp_path), {"run": "a", "engine": "loop"}).load(CPU)
    assert Checkpoints(Folder(tmp_path / "nothing"), {}).load(CPU) is None


@pytest.mark.parametrize("damaged", ["checkpoint.pt", "row-*.pt"])
def test_a_damaged_checkpoint_is_not_read(tmp_path, damaged):
    clients = write_rows(no_rows({"model": torch.zeros(9)}), torch.tensor([4]), {"model": torch.ones(1, 9)})
    Checkpoints(Folder(tmp_path), {}).save({"clients": clients})
    (path,) = tmp_path.glob(damaged)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(UnusableCheckpoint, match="of its checkpoint, .* is damaged and cannot be read"):
        Checkpoints(Folder(tmp_path), {}).load(CPU)
    path.unlink()
    if damaged != "checkpoint.pt":
        with pytest.raises(UnusableCheckpoint, match="its checkpoint is not complete"):
            Checkpoints(Folder(tmp_path), {}).load(CPU)
    path.write_bytes(whole)
    assert Checkpoints(Folder(tmp_path), {}).load(CPU), "it was left alone"


@pytest.mark.parametrize(
    "error",
    [
        OSError(116, "Stale file handle"),
        TimeoutError(),
        torch.OutOfMemoryError("CUDA"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
    ],
)
def test_a_checkpoint_that_cannot_be_reached_now_is_no_damaged_one(tmp_path, monkeypatch, error):
    Checkpoints(Folder(tmp_path), {}).save({"state": 1})

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("bench.results.artifacts.torch.load", fail)
    with pytest.raises(StoreError if isinstance(error, OSError) else type(error)):
        Checkpoints(Folder(tmp_path), {}).load(CPU)


def test_tensors_of_a_gpu_come_to_the_device_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.serialization.location_tag", lambda storage: "cuda:0")
    Checkpoints(Folder(tmp_path), {}).save({"params": torch.ones(3)})
    monkeypatch.undo()
    assert torch.equal(Checkpoints(Folder(tmp_path), {}).load(CPU)["params"], torch.ones(3))


def test_a_failed_save_elsewhere_leaves_the_checkpoint_before(monkeypatch):
    saved = Checkpoints(Folder("memory://runs/b"), {})
    saved.save({"state": 1})

    def unreachable(*arguments, **options):
        raise RuntimeError("no route to host")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.put_file", unreachable)
    with pytest.raises(StoreError, match="Cannot write to memory://runs/b: no route to host. Finished runs are kept"):
        saved.save({"state": 2})
    assert Checkpoints(Folder("memory://runs/b"), {}).load(CPU) == {"state": 1}


def test_what_torch_cannot_write_is_no_trouble_of_the_disk(tmp_path):
    with pytest.raises(AttributeError, match="pickle"):
        Checkpoints(Folder(tmp_path), {}).save({"state": lambda: None})


def test_a_checkpoint_that_cannot_be_completed_leaves_the_one_before(tmp_path, monkeypatch):
    saved = Checkpoints(Folder(tmp_path), {})
    saved.save({"state": 1})

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bench.results.artifacts.os.replace", full)
    with pytest.raises(StoreError, match=f"Cannot write to {tmp_path}: No space left on device."):
        saved.save({"state": 2})
    assert Checkpoints(Folder(tmp_path), {}).load(CPU) == {"state": 1}


def test_two_colons_are_a_part_of_a_path_and_no_place_of_files_of_others(tmp_path):
    other, own = tmp_path / "other", Folder(tmp_path / "other::2")
    Folder(other).save("weights.pt", {"state": 1})
    (own / "run").save("checkpoint.pt", {"state": 2})
    assert (own.folders(), (own / "run").names(), own.names()) == (["run"], ["checkpoint.pt"], [])
    own.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["other"] and Folder(other).names() == ["weights.pt"]
    with pytest.raises(ValueError, match="memory://a::2 is no place to write to: it has ::, which chains file systems"):
        Folder("memory://a::2")


def test_a_place_that_is_no_local_disk_does_as_well():
    saved = Checkpoints(Folder("memory://runs/a/checkpoint"), {})
    clients = write_rows(no_rows({"model": torch.zeros(9)}), torch.tensor([4]), {"model": torch.ones(1, 9)})
    saved.save({"clients": clients})
    read = Checkpoints(Folder("memory://runs/a/checkpoint"), {}).load(CPU)["clients"]
    assert read["rows"][4]["model"].sum() == 9
    Folder("memory://runs/a").remove()
    assert Checkpoints(Folder("memory://runs/a/checkpoint"), {}).load(CPU) is None


def test_a_run_starts_over_if_states_of_earlier_rounds_are_to_be_kept_too(digits, tmp_path):
    settings = config("fedavg")
    first = Run(settings, digits)
    first.step()
    first.step()
    later = Run(settings, digits, folder=Folder(tmp_path), retention=StateRetention(rounds=(1, 5)))
    with pytest.raises(UnusableCheckpoint, match="its checkpoint is of round 2, but round-0001.pt is to be kept too"):
        later.restore(first.checkpoint())
    Run(settings, digits, folder=Folder(tmp_path), retention=StateRetention(rounds=(5,))).restore(first.checkpoint())


def test_views_do_not_take_along_what_they_are_views_of(tmp_path):
    saved = Checkpoints(Folder(tmp_path), {})
    saved.save({"params": torch.zeros(100_000)[:10]})
    assert saved.written_bytes < 3000


def test_a_state_of_the_round_that_has_just_ended_is_among_those_that_there_are():
    kept = StateRetention(rounds=(1, 5, 9), local_models=(5,))
    assert kept.files(5) == ["round-0001.pt", "round-0005.pt", "local-models-0005.pt"]
