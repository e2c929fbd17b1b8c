"""Disk that runs take: estimates against the files of runs that were finished."""

from types import SimpleNamespace

import pytest
import torch

from algorithms.shared import client_states as rows
from algorithms.shared import row_files, tree
from bench.config.resolve import resolve
from bench.execution import disk
from bench.execution.disk import Footprint, footprint, total
from bench.execution.resources import Machines, Resources
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import Checkpoints
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from tests.support.trained import to_end

DIGITS = {
    "dataset": "digits",
    "partition": "label-2",
    "clients": 20,
    "local_epochs": 1,
    "batch_size": 16,
    "model": "mlp",
}
STAGES = {"num_clusters": 3, "encoder_rounds": 3, "classifier_rounds": 2}


def size(folder) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "moon"},
        {"algorithm": "scaffold", "participation": 0.2},
        {"algorithm": "local", "participation": 0.5},
        {"algorithm": "fesem", "num_clusters": 2},
        {"algorithm": "clusamp", "participation": 0.5},
        {"algorithm": "fedconcat", **STAGES},
        {"algorithm": "fedconcat", "base": "moon", "participation": 0.5, **STAGES},
        {"algorithm": "fedconcat-id", "base": "scaffold", "participation": 0.2, "inference_images": 100, **STAGES},
        {"algorithm": "clsnorm", "base": "moon"},
        {"algorithm": "centralized", "partition": "none", "clients": 1},
    ],
    ids=lambda settings: "-".join(str(settings[key]) for key in ("algorithm", "base") if key in settings),
)
def test_estimates_agree_with_files(digits, tmp_path, settings):
    rounds = {} if "encoder_rounds" in settings else {"rounds": 4}
    config = resolve({**DIGITS, **rounds, **settings})
    locally = (2,) if rounds and "base" not in settings else ()
    largest = {}
    for final in ("all", "deployed"):
        retention = StateRetention(final=final, rounds=(3 if rounds else 2,), local_models=locally)
        run = Run(config, digits, folder=Folder(tmp_path / final), retention=retention)
        checkpoints = Checkpoints(Folder(tmp_path / f"{final}-checkpoint"), {}, 0)
        while not run.finished:
            run.step()
            checkpoints.save(run.checkpoint())
            largest[final] = max(largest.get(final, 0), size(tmp_path / f"{final}-checkpoint"))
        found = footprint(config, retention)
        assert found.kept == pytest.approx(size(tmp_path / final), rel=0.2)
        assert found.checkpoint == pytest.approx(largest[final], rel=0.2)
        assert found.scratch == 0, "so small states are in memory"


@pytest.mark.slow_but_first
@pytest.mark.parametrize("base", ["fedavg", "ditto"])
def test_estimates_are_bounds_where_coalitions_are_found_in_the_run(digits, tmp_path, monkeypatch, base):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    of = {"algorithm": "fedcollab", "base": base, "capacity": 1e-3, "discriminator_rounds": 10, "rounds": 2}
    config, retention = resolve({**DIGITS, **of}), StateRetention(final="all")
    run = Run(config, digits, folder=Folder(tmp_path / "run"), retention=retention)
    checkpoints = Checkpoints(Folder(tmp_path / "checkpoint"), {}, 0)
    while not run.finished:
        run.step()
        checkpoints.save(run.checkpoint())
    found = footprint(config, retention)
    assert size(tmp_path / "run") <= 1.1 * found.kept <= 2 * size(tmp_path / "run"), "nearly all clients are alone"
    assert size(tmp_path / "checkpoint") <= 1.1 * found.checkpoint


@pytest.mark.parametrize("method", ["ccvr", "finetune"])
def test_what_starts_from_another_run_keeps_what_it_deploys(digits, tmp_path, method):
    base, config = (resolve({**DIGITS, "rounds": 2, **of}) for of in ({"algorithm": "moon"}, {"algorithm": method}))
    trained = to_end(Run(base, digits))
    Run(config, digits, folder=Folder(tmp_path), retention=StateRetention()).start_from_base(trained.state)
    found = footprint(config, StateRetention(), is_post_hoc=True)
    assert found.kept == pytest.approx(size(tmp_path), rel=0.2) and found[1:] == (0, 0)
    assert footprint(config, StateRetention(final="none"), is_post_hoc=True) == (0, 0, 0)


def test_large_client_states_are_in_files_while_a_run_is_trained(digits, monkeypatch):
    config = resolve({**DIGITS, "algorithm": "scaffold", "rounds": 3, "participation": 0.5})
    row = 4 * sum(leaf.numel() for leaf in Run(config, digits).state["params"].values())
    disk._sizes.cache_clear()
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    assert footprint(config, StateRetention()).scratch == (18 + 10) * row, (
        "of 20 * (1 - 0.5**3) clients, and of a cohort"
    )
    disk._sizes.cache_clear()


def test_results_of_a_first_round_of_everyone_are_in_files_until_it_ends(digits, monkeypatch):
    config = resolve({**DIGITS, "algorithm": "fedconcat-id", "inference_images": 100, **STAGES})
    disk._sizes.cache_clear()
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)
    made, own = [], rows.own
    monkeypatch.setattr(rows, "own", lambda part: made.append(tree.num_bytes(part)) or own(part))
    Run(config, digits).step()
    assert footprint(config, StateRetention()).scratch == pytest.approx(sum(made), rel=0.01)
    disk._sizes.cache_clear()


def test_states_of_every_size_need_no_memory():
    of = {"algorithm": "scaffold", "dataset": "cifar100", "partition": "dir-0.1", "clients": 200, "rounds": 500}
    large = resolve({**of, "model": "resnet50"})
    found = {final: footprint(large, StateRetention(final=final)).kept for final in ("none", "deployed", "all")}
    assert found["none"] == 0 and found["deployed"] == pytest.approx(2 * 95e6, rel=0.01)
    assert found["all"] == pytest.approx(203 * 95e6, rel=0.01)


def test_sizes_that_are_not_known_before_are_not_guessed(tmp_path):
    config = resolve({**DIGITS, "algorithm": "fedconcat", **STAGES, "num_clusters": "elbow"})
    assert footprint(config, StateRetention()) is None


def test_runs_keep_their_states_together_and_are_played_some_at_once():
    parts = [Footprint(1, 10, 5), Footprint(2, 30, 0), Footprint(4, 20, 7)]
    assert total(parts, 1) == (7, 30, 7) and total(parts, 2) == (7, 50, 12) and total(parts, 9) == (7, 60, 12)


def test_a_run_that_writes_elsewhere_has_its_kept_states_beside_its_checkpoint_until_it_ends(monkeypatch, tmp_path):
    sizes = {"a": Footprint(4_000_000, 1_000_000, 0), "b": Footprint(2_000_000, 1_000_000, 0)}
    monkeypatch.setattr(disk, "footprints", lambda cells, retention: sizes)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    plan, store = SimpleNamespace(todo=[], retention={}), SimpleNamespace(folder=tmp_path)
    of = Machines(Resources(), max_concurrent=1)
    (here,) = disk.shortages(plan, None, of, store)
    (elsewhere,) = disk.shortages(plan, str(tmp_path / "elsewhere"), of, store)
    assert "(kept states 6.0 MB, checkpoints of 1 at once 1.0 MB)" in here
    assert "(kept states 6.0 MB, checkpoints and kept states of 1 at once 5.0 MB)" in elsewhere
    sizes["a"] = Footprint(0, 0, 9_000_000)
    assert any("client states" in line for line in disk.shortages(plan, None, of, store))
    cluster = Machines(Resources(), max_concurrent=1, address="auto")  # whose machines have disks of their own
    assert not any("client states" in line for line in disk.shortages(plan, None, cluster, store))


def test_trials_at_once_are_as_many_as_share_the_machine(monkeypatch):
    monkeypatch.setattr("bench.execution.resources.num_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Machines(Resources()).at_once == 8 and Machines(Resources(cpus=3)).at_once == 2
    assert (
        Machines(Resources(), max_concurrent=5).at_once == 5 and Machines(Resources(), max_concurrent=99).at_once == 8
    )
    assert Machines(Resources(gpus=0.5, device="cuda")).at_once == 4
    assert Machines(Resources(gpus=1, device="cuda", auto=True)).at_once == 8
    assert Machines(Resources(), address="auto").at_once == 1
