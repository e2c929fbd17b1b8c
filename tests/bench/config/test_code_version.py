"""Which code a checkpoint depends on: that of its run, and no other."""

import os
import shutil
import subprocess
import sys

import pytest

import algorithms
from bench.config.code_version import code_version, definitions_of, files_of, hash_now, versions_of
from bench.config.resolve import resolve
from bench.execution.ray_environment import PACKAGES, ROOT
from bench.results.ids import is_run_id
from tests.support import method_files

DIGITS = {"dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 4, "local_epochs": 1}
OF_EVERY_RUN = {
    *("algorithms/shared/streaming.py", "algorithms/shared/row_files.py"),
    *("datasets/npz_files.py", "datasets/partition_files.py"),
    *(f"bench/simulation/{name}.py" for name in ("build", "callbacks", "data", "cached", "retention")),
    *(
        "bench/simulation/run.py",
        "bench/simulation/stored.py",
        "bench/simulation/task.py",
        "bench/simulation/engines.py",
        "bench/simulation/graphs.py",
        "bench/simulation/client.py",
        "bench/simulation/evaluation.py",
        "bench/simulation/untouched.py",
        "bench/seeding.py",
    ),
    *(
        "bench/simulation/validation_split.py",
        "bench/simulation/local_models.py",
        "bench/determinism.py",
        "bench/participation.py",
        "bench/models/base.py",
    ),
    *("bench/models/pretrained.py", "bench/models/resnet.py"),  # any method may ask its task for such a network
    *(
        "datasets/federation.py",
        *("datasets/partitions/__init__.py", "datasets/partitions/base.py"),
        "datasets/transforms/__init__.py",
        *(f"datasets/transforms/{name}.py" for name in ("base", "fedcat", "fedcollab", "fedconcat", "moon", "none")),
        "datasets/skew.py",
    ),
    *(
        "algorithms/shared/__init__.py",
        *(f"algorithms/shared/{name}.py" for name in ("accounting", "base", "returned", "rounds")),
        "algorithms/shared/local_sgd.py",
        "algorithms/shared/client_states.py",
        "algorithms/shared/tree.py",
        "algorithms/shared/types.py",
    ),
}
SHARED = {"algorithms/shared/checks.py"}
STAGES = {
    *("algorithms/shared/concatenation.py", "algorithms/shared/clustering.py", "algorithms/shared/label_clusters.py"),
    *(f"algorithms/shared/{name}.py" for name in ("groups", "metrics", "models_per_cluster")),
    *("algorithms/shared/label_inference.py", "algorithms/fedavg.py", "algorithms/centralized.py"),
    "algorithms/shared/wrapper.py",
}
CONCATENATED = {f"bench/models/{name}.py" for name in ("concat", "calibrated", "cnn")}
CALIBRATION = {
    *(f"algorithms/shared/{name}.py" for name in ("calibration", "class_gaussians", "wrapper")),
    *("algorithms/fedavg.py", "algorithms/centralized.py"),
}


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"algorithm": "fedavg"}, {"algorithms/fedavg.py"}),
        ({"algorithm": "fedprox"}, SHARED | {"algorithms/fedprox.py"}),
        ({"algorithm": "moon"}, SHARED | {"algorithms/moon.py"}),
        ({"algorithm": "local"}, {"algorithms/local_training.py"}),
        (
            {"algorithm": "fedconcat"},
            SHARED | STAGES | CONCATENATED | {"algorithms/fedconcat.py"},
        ),
        (
            {"algorithm": "ccvr", "base": "moon"},
            SHARED | CALIBRATION | CONCATENATED | {"algorithms/ccvr.py", "algorithms/moon.py"},
        ),
    ],
    ids=lambda value: value.get("algorithm") if isinstance(value, dict) else "",
)
def test_the_code_of_a_run_is_its_method_with_what_that_imports_and_wraps(settings, own):
    files = {str(path.relative_to(ROOT)) for path in files_of(resolve(DIGITS | settings))}
    assert files == OF_EVERY_RUN | own | {"bench/models/mlp.py", "datasets/partitions/label.py"}


def test_the_parts_of_the_code_are_the_engine_the_model_the_partition_and_each_method():
    config = resolve(DIGITS | {"algorithm": "ccvr", "base": "scaffold", "model": "mlp"})
    version = code_version(config)
    assert [*version] == ["engine", "algorithm ccvr", "algorithm scaffold", "model mlp", "partition label"]
    assert len({*version.values()}) == 5 and all(map(is_run_id, version.values()))
    assert version == code_version(config.canonical()), "a stored config has the same parts"
    assert versions_of(config) == dict.fromkeys(version, 1)
    buffers = resolve(DIGITS | {"algorithm": "scaffold", "model": "resnet18", "dataset": "cifar10"})
    assert versions_of(buffers)["algorithm scaffold"] == 2


def test_a_file_of_the_engine_is_in_no_other_part():
    config = resolve(DIGITS | {"algorithm": "fedconcat", "model": "mlp"})
    engine, *methods, model, dealt = ({*definitions_of(part)} for part in versions_of(config))
    assert engine == OF_EVERY_RUN and model == {"bench/models/mlp.py"}
    assert dealt == {"datasets/partitions/label.py"}
    assert "algorithms/fedconcat.py" in methods[0] and not any(engine & method for method in methods)
    assert len(set.union(engine, model, dealt, *methods)) == len(files_of(config))


@pytest.mark.parametrize("part", ["algorithm of-a-lab", "model of-a-lab", "kind of part", "of"])
def test_a_part_that_is_not_there_has_no_hash(part):
    assert hash_now(part) is None


def test_a_part_whose_file_is_gone_or_cannot_be_parsed_has_no_hash(tmp_path, monkeypatch):
    method_files.register(tmp_path, monkeypatch, {"mine_of_a_lab": '@registered("mine")\nclass Mine:\n'})
    assert hash_now("algorithm mine") is None
    (tmp_path / "algorithms" / "mine_of_a_lab.py").unlink()
    assert "mine" in algorithms.REGISTRY and hash_now("algorithm mine") is None


def test_another_model_is_other_code():
    mnist = DIGITS | {"algorithm": "fedavg", "dataset": "mnist"}
    files = [files_of(resolve(mnist | {"model": model})) for model in ("mlp", "simple-cnn")]
    assert {path.name for path in set(files[0]) ^ set(files[1])} == {"mlp.py", "cnn.py"}


SCRIPT = """
import os
import signal
import sys
import bench.execution.job
import bench.execution.worker
from bench.config.resolve import resolve
from bench.simulation.retention import StateRetention
bench.execution.worker.REPORT_SECONDS = 0
settings = {"algorithm": "scaffold", "dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 9, "local_epochs": 1}
job = bench.execution.job.Job("a1", resolve(settings), sys.argv[1], StateRetention(), checkpoint_seconds=0)
worker = bench.execution.worker.Worker(job, None, "cpu")
print(worker.step().note, flush=True)
print(worker.round, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
METHOD = """
from algorithms.fedavg import FedAvg
class Mine(FedAvg):
    '''Another method.'''
"""


@pytest.mark.slow
def test_another_method_leaves_a_checkpoint_usable_and_a_change_of_its_own_method_does_not(tmp_path):
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "algorithms"

    def train_a_round_and_die():
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert told.returncode == -9, told.stderr
        note, trained = told.stdout.splitlines()
        return note, int(trained)

    assert train_a_round_and_die() == ("", 1)
    (methods / "mine.py").write_text(METHOD)
    with (methods / "fedprox.py").open("a") as other, (tmp_path / "bench" / "cli.py").open("a") as command_line:
        other.write("\nCHANGED = True\n")
        command_line.write("\nCHANGED = True\n")
    assert train_a_round_and_die() == ("continues after round 1", 2)
    with (methods / "scaffold.py").open("a") as own:
        own.write("\nCHANGED = True\n")
    note, trained = train_a_round_and_die()
    assert note.startswith("starts over: its checkpoint was written with code of algorithm scaffold '") and trained == 1
